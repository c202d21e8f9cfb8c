//! `tegra-sim`: a strict simulated Jetson Orin.
//!
//! [`memory`] is what CPU and GPU share; [`gpu`] executes command streams; [`driver`] answers for
//! the device nodes. Production code knows nothing of this crate.

pub mod driver;
pub mod gpu;
pub mod memory;
