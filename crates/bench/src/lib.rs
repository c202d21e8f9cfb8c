//! Measurement of prefill and decode. [`run`] has the engine to itself and times it; [`Report`] is
//! the result, also as JSON.
//!
//! Every repetition runs all tests once and measures the memory bandwidth in between, so a slow
//! minute of the machine affects all rows alike and shows in their spread.

mod conditions;
mod machine;
mod meter;
mod report;
pub mod roof;
mod run;
mod schedule;
mod spec;
pub mod statistics;

pub use conditions::{Conditions, Observer};
pub use meter::Meter;
pub use report::{
    ColdStart, FirstToken, Machine, Manifest, Memory, Model, Report, Roof, Row, Stream,
};
pub use run::run;
pub use schedule::shuffle;
pub use spec::{Error, Kind, Progress, Spec, Test};
