//! A TSG fd: channels that are scheduled, preempted and torn down together. Magic `T`.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::abi::tsg::*;
use super::address_space::AddressSpace;
use super::census::Counted;
use super::device::Device;
use super::dispatch::{Args, Done, Handled, Rules, UNKNOWN, copy_out, layout};
use super::errno::Answer;
use super::errno::{Refused, refusals};
use super::fd::{FileId, NewFile};
use super::interrupt::{Members, Service};
use crate::gpu::{self, TIMESLICE_US, TsgId};

refusals! { "tsg";
    BAD_CHANNEL = "BIND_CHANNEL", EINVAL, "the fd is no channel",
        "os/linux/ioctl_tsg.c:nvgpu_tsg_bind_channel_fd";
    BAD_VEID = "BIND_CHANNEL_EX", EINVAL, "subcontext_id is 64 or above",
        "os/linux/ioctl_tsg.c:gk20a_tsg_ioctl_bind_channel_ex";
    SYNC_TAKEN = "BIND_CHANNEL", ENOSPC, "subcontext 0 exists without an address space",
        "common/fifo/tsg.c:nvgpu_tsg_create_sync_subcontext_internal";
    OTHER_SPACE = "BIND_CHANNEL", EINVAL,
        "the channel's address space is not the subcontext's, or either has none",
        "common/fifo/tsg.c:nvgpu_tsg_validate_ch_subctx_vm";
    BOUND = "BIND_CHANNEL", EINVAL, "the channel is in a TSG already",
        "common/fifo/tsg.c:nvgpu_tsg_bind_channel";
    FULL = "BIND_CHANNEL", EINVAL, "the TSG has 128 channels",
        "common/fifo/tsg.c:nvgpu_tsg_bind_channel";
    OTHER_RUNLIST = "BIND_CHANNEL", EINVAL, "the channel is of another runlist",
        "common/fifo/tsg.c:nvgpu_tsg_bind_channel";
    NOT_MEMBER = "UNBIND_CHANNEL", EINVAL, "the fd is no channel of this TSG",
        "os/linux/ioctl_tsg.c:nvgpu_tsg_unbind_channel_fd";
    EVENT = "EVENT_ID_CTRL", EINVAL, "event_id is 6 or above, or cmd is not 1",
        "os/linux/ioctl_tsg.c:gk20a_tsg_event_id_ctrl";
    NO_FD = "EVENT_ID_CTRL", EMFILE, "the fd table is full",
        "os/linux/ioctl_tsg.c:gk20a_tsg_event_id_enable";
    NO_EVENT = "EVENT_ID_CTRL", ENOMEM, "no memory for the event",
        "os/linux/ioctl_tsg.c:gk20a_tsg_event_id_enable";
    LEVEL = "SET_RUNLIST_INTERLEAVE", EINVAL, "level is above 2",
        "common/fifo/tsg.c:nvgpu_tsg_set_interleave";
    TIMESLICE = "SET_TIMESLICE", EINVAL, "outside 1000 to 50000 us",
        "common/fifo/tsg.c:nvgpu_tsg_set_timeslice";
    NO_SM = "READ_SINGLE_SM_ERROR_STATE", EINVAL, "no such SM",
        "common/fifo/tsg.c:nvgpu_tsg_get_sm_error_state";
    WAYS = "SET_L2_MAX_WAYS_EVICT_LAST", EINVAL, "more than 16 ways",
        "hal/ltc/ltc_ga10b.c:ga10b_set_l2_max_ways_evict_last";
    PROMOTION = "SET_L2_SECTOR_PROMOTION", EINVAL, "the flag is not 1, 2 or 4",
        "os/linux/ioctl_tsg.c:nvgpu_gpu_ioctl_set_l2_sector_promotion";
    RESERVED = "BIND_SCHEDULING_DOMAIN", EINVAL, "a reserved field is not 0",
        "os/linux/ioctl_tsg.c:nvgpu_tsg_bind_scheduling_domain";
    NO_DOMAIN = "BIND_SCHEDULING_DOMAIN", ENOENT, "the fd is no scheduling domain",
        "os/linux/ioctl_tsg.c:nvgpu_tsg_bind_scheduling_domain";
    SUBCONTEXT = "CREATE_SUBCONTEXT", EINVAL, "type is above 1, or as_fd is no address space",
        "os/linux/ioctl_tsg.c:nvgpu_tsg_ioctl_create_subcontext";
    NO_VEID = "CREATE_SUBCONTEXT", ENOSPC, "no id of the type is free",
        "common/fifo/tsg.c:nvgpu_tsg_create_subcontext";
    DELETE = "DELETE_SUBCONTEXT", EINVAL, "veid is 64 or above, or channels are bound to it",
        "common/fifo/tsg.c:nvgpu_tsg_user_delete_subcontext";
    TOKEN = "GET_SHARE_TOKEN, REVOKE_SHARE_TOKEN", EINVAL,
        "an instance id or token of 0 or of another device; sharing is not simulated",
        "os/linux/ioctl_tsg.c:nvgpu_tsg_ioctl_get_share_token";
}

