//! Builder of an experiment's answer: facts, series and a summary sentence.

use std::collections::BTreeMap;
use std::time::Instant;

use tegra_profile::{Value, Verdict};

/// Maximum number of stored samples of a series.
const MAX_SAMPLES: usize = 4096;

/// Result of an experiment.
#[derive(Debug)]
pub struct Answer {
    pub(super) verdict: Verdict,
    pub(super) text: String,
    pub(super) facts: BTreeMap<String, Value>,
    pub(super) samples: BTreeMap<String, Vec<f64>>,
}

impl Default for Answer {
    fn default() -> Self {
        Self::new()
    }
}

impl Answer {
    /// An empty answer.
    #[must_use]
    pub fn new() -> Self {
        let (facts, samples) = (BTreeMap::new(), BTreeMap::new());
        Self { verdict: Verdict::Measured, text: String::new(), facts, samples }
    }

    /// Adds a measured fact. The suffix of its name is its unit ([`tegra_profile::unit`]).
    pub fn fact(&mut self, name: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.facts.insert(name.into(), value.into());
        self
    }

    /// Stores a series and its minimum, median, 99th percentile and maximum: `NAME_ns` becomes the
    /// facts `NAME_min_ns` and so on. Returns the median.
    pub(super) fn series(&mut self, name: &str, unit: &str, samples: Vec<f64>) -> f64 {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = sorted.len().saturating_sub(1);
            sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
        };
        let median = at(0.5);
        for (what, value) in
            [("min", at(0.0)), ("median", median), ("p99", at(0.99)), ("max", at(1.0))]
        {
            self.fact(format!("{name}_{what}_{unit}"), value);
        }
        let mut stored = samples;
        stored.truncate(MAX_SAMPLES);
        self.samples.insert(format!("{name}_{unit}"), stored);
        median
    }

    /// Finishes an answer about which the code assumes nothing.
    pub(super) fn measured(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// Finishes an answer that confirms or contradicts an assumption of the code.
    #[must_use]
    pub fn judged(mut self, as_assumed: bool, text: impl Into<String>) -> Self {
        self.verdict = if as_assumed { Verdict::Expected } else { Verdict::Differs };
        self.text = text.into();
        self
    }
}

/// CPU time of a piece of work, nanoseconds.
pub(super) fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, f64), E> {
    let started = Instant::now();
    let result = work()?;
    Ok((result, started.elapsed().as_nanos() as f64))
}

/// Rate in 10^9 bytes a second; 0 for a duration of 0.
pub(super) fn gb_per_s(bytes: u64, ns: f64) -> f64 {
    if ns > 0.0 { bytes as f64 / ns } else { 0.0 }
}

#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// A straight line: its slope, and its value at 0.
pub(super) struct Line {
    pub(super) slope: f64,
    pub(super) start: f64,
}

pub(super) fn line(a: Point, b: Point) -> Line {
    let slope = if b.x == a.x { 0.0 } else { (b.y - a.y) / (b.x - a.x) };
    Line { slope, start: a.y - slope * a.x }
}

/// Median; 0 for no numbers.
pub(super) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_becomes_facts() {
        let mut answer = Answer::new();
        let median = answer.series("wait", "cpu_ns", (0..=100).rev().map(f64::from).collect());
        assert_eq!(median, 50.0);
        let facts = ["min", "median", "p99", "max"]
            .map(|what| answer.facts.get(&format!("wait_{what}_cpu_ns")).and_then(Value::number));
        assert_eq!(facts, [0.0, 50.0, 99.0, 100.0].map(Some));
        assert_eq!(answer.samples["wait_cpu_ns"].len(), 101);
        let mut empty = Answer::new();
        assert_eq!(empty.series("none", "ns", Vec::new()), 0.0);
    }

    #[test]
    fn a_line_has_the_slope_and_offset_of_its_points() {
        let point = |x, y| Point { x, y };
        let found = line(point(1.0, 5.0), point(3.0, 9.0));
        assert_eq!((found.slope, found.start), (2.0, 3.0));
        let found = line(point(1.0, 5.0), point(1.0, 9.0));
        assert_eq!((found.slope, found.start), (0.0, 5.0));
        assert_eq!(gb_per_s(100, 0.0), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
