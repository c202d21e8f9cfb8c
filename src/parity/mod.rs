//! Devices held against each other: the same plans, the same inputs, and how far apart what comes out
//! is.
//!
//! [`steps`] lists single steps in every shape, type and extreme that devices run, [`case`] runs one;
//! [`model`] runs prompts through a whole model; [`measure`] has the numbers. What is right is what the
//! reference says.

pub mod case;
pub mod measure;
pub mod model;
pub mod steps;
