//! A channel fd: a hardware queue, and its states from open to running. Magic `H`.
//!
//! The program binds an address space, then a TSG; SETUP_BIND then creates the ring and makes the
//! channel runnable. Calls on one channel are serialised, except WAIT.

mod queue;
pub(super) mod setup;
pub(super) mod wait;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::abi::channel::*;
use super::address_space::AddressSpace;
use super::census::Counted;
use super::device::{Device, SYNCPOINT_BYTES};
use super::dispatch::{Args, Done, Handled, Rules, UNKNOWN};
use super::errno::Answer;
use super::errno::{Refused, refusals};
use super::interrupt::{NOTIFICATION_BYTES, Notifier, RESET, Service};
use super::tsg::{BOUND, Member, Preemption, Tsg};
use crate::gpu::SWITCH_LIMIT_MS;
use queue::Queue;

refusals! { "channel";
    WDT_LOCKED = "WDT", EINVAL, "anything but off, on a deterministic channel",
        "os/linux/ioctl_channel.c:gk20a_channel_set_wdt_status";
    WDT_STATUS = "WDT", EINVAL, "neither on nor off, or both",
        "os/linux/ioctl_channel.c:gk20a_channel_set_wdt_status";
    NOTIFIER = "SET_ERROR_NOTIFIER", EINVAL,
        "mem is 0 or no dma-buf, or offset and 16 bytes lie beyond it",
        "os/linux/ioctl_channel.c:gk20a_init_error_notifier";
    NOTIFIER_PAGES = "SET_ERROR_NOTIFIER", ENOMEM, "the handle has no pages yet",
        "os/linux/ioctl_channel.c:gk20a_init_error_notifier";
    CLASS = "ALLOC_OBJ_CTX", EINVAL, "no address space, or an unknown class",
        "common/gr/gr_setup.c:nvgpu_gr_setup_validate_channel_and_class";
    CLASS_NO_TSG = "ALLOC_OBJ_CTX", EINVAL, "the channel is in no TSG",
        "common/gr/gr_setup.c:nvgpu_gr_setup_alloc_obj_ctx";
    CLASS_VEID = "ALLOC_OBJ_CTX", EINVAL, "a graphics class outside subcontext 0",
        "common/fifo/tsg.c:nvgpu_tsg_validate_class_veid_pbdma";
    NO_CLASS = "SET_PREEMPTION_MODE", EINVAL, "no object yet, or no TSG",
        "common/gr/gr_setup.c:nvgpu_gr_setup_set_preemption_mode";
    MODE = "SET_PREEMPTION_MODE", EINVAL,
        "an unknown mode, a lower one than now, GFXP with CILP, or a class without modes",
        "common/gr/ctx.c:nvgpu_gr_ctx_check_valid_preemption_mode";
    BOOST = "SET_BOOSTED_CTX", EINVAL, "not supported",
        "os/linux/ioctl_channel.c:gk20a_channel_ioctl";
    ZCULL = "ZCULL_BIND", EINVAL, "graphics is not simulated", "not the driver's answer";
    SYNCPOINT = "GET_USER_SYNCPOINT", ENOMEM, "no syncpoint or no address is free",
        "os/linux/ioctl_channel.c:nvgpu_ioctl_channel_get_user_syncpoint";
    NO_SPACE = "GET_USER_SYNCPOINT", EINVAL, "no address space (the driver crashes)",
        "hal/sync/syncpt_cmdbuf_gv11b_fusa.c:gv11b_syncpt_alloc_buf";
    NICE = "RESCHEDULE_RUNLIST", EPERM, "without CAP_SYS_NICE",
        "os/linux/ioctl_channel.c:gk20a_channel_ioctl";
    PREEMPT_TSG = "PREEMPT", EINVAL, "the channel is in no TSG",
        "common/fifo/channel.c:nvgpu_channel_disable_tsg";
    CLOSING = "any", ETIMEDOUT, "the channel is being closed",
        "os/linux/ioctl_channel.c:gk20a_channel_ioctl";
}

const RULES: Rules = Rules::of(REQUESTS);

/// Initial value of a syncpoint, as observed on hardware.
const SYNCPOINT_VALUE: u32 = 30_000;
/// Nanoseconds that the first compute object of a process takes, as observed on hardware.
const GOLDEN_CONTEXT_NS: u64 = 1_010_000_000;

