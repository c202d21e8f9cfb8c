//! Machine code executed: prebuilt kernels launched through QMDs on the simulated GPU, and each
//! fault of a bad launch.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bundles;
#[path = "../../../tests/common/emulated.rs"]
mod emulated;
mod faults;
mod kernels;
mod loaded;
#[path = "../gpu/rig.rs"]
#[expect(dead_code, reason = "shared with the tests of the front end, which use the rest")]
mod rig;
