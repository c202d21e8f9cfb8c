//! Telemetry, `orinctl status`, `doctor` and `top` on recorded trees of `/proc` and `/sys`.
mod bench;
mod doctor;
mod telemetry;
mod top;
mod tree;
