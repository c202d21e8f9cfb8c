//! The CPU device: SIMD kernels, packed weights, a thread pool.
//!
//! Kernels are written once over a small set of vector operations and compiled per instruction set;
//! the same bits come out of all of them, whatever the batch, the prefill chunk or the thread count.

pub mod activations;
pub mod attention;
mod format;
pub mod isa;
pub mod matmul;
pub mod mem;
pub mod norm;
pub mod packed;
pub mod pool;
pub mod rope;
mod simd;

pub use isa::{Isa, UnknownIsa};

#[cfg(test)]
mod tests;
