//! Groups of channels and their subcontexts.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use super::Event;
use crate::abi::{channel, ctrl, tsg as abi};
use crate::error::{Error, Node};
use crate::fault::SmError;
use crate::node::NodeFd;
use crate::orin::Orin;
use crate::space::AddressSpace;

/// Frequency of a group in the runlist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interleave {
    /// Once a round. The driver's default.
    #[default]
    Low,
    /// Between groups of the low level.
    Medium,
    /// Between groups of both lower levels.
    High,
}

/// Preemption granularity of kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preemption {
    /// At the end of the kernel. The driver's default.
    #[default]
    Kernel,
    /// Between blocks.
    Block,
    /// Between instructions; the driver allocates a buffer for the state.
    Instruction,
}

impl Preemption {
    pub(super) const fn mode(self) -> u32 {
        match self {
            Self::Kernel => channel::COMPUTE_PREEMPTION_WFI,
            Self::Block => channel::COMPUTE_PREEMPTION_CTA,
            Self::Instruction => channel::COMPUTE_PREEMPTION_CILP,
        }
    }
}

/// A group of channels. Clones are the same group; it ends with the last of them and of its
/// channels.
#[derive(Clone, Debug)]
pub struct Tsg(Arc<NodeFd>);

impl Tsg {
    /// A new, unshared group. `ENOMEM` when all groups of the GPU are in use.
    pub fn open(orin: &Orin) -> Result<Self, Error> {
        let mut args = ctrl::OpenTsg::default();
        orin.ctrl().call(ctrl::OPEN_TSG, &mut args)?;
        Ok(Self(Arc::new(NodeFd::adopt(Node::Tsg, args.tsg_fd as i32))))
    }

    /// A subcontext for compute in an address space. `ENOSPC` when the group has no free one.
    pub fn subcontext(&self, space: &AddressSpace) -> Result<Subcontext, Error> {
        let mut args = abi::CreateSubcontext {
            r#type: abi::SUBCONTEXT_ASYNC,
            as_fd: space.as_fd().as_raw_fd(),
            ..Default::default()
        };
        self.0.call(abi::CREATE_SUBCONTEXT, &mut args)?;
        let inner = SubcontextInner { group: self.clone(), space: space.clone(), veid: args.veid };
        Ok(Subcontext(Arc::new(inner)))
    }

    /// Sets the time slice: 1 to 50 ms.
    pub fn set_timeslice(&self, slice: Duration) -> Result<(), Error> {
        let timeslice_us = u32::try_from(slice.as_micros()).unwrap_or(u32::MAX);
        self.0.call(abi::SET_TIMESLICE, &mut abi::Timeslice { timeslice_us, reserved: 0 })
    }

    /// The time slice.
    pub fn timeslice(&self) -> Result<Duration, Error> {
        let mut args = abi::Timeslice::default();
        self.0.call(abi::GET_TIMESLICE, &mut args)?;
        Ok(Duration::from_micros(args.timeslice_us.into()))
    }

    /// Sets the frequency of the group in the runlist.
    pub fn set_interleave(&self, level: Interleave) -> Result<(), Error> {
        let level = match level {
            Interleave::Low => 0,
            Interleave::Medium => 1,
            Interleave::High => 2,
        };
        let mut args = abi::RunlistInterleave { level, reserved: 0 };
        self.0.call(abi::SET_RUNLIST_INTERLEAVE, &mut args)
    }

    /// An event that a non-stalling interrupt raises.
    pub fn event(&self) -> Result<Event, Error> {
        let mut args = abi::EventIdCtrl {
            cmd: abi::EVENT_ENABLE,
            event_id: abi::EVENT_BLOCKING_SYNC,
            ..Default::default()
        };
        self.0.call(abi::EVENT_ID_CTRL, &mut args)?;
        Ok(Event::adopt(args.event_fd))
    }

    /// The exception record of SM number `sm`; `None` when it raised none. `EINVAL` for an SM that
    /// does not exist.
    pub fn sm_error(&self, sm: u32) -> Result<Option<SmError>, Error> {
        let mut record = abi::SmErrorState::default();
        let mut args = abi::ReadSingleSmErrorState {
            sm_id: sm,
            record_mem: (&raw mut record) as u64,
            record_size: size_of_val(&record) as u64,
            ..Default::default()
        };
        // SAFETY: address and size are those of `record`, plain numbers, which outlives the call.
        unsafe { self.0.call_nested(abi::READ_SINGLE_SM_ERROR_STATE, &mut args)? };
        let raised = record.global_esr != 0 || record.warp_esr != 0;
        Ok(raised.then_some(SmError {
            sm,
            warp: record.warp_esr as u16,
            global: record.global_esr,
            pc: record.warp_esr_pc,
        }))
    }
}

/// The binding of a group to an address space. Deleted with its last clone and channel.
#[derive(Clone, Debug)]
pub struct Subcontext(Arc<SubcontextInner>);

#[derive(Debug)]
struct SubcontextInner {
    group: Tsg,
    space: AddressSpace,
    veid: u32,
}

impl Subcontext {
    /// The group.
    #[must_use]
    pub fn group(&self) -> &Tsg {
        &self.0.group
    }

    /// The address space.
    #[must_use]
    pub fn space(&self) -> &AddressSpace {
        &self.0.space
    }

    /// Returns the number within the group.
    #[must_use]
    pub fn veid(&self) -> u32 {
        self.0.veid
    }

    /// Adds a channel, whose address space is set, to the group.
    pub(super) fn bind(&self, channel: BorrowedFd<'_>) -> Result<(), Error> {
        let mut args = abi::BindChannelEx {
            channel_fd: channel.as_raw_fd(),
            subcontext_id: self.0.veid,
            ..Default::default()
        };
        self.0.group.0.call(abi::BIND_CHANNEL_EX, &mut args)
    }
}

impl Drop for SubcontextInner {
    fn drop(&mut self) {
        // Channels own the subcontext, so none is bound any more; the group's end cleans up after a
        // failure.
        let mut args = abi::DeleteSubcontext { veid: self.veid, reserved: 0 };
        let _ = self.group.0.call(abi::DELETE_SUBCONTEXT, &mut args);
    }
}
