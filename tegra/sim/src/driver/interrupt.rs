//! The driver's interrupt handlers: error notifiers, waiters and events.
//!
//! They run on the GPU's thread concurrently with ioctls. Their locks are held for a few stores
//! only, and never while the GPU is called.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, RwLock};

use super::census::Counted;
use super::fd::FileId;
use crate::finding::Fault;
use crate::finding::SmFault;
use crate::gpu::{Events, TsgId};
use crate::memory::{DmaBuf, MemoryError};

/// Event id of `EVENT_ID_CTRL` that non-stalling interrupts post.
pub(super) const BLOCKING_SYNC: u32 = 2;

/// Error notifier code of FORCE_RESET.
pub(super) const RESET: u32 = 43;

/// Bytes of `nvgpu_notification`.
pub(super) const NOTIFICATION_BYTES: u64 = 16;

/// Memory to which a channel's errors are written.
#[derive(Clone, Debug)]
pub(super) struct Notifier {
    pub(super) buffer: Arc<DmaBuf>,
    pub(super) offset: u64,
}

impl Notifier {
    /// Writes time and code, then the status that makes them valid. Source:
    /// os/linux/linux-channel.c:nvgpu_set_err_notifier_locked.
    fn write(&self, code: u32) -> Result<(), MemoryError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.buffer.write(self.offset, &(now as u64).to_le_bytes())?;
        self.buffer.write(self.offset + 8, &code.to_le_bytes())?;
        std::sync::atomic::fence(Ordering::Release);
        self.buffer.write(self.offset + 14, &u16::MAX.to_le_bytes())
    }
}

/// State of a channel that interrupts access.
#[derive(Debug)]
pub(super) struct Service {
    unserviceable: AtomicBool,
    notifier: Mutex<Option<Notifier>>,
    wakes: Mutex<u64>,
    woken: Condvar,
}

impl Service {
    /// Creates the state of a new channel, which is unserviceable until it is bound to a TSG.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            unserviceable: AtomicBool::new(true),
            notifier: Mutex::default(),
            wakes: Mutex::default(),
            woken: Condvar::new(),
        })
    }

    pub(super) fn unserviceable(&self) -> bool {
        self.unserviceable.load(Ordering::Acquire)
    }

    pub(super) fn set_unserviceable(&self, value: bool) {
        self.unserviceable.store(value, Ordering::Release);
    }

    pub(super) fn set_notifier(&self, notifier: Option<Notifier>) {
        *self.notifier.lock() = notifier;
    }

    fn notify(&self, code: u32) {
        if let Some(notifier) = &*self.notifier.lock() {
            // Fails if the program has unmapped lent pages; there is nothing to write to then.
            let _ = notifier.write(code);
        }
    }

    fn wake(&self) {
        *self.wakes.lock() += 1;
        self.woken.notify_all();
    }

    /// Waits until `ready` returns true. Evaluates it at once, after each wake-up and at the
    /// timeout; no `limit` means no timeout. Returns its last value.
    pub(super) fn wait(&self, limit: Option<Duration>, mut ready: impl FnMut() -> bool) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut seen = *self.wakes.lock();
        loop {
            if ready() {
                return true;
            }
            let mut wakes = self.wakes.lock();
            while *wakes == seen {
                let Some(deadline) = deadline else {
                    self.woken.wait(&mut wakes);
                    continue;
                };
                if self.woken.wait_until(&mut wakes, deadline).timed_out() && *wakes == seen {
                    drop(wakes);
                    return ready();
                }
            }
            seen = *wakes;
        }
    }
}

/// Error state that an SM recorded when it stopped a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SmError {
    pub(super) global_esr: u32,
    pub(super) warp_esr: u32,
    pub(super) warp_pc: u64,
}

/// An fd of `EVENT_ID_CTRL`.
#[derive(Debug)]
struct EventFd {
    file: FileId,
    event: u32,
    eventfd: OwnedFd,
    _counted: Counted,
}

impl EventFd {
    /// Latches the event: the fd stays readable until a poll consumes it.
    fn post(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes, as an eventfd expects. The fd does not block; if its
        // counter is full, it is readable already.
        unsafe {
            libc::syscall(libc::SYS_write, self.eventfd.as_raw_fd(), one.as_ptr(), one.len());
        }
    }
}

