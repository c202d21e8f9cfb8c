//! An answer while it is being made: facts, series and the sentence that sums them up.

use std::collections::BTreeMap;
use std::time::Instant;

use tegra_profile::{Value, Verdict};

/// Most samples that are kept of a series.
const KEPT: usize = 4096;

/// What an experiment found out.
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
    /// One that says nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let (facts, samples) = (BTreeMap::new(), BTreeMap::new());
        Self { verdict: Verdict::Measured, text: String::new(), facts, samples }
    }

    /// Adds what was measured. The end of a name is its unit ([`tegra_profile::unit`]).
    pub fn fact(&mut self, name: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.facts.insert(name.into(), value.into());
        self
    }

    /// Keeps a series of numbers and its least, median, 99th percentile and most: `NAME_ns` becomes
    /// the facts `NAME_min_ns` and so on. Gives the median.
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
        let mut kept = samples;
        kept.truncate(KEPT);
        self.samples.insert(format!("{name}_{unit}"), kept);
        median
    }

    /// The answer, of which nothing was assumed.
    pub(super) fn measured(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// The answer, which is what the code assumes or not.
    #[must_use]
    pub fn judged(mut self, as_assumed: bool, text: impl Into<String>) -> Self {
        self.verdict = if as_assumed { Verdict::Expected } else { Verdict::Differs };
        self.text = text.into();
        self
    }
}

/// Nanoseconds of the CPU's clock that a piece of work takes.
pub(super) fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, f64), E> {
    let started = Instant::now();
    let result = work()?;
    Ok((result, started.elapsed().as_nanos() as f64))
}

/// 10^9 bytes a second; none for no time.
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

/// The middle of some numbers; 0 of none.
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
    fn lines() {
        let point = |x, y| Point { x, y };
        let found = line(point(1.0, 5.0), point(3.0, 9.0));
        assert_eq!((found.slope, found.start), (2.0, 3.0));
        let found = line(point(1.0, 5.0), point(1.0, 9.0));
        assert_eq!((found.slope, found.start), (0.0, 5.0));
        assert_eq!(gb_per_s(100, 0.0), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
