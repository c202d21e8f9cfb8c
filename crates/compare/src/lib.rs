//! Comparison of engines on one machine: the same model file, the same token ids, alternating runs,
//! one process at a time. [`run`] drives the peers, `fairness` finds differences between them,
//! [`agreement`] checks that they compute the model, and [`Comparison`] contains the results and
//! verdicts.
//!
//! The speeds are those of each engine's own bench; a client of its server measures latencies. The
//! crate is independent of devices: the caller provides the reference answers.

pub mod agreement;
mod answer_cache;
mod atomic_write;
mod facts;
mod fairness;
mod format;
mod metrics;
mod outcome;
mod page;
mod peers;
mod process;
pub mod quality;
mod report;
mod run;
mod server;
mod workload;

pub use agreement::Agreement;
pub use answer_cache::{AnswerCache, Damaged};
pub use atomic_write::write_atomically;
pub use facts::{Facts, processor};
pub use fairness::Difference;
pub use format::{csv, markdown, table};
pub use metrics::explain;
pub use outcome::{Answer, Memory, Outcome};
pub use page::page;
pub use peers::{Peer, Settings};
pub use report::{Comparison, Entrant, Kernels, Row, Step, Verdict};
pub use run::{Error, Judge, Progress, Run, run};
pub use workload::{TOP, Workload, random};
