//! Whole machines: what telemetry, `orinctl status`, `doctor` and `top` make of real layouts of `/proc`
//! and `/sys`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod doctor;
mod telemetry;
mod top;
mod tree;