const COMPUTE: u32 = 0xc7c0;
/// Classes of compute objects since Volta. Source: hal/class of r36.4.3.
const COMPUTE_CLASSES: [u32; 3] = [COMPUTE, 0xc5c0, 0xc3c0];
/// Classes of graphics objects since Maxwell.
const GRAPHICS_CLASSES: [u32; 5] = [0xc797, 0xc597, 0xc397, 0xc097, 0xb197];
/// Other classes that the driver accepts: copies, channels, 2D, inline-to-memory, partitions,
/// encoder, old compute.
const OTHER_CLASSES: [u32; 16] = [
    0xc637, 0xc7b5, 0xc76f, 0xc46f, 0xc5b5, 0xc4b7, 0xc3b5, 0xc36f, 0xc0b5, 0xc06f, 0xc0c0, 0xa0b5,
    0xa140, 0xb0b5, 0xb06f, 0xb1c0,
];
const TWO_D: u32 = 0x902d;

/// A syncpoint that the program manages.
#[derive(Clone, Copy, Debug)]
struct Syncpoint {
    id: u32,
    va: u64,
}

#[derive(Default)]
struct State {
    space: Option<Arc<AddressSpace>>,
    tsg: Option<Arc<Tsg>>,
    veid: u32,
    watchdog: bool,
    queue: Option<Queue>,
    deterministic: bool,
    class: u32,
    syncpoint: Option<Syncpoint>,
    /// Milliseconds that context switches may wait for the channel.
    switch_limit_ms: u32,
    closed: bool,
}

pub(super) struct Channel {
    device: Arc<Device>,
    id: u16,
    runlist: u32,
    service: Arc<Service>,
    state: Mutex<State>,
    _counted: Counted,
}

impl Channel {
    /// Opens a channel of a runlist; none if all are in use.
    pub(super) fn new(device: &Arc<Device>, runlist: u32) -> Option<Arc<Self>> {
        let id = device.take_channel_id()?;
        Some(Arc::new(Self {
            device: Arc::clone(device),
            id,
            runlist,
            service: Service::new(),
            state: Mutex::new(State {
                watchdog: true,
                switch_limit_ms: SWITCH_LIMIT_MS,
                ..State::default()
            }),
            _counted: device.census.channels.one(),
        }))
    }

