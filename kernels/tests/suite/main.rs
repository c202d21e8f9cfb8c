//! Tests of the checked-in kernels, their launches and the cubin parser.

#![expect(clippy::unwrap_used, reason = "a test may panic and report")]

mod catalogue;
mod cubin;
mod machine;
mod nvrtc;
mod prebuilt;
