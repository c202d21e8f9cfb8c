//! `tegra-sim`: a strict simulated Jetson Orin.
//!
//! [`memory`] is what CPU and GPU share; [`gpu`] executes command streams, [`engine`] machine code; [`driver`] answers for
//! the device nodes. [`class`] is what hardware reads, as the simulator knows it; [`finding`] says what
//! is wrong with a program, [`trace`] what it did, [`profile`] what a real Orin does otherwise,
//! [`quirks`] what fails on one, [`config`] what is asked for. Production code knows nothing of this crate.

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
