//! Programs: plans with every address resolved.
//!
//! Everything that is known when a plan is prepared is decided here. Values that change from step to step (tokens,
//! positions, slots) are read from the mailboxes while the program runs.

mod build;
mod call;
mod operations;
mod products;
mod resolve;

pub(super) use build::Program;
pub(super) use call::KernelCall;
