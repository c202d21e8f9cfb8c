//! Creation of a channel, one typestate for each step of the driver's order.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::{Notifier, Preemption, RingMemory, Subcontext};
use crate::abi::{channel as abi, ctrl};
use crate::address::GpuAddress;
use crate::class::usermode::token;
use crate::error::{Error, Node};
use crate::node::NodeFd;
use crate::orin::Orin;
use crate::pushbuffer::Engine;

/// The graphics runlist, where compute and its copy engine are.
const GRAPHICS_RUNLIST: i32 = -1;

/// States of a [`ChannelBuilder`].
pub mod state {
    use super::{RingMemory, Subcontext};

    /// Opened, without an address space.
    #[derive(Debug)]
    pub struct Opened(pub(super) ());
    /// Channel bound to its subcontext's address space.
    #[derive(Debug)]
    pub struct InSpace(pub(super) Subcontext);
    /// Channel bound to the group.
    #[derive(Debug)]
    pub struct InGroup(pub(super) Subcontext);
    /// Channel without watchdog, as a deterministic channel requires.
    #[derive(Debug)]
    pub struct Unwatched(pub(super) Subcontext);
    /// Channel with ring and token, without an engine object.
    #[derive(Debug)]
    pub struct SetUp {
        pub(super) group: Subcontext,
        pub(super) ring: RingMemory,
        pub(super) token: u32,
    }
}

/// A channel that is not ready yet, in a [`state`]. A failed step closes it.
#[derive(Debug)]
pub struct ChannelBuilder<S> {
    fd: NodeFd,
    state: S,
}

impl ChannelBuilder<state::Opened> {
    /// A channel on the graphics runlist. `ENOMEM` when all 512 of the GPU are in use.
    pub fn open(orin: &Orin) -> Result<Self, Error> {
        Self::open_with(orin, GRAPHICS_RUNLIST)
    }

    /// A channel on another runlist, one of [`Orin::engines`]. The behaviour of a copy engine's
    /// runlist has not been seen yet. `EINVAL` when there is no such runlist.
    pub fn open_on(orin: &Orin, runlist: u32) -> Result<Self, Error> {
        Self::open_with(orin, i32::try_from(runlist).unwrap_or(i32::MAX))
    }

    fn open_with(orin: &Orin, runlist: i32) -> Result<Self, Error> {
        let mut args = ctrl::OpenChannel { channel_fd: runlist };
        orin.ctrl().call(ctrl::OPEN_CHANNEL, &mut args)?;
        let fd = NodeFd::adopt(Node::Channel, args.channel_fd);
        Ok(Self { fd, state: state::Opened(()) })
    }

    /// Sets the address space to that of its future subcontext: the driver refuses any other later.
    pub fn bind_space(self, group: &Subcontext) -> Result<ChannelBuilder<state::InSpace>, Error> {
        group.space().bind(&self.fd)?;
        Ok(ChannelBuilder { fd: self.fd, state: state::InSpace(group.clone()) })
    }
}

impl ChannelBuilder<state::InSpace> {
    /// Adds the channel to the subcontext's group. `EINVAL` when the group has 128 channels,
    /// `EPERM` when another program owns the scheduler.
    pub fn bind_group(self) -> Result<ChannelBuilder<state::InGroup>, Error> {
        let state::InSpace(group) = self.state;
        group.bind(self.fd.as_fd())?;
        Ok(ChannelBuilder { fd: self.fd, state: state::InGroup(group) })
    }
}

impl ChannelBuilder<state::InGroup> {
    /// Disables the watchdog: it counts jobs that the kernel submits, and there are none.
    pub fn disable_watchdog(self) -> Result<ChannelBuilder<state::Unwatched>, Error> {
        let mut args = abi::Wdt { wdt_status: abi::WDT_DISABLE, timeout_ms: 0 };
        self.fd.call(abi::WDT, &mut args)?;
        Ok(ChannelBuilder { fd: self.fd, state: state::Unwatched(self.state.0) })
    }
}