layout! { SM_ERROR_STATE_RECORD, 24 {
    0 => GLOBAL_ESR: u32, 4 => WARP_ESR: u32, 8 => WARP_ESR_PC: u64,
} }

const RULES: Rules = Rules::of(REQUESTS);

/// Largest number of subcontexts of a TSG.
pub(super) const SUBCONTEXTS: u32 = 64;
/// Largest number of channels of a TSG. Source: hal/fifo/runlist_fifo_gv11b.
const CHANNELS: usize = 128;

const SYNC: u32 = 0;
const ASYNC: u32 = 1;

/// Preemption modes of a graphics context, numbered as in the ioctls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Preemption {
    pub(super) graphics: u32,
    pub(super) compute: u32,
}

#[derive(Debug)]
struct State {
    /// Subcontext 0 is in use.
    sync: bool,
    /// Mask of used subcontexts 1 to 63; bit 0 is subcontext 1.
    asynchronous: u64,
    /// Address space of each subcontext.
    spaces: [Option<u64>; SUBCONTEXTS as usize],
    /// Number of bound channels of each subcontext.
    bound: [u32; SUBCONTEXTS as usize],
    runlist: Option<u32>,
    timeslice_us: u32,
    l2_ways: u32,
    preemption: Preemption,
}

/// A channel to be bound.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) id: u16,
    pub(super) runlist: u32,
    pub(super) service: &'a Arc<Service>,
}

/// A TSG, which lives as long as its fd or a channel in it.
pub(super) struct Tsg {
    device: Arc<Device>,
    id: u16,
    gpu: TsgId,
    members: Arc<Members>,
    state: Mutex<State>,
    _counted: Counted,
}

impl Tsg {
    /// Creates a TSG; none if all are in use.
    pub(super) fn new(device: &Arc<Device>) -> Option<Arc<Self>> {
        let id = device.take_tsg_id()?;
        let gpu = device.gpu.open_tsg();
        let members = Arc::new(Members::default());
        device.interrupts.add_tsg(gpu, &members);
        Some(Arc::new(Self {
            device: Arc::clone(device),
            id,
            gpu,
            members,
            state: Mutex::new(State {
                sync: false,
                asynchronous: 0,
                spaces: [None; SUBCONTEXTS as usize],
                bound: [0; SUBCONTEXTS as usize],
                runlist: None,
                timeslice_us: TIMESLICE_US,
                l2_ways: 0,
                preemption: Preemption::default(),
            }),
            _counted: device.census.tsgs.one(),
        }))
    }

    /// Returns the GPU's id of the TSG.
    pub(super) fn gpu(&self) -> TsgId {
        self.gpu
    }

