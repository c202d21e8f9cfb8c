//! `tegra-profile`: what was measured on one Orin, as a file.
//!
//! A [`Profile`] holds the answers of the experiments that `orinctl first-contact` makes: for each
//! the question, the method, the numbers as they were measured, and a [`Verdict`]. Whoever makes
//! such a file and whoever reads it meet here, so this crate knows neither GPU nor simulator.
//!
//! Files come from other people's machines: [`Profile::parse`] believes nothing. Sizes are limited
//! before anything is kept, names are checked, numbers are finite. [`facts`] names what readers
//! look for, [`Proven`] what of them a daemon can use; [`diff`] holds two profiles against each other;
//! [`mod@unit`] writes values for people.

mod check;
pub mod diff;
pub mod facts;
mod file;
mod proven;
pub mod unit;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use check::{MOST_EXPERIMENTS, MOST_FACTS, MOST_LINES, MOST_SAMPLES, MOST_TEXT};
pub use file::{Error, MOST_BYTES};
pub use proven::{FILE_NAME, Proven};

/// What the file says that it is.
pub const FORMAT: &str = "orin-profile";
/// The version that this crate writes, and the only one that it reads.
pub const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub format: String,
    pub version: u32,
    /// The program that made it, with its version.
    pub tool: String,
    /// When it was begun, in seconds since 1970 UTC.
    pub taken: u64,
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
    /// Whether the drivers' lines of the kernel's log could be read, or why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_log: Option<String>,
}

impl Machine {
    /// In what `now` is another machine than this, or another state of it in which answers may be
    /// others; `None` where nothing that both tell differs. Clocks come and go: they do not count.
    #[must_use]
    pub fn difference(&self, now: &Self) -> Option<String> {
        if self.simulated != now.simulated {
            let kind = |simulated| if simulated { "a simulated Orin" } else { "a real one" };
            return Some(format!("{}, not {}", kind(now.simulated), kind(self.simulated)));
        }
        let sms = |machine: &Self| machine.sms.map(|sms| sms.to_string());
        let told = [
            ("board", self.model.clone(), now.model.clone()),
            ("L4T", self.l4t.clone(), now.l4t.clone()),
            ("kernel", self.kernel.clone(), now.kernel.clone()),
            ("chip", self.chip.clone(), now.chip.clone()),
            ("number of SMs", sms(self), sms(now)),
            ("power mode", self.power_mode.clone(), now.power_mode.clone()),
        ];
        told.into_iter().find_map(|(what, then, now)| match (then, now) {
            (Some(then), Some(now)) if then != now => Some(format!("{what} {now}, not {then}")),
            _ => None,
        })
    }
}

/// A clock, in Hz.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clock {
    pub now_hz: Option<u64>,
    /// The lowest that is allowed now.
    pub min_hz: Option<u64>,
    /// The highest that is allowed now.
    pub max_hz: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name: lower-case letters, digits and hyphens.
    pub name: String,
    pub question: String,
    /// How it is found out.
    pub method: String,
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
    /// What the drivers wrote to the kernel's log meanwhile, where that could be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub driver_log: Vec<String>,
    /// How long it took.
    #[serde(default)]
    pub seconds: f64,
}

impl Experiment {
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
            driver_log: Vec::new(),
            seconds: 0.0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
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

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    Flag(bool),
    Count(u64),
    /// Any other number; finite.
    Number(f64),
    Text(String),
}

impl Value {
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Count(count) => Some(*count as f64),
            Self::Number(number) => Some(*number),
            Self::Flag(_) | Self::Text(_) => None,
        }
    }

    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Flag(_) | Self::Count(_) | Self::Number(_) => None,
        }
    }
}

macro_rules! from {
    ($($from:ty: $value:ident => $made:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $made
            }
        }
    )*};
}
from! {
    bool: flag => Self::Flag(flag);
    u64: count => Self::Count(count);
    u32: count => Self::Count(count.into());
    usize: count => Self::Count(count as u64);
    // A number that is none becomes 0, so that the file can be written and read.
    f64: number => Self::Number(if number.is_finite() { number } else { 0.0 });
    String: text => Self::Text(text);
    &str: text => Self::Text(text.into());
}

impl Profile {
    #[must_use]
    pub fn new(tool: impl Into<String>, taken: u64, machine: Machine) -> Self {
        let (format, tool) = (FORMAT.into(), tool.into());
        Self { format, version: VERSION, tool, taken, machine, experiments: Vec::new() }
    }

    #[must_use]
    pub fn experiment(&self, name: &str) -> Option<&Experiment> {
        self.experiments.iter().find(|experiment| experiment.name == name)
    }

    #[must_use]
    pub fn fact(&self, experiment: &str, fact: &str) -> Option<&Value> {
        self.experiment(experiment)?.facts.get(fact)
    }
}
