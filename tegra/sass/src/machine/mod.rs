//! The machine that runs a launch: warps, blocks, memories, the grid.
//!
//! `execute` computes values; this module applies them to the state of the machine.

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

/// A fault before the block adds its location.
#[derive(Debug)]
pub(crate) struct Raised {
    pub(crate) kind: FaultKind,
    /// Affected lanes; the first is reported.
    pub(crate) lanes: u32,
}

impl Raised {
    pub(crate) fn new(kind: impl Into<FaultKind>, lanes: u32) -> Box<Self> {
        Box::new(Self { kind: kind.into(), lanes })
    }
}

/// Result of an operation that can fault.
pub(crate) type Outcome<T> = Result<T, Box<Raised>>;
