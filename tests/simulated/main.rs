//! Tests on the simulated Orin, which is linked into this program: it answers the process's system calls and executes
//! the kernels' machine code.
//!
//! A process has one simulated Orin, which all tests share. A test that chooses its faults, counts its objects or
//! filters the process's system calls starts this program again ([`orind_testing::program::again`]).

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and report")]

mod accuracy;
mod adapters;
mod architectures;
mod filter;
mod fingerprint;
mod first_light;
mod group_tune;
mod half;
mod lanes;
mod networks;
mod not_finite;
mod nv;
mod nv_bench;
mod nv_bundles;
mod nv_desktop;
mod nv_faults;
mod nv_layer;
mod nv_modes;
mod nv_tune;
mod onnx;
mod parity;
mod residents;
mod tensors;

use tegra_sim_preload as _;
