//! Benchmarks: workloads, statistics, the memory roof, reports.
//!
//! [`run`] has the engine to itself and times prefill and decode on it; what it found is a
//! [`Report`], plain data that travels as JSON and prints as a table, Markdown or CSV. The tests
//! are interleaved: every repetition runs all of them once, and the memory roof is measured between
//! repetitions, so that a slow minute of the machine touches all rows and shows in their spread.

mod conditions;
mod format;
mod machine;
mod meter;
mod report;
pub mod roof;
mod run;
mod schedule;
mod spec;
pub mod statistics;

pub use conditions::Conditions;
pub use format::{csv, markdown, table};
pub use meter::Meter;
pub use report::{
    ColdStart, FirstToken, Machine, Manifest, Memory, Model, Report, Roof, Row, Stream,
};
pub use run::run;
pub use spec::{Error, Kind, Progress, Spec, Test};
