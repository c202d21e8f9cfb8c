//! Tuning: which variant of a kernel is best on this machine, found by measuring and remembered.
//!
//! Devices declare what may be varied, as a [`Space`]; here it is searched ([`beam`]), and what was found
//! is kept in a [`store`] for the next start, when a device is handed it as [`Choices`]. The words that all of it shares are re-exported from there: a
//! [`Case`] is what is tuned, a [`Choice`] how it is run, a [`Record`] what a choice was found to cost,
//! a [`DeviceKey`] for which hardware that holds.

pub mod beam;
pub mod median;
pub mod report;
mod space;
pub mod store;

pub use space::{Choices, Outside, Parameter, Scope, Space, digest, leader, of_matrix};
pub use store::{
    Candidates, Case, Choice, Clock, Cost, Declared, DeviceKey, Heuristic, Record, Rejected, Store,
    When,
};
