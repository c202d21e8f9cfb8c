//! Fused groups of tensor operations, which `plan::schedule` selects, executed on blocks of elements.
//!
//! A group is compiled to a few instructions over virtual registers of [`BLOCK`] values, which stay in the
//! first-level cache. Values that no later group reads never leave them. Dense operands are read in place, and
//! results are written in place. One thread computes each element, in one order, so that the number of threads does
//! not change results.
//!
//! `source` reads operands of any layout, `compile` translates steps to instructions, `peephole` combines several
//! into one, `sums` accumulates reductions, and `softmax` fuses two groups. `program` selects the groups to run.

mod compile;
mod instruction;
mod kernel;
mod peephole;
mod softmax;
mod source;
mod sums;

pub(super) use instruction::{BLOCK, Kernel, registers};
pub(super) use kernel::CLAIM;
pub(super) use softmax::Softmax;
pub(super) use source::Source;
