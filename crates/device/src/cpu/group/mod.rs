//! Groups of tensor operations, as `plan::schedule` makes them, on blocks of elements.
//!
//! A group becomes a few instructions over registers of [`BLOCK`] values, which stay in the first-level cache: what
//! nobody reads later never leaves them. An operand that lies in memory as the group's space does is read where it is,
//! and a result written where it belongs. Every element is computed by one thread in one order, so results do not
//! depend on how many there are.
//!
//! Where operands lie is `source`'s, steps become instructions in `compile`, several of them one in `named`; what a reduction has come to
//! is in `sums`, and a softmax's rows are done in `softmax`. What is done where is `program`'s.

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
