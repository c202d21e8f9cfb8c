//! Devices held against the reference: [`steps`] lists single steps in every shape, type and extreme that
//! devices run, [`case`] runs one; [`model`] runs prompts through a whole model, [`fingerprint`] makes one hash of what
//! it answers; [`ops`] has the operations of tensors, [`measure`] the numbers.

pub mod case;
pub mod fingerprint;
pub mod measure;
pub mod model;
pub mod ops;
mod runner;
pub mod steps;