/// State of a TSG that interrupts access.
#[derive(Debug, Default)]
pub(super) struct Members {
    channels: Mutex<Vec<(u16, Arc<Service>)>>,
    events: Mutex<Vec<EventFd>>,
    sm_errors: Mutex<HashMap<u32, SmError>>,
}

impl Members {
    pub(super) fn add(&self, id: u16, service: &Arc<Service>) {
        self.channels.lock().push((id, Arc::clone(service)));
    }

    pub(super) fn remove(&self, id: u16) {
        self.channels.lock().retain(|(other, _)| *other != id);
    }

    pub(super) fn len(&self) -> usize {
        self.channels.lock().len()
    }

    pub(super) fn ids(&self) -> Vec<u16> {
        self.channels.lock().iter().map(|(id, _)| *id).collect()
    }

    pub(super) fn add_event(&self, file: FileId, event: u32, eventfd: OwnedFd, count: Counted) {
        self.events.lock().push(EventFd { file, event, eventfd, _counted: count });
    }

    pub(super) fn remove_event(&self, file: FileId) {
        self.events.lock().retain(|event| event.file != file);
    }

    pub(super) fn sm_error(&self, sm: u32) -> SmError {
        self.sm_errors.lock().get(&sm).copied().unwrap_or_default()
    }

    /// Writes every notifier, marks every channel unserviceable and wakes every waiter. Source:
    /// common/fifo/tsg.c: nvgpu_tsg_set_error_notifier, nvgpu_tsg_mark_error.
    pub(super) fn fail(&self, code: u32) {
        let channels = self.channels.lock();
        channels.iter().for_each(|(_, service)| service.notify(code));
        for (_, service) in &*channels {
            service.set_unserviceable(true);
            service.wake();
        }
    }

    fn post(&self, event: u32) {
        self.events.lock().iter().filter(|fd| fd.event == event).for_each(EventFd::post);
    }
}

/// A channel with a ring, and the waiters and TSG that its interrupts reach.
#[derive(Debug)]
struct Bound {
    service: Arc<Service>,
    members: Arc<Members>,
}

/// Interrupt handlers that the GPU calls.
#[derive(Debug, Default)]
pub(super) struct Interrupts {
    tsgs: RwLock<HashMap<TsgId, Arc<Members>>>,
    bound: RwLock<HashMap<u16, Bound>>,
}

impl Interrupts {
    pub(super) fn add_tsg(&self, id: TsgId, members: &Arc<Members>) {
        self.tsgs.write().insert(id, Arc::clone(members));
    }

    pub(super) fn remove_tsg(&self, id: TsgId) {
        self.tsgs.write().remove(&id);
    }

    pub(super) fn bind(&self, channel: u16, service: &Arc<Service>, members: &Arc<Members>) {
        let bound = Bound { service: Arc::clone(service), members: Arc::clone(members) };
        self.bound.write().insert(channel, bound);
    }

    pub(super) fn unbind(&self, channel: u16) {
        self.bound.write().remove(&channel);
    }
}

impl Events for Interrupts {
    fn channel_error(&self, tsg: TsgId, code: u32, detail: &Fault) {
        let members = self.tsgs.read().get(&tsg).cloned();
        // The ioctl that requested the reset has notified all members already.
        let Some(members) = members.filter(|_| code != RESET) else { return };
        if let Some((sm, error)) = sm_error(detail) {
            members.sm_errors.lock().insert(sm, error);
        }
        members.fail(code);
    }

    /// Source: common/fifo/channel.c:nvgpu_channel_semaphore_wakeup.
    fn non_stall_interrupt(&self) {
        for bound in self.bound.read().values() {
            bound.service.wake();
            bound.members.post(BLOCKING_SYNC);
        }
    }
}

/// Returns the SM and its error state, if an SM raised the fault.
fn sm_error(detail: &Fault) -> Option<(u32, SmError)> {
    match detail.sm {
        Some(SmFault::Exception { sm, global_esr, warp_esr, warp_pc, .. }) => {
            Some((sm, SmError { global_esr, warp_esr, warp_pc }))
        }
        Some(SmFault::Mmu(_)) | None => None,
    }
}
