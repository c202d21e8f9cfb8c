//! CPU kernels: packed weights, matrix products, attention, norms and rotations.
//!
//! Each kernel is written once over a small set of vector operations ([`vector`]) and compiled per instruction set.
//! All of them produce the same bits, for any batch, prefill chunk and thread count. The CPU device owns the
//! division of work among threads and the memory of plans.

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
