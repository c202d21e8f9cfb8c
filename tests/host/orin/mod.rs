//! Whole machines: what telemetry, `orinctl status`, `doctor` and `top` make of real layouts of `/proc`
//! and `/sys`.
mod bench;
mod doctor;
mod telemetry;
mod top;
mod tree;
