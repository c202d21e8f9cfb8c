//! Result of a comparison: every outcome, and the rows and verdicts derived from them. Plain data
//! in SI units; [`Comparison::judge`] recomputes it from the outcomes alone.

use serde::{Deserialize, Serialize};

use super::agreement::Agreement;
use super::facts::Facts;
use super::fairness::Difference;
use super::outcome::Outcome;
use super::workload::Workload;
use analysis::Series;
use analysis::statistics::{Pairs, Percentiles, Summary, median};
use bench::{Conditions, Kind, Machine};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Start time, RFC 3339, UTC.
    pub date: String,
    pub machine: Machine,
    pub work: Workload,
    /// Requested number of rounds.
    pub rounds: u32,
    /// Ended by Ctrl-C, with the results measured until then.
    pub interrupted: bool,
    /// True if there were reference answers to compare with.
    pub judged: bool,
    /// Reasons why the numbers are invalid: the machine changed during the rounds.
    pub invalid: Vec<String>,
    pub conditions: Conditions,
    /// Engines; the others are compared with the first.
    pub entrants: Vec<Entrant>,
    pub differences: Vec<Difference>,
    pub rows: Vec<Row>,
    /// Speeds of this model on this device in earlier records.
    #[serde(default)]
    pub history: Vec<Series>,
    /// Decode steps of the first engine, if they were timed.
    #[serde(default)]
    pub kernels: Option<Kernels>,
}

/// Steps of a decoded token, from `orinctl profile --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernels {
    /// Read bandwidth of the device in bytes per second, before and after; 0 if not measured.
    pub bandwidth: f64,
    pub steps: Vec<Step>,
}

/// Steps of one kind in one token, summed over all layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub step: String,
    pub op: String,
    pub count: usize,
    /// Bytes of weights and KV cache that the steps read and write.
    pub bytes: u64,
    pub operations: u64,
    pub seconds: f64,
}

/// One engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entrant {
    pub name: String,
    pub facts: Facts,
    /// `None` if it reported nothing comparable.
    pub agreement: Option<Agreement>,
    pub rounds: Vec<Outcome>,
    /// Reason why the engine is missing or failed.
    pub lost: Option<String>,
}

impl Entrant {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            facts: Facts::default(),
            agreement: None,
            rounds: Vec::new(),
            lost: None,
        }
    }

    /// True if its speed may win: it computes the model, or that could not be checked.
    pub fn may_win(&self) -> bool {
        self.agreement.as_ref().is_none_or(|agreement| agreement.agrees)
    }

    /// Seconds between tokens of all rounds, without the first answer after each start.
    pub fn gaps(&self) -> Vec<f64> {
        let all = self.rounds.iter().flat_map(|round| round.between.iter().skip(1).flatten());
        all.copied().collect()
    }

    /// Percentiles of the times between tokens.
    pub fn between(&self) -> Option<Percentiles> {
        Percentiles::of(&self.gaps())
    }
}

/// One quantity for every engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the test, time or size.
    pub name: String,
    /// Unit of the values.
    pub unit: Unit,
    /// One cell per engine, in their order; `None` if it has no such number.
    pub cells: Vec<Option<Cell>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    TokensPerSecond,
    Seconds,
    Bytes,
    JoulesPerToken,
    /// Tokens per second for each 10^9 bytes.
    PerGigabyte,
    /// Multiple of another number of the same round.
    Times,
    /// Fraction of the bandwidth measured in the same round.
    Share,
}

impl Unit {
    /// Returns whether larger values are better.
    pub const fn more(self) -> bool {
        matches!(self, Self::TokensPerSecond | Self::PerGigabyte | Self::Share)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    pub summary: Summary,
    /// Comparison of the first engine with this one; `None` for the first.
    pub against: Option<Against>,
}

/// Comparison of the first engine with another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// Ratios of the first engine's value over the other's, by round.
    pub pairs: Pairs,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The first engine is better, and the difference is resolved.
    Better,
    Worse,
    /// The interval contains 1, or there were too few rounds.
    CannotTell,
    /// One of the two does not compute the model, so neither wins.
    Disagrees,
    /// The machine changed during the rounds.
    Invalid,
}

impl Comparison {
    pub(super) fn new(work: Workload, rounds: u32, judged: bool) -> Self {
        Self {
            date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            machine: Machine::this(),
            work,
            rounds,
            interrupted: false,
            judged,
            invalid: Vec::new(),
            conditions: Conditions::default(),
            entrants: Vec::new(),
            differences: Vec::new(),
            rows: Vec::new(),
            history: Vec::new(),
            kernels: None,
        }
    }

    /// Reads a comparison from JSON; rows and verdicts are recomputed from its outcomes.
    pub fn from_json(text: &[u8]) -> serde_json::Result<Self> {
        let mut found: Self = serde_json::from_slice(text)?;
        found.judge();
        Ok(found)
    }

