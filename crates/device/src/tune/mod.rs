//! Tuning: finds the best variant of each kernel on this machine by measuring, and stores it.
//!
//! Devices declare a [`Space`]; [`beam`] searches it; a [`store`] stores results, which a device
//! receives as [`Choices`] on the next start. [`Case`] is what is tuned, [`Choice`] how it is run,
//! [`Record`] the measured result, [`DeviceKey`] the hardware for which it is valid.

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
