//! Diagnosis: what prevents a model from running, or from running fast, on this machine, and how to
//! fix it.
//!
//! [`Facts::gather`] reads the machine. Each check in `checks` is a function from facts to a
//! [`Finding`] and changes nothing. `report` writes findings to a file that can be shared.

mod checks;
mod facts;
mod report;

use serde::{Deserialize, Serialize};

pub use checks::examine;
pub use facts::{Disk, Facts, Fault, Need, Node, Socket, Tuned};
pub use report::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The check does not apply to this machine.
    NotApplicable,
    Ok,
    Note,
    /// Slower or less robust than necessary.
    Warning,
    /// Something does not work.
    Failure,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the check: `power mode`.
    pub check: String,
    pub verdict: Verdict,
    pub found: String,
    /// Consequence; only if something must be fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Fix: a command or an instruction.
    #[serde(default, rename = "mend", skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

pub fn worst(findings: &[Finding]) -> Verdict {
    findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
}
