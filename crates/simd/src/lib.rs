//! The CPU's kernels: packed weights, products, attention, norms and rotations.
//!
//! Kernels are written once over a small set of vector operations ([`vector`]) and compiled per instruction set;
//! the same bits come out of all of them, whatever the batch, the prefill chunk or the thread count. Which
//! thread computes what, and where a plan's buffers lie, is the CPU device's business.

pub mod activations;
pub mod attention;
pub mod bits;
pub mod cache;
pub mod dense;
pub mod depthwise;
mod format;
mod isa;
pub mod matmul;
pub mod norm;
pub mod packed;
pub mod read;
pub mod recurrent;
pub mod rope;
pub mod scores;
pub mod tensor;
pub mod vector;
pub mod windows;
pub mod winograd;

pub use isa::{Isa, UnknownIsa};
