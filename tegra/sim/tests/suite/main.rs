//! Tests of the simulated Orin: drivers, the GPU without a driver, execution of machine code.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod class;
mod config;
mod driver;
mod engine;
mod gpu;
mod memory;
mod profile;
mod report;
