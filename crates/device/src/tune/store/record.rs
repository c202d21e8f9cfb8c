//! What is remembered: one record for each thing tuned, what makes it believable, and which of two
//! records about the same thing is kept.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use plan::DType;

/// A parameter's name and the value it has.
pub type Choice = BTreeMap<String, u32>;

/// What is tuned: kernels of one family on one shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case {
    /// Family of kernels: `matvec`, `gemm`, `attention`.
    pub family: String,
    /// Type of the weights, or of the KV cache.
    pub dtype: DType,
    /// Rows of the matrix: what is computed. Heads for attention.
    pub rows: u32,
    /// Columns: what is summed over. Positions for attention.
    pub cols: u32,
    /// Rows of activations that share one reading of the matrix.
    pub batch: u32,
}

impl fmt::Display for Case {
    /// `matvec Q8_0 2048x1024`, and `batch 4` where it is not 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, dtype, rows, cols, batch } = self;
        write!(f, "{family} {dtype} {rows}x{cols}")?;
        if *batch == 1 { Ok(()) } else { write!(f, " batch {batch}") }
    }
}

/// A choice for people: `rows_per_thread=2 threads_per_row=32`.
#[must_use]
pub fn describe(choice: &Choice) -> String {
    let words: Vec<String> = choice.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.join(" ")
}

/// What costs are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    Measured,
    /// The simulator's count, which is no time and says nothing about hardware.
    Counted,
}

/// What a choice costs. A counted cost has no unit of time, so that none can be read from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cost {
    Measured {
        /// Median time of one execution, in nanoseconds.
        ns: f64,
        /// The interval that the median lies in, in nanoseconds.
        interval_ns: [f64; 2],
        /// Bytes that the case moves, over the median: gigabytes (10^9) per second.
        gb_per_s: f64,
    },
    /// Counted by the simulator, in its own unit.
    Counted(f64),
}

impl Cost {
    #[must_use]
    pub const fn clock(&self) -> Clock {
        match self {
            Self::Measured { .. } => Clock::Measured,
            Self::Counted(_) => Clock::Counted,
        }
    }

    /// The number to compare: less is better, and only under the same clock.
    #[must_use]
    pub const fn value(&self) -> f64 {
        match self {
            Self::Measured { ns, .. } => *ns,
            Self::Counted(count) => *count,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Heuristic {
    pub choice: Choice,
    /// What that costs, counted as the record's [`Cost::value`].
    pub cost: f64,
}

/// Where the candidates of a search came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Candidates {
    /// Machine code that comes with this program.
    Prebuilt,
    /// That, and code compiled on the machine by NVRTC of this version, major and minor.
    Nvrtc(u32, u32),
    /// Code of this program: the CPU's kernels.
    BuiltIn,
}

impl fmt::Display for Candidates {
    /// `prebuilt`, `nvrtc 12.6`, `built in`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prebuilt => f.pad("prebuilt"),
            Self::Nvrtc(major, minor) => f.pad(&format!("nvrtc {major}.{minor}")),
            Self::BuiltIn => f.pad("built in"),
        }
    }
}

impl TryFrom<String> for Candidates {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let unknown =
            || format!("candidates are `{text}`; prebuilt, nvrtc 12.6 and built in are known");
        match text.as_str() {
            "prebuilt" => return Ok(Self::Prebuilt),
            "built in" => return Ok(Self::BuiltIn),
            _ => {}
        }
        let version = text.strip_prefix("nvrtc ").and_then(|version| version.split_once('.'));
        let (major, minor) = version.ok_or_else(unknown)?;
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Ok(Self::Nvrtc(major, minor)),
            _ => Err(unknown()),
        }
    }
}

/// A candidate that was wrong or faulted: not tried again while the source is the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejected {
    pub choice: Choice,
    pub why: String,
}

/// A second in UTC, written as in RFC 3339: `2026-11-20T21:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct When(Timestamp);

impl When {
    #[must_use]
    pub fn now() -> Self {
        Timestamp::now().into()
    }

    /// Reads what [`fmt::Display`] writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<Timestamp>().ok().map(Self::from)
    }
}