    /// Returns the state that interrupts access.
    pub(super) fn members(&self) -> &Arc<Members> {
        &self.members
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the preemption modes of its graphics context.
    pub(super) fn preemption(&self) -> Preemption {
        self.state().preemption
    }

    /// Sets the preemption modes.
    pub(super) fn set_preemption(&self, preemption: Preemption) {
        self.state().preemption = preemption;
        self.device.gpu.set_preemption(
            self.gpu,
            match preemption.compute {
                2 => gpu::Preemption::Cta,
                4 => gpu::Preemption::Cilp,
                _ => gpu::Preemption::Wfi,
            },
        );
    }

    /// Executes one request; `find` resolves fds and creates descriptions of events.
    pub(super) fn ioctl(self: &Arc<Self>, request: u32, arg: u64, find: &dyn Find) -> Answer {
        RULES.dispatch(request, arg, |args| {
            match request {
                BIND_CHANNEL => {
                    find.bind_channel(args.get(BIND_CHANNEL::CHANNEL_FD), self, None)?;
                }
                BIND_CHANNEL_EX => {
                    let veid = args.get(BIND_CHANNEL_EX::SUBCONTEXT_ID);
                    find.bind_channel(args.get(BIND_CHANNEL_EX::CHANNEL_FD), self, Some(veid))?;
                }
                UNBIND_CHANNEL => {
                    if !find.unbind_channel(args.get(UNBIND_CHANNEL::CHANNEL_FD), self) {
                        return Err(&NOT_MEMBER);
                    }
                }
                ENABLE => self.members.ids().into_iter().for_each(|id| self.device.gpu.enable(id)),
                DISABLE => {
                    self.members.ids().into_iter().for_each(|id| self.device.gpu.disable(id));
                }
                PREEMPT => self.device.gpu.preempt(self.gpu),
                EVENT_ID_CTRL => return self.event(args, find),
                SET_RUNLIST_INTERLEAVE if args.get(SET_RUNLIST_INTERLEAVE::LEVEL) > 2 => {
                    return Err(&LEVEL);
                }
                SET_RUNLIST_INTERLEAVE => {
                    self.device
                        .gpu
                        .set_interleave(self.gpu, args.get(SET_RUNLIST_INTERLEAVE::LEVEL));
                }
                SET_TIMESLICE
                    if !(1000..=50_000).contains(&args.get(SET_TIMESLICE::TIMESLICE_US)) =>
                {
                    return Err(&TIMESLICE);
                }
                SET_TIMESLICE => {
                    let us = args.get(SET_TIMESLICE::TIMESLICE_US);
                    self.state().timeslice_us = us;
                    self.device.gpu.set_timeslice(self.gpu, us);
                }
                GET_TIMESLICE => args.set(GET_TIMESLICE::TIMESLICE_US, self.state().timeslice_us),
                READ_SINGLE_SM_ERROR_STATE => return self.sm_error(args),
                SET_L2_MAX_WAYS_EVICT_LAST
                    if args.get(SET_L2_MAX_WAYS_EVICT_LAST::MAX_WAYS) > 16 =>
                {
                    return Err(&WAYS);
                }
                SET_L2_MAX_WAYS_EVICT_LAST => {
                    self.state().l2_ways = args.get(SET_L2_MAX_WAYS_EVICT_LAST::MAX_WAYS);
                }
                GET_L2_MAX_WAYS_EVICT_LAST => {
                    args.set(GET_L2_MAX_WAYS_EVICT_LAST::MAX_WAYS, self.state().l2_ways);
                }
                SET_L2_SECTOR_PROMOTION
                    if !matches!(args.get(SET_L2_SECTOR_PROMOTION::PROMOTION_FLAG), 1 | 2 | 4) =>
                {
                    return Err(&PROMOTION);
                }
                SET_L2_SECTOR_PROMOTION => {}
                BIND_SCHEDULING_DOMAIN if args.bytes()[4..].iter().any(|byte| *byte != 0) => {
                    return Err(&RESERVED);
                }
                BIND_SCHEDULING_DOMAIN => return Err(&NO_DOMAIN),
                CREATE_SUBCONTEXT => {
                    let (kind, space) = (
                        args.get(CREATE_SUBCONTEXT::TYPE),
                        find.address_space(args.get(CREATE_SUBCONTEXT::AS_FD)),
                    );
                    let space = space.filter(|_| kind <= ASYNC).ok_or(&SUBCONTEXT)?;
                    args.set(CREATE_SUBCONTEXT::VEID, self.create_subcontext(kind, &space)?);
                }
                DELETE_SUBCONTEXT => self.delete_subcontext(args.get(DELETE_SUBCONTEXT::VEID))?,
                GET_SHARE_TOKEN | REVOKE_SHARE_TOKEN => return Err(&TOKEN),
                _ => return Err(&UNKNOWN),
            }
            Ok(Done::Ok)
        })
    }

    /// Allocates a subcontext. It records its address space but does not keep it alive. Source:
    /// common/fifo/tsg.c:nvgpu_tsg_create_subcontext.
    fn create_subcontext(&self, kind: u32, space: &AddressSpace) -> Result<u32, Refused> {
        let mut state = self.state();
        let free = (!state.asynchronous).trailing_zeros();
        let veid = if kind == ASYNC && free < SUBCONTEXTS - 1 {
            state.asynchronous |= 1 << free;
            free + 1
        } else {
            state.take_sync().ok_or(&NO_VEID)?;
            SYNC
        };
        state.spaces[veid as usize].get_or_insert(space.id());
        Ok(veid)
    }

    fn delete_subcontext(&self, veid: u32) -> Result<(), Refused> {
        let mut state = self.state();
        if veid >= SUBCONTEXTS || state.bound[veid as usize] != 0 {
            return Err(&DELETE);
        }
        state.forget(veid);
        Ok(())
    }

    /// Binds a channel. The driver also accepts a channel without an address space in a subcontext
    /// without one, on which hardware then faults; this refuses it. Source: common/fifo/tsg.c:
    /// nvgpu_tsg_create_sync_subcontext_internal, nvgpu_tsg_validate_ch_subctx_vm,
    /// nvgpu_tsg_bind_channel.
    pub(super) fn admit(
        &self,
        channel: Member<'_>,
        veid: u32,
        space: Option<u64>,
        bound: bool,
    ) -> Result<(), Refused> {
        let mut state = self.state();
        if veid == 0 && state.spaces[0].is_none() {
            state.take_sync().ok_or(&SYNC_TAKEN)?;
            state.spaces[0] = space;
        }
        if space.is_none() || space != state.spaces[veid as usize] {
            return Err(&OTHER_SPACE);
        }
        if bound {
            return Err(&BOUND);
        }
        if self.members.len() >= CHANNELS {
            return Err(&FULL);
        }
        if *state.runlist.get_or_insert(channel.runlist) != channel.runlist {
            return Err(&OTHER_RUNLIST);
        }
        state.bound[veid as usize] += 1;
        self.members.add(channel.id, channel.service);
        channel.service.set_unserviceable(false);
        Ok(())
    }

    /// Unbinds a channel. If it is being closed, its subcontext ends with its last channel.
    pub(super) fn dismiss(&self, channel: u16, veid: u32, closing: bool) {
        let mut state = self.state();
        self.members.remove(channel);
        let bound = &mut state.bound[veid as usize];
        *bound = bound.saturating_sub(1);
        if closing && *bound == 0 {
            state.forget(veid);
        }
    }

    /// Source: os/linux/ioctl_tsg.c:gk20a_tsg_event_id_enable.
    fn event(&self, args: &mut Args, find: &dyn Find) -> Handled {
        const ENABLE: u32 = 1;
        const EVENTS: u32 = 6;
        let (command, event) = (args.get(EVENT_ID_CTRL::CMD), args.get(EVENT_ID_CTRL::EVENT_ID));
        if event >= EVENTS || command != ENABLE {
            return Err(&EVENT);
        }
        let ours = eventfd().ok_or(&NO_EVENT)?;
        let theirs = ours.try_clone().map_err(|_| &NO_FD)?;
        let file = find.add_event(&self.members);
        self.members.add_event(file, event, ours, self.device.census.events.one());
        match self.device.fds.install(NewFile::Event(file, theirs)) {
            Ok(fd) => {
                args.set(EVENT_ID_CTRL::EVENT_FD, fd);
                Ok(Done::Ok)
            }
            Err(_) => {
                find.drop_event(file);
                self.members.remove_event(file);
                Err(&NO_FD)
            }
        }
    }

    /// Source: os/linux/ioctl_tsg.c:gk20a_tsg_ioctl_read_single_sm_error_state.
    fn sm_error(&self, args: &mut Args) -> Handled {
        use READ_SINGLE_SM_ERROR_STATE::{RECORD_MEM, RECORD_SIZE, SM_ID};
        let (sm, address, room) = (args.get(SM_ID), args.get(RECORD_MEM), args.get(RECORD_SIZE));
        if sm >= self.device.hardware.shape().sms() {
            return Err(&NO_SM);
        }
        let error = self.members.sm_error(sm);
        let mut record = Args::zeroed(SM_ERROR_STATE_RECORD::BYTES);
        record.set(SM_ERROR_STATE_RECORD::GLOBAL_ESR, error.global_esr);
        record.set(SM_ERROR_STATE_RECORD::WARP_ESR, error.warp_esr);
        record.set(SM_ERROR_STATE_RECORD::WARP_ESR_PC, error.warp_pc);
        if room > 0 {
            let bytes = room.min(SM_ERROR_STATE_RECORD::BYTES as u64);
            let done = copy_out(address, &record.bytes()[..bytes as usize])?;
            if done != Done::Ok {
                return Ok(done);
            }
            args.set(RECORD_SIZE, bytes);
        }
        Ok(Done::Ok)
    }
}

impl State {
    fn take_sync(&mut self) -> Option<()> {
        (!std::mem::replace(&mut self.sync, true)).then_some(())
    }