    /// Channel number; 511 is the first.
    pub(super) fn id(&self) -> u16 {
        self.id
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Binds an address space; false if one is bound already.
    pub(super) fn bind_address_space(&self, space: &Arc<AddressSpace>) -> bool {
        let mut state = self.state();
        let free = state.space.is_none() && !state.closed;
        if free {
            state.space = Some(Arc::clone(space));
        }
        free
    }

    /// Binds the channel to a TSG; without a subcontext, to the last one given.
    pub(super) fn bind_tsg(&self, tsg: &Arc<Tsg>, veid: Option<u32>) -> Result<(), Refused> {
        let mut state = self.state();
        if state.closed {
            return Err(&BOUND);
        }
        // The driver stores the subcontext even if later checks fail. This is not modelled for
        // bound channels, whose subcontext would change.
        let bound = state.tsg.is_some();
        let veid = veid.unwrap_or(state.veid);
        if !bound {
            state.veid = veid;
        }
        let member = Member { id: self.id, runlist: self.runlist, service: &self.service };
        tsg.admit(member, veid, state.space.as_ref().map(|space| space.id()), bound)?;
        state.tsg = Some(Arc::clone(tsg));
        Ok(())
    }

    /// Unbinds the channel from a TSG; false if it is in another one. It cannot be used afterwards.
    pub(super) fn unbind_tsg(&self, tsg: &Arc<Tsg>) -> bool {
        let mut state = self.state();
        if !state.tsg.as_ref().is_some_and(|own| Arc::ptr_eq(own, tsg)) {
            return false;
        }
        self.leave(&mut state, false);
        true
    }

    /// Removes the channel from the TSG and the GPU.
    fn leave(&self, state: &mut State, closing: bool) {
        if let Some(queue) = &mut state.queue {
            queue.stop(&self.device, self.id);
        }
        self.device.interrupts.unbind(self.id);
        if let Some(tsg) = state.tsg.take() {
            tsg.dismiss(self.id, state.veid, closing);
        }
        self.service.set_unserviceable(true);
    }

    /// Closes the channel when the last reference to its fd is dropped. Source:
    /// common/fifo/channel.c:channel_free.
    pub(super) fn close(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        self.leave(&mut state, true);
        self.service.set_notifier(None);
        let (queue, syncpoint) = (state.queue.take(), state.syncpoint.take());
        if let Some(space) = state.space.take() {
            if let Some(queue) = queue {
                queue.unmap(&space);
            }
            if let Some(syncpoint) = syncpoint {
                space.unmap_kernel(syncpoint.va, SYNCPOINT_BYTES);
                self.device.give_syncpoint(syncpoint.id);
            }
        }
        drop(state);
        self.device.give_channel_id(self.id);
    }

    /// Returns whether SETUP_BIND made the channel deterministic.
    pub(super) fn deterministic(&self) -> bool {
        self.state().deterministic
    }

    /// Executes one request; `open` opens another channel and returns its fd.
    pub(super) fn ioctl(
        &self,
        request: u32,
        arg: u64,
        open: impl FnOnce() -> Result<i32, Refused>,
    ) -> Answer {
        RULES.dispatch(request, arg, |args| {
            if self.state().closed {
                return Err(&CLOSING);
            }
            match request {
                OPEN => args.set(OPEN::CHANNEL_FD, open()?),
                WAIT => return self.wait(args),
                // The driver ignores the fd.
                SET_NVMAP_FD => {}
                SET_TIMEOUT => self.set_switch_limit(args.get(SET_TIMEOUT::TIMEOUT)),
                SET_TIMEOUT_EX => self.set_switch_limit(args.get(SET_TIMEOUT_EX::TIMEOUT)),
                GET_TIMEDOUT => {
                    args.set(GET_TIMEDOUT::VALUE, u32::from(self.service.unserviceable()));
                }
                SUBMIT_GPFIFO => return self.submit(args),
                ALLOC_OBJ_CTX => return self.alloc_object(args),
                ZCULL_BIND => return Err(&ZCULL),
                SET_ERROR_NOTIFIER => return self.set_notifier(args),
                ENABLE => self.device.gpu.enable(self.id),
                DISABLE => self.device.gpu.disable(self.id),
                PREEMPT => {
                    let tsg = self.state().tsg.clone().ok_or(&PREEMPT_TSG)?;
                    self.device.gpu.preempt(tsg.gpu());
                }
                FORCE_RESET => self.force_reset(),
                WDT => return self.set_watchdog(args),
                SET_PREEMPTION_MODE => return self.set_preemption(args),
                ALLOC_GPFIFO_EX => return self.alloc_gpfifo(args),
                SET_BOOSTED_CTX => return Err(&BOOST),
                GET_USER_SYNCPOINT => return self.user_syncpoint(args),
                RESCHEDULE_RUNLIST => return Err(&NICE),
                SETUP_BIND => return self.setup_bind(args),
                _ => return Err(&UNKNOWN),
            }
            Ok(Done::Ok)
        })
    }

    /// Source: os/linux/ioctl_channel.c:gk20a_channel_ioctl.
    fn set_switch_limit(&self, ms: u32) {
        self.state().switch_limit_ms = ms;
        self.device.gpu.set_switch_limit(self.id, ms);
    }

    /// Source: os/linux/ioctl_channel.c:gk20a_channel_set_wdt_status.
    fn set_watchdog(&self, args: &Args) -> Handled {
        const OFF: u32 = 1;
        const ON: u32 = 2;
        let mut state = self.state();
        let status = args.get(WDT::WDT_STATUS) & (OFF | ON);
        if state.deterministic && status != OFF {
            return Err(&WDT_LOCKED);
        }
        state.watchdog = match status {
            OFF => false,
            ON => true,
            _ => return Err(&WDT_STATUS),
        };
        Ok(Done::Ok)
    }

    /// Replaces the notifier; the previous one is dropped even if the new one is invalid. Source:
    /// os/linux/ioctl_channel.c:gk20a_init_error_notifier.
    fn set_notifier(&self, args: &Args) -> Handled {
        let (offset, mem) =
            (args.get(SET_ERROR_NOTIFIER::OFFSET), args.get(SET_ERROR_NOTIFIER::MEM));
        let _calls = self.state();
        if mem == 0 {
            return Err(&NOTIFIER);
        }
        self.service.set_notifier(None);
        let buffer = self.device.dma_buf(mem).map_err(|_| &NOTIFIER)?;
        if offset.checked_add(NOTIFICATION_BYTES).is_none_or(|end| end > buffer.bytes()) {
            return Err(&NOTIFIER);
        }
        if buffer.pages().is_none() {
            return Err(&NOTIFIER_PAGES);
        }
        let zeroed = buffer.write(offset, &[0; NOTIFICATION_BYTES as usize]);
        zeroed.map_err(|_| &NOTIFIER_PAGES)?;
        self.service.set_notifier(Some(Notifier { buffer, offset }));
        Ok(Done::Ok)
    }

    /// Allocates an object context. `obj_id` stays unchanged. Source:
    /// common/gr/gr_setup.c:nvgpu_gr_setup_alloc_obj_ctx.
    fn alloc_object(&self, args: &Args) -> Handled {
        const GFXP: u32 = 1 << 1;
        const CILP: u32 = 1 << 2;
        let (class, flags) = (args.get(ALLOC_OBJ_CTX::CLASS_NUM), args.get(ALLOC_OBJ_CTX::FLAGS));
        let mut state = self.state();
        let (compute, graphics) =
            (COMPUTE_CLASSES.contains(&class), GRAPHICS_CLASSES.contains(&class));
        let known = compute || graphics || OTHER_CLASSES.contains(&class) || class == TWO_D;
        if state.space.is_none() || !known {
            return Err(&CLASS);
        }
        state.class = class;
        let tsg = state.tsg.as_ref().ok_or(&CLASS_NO_TSG)?;
        if graphics && state.veid != 0 {
            return Err(&CLASS_VEID);
        }
        let now = tsg.preemption();
        tsg.set_preemption(Preemption {
            graphics: if flags & GFXP != 0 { 2 } else { now.graphics.max(1) },
            compute: if flags & CILP != 0 { 4 } else { now.compute.max(1) },
        });
        if compute && !self.device.golden_context.swap(true, std::sync::atomic::Ordering::AcqRel) {
            let golden = self.device.hardware.golden_ns.unwrap_or(GOLDEN_CONTEXT_NS);
            self.device.gpu.advance_ns(golden);
        }
        self.device.gpu.alloc_object(self.id, class);
        Ok(Done::Ok)
    }

    /// Source: common/gr/gr_setup.c:nvgpu_gr_setup_set_preemption_mode.
    fn set_preemption(&self, args: &Args) -> Handled {
        const GFXP: u32 = 2;
        const CILP: u32 = 4;
        let state = self.state();
        let tsg = state.tsg.as_ref().filter(|_| state.class != 0).ok_or(&NO_CLASS)?;
        let now = tsg.preemption();
        // A mode that is already set is ignored.
        let graphics = Some(args.get(SET_PREEMPTION_MODE::GRAPHICS_PREEMPT_MODE))
            .filter(|mode| *mode != 0 && *mode != now.graphics);
        let compute = Some(args.get(SET_PREEMPTION_MODE::COMPUTE_PREEMPT_MODE))
            .filter(|mode| *mode != 0 && *mode != now.compute);
        if graphics.is_none() && compute.is_none() {
            return Ok(Done::Ok);
        }
        let bad = |mode: Option<u32>, supported, now| {
            mode.is_some_and(|mode| mode & supported == 0 || mode < now)
        };
        let has_modes =
            COMPUTE_CLASSES.contains(&state.class) || GRAPHICS_CLASSES.contains(&state.class);
        if bad(graphics, 3, now.graphics)
            || bad(compute, 7, now.compute)
            || (graphics, compute) == (Some(GFXP), Some(CILP))
            || !has_modes
        {
            return Err(&MODE);
        }
        tsg.set_preemption(Preemption {
            graphics: graphics.unwrap_or(now.graphics),
            compute: compute.unwrap_or(now.compute),
        });
        Ok(Done::Ok)
    }

    /// Source: common/fifo/tsg.c:nvgpu_tsg_force_reset_ch.
    fn force_reset(&self) {
        let tsg = self.state().tsg.clone();
        if let Some(tsg) = tsg {
            self.device.gpu.force_reset(tsg.gpu());
            tsg.members().fail(RESET);
        }
    }

    /// Source: os/linux/ioctl_channel.c:nvgpu_ioctl_channel_get_user_syncpoint.
    fn user_syncpoint(&self, args: &mut Args) -> Handled {
        let mut state = self.state();
        let syncpoint = match state.syncpoint {
            Some(syncpoint) => syncpoint,
            None => {
                let space = state.space.as_ref().ok_or(&NO_SPACE)?;
                let id = self.device.take_syncpoint().ok_or(&SYNCPOINT)?;
                let Some(va) = space.map_syncpoint(id) else {
                    self.device.give_syncpoint(id);
                    return Err(&SYNCPOINT);
                };
                *state.syncpoint.insert(Syncpoint { id, va })
            }
        };
        args.set(GET_USER_SYNCPOINT::GPU_VA, syncpoint.va);
        args.set(GET_USER_SYNCPOINT::SYNCPOINT_ID, syncpoint.id);
        args.set(GET_USER_SYNCPOINT::SYNCPOINT_MAX, SYNCPOINT_VALUE);
        Ok(Done::Ok)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}