impl ChannelBuilder<state::Unwatched> {
    /// Sets up a cleared ring for submission from user mode. From here on the GPU stays powered.
    /// [`Error::Address`] when the driver reports ring or USERD page at or above 2^40.
    pub fn set_up(self, mut ring: RingMemory) -> Result<ChannelBuilder<state::SetUp>, Error> {
        ring.clear();
        let (ring_fd, userd_fd) = (ring.ring().export()?, ring.userd().export()?);
        let mut args = abi::SetupBind {
            num_gpfifo_entries: ring.entries(),
            flags: abi::BIND_DETERMINISTIC | abi::BIND_USERMODE,
            userd_dmabuf_fd: userd_fd.as_raw_fd(),
            gpfifo_dmabuf_fd: ring_fd.as_raw_fd(),
            ..Default::default()
        };
        self.fd.call(abi::SETUP_BIND, &mut args)?;
        // 0 if the driver does not report the address. The host unit reads 40 bits of it.
        GpuAddress::new(args.gpfifo_gpu_va)?;
        GpuAddress::new(args.userd_gpu_va)?;
        let state::Unwatched(group) = self.state;
        let token = args.work_submit_token;
        Ok(ChannelBuilder { fd: self.fd, state: state::SetUp { group, ring, token } })
    }
}

impl ChannelBuilder<state::SetUp> {
    /// Allocates the engine object. The first compute object of a process takes about a second.
    pub fn allocate_object(self, engine: Engine) -> Result<Channel, Error> {
        let mut args = abi::AllocObjCtx { class_num: engine.class() as u32, ..Default::default() };
        self.fd.call(abi::ALLOC_OBJ_CTX, &mut args)?;
        let state::SetUp { group, ring, token } = self.state;
        Ok(Channel { fd: self.fd, ring, group, token, engine })
    }
}

/// A syncpoint that the channel's streams increment by releasing a semaphore at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syncpoint {
    /// System-wide number.
    pub id: u32,
    /// Highest value so far.
    pub max: u32,
    /// Address of the release that increments it.
    pub address: GpuAddress,
}

/// A channel that is ready: it has a ring, a token and an engine. Closed when dropped.
#[derive(Debug)]
pub struct Channel {
    fd: NodeFd,
    ring: RingMemory,
    group: Subcontext,
    token: u32,
    engine: Engine,
}

impl Channel {
    /// Returns the engine.
    #[must_use]
    pub const fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns the channel id.
    #[must_use]
    pub fn id(&self) -> u32 {
        token::CHANNEL.get(self.token)
    }

    /// The doorbell token.
    #[must_use]
    pub const fn token(&self) -> u32 {
        self.token
    }

    /// Returns the subcontext.
    #[must_use]
    pub const fn group(&self) -> &Subcontext {
        &self.group
    }

    pub(crate) const fn ring(&self) -> &RingMemory {
        &self.ring
    }

    /// Closes the channel and returns its memory.
    #[must_use]
    pub fn close(self) -> RingMemory {
        self.ring
    }

    /// Makes the driver record faults in `notifier`, whose record is cleared.
    pub fn set_notifier(&self, notifier: &Notifier) -> Result<(), Error> {
        notifier.register(|args| self.fd.call(abi::SET_ERROR_NOTIFIER, args))
    }

    /// Returns `true` once a fault has killed the channel for good.
    pub fn is_dead(&self) -> Result<bool, Error> {
        let mut args = abi::GetTimedout::default();
        self.fd.call(abi::GET_TIMEDOUT, &mut args)?;
        Ok(args.value != 0)
    }

    /// Sets the preemption granularity of its kernels.
    pub fn set_preemption(&self, preemption: Preemption) -> Result<(), Error> {
        let mut args = abi::PreemptionMode {
            graphics_preempt_mode: abi::GRAPHICS_PREEMPTION_WFI,
            compute_preempt_mode: preemption.mode(),
        };
        self.fd.call(abi::SET_PREEMPTION_MODE, &mut args)
    }

    /// Sets the total time by which this channel may delay switches to other groups over its life,
    /// before the driver tears the group down. The driver never resets the sum on a channel with
    /// user-mode submission (`nvgpu_channel_update_and_check_ctxsw_timeout`, L4T r36.4). Default: 3
    /// s.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), Error> {
        let timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        self.fd.call(abi::SET_TIMEOUT, &mut abi::SetTimeout { timeout })
    }

    /// Returns the channel's syncpoint, for other engines of the system to wait on.
    pub fn syncpoint(&self) -> Result<Syncpoint, Error> {
        let mut args = abi::GetUserSyncpoint::default();
        self.fd.call(abi::GET_USER_SYNCPOINT, &mut args)?;
        let address = GpuAddress::new(args.gpu_va)?;
        Ok(Syncpoint { id: args.syncpoint_id, max: args.syncpoint_max, address })
    }

    /// Tears its whole group down, like a fault: for hung work, and for tests of recovery.
    pub fn reset(&self) -> Result<(), Error> {
        self.fd.command(abi::FORCE_RESET)
    }
}
