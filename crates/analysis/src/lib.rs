//! Analysis of benchmark results; measures nothing itself.
//!
//! Contains tables, the record file, speed history, the speed gate, parameter sweeps, and the load test of a server
//! (its requests and their evaluation).

mod format;
mod gate;
mod history;
mod pairs;
mod record;
pub mod serving;
pub mod statistics;
pub mod sweep;
mod verify;

pub use format::{csv, markdown, table};
pub use gate::{Build, Difference, Gate, RULE, TestVerdict, Verdict, differences};
pub use history::{Point, Series};
pub use record::{Damaged, FILE, FORMAT, RecordError, Records, append, read};
pub use verify::{Findings, verify};
