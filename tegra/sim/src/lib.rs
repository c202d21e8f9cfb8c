//! `tegra-sim`: a strict simulated Jetson Orin.
//!
//! [`memory`] is shared by CPU and GPU, and [`mmu`] maps it for the GPU. [`gpu`] executes command
//! streams, [`engine`] machine code; [`driver`] implements the device nodes. [`class`] has the
//! class definitions of the hardware; [`finding`] reports mistakes of a program, [`trace`] records
//! what it did. [`config`] is the configuration, [`profile`] the facts of a real Orin, [`quirks`]
//! its defects. Production code does not depend on this crate.

pub mod class;
pub mod config;
pub mod driver;
pub mod engine;
pub mod finding;
pub mod gpu;
pub mod memory;
pub mod mmu;
pub mod profile;
pub mod quirks;
mod thread;
pub mod trace;
pub mod user;
