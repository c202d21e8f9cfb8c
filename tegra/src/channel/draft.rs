//! The stages of a channel.

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

/// How far a channel has come; see [`Draft`].
pub mod stage {
    use super::{RingMemory, Subcontext};

    /// It exists.
    #[derive(Debug)]
    pub struct Opened(pub(super) ());
    /// It uses its subcontext's address space.
    #[derive(Debug)]
    pub struct InSpace(pub(super) Subcontext);
    /// It belongs to the group.
    #[derive(Debug)]
    pub struct InGroup(pub(super) Subcontext);
    /// Its watchdog is off, as a deterministic channel needs.
    #[derive(Debug)]
    pub struct Unwatched(pub(super) Subcontext);
    /// It has its ring and a token, and lacks an engine object.
    #[derive(Debug)]
    pub struct SetUp {
        pub(super) group: Subcontext,
        pub(super) ring: RingMemory,
        pub(super) token: u32,
    }
}

/// A channel that is not ready yet, at a [`stage`]. A failed step closes it.
#[derive(Debug)]
pub struct Draft<S> {
    fd: NodeFd,
    stage: S,
}

impl Draft<stage::Opened> {
    /// A channel on the graphics runlist. `ENOMEM` when all 512 of the GPU are in use.
    pub fn open(orin: &Orin) -> Result<Self, Error> {
        Self::open_with(orin, GRAPHICS_RUNLIST)
    }

    /// A channel on another runlist, of those that [`Orin::engines`] lists. What a copy engine does
    /// with it nobody has seen yet. `EINVAL` when there is no such runlist.
    pub fn open_on(orin: &Orin, runlist: u32) -> Result<Self, Error> {
        Self::open_with(orin, i32::try_from(runlist).unwrap_or(i32::MAX))
    }

    fn open_with(orin: &Orin, runlist: i32) -> Result<Self, Error> {
        let mut args = ctrl::OpenChannel { channel_fd: runlist };
        orin.ctrl().call(ctrl::OPEN_CHANNEL, &mut args)?;
        let fd = NodeFd::adopt(Node::Channel, args.channel_fd);
        Ok(Self { fd, stage: stage::Opened(()) })
    }

    /// Makes it use the address space of the subcontext that it will belong to: another would be
    /// refused later.
    pub fn bind_space(self, group: &Subcontext) -> Result<Draft<stage::InSpace>, Error> {
        group.space().bind(&self.fd)?;
        Ok(Draft { fd: self.fd, stage: stage::InSpace(group.clone()) })
    }
}

impl Draft<stage::InSpace> {
    /// Puts it into the subcontext's group. `EINVAL` when the group has 128 channels, `EPERM` when
    /// another program holds the scheduler.
    pub fn bind_group(self) -> Result<Draft<stage::InGroup>, Error> {
        let stage::InSpace(group) = self.stage;
        group.bind(self.fd.as_fd())?;
        Ok(Draft { fd: self.fd, stage: stage::InGroup(group) })
    }
}

impl Draft<stage::InGroup> {
    /// Turns the watchdog off: it counts jobs that the kernel submits, and there are none.
    pub fn disable_watchdog(self) -> Result<Draft<stage::Unwatched>, Error> {
        let mut args = abi::Wdt { wdt_status: abi::WDT_DISABLE, timeout_ms: 0 };
        self.fd.call(abi::WDT, &mut args)?;
        Ok(Draft { fd: self.fd, stage: stage::Unwatched(self.stage.0) })
    }
}

impl Draft<stage::Unwatched> {
    /// Gives it a ring, cleared, for submission from user mode. From here on the GPU stays powered.
    /// [`Error::Address`] when the driver says that it put ring or USERD page at or above 2^40.
    pub fn set_up(self, mut ring: RingMemory) -> Result<Draft<stage::SetUp>, Error> {
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
        // 0 where the driver does not tell. The host unit reads 40 bits of what it does.
        GpuAddress::new(args.gpfifo_gpu_va)?;
        GpuAddress::new(args.userd_gpu_va)?;
        let stage::Unwatched(group) = self.stage;
        let token = args.work_submit_token;
        Ok(Draft { fd: self.fd, stage: stage::SetUp { group, ring, token } })
    }
}

