//! The GPU: host unit, copy engine and front end of the compute engine.
//!
//! A [`Gpu`] executes the work of channels on its own thread, concurrently with the CPU. It
//! accesses memory only through [`Mmu`]s. A seed decides what hardware leaves undefined (which
//! channel runs first, the latency of a doorbell, when unordered work runs), and time is virtual. A
//! program that submits from one thread is reproducible within the limits of [`GpuConfig::hold`].
//!
//! A [`ComputeEngine`] runs shader code; without one, launches are only checked, ordered and
//! completed. [`Events`] connects the driver's interrupt handlers.

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
