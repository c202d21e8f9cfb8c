//! The simulated Orin: its drivers' answers, its GPU driven directly, machine code executed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod class;
mod config;
mod driver;
mod engine;
mod gpu;
mod memory;
mod profile;
mod report;
