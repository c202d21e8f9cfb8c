//! Tuning: which variant of a kernel is best on this machine, found by measuring and remembered.
//!
//! Devices declare what may be varied; here it is searched, and what was found is kept in a
//! [`store`] for the next start. The words that all of it shares are re-exported from there: a
//! [`Case`] is what is tuned, a [`Choice`] how it is run, a [`Record`] what a choice was found to cost,
//! a [`DeviceKey`] for which hardware that holds.

pub mod store;

pub use store::{
    Candidates, Case, Choice, Clock, Cost, Declared, DeviceKey, Heuristic, Record, Rejected, Store,
    When,
};
