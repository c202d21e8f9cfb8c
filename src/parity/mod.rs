//! Devices held against the reference: [`steps`] lists single steps in every shape, type and extreme that
//! devices run, [`case`] runs one; [`model`] runs prompts through a whole model; [`measure`] has the numbers.

pub mod case;
pub mod measure;
pub mod model;
pub mod steps;
