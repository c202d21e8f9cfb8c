//! The CPU device: a thread pool, and programs of kernel calls over the kernels of [`simd`].
//!
//! A step runs as one region of the pool, one kernel call after the other.

mod attention;
mod check;
mod concat_in_place;
mod context;
mod conv_shape;
mod depthwise;
mod device;
mod epilogue;
mod errors;
mod execute;
mod gather;
mod group;
mod instance;
mod layout;
mod matmul;
mod matmul_chain;
pub mod mem;
mod memory;
mod moe;
mod moe_workspace;
mod operand;
mod packed_operand;
pub mod pool;
mod program;
mod projection;
mod recurrent;
mod row_fusion;
mod row_ops;
pub mod variant;
mod width;
mod winograd;
mod workspace;

pub use device::Cpu;
pub use mem::promised;
pub use simd::{Isa, UnknownIsa};
