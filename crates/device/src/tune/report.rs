//! Requests, progress and results of a search: plain data, also used by the HTTP API.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::beam::{Outcome, Settings};
use super::store::{Tried, Verdict, describe};
use super::{Case, Clock, Space};

/// Use of stored choices when a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// None: default choices only.
    #[default]
    Off,
    Load,
    /// Uses them, and continues searching while idle.
    Auto,
}

/// Progress of the idle search.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Searching {
    pub cases: usize,
    pub done: usize,
    /// Cases with a choice faster than the default.
    pub faster: usize,
    /// Cases that were already known.
    pub known: usize,
    /// Measurements so far.
    pub turns: u64,
}

impl Searching {
    /// Counts a finished case.
    pub fn count(&mut self, state: State) {
        self.done += 1;
        self.faster += usize::from(state == State::Faster);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The device's file; `None` if nothing is loaded.
    pub file: Option<PathBuf>,
    /// Cases of the model that use a stored choice.
    pub used: usize,
    /// Entries that are valid for these kernels, including other models'.
    pub current: usize,
    pub stale: usize,
    /// Invalid entries.
    pub ignored: usize,
    pub damaged: Option<String>,
    /// Cases whose parameters were overridden by the user with another value.
    pub forced: usize,
    /// Cases to which the user's override applies.
    pub possible: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Number of choices that continue to the next level, 1 to 8.
    pub beam: usize,
    pub budget_seconds: f64,
    /// Most samples per case.
    pub samples: u64,
    /// Only cases whose name contains this: a family, a type, a shape.
    pub kernel: Option<String>,
    /// Measure known cases again.
    pub again: bool,
    /// Only compare known choices with the default again.
    pub verify: bool,
    /// Count a simulated device's work instead of measuring time.
    pub counted: bool,
    /// Bytes of weights to cycle through, so that they are read from memory; derived from the machine's
    /// caches if absent.
    pub cold_bytes: Option<u64>,
    /// Tune the generated kernels of this network instead of the loaded model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

/// A network in an ONNX file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Path, or name in the models directory.
    pub file: String,
    /// Sizes of dynamic input axes.
    #[serde(default)]
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Device; the daemon's own if absent.
    #[serde(default)]
    pub backend: Option<String>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            beam: 3,
            budget_seconds: 120.0,
            samples: 4000,
            kernel: None,
            again: false,
            verify: false,
            counted: false,
            cold_bytes: None,
            network: None,
        }
    }
}

impl Spec {
    /// Checks the request.
    ///
    /// # Errors
    ///
    /// The field, and the allowed values.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !Settings::WIDTHS.contains(&self.beam) {
            return Err(("beam", format!("beam is {}, 1 to 8 are possible", self.beam)));
        }
        if !(self.budget_seconds > 0.0 && self.budget_seconds <= 1e6) {
            let text = format!("budget_seconds is {}, more than 0 is needed", self.budget_seconds);
            return Err(("budget_seconds", text));
        }
        if self.cold_bytes.is_some_and(|bytes| bytes > 4 << 30) {
            return Err(("cold_bytes", "cold_bytes: at most 4294967296".into()));
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum Progress {
    Begun {
        cases: usize,
        known: usize,
    },
    Candidate {
        case: String,
        /// Number of the candidate, from 1.
        number: usize,
        of: usize,
        choice: String,
        /// Cost relative to the default's; `None` if it was rejected.
        cost: Option<f64>,
        rejected: Option<String>,
    },
    Case {
        row: Row,
    },
}

impl Progress {
    /// A candidate of the `number`th case.
    #[must_use]
    pub fn candidate(case: &Case, number: usize, of: usize, tried: &Tried) -> Self {
        let (cost, rejected) = match &tried.verdict {
            Verdict::Faster(cost) | Verdict::Slower(cost) => (Some(*cost), None),
            Verdict::Rejected(why) => (None, Some(why.clone())),
        };
        let (case, choice) = (case.to_string(), describe(&tried.choice));
        Self::Candidate { case, number, of, choice, cost, rejected }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A choice is faster than the default.
    Faster,
    /// The default is at least as fast as anything else.
    Heuristic,
    /// A stored choice no longer wins.
    Lost,
    /// Stopped or out of time before everything was tried; the next search continues.
    Partial,
    /// The measurement failed; `why` has the reason.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub state: State,
    pub heuristic: String,
    pub choice: String,
    /// Nanoseconds (or counted cost) of the default choice.
    pub heuristic_cost: f64,
    /// Cost of the choice to use.
    pub cost: f64,
    /// Speedup: median of the pairs.
    pub gain: f64,
    /// 95 % interval of the speedup.
    pub gain_interval: [f64; 2],
    /// Weights read per second, in 10^9 bytes; `None` if nothing was measured.
    pub gb_per_s: Option<f64>,
    pub tried: usize,
    /// Candidates that an interrupted search had tried.
    #[serde(default)]
    pub before: usize,
    pub rejected: Vec<String>,
    pub samples: u64,
    pub why: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub device: String,
    pub file: PathBuf,
    /// True if the file was written.
    #[serde(default)]
    pub remembered: bool,
    /// Reason why a result could not be written; the search ends if it was its final result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<String>,
    /// Source of candidates: `prebuilt`, `built in`.
    pub candidates: String,
    /// `measured` or `counted`.
    pub clock: Clock,
    pub rows: Vec<Row>,
    /// Cases skipped because they are known.
    pub known: usize,
    /// Cases for which there was no time.
    pub left: usize,
    /// Seconds spent measuring.
    pub seconds: f64,
}

impl Row {
    /// Report of a search or verification of a case that reads `bytes` bytes of weights.
    #[must_use]
    pub fn new(
        case: &Case,
        space: &Space,
        outcome: &Outcome,
        bytes: u64,
        clock: Clock,
        verified: bool,
    ) -> Self {
        let same = outcome.choice == space.heuristic;
        let state = match (same, verified) {
            (false, _) => State::Faster,
            (true, true) => State::Lost,
            (true, false) if outcome.complete => State::Heuristic,
            (true, false) => State::Partial,
        };
        Self {
            case: case.to_string(),
            state,
            heuristic: describe(&space.heuristic),
            choice: describe(&outcome.choice),
            heuristic_cost: outcome.heuristic.median,
            cost: outcome.cost.median,
            gain: outcome.gain.median,
            gain_interval: outcome.gain.interval,
            gb_per_s: (clock == Clock::Measured).then(|| bytes as f64 / outcome.cost.median),
            tried: outcome.tried,
            before: outcome.before,
            rejected: outcome
                .rejected
                .iter()
                .map(|(c, why)| format!("{}: {why}", describe(c)))
                .collect(),
            samples: outcome.samples,
            why: None,
        }
    }

    #[must_use]
    pub fn failed(case: &Case, space: &Space, why: String) -> Self {
        let heuristic = describe(&space.heuristic);
        Self {
            case: case.to_string(),
            state: State::Failed,
            choice: heuristic.clone(),
            heuristic,
            heuristic_cost: 0.0,
            cost: 0.0,
            gain: 1.0,
            gain_interval: [1.0, 1.0],
            gb_per_s: None,
            tried: 0,
            before: 0,
            rejected: Vec::new(),
            samples: 0,
            why: Some(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_and_faster_cases_are_counted() {
        let mut searching = Searching { cases: 6, known: 1, ..Searching::default() };
        for state in [State::Faster, State::Heuristic, State::Faster, State::Partial, State::Failed]
        {
            searching.count(state);
        }
        assert_eq!(searching, Searching { cases: 6, done: 5, faster: 2, known: 1, turns: 0 });
    }
}
