//! First light: checks that an Orin computes correctly before it runs a model, in bring-up steps
//! from the basics of every program to the features that only this one relies on.
//!
//! A [`Trial`] has its own address space, context and compute queue, and disturbs no other program:
//! its kernels access its own buffers only, none runs longer than a millisecond, every wait ends
//! after [`TIMEOUT`], and a failed step rebuilds the channel. Launches have the same fields as
//! those that were seen to run on hardware: all shader data caches invalidated, at least one
//! barrier, code in memory that the GPU may write.
//!
//! | step | launches | warp instructions | duration on hardware |
//! |---|---|---|---|
//! | 1 [`Trial::open`] | | | a second, for the golden context that the first channel of a process needs anyway |
//! | 2 [`Trial::release`] | | | some 50 microseconds |
//! | 3 [`Trial::event`] | | | less than 1 ms; 20 ms if no interrupt arrives |
//! | 4 [`Trial::launch`] | 1 | 7,000 | less than 1 ms |
//! | 5 [`Trial::order`] of [`LENGTHS`] | 4,672 | 1,700,000 | 25 ms, at 5 microseconds a launch |
//! | 6 [`Trial::atomics`] | 64 | 500,000 | 3 ms |
//! | 7 [`Trial::handover`] | 64 | 1,900,000 | 10 ms |
//!
//! Instructions are those of a simulated Orin with 8 SMs; durations are estimates from launches
//! timed on hardware. After step 1 that is a twentieth of a second, and a second more for each step
//! that hangs.
//!
//! Owns the steps, and the launch of a kernel's machine code ([`launch`]), which the experiments of
//! first contact use too. Independent of models and of the consequence of a failed step. The kernels'
//! results are defined in [`orind_kernels::first_light`].

mod error;
pub mod launch;
mod order;
mod steps;
mod trial;

pub use error::Failure;
pub use order::LENGTHS;
pub use trial::{TIMEOUT, Trial};