    /// Computes the rows from the outcomes.
    pub(super) fn judge(&mut self) {
        let mut rows = Vec::new();
        for test in &self.work.tests {
            let name = test.to_string();
            rows.extend(self.row(&name, Unit::TokensPerSecond, |o| o.speeds.get(&name).copied()));
        }
        for test in &self.work.tests {
            let key = test.to_string();
            let name = format!("{key}, energy");
            rows.extend(self.row(&name, Unit::JoulesPerToken, |o| o.joules.get(&key).copied()));
        }
        let decode =
            self.work.tests.iter().find(|t| t.kind == Kind::Decode && t.depth == 0 && t.batch == 1);
        if let Some(decode) = decode {
            let key = decode.to_string();
            let read = self.entrants.iter().flat_map(|e| &e.rounds).find_map(|o| o.bytes_per_token);
            let roofs = self.roofs();
            let name = format!("{key}, of the bandwidth");
            rows.extend(self.numbered(&name, Unit::Share, |i, o| {
                Some(o.speeds.get(&key)? * read? / roofs.get(i).copied().flatten()?)
            }));
            let name = format!("{key}, for the memory");
            rows.extend(self.row(&name, Unit::PerGigabyte, |o| {
                Some(o.speeds.get(&key)? / (o.memory.all()? as f64 / 1e9))
            }));
        }
        rows.extend(self.row("sustained", Unit::TokensPerSecond, Outcome::sustained));
        let name = format!("first token after {}", self.work.prompt);
        rows.extend(self.row(&name, Unit::Seconds, |o| median(o.first_token.get(1..)?)));
        rows.extend(
            self.row("very first token", Unit::Seconds, |o| o.first_token.first().copied()),
        );
        rows.extend(self.row("first iteration, prompt", Unit::Times, |o| {
            Some(o.first_token.first()? / median(o.first_token.get(1..)?)?)
        }));
        rows.extend(self.row("between tokens", Unit::Seconds, Outcome::between_tokens));
        rows.extend(self.row("first iteration, step", Unit::Times, |o| {
            Some(o.between.first()?.first()? / o.between_tokens()?)
        }));
        rows.extend(self.row("load", Unit::Seconds, |o| o.load));
        rows.extend(
            self.row("cold start", Unit::Seconds, |o| Some(o.load? + o.first_token.first()?)),
        );
        rows.extend(self.row("peak memory", Unit::Bytes, |o| o.memory.peak.map(|b| b as f64)));
        self.rows = rows;
    }

    /// Bandwidth of each round, from the engine that measured it.
    fn roofs(&self) -> Vec<Option<f64>> {
        let rounds = self.entrants.iter().map(|e| e.rounds.len()).max().unwrap_or(0);
        let read = |round: usize| {
            self.entrants.iter().find_map(|e| e.rounds.get(round).and_then(|o| o.roof))
        };
        (0..rounds).map(read).collect()
    }

    fn row(&self, name: &str, unit: Unit, get: impl Fn(&Outcome) -> Option<f64>) -> Option<Row> {
        self.numbered(name, unit, |_, outcome| get(outcome))
    }

    /// Creates a row from the value of `get` in every round; `None` if no engine has such a number.
    fn numbered(
        &self,
        name: &str,
        unit: Unit,
        get: impl Fn(usize, &Outcome) -> Option<f64>,
    ) -> Option<Row> {
        let series: Vec<Vec<f64>> = self
            .entrants
            .iter()
            .map(|e| e.rounds.iter().enumerate().filter_map(|(i, o)| get(i, o)).collect())
            .collect();
        let cell = |i: usize| {
            let summary = Summary::of(series.get(i)?.clone())?;
            let against = (i > 0).then(|| self.against(i, unit, &series)).flatten();
            Some(Cell { summary, against })
        };
        let cells: Vec<Option<Cell>> = (0..series.len()).map(cell).collect();
        let row = Row { name: name.into(), unit, cells };
        row.cells.iter().any(Option::is_some).then_some(row)
    }

    fn against(&self, i: usize, unit: Unit, series: &[Vec<f64>]) -> Option<Against> {
        // Only rounds that both finished: an engine that failed has the first ones.
        let rounds = series[0].len().min(series[i].len());
        let pairs = Pairs::of(&series[i][..rounds], &series[0][..rounds])?;
        let better = (pairs.median > 1.0) == unit.more();
        let verdict = match pairs.resolved {
            _ if !self.invalid.is_empty() => Verdict::Invalid,
            _ if !(self.entrants[0].may_win() && self.entrants[i].may_win()) => Verdict::Disagrees,
            false => Verdict::CannotTell,
            true if better => Verdict::Better,
            true => Verdict::Worse,
        };
        Some(Against { pairs, verdict })
    }
}
