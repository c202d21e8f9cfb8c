//! Benchmarks: [`run`] has the engine to itself and times prefill and decode; what it found is a [`Report`],
//! which travels as JSON and prints as a table, Markdown or CSV. Every repetition runs all tests once, with
//! the memory roof measured between: a slow minute of the machine touches all rows and shows in their spread.

mod conditions;
mod format;
mod gate;
mod history;
mod machine;
mod meter;
mod record;
mod report;
pub mod roof;
mod run;
mod schedule;
pub mod serving;
mod spec;
pub mod statistics;
pub mod sweep;
mod verify;

pub use conditions::{Conditions, Observer};
pub use format::{csv, markdown, table};
pub use gate::{Build, Difference, Gate, Judged, RULE, Verdict, differences};
pub use history::{Point, Series};
pub use meter::Meter;
pub use record::{Damaged, FILE, FORMAT, RecordError, Records, append, read};
pub use report::{
    ColdStart, FirstToken, Machine, Manifest, Memory, Model, Report, Roof, Row, Stream,
};
pub use run::run;
pub use schedule::shuffle;
pub use spec::{Error, Kind, Progress, Spec, Test};
pub use verify::{Findings, verify};
