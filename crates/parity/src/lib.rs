//! Comparison of devices with the reference. [`steps`] lists single steps in all shapes, types and
//! extremes that devices run, [`case`] runs one. [`model`] runs prompts through a whole model,
//! [`fingerprint`] hashes its logits. [`ops`] contains tensor operations, [`measure`] the
//! distances.

pub mod case;
mod error;
pub mod fingerprint;
pub mod measure;
pub mod model;
pub mod ops;
mod runner;
pub mod steps;
