//! The kernels as they are checked in, and what launches and loads them.

#![expect(clippy::unwrap_used, reason = "a test may panic and report")]

mod catalogue;
mod cubin;
mod machine;
mod nvrtc;
mod prebuilt;