impl Draft<stage::SetUp> {
    /// Gives it an engine. The first compute object of a process takes about a second.
    pub fn allocate_object(self, engine: Engine) -> Result<Channel, Error> {
        let mut args = abi::AllocObjCtx { class_num: engine.class() as u32, ..Default::default() };
        self.fd.call(abi::ALLOC_OBJ_CTX, &mut args)?;
        let stage::SetUp { group, ring, token } = self.stage;
        Ok(Channel { fd: self.fd, ring, group, token, engine })
    }
}

/// A syncpoint that a channel's streams may increment by releasing a semaphore at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syncpoint {
    /// Its number in the whole system.
    pub id: u32,
    /// Its highest value so far.
    pub max: u32,
    /// Where a release increments it.
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
    /// Its engine.
    #[must_use]
    pub const fn engine(&self) -> Engine {
        self.engine
    }

    /// Its number among the GPU's channels.
    #[must_use]
    pub fn id(&self) -> u32 {
        token::CHANNEL.get(self.token)
    }

    /// What is stored to the doorbell.
    #[must_use]
    pub const fn token(&self) -> u32 {
        self.token
    }

    /// The group that it belongs to.
    #[must_use]
    pub const fn group(&self) -> &Subcontext {
        &self.group
    }

    pub(crate) const fn ring(&self) -> &RingMemory {
        &self.ring
    }

    /// Closes it and gives its memory back.
    #[must_use]
    pub fn close(self) -> RingMemory {
        self.ring
    }

    /// Has faults recorded in `notifier`, whose record is cleared.
    pub fn set_notifier(&self, notifier: &Notifier) -> Result<(), Error> {
        notifier.register(|args| self.fd.call(abi::SET_ERROR_NOTIFIER, args))
    }

    /// Whether a fault has killed it, for ever.
    pub fn is_dead(&self) -> Result<bool, Error> {
        let mut args = abi::GetTimedout::default();
        self.fd.call(abi::GET_TIMEDOUT, &mut args)?;
        Ok(args.value != 0)
    }

    /// Sets where its kernels may be interrupted.
    pub fn set_preemption(&self, preemption: Preemption) -> Result<(), Error> {
        let mut args = abi::PreemptionMode {
            graphics_preempt_mode: abi::GRAPHICS_PREEMPTION_WFI,
            compute_preempt_mode: preemption.mode(),
        };
        self.fd.call(abi::SET_PREEMPTION_MODE, &mut args)
    }

    /// Sets how long switches to other groups may be held up before the driver tears the group down, all
    /// of them together over the channel's life: nothing resets the sum on a channel that is submitted
    /// to from user mode (`nvgpu_channel_update_and_check_ctxsw_timeout`, L4T r36.4). 3 s at first.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), Error> {
        let timeout = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        self.fd.call(abi::SET_TIMEOUT, &mut abi::SetTimeout { timeout })
    }

    /// Its syncpoint, for work of other engines of the system to wait for.
    pub fn syncpoint(&self) -> Result<Syncpoint, Error> {
        let mut args = abi::GetUserSyncpoint::default();
        self.fd.call(abi::GET_USER_SYNCPOINT, &mut args)?;
        let address = GpuAddress::new(args.gpu_va)?;
        Ok(Syncpoint { id: args.syncpoint_id, max: args.syncpoint_max, address })
    }

    /// Tears its whole group down, as a fault would: for what hangs, and for tests of recovery.
    pub fn reset(&self) -> Result<(), Error> {
        self.fd.command(abi::FORCE_RESET)
    }
}
