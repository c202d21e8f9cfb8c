//! The lowest vocabulary of the house: data types, buffers, steps, fusion passes.
//!
//! Everything above (`graph`, `model`) produces plans, everything beside (`device`) consumes
//! them; this module depends on neither.

mod dtype;

pub use dtype::{DType, UnknownDType};
