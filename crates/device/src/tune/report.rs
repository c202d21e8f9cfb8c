//! What is asked of a search, what is said on its way, and what came out: plain data, which also goes
//! over the socket.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::beam::{Outcome, Settings};
use super::store::{Tried, Verdict, describe};
use super::{Case, Clock, Space};

/// What a load does with what was found before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nothing: the heuristic alone.
    #[default]
    Off,
    Load,
    /// Uses it, and searches on while nothing else is to be done.
    Auto,
}

/// How far the search in idle time is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Searching {
    pub cases: usize,
    pub done: usize,
    /// Those of which something is faster than the heuristic.
    pub faster: usize,
    /// Cases that were known before.
    pub known: usize,
    /// Turns of measuring so far.
    pub turns: u64,
}

impl Searching {
    /// Counts a case that is over.
    pub fn count(&mut self, state: State) {
        self.done += 1;
        self.faster += usize::from(state == State::Faster);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The device's file; none where nothing is loaded.
    pub file: Option<PathBuf>,
    /// Cases of the model that run under a choice of the store's.
    pub used: usize,
    /// Entries that hold for these kernels, also of other models.
    pub current: usize,
    pub stale: usize,
    /// Entries that cannot be true.
    pub ignored: usize,
    pub damaged: Option<String>,
    /// Cases whose parameters were set by hand to something else than they were.
    pub forced: usize,
    /// Cases that take what was set by hand.
    pub possible: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    /// Choices that go on to the next level, 1 to 8.
    pub beam: usize,
    pub budget_seconds: f64,
    /// Samples for one case at most.
    pub samples: u64,
    /// Only cases whose name contains this: a family, a type, a shape.
    pub kernel: Option<String>,
    /// Measure what is known again.
    pub again: bool,
    /// Search nothing: measure what is known against the heuristic once more.
    pub verify: bool,
    /// Count what a simulated device does instead of measuring how long it takes.
    pub counted: bool,
    /// Bytes of weights that take turns so that they come from memory; chosen by the machine's caches
    /// when absent.
    pub cold_bytes: Option<u64>,
    /// Tune the kernels of this network's groups, and not those of the loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

/// A network out of an ONNX file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The file, or its name in the models directory.
    pub file: String,
    /// Of inputs whose extents the file leaves open.
    #[serde(default)]
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// The device; the daemon's own where absent.
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
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// The field, and what is possible.
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
        /// Its number, from 1.
        number: usize,
        of: usize,
        choice: String,
        /// Its cost in units of the heuristic's; none when it was rejected.
        cost: Option<f64>,
        rejected: Option<String>,
    },
    Case {
        row: Row,
    },
}

impl Progress {
    /// A candidate of the `number`th of some cases.
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
    /// Something better than the heuristic was found, or still is.
    Faster,
    /// The heuristic is as good as anything.
    Heuristic,
    /// What had won does no longer.
    Lost,
    /// It was stopped, or its time was up, before everything was tried: the next search goes on.
    Partial,
    /// It cannot be measured; `why` says why.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub state: State,
    pub heuristic: String,
    pub choice: String,
    /// Nanoseconds (or counted cost) of the heuristic's choice.
    pub heuristic_cost: f64,
    /// The same of the choice to use.
    pub cost: f64,
    /// How many times faster: median of the pairs.
    pub gain: f64,
    /// Its 95 % interval.
    pub gain_interval: [f64; 2],
    /// Weights read per second, 10^9 bytes; none where nothing was measured.
    pub gb_per_s: Option<f64>,
    pub tried: usize,
    /// Of these, what an interrupted search had tried before.
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
    /// Whether something was written to the file.
    #[serde(default)]
    pub remembered: bool,
    /// Why something that was found or tried could not be written; the search ends when it is what it found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unwritten: Option<String>,
    /// Where candidates come from: `prebuilt`, `built in`.
    pub candidates: String,
    /// `measured` or `counted`.
    pub clock: Clock,
    pub rows: Vec<Row>,
    /// Cases left alone because they are known.
    pub known: usize,
    /// Cases that there was no time for.
    pub left: usize,
    /// Seconds spent in measuring.
    pub seconds: f64,
}

impl Row {
    /// What a search (or a verification) of a case found, which reads so many bytes of weights.
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
    fn every_case_that_is_over_counts_and_the_faster_ones_as_such() {
        let mut searching = Searching { cases: 6, known: 1, ..Searching::default() };
        for state in [State::Faster, State::Heuristic, State::Faster, State::Partial, State::Failed]
        {
            searching.count(state);
        }
        assert_eq!(searching, Searching { cases: 6, done: 5, faster: 2, known: 1, turns: 0 });
    }
}
