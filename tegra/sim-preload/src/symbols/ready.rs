//! Readiness of events, for `poll`, `select` and `epoll`.
//!
//! nvgpu's poll of an event returns `POLLIN | POLLPRI` once per posted event and then clears it
//! (os/linux/ioctl_tsg.c:gk20a_event_id_poll). The simulator's events are eventfds, so a read after
//! a poll that reported the event clears the latch; of several waiters one gets it.

use std::os::fd::RawFd;
use std::ptr;
use std::time::{Duration, Instant};

use libc::timespec;

use crate::files::{Known, marks};
use crate::real::system_call;
use crate::world::{self, World};

/// Bits that an event may report.
pub(super) const EVENT_BITS: i16 = libc::POLLIN | libc::POLLPRI;

/// Returns `true` if `fd` is an event of the simulator.
pub(super) fn is_event(fd: RawFd) -> bool {
    marks::is_set(fd) && world::with(|world| is_event_of(world, fd)).unwrap_or(false)
}

/// Like [`is_event`], with the world at hand.
pub(super) fn is_event_of(world: &World, fd: RawFd) -> bool {
    matches!(world.files.find(fd), Some(Known::Event(_)))
}

/// Clears the latch of an event; `false` when another waiter cleared it first.
pub(super) fn consume(fd: RawFd) -> bool {
    let mut count = 0_u64;
    // SAFETY: the buffer has the eight bytes that an eventfd writes. The read does not block,
    // because events are non-blocking in the program.
    8 == unsafe { system_call(libc::SYS_read, [fd as usize, &raw mut count as usize, 8, 0]) }
}

/// Remaining time of a wait, in the GPU's time: work that takes microseconds on silicon takes as
/// long as the host needs, and a wait does not time out before that work is done.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    end: Option<Instant>,
    /// The wait times out as soon as no time is left.
    rested: bool,
}

impl Deadline {
    /// Starts from a timeout; `None` waits forever. A wait begins, so the GPU delays no doorbell.
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        world::with(|world| world.orin.gpu().hurry());
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // A call without a wait only polls.
        Self { end, rested: timeout.is_some_and(|timeout| timeout.is_zero()) }
    }

    /// Starts from milliseconds; a negative number waits forever.
    pub(super) fn after_ms(timeout: i32) -> Self {
        Self::after(u64::try_from(timeout).ok().map(Duration::from_millis))
    }

    /// Remaining time; `None` waits forever.
    pub(super) fn left(self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Returns `true` when no time is left. The first time that happens, the GPU finishes its work,
    /// and the caller must poll once more.
    pub(super) fn is_over(&mut self) -> bool {
        let over = self.left().is_some_and(|left| left.is_zero());
        if over && !self.rested {
            self.rested = true;
            world::with(|world| world.orin.gpu().drain());
            return false;
        }
        over
    }

    /// Remaining milliseconds, rounded up; -1 waits forever.
    pub(super) fn left_ms(self) -> i32 {
        self.left().map_or(-1, |left| {
            i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        })
    }
}

/// A C timeout as a duration; `None` for null.
///
/// # Safety
/// `timeout` is null or valid.
pub(super) unsafe fn duration(timeout: *const timespec) -> Option<Duration> {
    // SAFETY: the caller guarantees it.
    let timeout = unsafe { timeout.as_ref() }?;
    let nanoseconds = u32::try_from(timeout.tv_nsec).unwrap_or(0);
    Some(Duration::new(u64::try_from(timeout.tv_sec).unwrap_or(0), nanoseconds))
}

/// A duration as a C timeout.
pub(super) fn c_timeout(left: Option<Duration>) -> Option<timespec> {
    left.map(|left| timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: i64::from(left.subsec_nanos()),
    })
}

/// The address of a timeout, or null.
pub(super) fn address(timeout: Option<&timespec>) -> *const timespec {
    timeout.map_or(ptr::null(), ptr::from_ref)
}
