//! First light: what an Orin must do right before a model is trusted to it, tried in stages from what every
//! program does to what only this one relies on.
//!
//! A [`Trial`] has an address space, a context and a compute queue of its own, and harms nobody else's: its
//! kernels read and write its own buffers, none runs longer than a millisecond, every wait ends after
//! [`PATIENCE`], and after a stage that fails the channel is made anew. Launches have the bits of those that
//! hardware has been seen to run: all caches of shader data dropped, a barrier at least, code in memory that
//! the GPU may write.
//!
//! | stage | launches | warp instructions | done by then, on hardware |
//! |---|---|---|---|
//! | 1 [`Trial::open`] | | | a second, the golden context, that the first channel of a process takes anyway |
//! | 2 [`Trial::release`] | | | some 50 microseconds |
//! | 3 [`Trial::event`] | | | less than 1 ms; 20 ms where no interrupt wakes |
//! | 4 [`Trial::launch`] | 1 | 7,000 | less than 1 ms |
//! | 5 [`Trial::order`] of [`LENGTHS`] | 4,672 | 1,700,000 | 25 ms, at 5 microseconds a launch |
//! | 6 [`Trial::atomics`] | 64 | 500,000 | 3 ms |
//! | 7 [`Trial::handover`] | 64 | 1,900,000 | 10 ms |
//!
//! Instructions are those that a simulated Orin of 8 SMs executes; times are estimated from launches that
//! were timed on hardware. Beyond stage 1 that is a twentieth of a second, and a second more for each stage
//! that hangs.
//!
//! Owns the stages, and how kernels' machine code becomes a launch ([`launch`]), which the experiments of
//! first contact use too. Does not know what follows from a stage that fails, nor models. What the kernels
//! compute is in [`orind_kernels::first_light`].

mod error;
pub mod launch;
mod order;
mod stages;
mod trial;

pub use error::Failure;
pub use order::LENGTHS;
pub use trial::{PATIENCE, Trial};
