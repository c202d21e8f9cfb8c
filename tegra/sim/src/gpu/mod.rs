//! The GPU: host unit, copy engine and the front of the compute engine.
//!
//! A [`Gpu`] executes what channels are given, on a thread of its own, so that CPU and GPU run side
//! by side. It reads and writes memory through [`Mmu`]s only. What hardware leaves open (which
//! channel goes first, how long a doorbell takes, when unordered work runs) a seed decides, and a
//! virtual clock tells the time: a program whose submissions come from one thread runs the same
//! every time, within the limits that [`GpuConfig::hold`] states.
//!
//! Shader code is run by a [`ComputeEngine`]; without one, launches are checked, ordered and
//! completed, and nothing else. What the driver does on faults and interrupts is behind
//! [`Events`].

mod access;
mod capture;
mod channel;
mod clock;
mod compute;
mod constants;
mod copy;
mod dependencies;
mod device;
mod doorbell;
mod gpfifo;
mod host;
mod interface;
mod latency;
mod launch;
mod pbdma;
mod qmd;
mod registers;
mod schedule;
mod semaphore;
mod shadow;
mod switch;
mod transfer;
mod turns;

pub use clock::{Random, TICK};
pub use device::Gpu;
pub use interface::{
    Blocked, ChannelError, ChannelSetup, ComputeEngine, ConstantReads, Events, GpuConfig,
    GpuMemory, SMS, TsgId,
};
pub use latency::Latency;
pub use qmd::{BANKS, Bank, Launch, LocalMemory, WINDOW};
pub use switch::{Preemption, SWITCH_LIMIT_MS};
pub use turns::TIMESLICE_US;

pub use crate::mmu::{
    Access, MapAccess, MapError, MapFlags, Mmu, MmuFault, MmuFaultKind, PAGE, Piece,
};
