//! Tuning records: one per case, with plausibility checks and a rule for merging two records.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use plan::DType;

/// Values by parameter name.
pub type Choice = BTreeMap<String, u32>;

/// Unit of tuning: kernels of one family on one shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case {
    /// Family of kernels: `matvec`, `gemm`, `attention`.
    pub family: String,
    /// Type of the weights, or of the KV cache.
    pub dtype: DType,
    /// Rows of the matrix (outputs); heads for attention.
    pub rows: u32,
    /// Columns of the matrix (inputs); positions for attention.
    pub cols: u32,
    /// Rows of activations that share one read of the matrix.
    pub batch: u32,
}

impl fmt::Display for Case {
    /// `matvec Q8_0 2048x1024`, followed by `batch 4` if it is not 1.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { family, dtype, rows, cols, batch } = self;
        write!(f, "{family} {dtype} {rows}x{cols}")?;
        if *batch == 1 { Ok(()) } else { write!(f, " batch {batch}") }
    }
}

/// Text of a choice: `rows_per_thread=2 threads_per_row=32`.
#[must_use]
pub fn describe(choice: &Choice) -> String {
    let words: Vec<String> = choice.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.join(" ")
}

/// Kind of cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    Measured,
    /// Cycle count of the simulator, which does not predict time on hardware.
    Counted,
}

/// Cost of a choice. A counted cost has no unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cost {
    Measured {
        /// Median time of one execution, in nanoseconds.
        ns: f64,
        /// Confidence interval of the median, in nanoseconds.
        interval_ns: [f64; 2],
        /// Memory traffic of the case divided by the median, in 10^9 bytes per second.
        gb_per_s: f64,
    },
    /// Count of the simulator, in its own unit.
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

    /// Number to compare with others of the same clock; less is better.
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
    /// Cost, in the unit of the record's [`Cost::value`].
    pub cost: f64,
}

/// Source of a search's candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Candidates {
    /// Machine code that is part of this program.
    Prebuilt,
    /// Prebuilt code, and code compiled on this machine by NVRTC of this version (major, minor).
    Nvrtc(u32, u32),
    /// CPU kernels of this program.
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
        let unknown = || {
            format!(
                "candidates are `{text}`; allowed are prebuilt, nvrtc with a version, and built in"
            )
        };
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

/// A candidate that was wrong or faulted; not tried again with the same sources.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejected {
    pub choice: Choice,
    pub why: String,
}

/// A time in UTC with a resolution of a second, written as in RFC 3339: `2026-11-20T21:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct When(Timestamp);

impl When {
    #[must_use]
    pub fn now() -> Self {
        Timestamp::now().into()
    }

    /// Parses the output of [`fmt::Display`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<Timestamp>().ok().map(Self::from)
    }
}

/// Truncates to seconds; times before 1970 become 1970.
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

/// Best choice for one case, and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub case: Case,
    /// Hash of the kernels' sources, in hexadecimal.
    pub source: String,
    pub choice: Choice,
    pub cost: Cost,
    /// Default choice that it was compared with.
    pub heuristic: Heuristic,
    pub when: When,
    /// Clocks and power mode during the measurement, for information.
    pub clocks: String,
    pub candidates: Candidates,
    /// Candidates that must not be used.
    pub rejected: Vec<Rejected>,
}

impl Record {
    /// Identity of a record: a file has at most one of each.
    #[must_use]
    pub fn identity(&self) -> (&Case, &str, Clock) {
        (&self.case, &self.source, self.cost.clock())
    }

    /// Speedup over the default choice.
    #[must_use]
    pub fn gain(&self) -> f64 {
        self.heuristic.cost / self.cost.value()
    }

    #[must_use]
    pub fn rejects(&self, choice: &Choice) -> bool {
        self.rejected.iter().any(|rejected| rejected.choice == *choice)
    }

    /// Checks that the record can be a measurement. Parameters are checked by devices.
    ///
    /// # Errors
    ///
    /// The implausible value.
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
            Err(format!("{what} is {value}; it must be positive"))
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
            return Err(format!("the choice {} is also rejected", describe(&self.choice)));
        }
        Ok(())
    }

    /// Merges two records of the same identity: the later one, or the cheaper one of the same
    /// second. A choice that either rejects is used only if both are rejected. Rejections are
    /// combined.
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

/// Sorted union of rejections, with the first reason of each.
fn union(a: &[Rejected], b: &[Rejected]) -> Vec<Rejected> {
    let mut all: Vec<Rejected> = a.iter().chain(b).cloned().collect();
    all.sort();
    all.dedup_by(|later, earlier| later.choice == earlier.choice);
    all
}

/// Checks that a name can be a bare TOML key.
fn name(what: &str, name: &str) -> Result<(), String> {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if (1..=64).contains(&name.len()) && name.chars().all(letter) {
        return Ok(());
    }
    Err(format!("{what} is named `{name}`; allowed are 1 to 64 of a-z, 0-9 and _"))
}