/// The second that a time lies in; 1970 for what is before.
impl From<Timestamp> for When {
    fn from(time: Timestamp) -> Self {
        Self(Timestamp::from_second(time.as_second().max(0)).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}

/// The best choice found for one case, and how that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub case: Case,
    /// Hash of the source of the kernels, in hexadecimal digits.
    pub source: String,
    pub choice: Choice,
    pub cost: Cost,
    /// What it is to be compared with.
    pub heuristic: Heuristic,
    pub when: When,
    /// Clocks and power mode under which it was measured, for people.
    pub clocks: String,
    pub candidates: Candidates,
    /// Candidates that must not be used.
    pub rejected: Vec<Rejected>,
}

impl Record {
    /// What tells records apart: of each there is one in a file.
    #[must_use]
    pub fn identity(&self) -> (&Case, &str, Clock) {
        (&self.case, &self.source, self.cost.clock())
    }

    /// How many times faster than the heuristic's choice.
    #[must_use]
    pub fn gain(&self) -> f64 {
        self.heuristic.cost / self.cost.value()
    }

    #[must_use]
    pub fn rejects(&self, choice: &Choice) -> bool {
        self.rejected.iter().any(|rejected| rejected.choice == *choice)
    }

    /// Whether it can have been measured at all; what its parameters may be is for the devices to say.
    ///
    /// # Errors
    /// What is not believable, with the value.
    pub fn plausible(&self) -> Result<(), String> {
        name("family", &self.case.family)?;
        let case = &self.case;
        for (what, value) in [("rows", case.rows), ("cols", case.cols), ("batch", case.batch)] {
            if value == 0 {
                return Err(format!("{what} is 0"));
            }
        }
        let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if !(8..=128).contains(&self.source.len()) || !self.source.chars().all(hex) {
            return Err(format!(
                "source is `{}`; 8 to 128 lower-case hexadecimal digits are needed",
                self.source
            ));
        }
        let positive = |what: &str, value: f64| {
            if value.is_finite() && value > 0.0 {
                return Ok(());
            }
            Err(format!("{what} is {value}; a positive number is needed"))
        };
        match self.cost {
            Cost::Measured { ns, interval_ns: [low, high], gb_per_s } => {
                positive("time_ns", ns)?;
                positive("interval_ns", low)?;
                positive("interval_ns", high)?;
                positive("gb_per_s", gb_per_s)?;
                if !(low <= ns && ns <= high) {
                    return Err(format!(
                        "time_ns is {ns}, outside of its interval {low} to {high}"
                    ));
                }
            }
            Cost::Counted(count) => positive("counted", count)?,
        }
        positive("the heuristic's cost", self.heuristic.cost)?;
        let rejected = self.rejected.iter().map(|rejected| &rejected.choice);
        for choice in [&self.choice, &self.heuristic.choice].into_iter().chain(rejected) {
            if choice.is_empty() {
                return Err("a choice has no parameters".into());
            }
            choice.keys().try_for_each(|key| name("parameter", key))?;
        }
        if self.rejects(&self.choice) {
            return Err(format!("it chooses {}, and rejects it", describe(&self.choice)));
        }
        Ok(())
    }

    /// One record of two with the same identity. The later one is kept, of the same second the
    /// cheaper; never one whose choice either rejects, unless both do. What either rejects stays
    /// rejected.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        let rejected = union(&self.rejected, &other.rejected);
        let bad = |record: &Self| rejected.iter().any(|r| r.choice == record.choice);
        let order = bad(&other)
            .cmp(&bad(&self))
            .then_with(|| self.when.cmp(&other.when))
            .then_with(|| other.cost.value().total_cmp(&self.cost.value()))
            .then_with(|| describe(&self.choice).cmp(&describe(&other.choice)));
        let kept = if order == Ordering::Less { other } else { self };
        Self { rejected, ..kept }
    }
}

/// Sorted, each choice once, with the first of its reasons.
fn union(a: &[Rejected], b: &[Rejected]) -> Vec<Rejected> {
    let mut all: Vec<Rejected> = a.iter().chain(b).cloned().collect();
    all.sort();
    all.dedup_by(|later, earlier| later.choice == earlier.choice);
    all
}

/// Refuses what cannot be a bare key of TOML.
fn name(what: &str, name: &str) -> Result<(), String> {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if (1..=64).contains(&name.len()) && name.chars().all(letter) {
        return Ok(());
    }
    Err(format!("{what} is named `{name}`; 1 to 64 of a-z, 0-9 and _ are needed"))
}
