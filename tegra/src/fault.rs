//! Description of a fault.
//!
//! Data only: [`crate::context`] collects it.

use std::fmt;

use crate::abi::channel::ErrorCode;
use crate::address::GpuAddress;
use crate::pushbuffer::{Engine, Entry};

/// A fault of the GPU, which killed every channel of a context.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// The driver's error code; `None` when the channels died without a record.
    pub code: Option<ErrorCode>,
    /// Time, in nanoseconds of the system's clock.
    pub time: Option<u64>,
    /// Progress of each queue.
    pub queues: Vec<Progress>,
    /// Exception records of the SMs.
    pub sms: Vec<SmError>,
}

/// Exception record of an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmError {
    /// Number of the SM.
    pub sm: u32,
    /// The warp's error: `0xe` out-of-range address, `0xf` misaligned address, `0x10` invalid
    /// address space, and others.
    pub warp: u16,
    /// SM-wide status.
    pub global: u32,
    /// Address of the instruction.
    pub pc: u64,
}

/// Progress of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Index within the context.
    pub queue: usize,
    /// Channel id.
    pub channel: u32,
    /// Engine.
    pub engine: Engine,
    /// The last point reached.
    pub completed: u64,
    /// The last point submitted.
    pub submitted: u64,
    /// The streams that the host unit has begun and that are not known to be done, oldest first.
    /// The host unit runs ahead of the engine: the last or any earlier one may have faulted.
    pub streams: Vec<Entry>,
    /// The word that the host unit would have processed next, if it was reported.
    pub at: Option<GpuAddress>,
}

impl Progress {
    /// Returns `true` if it has work in flight.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.completed != self.submitted
    }

    /// Number of words of the last of [`Progress::streams`] that the host unit had processed, which
    /// include the last method. `None` unless the reported address is within that stream.
    #[must_use]
    pub fn words(&self) -> Option<u32> {
        let stream = self.streams.last()?;
        let bytes = self.at?.get().checked_sub(stream.address().get())?;
        u32::try_from(bytes / 4).ok().filter(|words| *words <= stream.words())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "the GPU faulted: {code}")?,
            None => f.write_str("the GPU's channels died without an error record")?,
        }
        for progress in self.queues.iter().filter(|progress| progress.is_busy()) {
            let Progress { queue, channel, engine, completed, submitted, streams, at } = progress;
            write!(
                f,
                "; queue {queue} (channel {channel}, {engine:?}) was at {completed} of {submitted}"
            )?;
            for stream in streams {
                write!(f, ", stream of {} words at {}", stream.words(), stream.address())?;
            }
            if let Some(at) = at {
                write!(f, ", stopped at {at}")?;
            }
        }
        for SmError { sm, warp, global, pc } in &self.sms {
            write!(f, "; SM {sm}: warp error {warp:#x}, SM status {global:#x}, at {pc:#x}")?;
        }
        f.write_str(": rebuild the context and submit the work again")
    }
}
