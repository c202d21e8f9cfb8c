//! `orind-kernels`: CUDA kernels, their prebuilt machine code, and its loader.
//!
//! - CUDA C++ sources (`src/cuda`) and compilation units ([`source`])
//! - launch parameters ([`params`], [`bank0`]) and packed weight layouts ([`repack`])
//! - which kernels exist, their grids and tuning parameters ([`catalogue`])
//! - checked-in machine code ([`prebuilt`], [`manifest`]) and the cubin parser ([`cubin`])
//! - generated kernels ([`generated`]), run-time compilation ([`jit`], [`nvrtc`]) and its disk
//!   cache ([`cubin_cache`])
//! - self-test kernels ([`first_light`]) and random test programs ([`snippets`])
//!
//! Depends on the weight types of plans, but not on models, drivers or queues.

#![warn(missing_docs)]

pub mod bank0;
pub mod catalogue;
pub mod cubin;
pub mod cubin_cache;
pub mod first_light;
pub mod generated;
pub mod jit;
pub mod manifest;
pub mod nvrtc;
pub mod occupancy;
pub mod params;
pub mod prebuilt;
pub mod repack;
pub mod snippets;
pub mod source;
