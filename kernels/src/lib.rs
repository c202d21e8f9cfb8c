//! `orind-kernels`: the CUDA kernels of the decode path, their prebuilt machine code and its loader.
//!
//! Owns: the CUDA C++ sources (`src/cuda`), what they are called with ([`params`]), how weights must
//! lie for them ([`repack`]), what else their constants hold ([`bank0`]), which kernels exist and how they may be tuned ([`catalogue`]), the
//! machine code checked in under `prebuilt/` ([`prebuilt`]), kernels that are made of groups of tensor operations
//! ([`generated`]), what is compiled on the machine ([`jit`], by [`nvrtc`]) and kept there ([`kept`]), what a loader reads out of it ([`cubin`]), kernels that tell whether a GPU can be trusted ([`first_light`]), and random programs for holding GPUs against each other ([`snippets`]). Of plans it knows the types of weights; models, drivers and queues it does not know.

#![warn(missing_docs)]

pub mod bank0;
pub mod catalogue;
pub mod cubin;
pub mod first_light;
pub mod generated;
pub mod jit;
pub mod kept;
pub mod manifest;
pub mod nvrtc;
pub mod occupancy;
pub mod params;
pub mod prebuilt;
pub mod repack;
pub mod snippets;
pub mod source;
