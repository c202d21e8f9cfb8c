//! `tegra-profile`: what was measured on one Orin, as a file.
//!
//! A [`Profile`] holds the answers of the experiments that `orinctl first-contact` makes: for each
//! the question, the method, the numbers as they were measured, and a [`Verdict`]. Whoever makes
//! such a file and whoever reads it meet here, so this crate knows neither GPU nor simulator.
//!
//! Files come from other people's machines: [`Profile::parse`] believes nothing. Sizes are limited
//! before anything is kept, names are checked, numbers are finite. [`facts`] names what readers
//! look for; [`diff`] holds two profiles against each other; [`mod@unit`] writes values for people.

mod check;
pub mod diff;
pub mod facts;
mod file;
pub mod unit;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use check::{MOST_EXPERIMENTS, MOST_FACTS, MOST_SAMPLES, MOST_TEXT};
pub use file::{Error, MOST_BYTES};

/// What the file says that it is.
pub const FORMAT: &str = "orin-profile";
/// The version that this crate writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// The answers of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// The program that made it, with its version.
    pub tool: String,
    /// When it was begun, in seconds since 1970 UTC.
    pub taken: u64,
    /// The machine as it was found.
    pub machine: Machine,
    /// The experiments, in the order in which they were made.
    pub experiments: Vec<Experiment>,
}

/// A machine, without anything that tells one from another of its kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// Whether a simulated Orin answered.
    pub simulated: bool,
    /// Board, as the device tree names it.
    pub model: Option<String>,
    /// Release of L4T, as `36.4.4`.
    pub l4t: Option<String>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// The GPU's name, `ga10b`.
    pub chip: Option<String>,
    pub sms: Option<u32>,
    /// Power mode, as nvpmodel names it.
    pub power_mode: Option<String>,
    pub cpus: Option<u32>,
    /// Memory of the system, in bytes.
    pub memory_bytes: Option<u64>,
    /// Clocks at the begin, by name.
    pub clocks: BTreeMap<String, Clock>,
    /// Clocks at the end: where they differ from those at the begin, so may the numbers.
    pub clocks_after: BTreeMap<String, Clock>,
}

/// A clock, in Hz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clock {
    /// What it runs at.
    pub now_hz: Option<u64>,
    /// The lowest that is allowed now.
    pub min_hz: Option<u64>,
    /// The highest that is allowed now.
    pub max_hz: Option<u64>,
}

/// One experiment and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name: lower-case letters, digits and hyphens.
    pub name: String,
    pub question: String,
    /// How it is found out.
    pub method: String,
    /// What came of it.
    pub verdict: Verdict,
    /// The answer in a sentence; empty where there is none.
    #[serde(default)]
    pub answer: String,
    /// What was measured. A name ends with its unit, see [`mod@unit`].
    #[serde(default)]
    pub facts: BTreeMap<String, Value>,
    /// Raw series behind the facts, in the order of measuring. Their names end likewise.
    #[serde(default)]
    pub samples: BTreeMap<String, Vec<f64>>,
    /// Why there is no answer, or what went wrong beside it.
    #[serde(default)]
    pub error: Option<String>,
    /// How long it took.
    #[serde(default)]
    pub seconds: f64,
}

impl Experiment {
    /// An experiment without an answer.
    #[must_use]
    pub fn new(name: &str, question: &str, method: &str, verdict: Verdict) -> Self {
        Self {
            name: name.into(),
            question: question.into(),
            method: method.into(),
            verdict,
            answer: String::new(),
            facts: BTreeMap::new(),
            samples: BTreeMap::new(),
            error: None,
            seconds: 0.0,
        }
    }
}

/// What came of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As the code assumes.
    Expected,
    /// Otherwise than the code assumes.
    Differs,
    /// A number, of which nothing was assumed.
    Measured,
    /// The driver or the GPU refused a step: the error says which.
    Failed,
    /// It did not end in time and was killed.
    TimedOut,
    /// Its process died: the error says how, and its last words.
    Crashed,
    /// It was under way when the whole run ended.
    Unfinished,
    /// It was left out.
    Skipped,
}

impl Verdict {
    /// Whether something was found out. How an experiment fails is an answer too; that it was left
    /// out or cut off is none.
    #[must_use]
    pub const fn is_answer(self) -> bool {
        !matches!(self, Self::Unfinished | Self::Skipped)
    }

    /// As the file has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expected => "expected",
            Self::Differs => "differs",
            Self::Measured => "measured",
            Self::Failed => "failed",
            Self::TimedOut => "timed-out",
            Self::Crashed => "crashed",
            Self::Unfinished => "unfinished",
            Self::Skipped => "skipped",
        }
    }
}

/// A measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    Count(u64),
    /// Any other number; finite.
    Number(f64),
    Text(String),
}

impl Value {
    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Count(count) => Some(*count as f64),
            Self::Number(number) => Some(*number),
            Self::Flag(_) | Self::Text(_) => None,
        }
    }

    /// The text, if it is one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Flag(_) | Self::Count(_) | Self::Number(_) => None,
        }
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<u32> for Value {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Self::Count(count as u64)
    }
}

impl From<f64> for Value {
    /// A number that is none becomes 0, so that the file can be written and read.
    fn from(number: f64) -> Self {
        Self::Number(if number.is_finite() { number } else { 0.0 })
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl Profile {
    /// A profile without experiments.
    #[must_use]
    pub fn new(tool: impl Into<String>, taken: u64, machine: Machine) -> Self {
        let (format, tool) = (FORMAT.into(), tool.into());
        Self { format, version: VERSION, tool, taken, machine, experiments: Vec::new() }
    }

    /// An experiment by name.
    #[must_use]
    pub fn experiment(&self, name: &str) -> Option<&Experiment> {
        self.experiments.iter().find(|experiment| experiment.name == name)
    }

    /// A fact that an experiment found.
    #[must_use]
    pub fn fact(&self, experiment: &str, fact: &str) -> Option<&Value> {
        self.experiment(experiment)?.facts.get(fact)
    }
}
