//! The CPU device: a thread pool, and plans as lists of stages over the kernels of [`simd`].
//!
//! A step runs as one region of the pool, stage by stage.

mod between;
mod depthwise;
mod device;
mod execute;
mod group;
mod instance;
mod joined;
pub mod mem;
mod memory;
mod mixture;
pub mod pool;
mod product;
mod program;
mod recurrent;
mod rows;
mod together;
pub mod variant;
mod winograd;

pub use device::Cpu;
pub use mem::promised;
pub use simd::{Isa, UnknownIsa};
