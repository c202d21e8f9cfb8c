//! Engines held against each other on one machine: the same file, the same token ids, in turn, one process at a
//! time. [`run`] drives the peers, `fairness` says what differs between them, [`agreement`] whether they
//! compute the model, [`Comparison`] what was found and who is faster, where that can be said.
//!
//! It measures nothing itself: speeds come from each engine's own bench, times from a client's side of its
//! server. It knows of devices only what the caller gives it: the reference's answers.

pub mod agreement;
mod facts;
mod fairness;
mod format;
mod kept;
mod metrics;
mod outcome;
mod page;
mod peers;
mod process;
pub mod quality;
mod replace;
mod report;
mod run;
mod served;
mod workload;

pub use agreement::Agreement;
pub use facts::{Facts, processor};
pub use fairness::Difference;
pub use format::{csv, markdown, table};
pub use kept::{Damaged, Kept};
pub use metrics::explain;
pub use outcome::{Answer, Memory, Outcome};
pub use page::page;
pub use peers::{Peer, Settings};
pub use replace::replace;
pub use report::{Comparison, Entrant, Kernels, Row, Step, Verdict};
pub use run::{Error, Judge, Progress, Run, run};
pub use workload::{TOP, Workload, random};