    fn forget(&mut self, veid: u32) {
        match veid {
            SYNC => self.sync = false,
            veid => self.asynchronous &= !(1 << (veid - 1)),
        }
        self.spaces[veid as usize] = None;
    }
}

impl Drop for Tsg {
    fn drop(&mut self) {
        self.device.interrupts.remove_tsg(self.gpu);
        self.device.gpu.close_tsg(self.gpu);
        self.device.give_tsg_id(self.id);
    }
}

/// Access to the table of file descriptions for a TSG.
pub(super) trait Find {
    /// Binds the channel of an fd to a TSG; without `veid`, to the subcontext that it was bound to last.
    fn bind_channel(&self, fd: i32, tsg: &Arc<Tsg>, veid: Option<u32>) -> Result<(), Refused>;
    /// Unbinds the channel of an fd; false when the fd is no channel of the TSG.
    fn unbind_channel(&self, fd: i32, tsg: &Arc<Tsg>) -> bool;
    fn address_space(&self, fd: i32) -> Option<Arc<AddressSpace>>;
    fn add_event(&self, members: &Arc<Members>) -> FileId;
    fn drop_event(&self, file: FileId);
}

fn eventfd() -> Option<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd =
        unsafe { libc::syscall(libc::SYS_eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    // SAFETY: the call above returned this fd, and nothing else uses it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
