//! The CPU device: SIMD kernels, packed weights, a thread pool.
//!
//! Kernels are written once over a small set of vector operations and compiled per instruction set;
//! the same bits come out of all of them, whatever the batch, the prefill chunk or the thread count.
//! A prepared plan is a list of stages; a step runs as one region of the pool,
//! stage by stage.

pub mod activations;
pub mod attention;
mod bits;
mod device;
mod execute;
mod format;
mod instance;
pub mod isa;
pub mod matmul;
pub mod mem;
mod memory;
pub mod norm;
pub mod packed;
pub mod pool;
mod program;
pub mod rope;
mod simd;
pub mod variant;

pub use device::Cpu;
pub use isa::{Isa, UnknownIsa};

#[cfg(test)]
mod tests;
