//! `tegra-profile`: the file of measurements of one Orin.
//!
//! A [`Profile`] has the answers of the experiments that `orinctl first-contact` makes: for each
//! the question, the method, the raw numbers, and a [`Verdict`]. It is the interface between the
//! writer and the readers of such a file, so this crate depends on neither.
//!
//! Files come from other people's machines and are untrusted: [`Profile::parse`] limits sizes
//! before it stores anything, and checks names and numbers. [`facts`] names the facts that readers
//! use, [`Proven`] selects those for a daemon; [`diff`] compares two profiles; [`mod@unit`] formats
//! values for people.

mod check;
pub mod diff;
mod error;
pub mod facts;
mod file;
mod proven;
pub mod unit;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use check::{MAX_EXPERIMENTS, MAX_FACTS, MAX_LINES, MAX_SAMPLES, MAX_TEXT};
pub use error::{Error, MAX_BYTES};
pub use proven::{FILE_NAME, Proven};

/// The file's `format`.
pub const FORMAT: &str = "orin-profile";
/// The version that this crate writes, and the only one that it reads.
pub const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    pub format: String,
    pub version: u32,
    /// The program that wrote it, with its version.
    pub tool: String,
    /// Start time, in seconds since 1970 UTC.
    pub taken: u64,
    pub machine: Machine,
    /// The experiments, in execution order.
    pub experiments: Vec<Experiment>,
}

/// A machine, without anything that identifies one board.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// `true` for a simulated Orin.
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
    /// Clocks at the start, by name.
    pub clocks: BTreeMap<String, Clock>,
    /// Clocks at the end: if they differ from those at the start, the numbers may too.
    pub clocks_after: BTreeMap<String, Clock>,
    /// State of the drivers' kernel log: readable, or the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_log: Option<String>,
}

impl Machine {
    /// First difference to `now` that means another machine, or another state of it in which
    /// answers may differ; `None` without one. A value that either lacks is ignored, and so are
    /// clocks.
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
    /// The lowest frequency allowed now.
    pub min_hz: Option<u64>,
    /// The highest frequency allowed now.
    pub max_hz: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Name: lower-case letters, digits and hyphens.
    pub name: String,
    pub question: String,
    /// Description of the measurement.
    pub method: String,
    pub verdict: Verdict,
    /// The answer in a sentence; empty if there is none.
    #[serde(default)]
    pub answer: String,
    /// Measured values. The suffix of a name is its unit, see [`mod@unit`].
    #[serde(default)]
    pub facts: BTreeMap<String, Value>,
    /// Raw series behind the facts, in measurement order. Their names have the same suffixes.
    #[serde(default)]
    pub samples: BTreeMap<String, Vec<f64>>,
    /// Reason for a missing answer, or an error in addition to the answer.
    #[serde(default)]
    pub error: Option<String>,
    /// Lines that the drivers wrote to the kernel log meanwhile, if it was readable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub driver_log: Vec<String>,
    /// Duration of the experiment.
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
    /// Different from the code's assumption.
    Differs,
    /// A number without an assumption in the code.
    Measured,
    /// The driver or the GPU refused a step, which the error names.
    Failed,
    /// The process reached its time limit and was killed.
    TimedOut,
    /// The process died: the error has the status and its last output.
    Crashed,
    /// The experiment was running when the whole run ended.
    Unfinished,
    Skipped,
}

impl Verdict {
    /// Returns `true` if the experiment produced a result. A failure is one; being left out or
    /// interrupted is not.
    #[must_use]
    pub const fn is_answer(self) -> bool {
        !matches!(self, Self::Unfinished | Self::Skipped)
    }

    /// Name in the file.
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
    /// Any other finite number.
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
    // NaN and infinity become 0, so that the file can be written and read.
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
