//! The machine that runs a launch: warps, blocks, memories, the grid.
//!
//! What operations do to values is `execute`'s; here is what they do to the machine.

mod access;
mod arithmetic;
mod atomic;
mod barrier;
mod block;
mod cache;
mod effect;
mod env;
mod exchange;
mod flow;
mod grid;
mod known;
mod lanes;
mod local;
mod operands;
mod random;
mod shared;
mod step;
mod track;
mod traffic;
mod warp;
mod words;

pub use cache::Cache;
pub use grid::{LOST, Options, run};

use crate::fault::FaultKind;

/// A fault on its way to the block, which knows where it is.
#[derive(Debug)]
pub(crate) struct Raised {
    pub(crate) kind: FaultKind,
    /// The lanes concerned; the first is named.
    pub(crate) lanes: u32,
}

impl Raised {
    pub(crate) fn new(kind: impl Into<FaultKind>, lanes: u32) -> Box<Self> {
        Box::new(Self { kind: kind.into(), lanes })
    }
}

/// What can fail with a fault.
pub(crate) type Outcome<T> = Result<T, Box<Raised>>;
