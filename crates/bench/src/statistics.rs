//! Summary of repeated measurements: a median and an interval.
//!
//! The value is the median, which one disturbed repetition does not move. The interval is half the
//! 95 % prediction interval of one further repetition, `t(0.975, n-1) * s * sqrt(1 + 1/n)` with the
//! sample standard deviation `s`: *could another run have given this value?* It is wider than the
//! uncertainty of the median, to cover drift on shared machines. It is at least [`FLOOR`] of the
//! median, because the layout of code and pages differs between processes, which repetitions inside
//! one process cannot show.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

use serde::{Deserialize, Serialize};

/// Confidence level of intervals.
pub const CONFIDENCE: f64 = 0.95;

/// Largest coefficient of variation of consistent measurements.
pub const CONSISTENT: f64 = 0.10;

/// Smallest spread that is reported, as a fraction of the median.
pub const FLOOR: f64 = 0.01;

/// Definition of the value printed after `±`.
pub const DEFINITION: &str = "median ± half the 95 % prediction interval of one further repetition \
     (Student's t on the interleaved repetitions, at least 1 %)";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Measurements in the order in which they were made.
    pub samples: Vec<f64>,
    pub median: f64,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// Sample standard deviation; `None` for one measurement.
    pub stddev: Option<f64>,
    /// Value printed after `±`; `None` for one measurement.
    pub spread: Option<f64>,
    /// Coefficient of variation: standard deviation over mean.
    #[serde(default)]
    pub cv: Option<f64>,
    /// Indices of measurements outside Tukey's fences; they are included in all numbers.
    #[serde(default)]
    pub outliers: Vec<usize>,
}

/// Percentiles of latencies, each only if at least one measurement lies beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    /// Needs at least 10 measurements.
    pub p90: Option<f64>,
    /// Needs at least 100 measurements.
    pub p99: Option<f64>,
    /// Needs at least 1000 measurements.
    pub p99_9: Option<f64>,
}

impl Percentiles {
    /// `None` if there are no measurements or one is not finite.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let sorted = sorted(samples);
        let from = |least: usize, q| quantile(&sorted, q).filter(|_| sorted.len() >= least);
        Some(Self {
            p50: quantile(&sorted, 0.5)?,
            p90: from(10, 0.9),
            p99: from(100, 0.99),
            p99_9: from(1000, 0.999),
        })
    }
}

impl Summary {
    /// Summarises measurements; `None` if there are none or one is not finite.
    pub fn of(samples: Vec<f64>) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let n = samples.len() as f64;
        let sorted = sorted(&samples);
        let median = quantile(&sorted, 0.5)?;
        let mean = samples.iter().sum::<f64>() / n;
        let stddev = (samples.len() > 1).then(|| {
            let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
            (squares / (n - 1.0)).sqrt()
        });
        let spread = stddev.and_then(|s| {
            let half = student_t_975(samples.len() - 1)? * s * (1.0 + 1.0 / n).sqrt();
            Some(half.max(FLOOR * median.abs()))
        });
        Some(Self {
            median,
            mean,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            stddev,
            spread,
            cv: stddev.filter(|_| mean != 0.0).map(|s| s / mean.abs()),
            outliers: outliers(&samples),
            samples,
        })
    }

    /// Converts the summary to another unit.
    pub fn scaled(&self, factor: f64) -> Self {
        Self {
            samples: self.samples.iter().map(|x| x * factor).collect(),
            median: self.median * factor,
            mean: self.mean * factor,
            min: self.min * factor,
            max: self.max * factor,
            stddev: self.stddev.map(|x| x * factor),
            spread: self.spread.map(|x| x * factor),
            cv: self.cv,
            outliers: self.outliers.clone(),
        }
    }

    /// Returns whether the coefficient of variation is within [`CONSISTENT`]; true for a single
    /// measurement.
    pub fn consistent(&self) -> bool {
        self.cv.is_none_or(|cv| cv <= CONSISTENT)
    }

    /// Returns whether the other median is within this spread.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.spread.is_some_and(|spread| (self.median - other.median).abs() <= spread)
    }
}

/// Median; `None` for no values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(&sorted(values), 0.5)
}

/// The values in ascending order.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Quantile of sorted values with linear interpolation, as in numpy and spreadsheets.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = sorted.len().checked_sub(1)? as f64 * q;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// Indices of values outside Tukey's fences: more than 1.5 interquartile ranges outside the
/// quartiles.
pub fn outliers(values: &[f64]) -> Vec<usize> {
    let sorted = sorted(values);
    let (Some(low), Some(high)) = (quantile(&sorted, 0.25), quantile(&sorted, 0.75)) else {
        return Vec::new();
    };
    let reach = 1.5 * (high - low);
    let inside = low - reach..=high + reach;
    (0..values.len()).filter(|at| !inside.contains(&values[*at])).collect()
}

/// The 0.975 quantile of Student's t distribution; `None` without degrees of freedom.
///
/// Computed here because the daemon does not link a statistics crate. For whole degrees, the
/// probability is the finite sum 26.7.3 and 26.7.4 of Abramowitz and Stegun; bisection finds the
/// angle.
#[must_use]
pub fn student_t_975(degrees: usize) -> Option<f64> {
    let within = |angle: f64| {
        let (sine, cosine) = angle.sin_cos();
        let odd = degrees % 2 == 1;
        let mut term = if odd { cosine } else { 1.0 };
        let mut sum = if degrees == 1 { 0.0 } else { term };
        for power in (3 + usize::from(odd)..degrees).step_by(2) {
            term *= (power - 2) as f64 / (power - 1) as f64 * cosine * cosine;
            sum += term;
        }
        if odd { FRAC_2_PI * (angle + sine * sum) } else { sine * sum }
    };
    if degrees == 0 {
        return None;
    }
    let (mut low, mut high) = (0.0, FRAC_PI_2);
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = f64::midpoint(low, high);
        if within(middle) < 0.95 { low = middle } else { high = middle }
    }
    Some(low.tan() * (degrees as f64).sqrt())
}
