//! Machine code executed: prebuilt kernels launched through QMDs on the simulated GPU, and each
//! fault of a bad launch.

mod bundles;
mod faults;
mod kernels;
mod loaded;
mod machines;
