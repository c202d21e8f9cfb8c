//! What keeps a model from running, or from running fast, on this machine, and how to fix it.
//!
//! [`Facts::gather`] reads the machine; each check in `checks` is a function from facts to a
//! [`Finding`] and changes nothing; `report` puts findings into a file that may be shown to others.

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
    /// There is nothing here that this could be about.
    NotApplicable,
    Ok,
    Note,
    /// Slower or more fragile than it need be.
    Warning,
    /// Something does not work.
    Failure,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at: `power mode`.
    pub check: String,
    pub verdict: Verdict,
    pub found: String,
    /// Why it matters; only where something is to be fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How to fix it: a command, or what to do.
    #[serde(default, rename = "mend", skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

pub fn worst(findings: &[Finding]) -> Verdict {
    findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
}
