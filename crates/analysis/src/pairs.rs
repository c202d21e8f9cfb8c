//! Comparison of two series that were measured alternately, round by round: changes of the machine
//! between rounds affect both values of a pair and cancel in their ratio.
//!
//! The result is the median ratio with a distribution-free interval. For comparison with other
//! reports it includes the Hodges-Lehmann estimate, Welch's t, Hedges' g, and the drift of the
//! ratio.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};
use statrs::function::erf::erfc;
use statrs::function::gamma::ln_gamma;

use bench::statistics::{CONFIDENCE, Summary, median, outliers, sorted};

/// Rule of [`Pairs::resolved`], in one line.
pub const RULE: &str = "resolved: the interval of the median ratio reaches its confidence (95 % needs 6 pairs) and \
     excludes 1, and no significant drift over the rounds crosses 1";

/// Largest number of rounds for which the probability of an order is exact instead of approximated;
/// scipy's limit.
const COUNTED: usize = 33;

/// Ratios of the second series over the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// Ratio of each round, in order; none is excluded from any number.
    pub ratios: Vec<f64>,
    /// Median of the ratios.
    pub median: f64,
    pub interval: Interval,
    /// Hodges-Lehmann estimate: median of the means of all pairs of ratios, as logarithms. It is
    /// more stable than the median for symmetric ratios.
    pub hodges_lehmann: f64,
    /// `None` for fewer than two pairs or without variance.
    pub welch: Option<Welch>,
    /// Hedges' g: difference of the means in pooled standard deviations, corrected for small
    /// samples.
    pub effect: Option<f64>,
    /// `None` for fewer than three pairs.
    pub drift: Option<Drift>,
    /// Indices of ratios outside Tukey's fences.
    pub outliers: Vec<usize>,
    /// True if both series pass [`Summary::consistent`].
    pub consistent: bool,
    /// True if there is a difference; see [`RULE`].
    pub resolved: bool,
}

/// Distribution-free interval of a median, from order statistics.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// Requested confidence, 0 to 1.
    pub wanted: f64,
    /// Actual confidence of these order statistics: the smallest attainable one from `wanted`, or
    /// that of the whole range if there are too few values.
    pub confidence: f64,
}

/// Welch's test for the difference of two means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welch {
    pub t: f64,
    pub degrees: f64,
    /// Two-sided p-value.
    pub p: f64,
}

/// Drift of the ratio over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Theil-Sen slope of the ratio's logarithm, per round.
    pub slope: f64,
    /// Kendall's τ between round and ratio.
    pub tau: f64,
    /// Two-sided p-value of τ.
    pub p: f64,
}

impl Pairs {
    /// Compares `second` with `first` at [`CONFIDENCE`]. `None` unless both have the same number of
    /// values, at least one, all finite and above zero.
    pub fn of(first: &[f64], second: &[f64]) -> Option<Self> {
        Self::at(first, second, CONFIDENCE)
    }

    /// Compares at another confidence, as several tests that are judged together require.
    pub fn at(first: &[f64], second: &[f64], confidence: f64) -> Option<Self> {
        let usable = |x: &f64| x.is_finite() && *x > 0.0;
        if first.len() != second.len() || !first.iter().chain(second).all(usable) {
            return None;
        }
        let ratios: Vec<f64> = first.iter().zip(second).map(|(a, b)| b / a).collect();
        let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let interval = Interval::of_median(&ratios, confidence)?;
        let middle = median(&ratios)?;
        let drift = Drift::of(&logarithms);
        // A line with this slope through the median at the middle round ends half a drift away on
        // both sides.
        let half = |drift: Drift| drift.slope.abs() * (ratios.len() - 1) as f64 / 2.0;
        let drifted = drift.is_some_and(|d| d.significant() && half(d) >= middle.ln().abs());
        let [a, b] = [Summary::of(first.to_vec())?, Summary::of(second.to_vec())?];
        Some(Self {
            median: middle,
            hodges_lehmann: hodges_lehmann(&logarithms)?.exp(),
            welch: Welch::of(&a, &b),
            effect: hedges(&a, &b),
            drift,
            outliers: outliers(&ratios),
            consistent: a.consistent() && b.consistent(),
            resolved: interval.reached() && !interval.contains(1.0) && !drifted,
            interval,
            ratios,
        })
    }
}

impl Interval {
    /// Interval of the median between the k-th smallest and the k-th largest value. Chooses the
    /// largest k whose confidence, `1 - 2 P(B(n, ½) < k)`, is at least `wanted`; `None` for no
    /// values.
    pub fn of_median(values: &[f64], wanted: f64) -> Option<Self> {
        let values = sorted(values);
        let binomial = Binomial::new(0.5, values.len() as u64).ok()?;
        let confidence = |k: usize| 1.0 - 2.0 * binomial.cdf(k as u64 - 1);
        let k = (2..=values.len() / 2).take_while(|k| confidence(*k) >= wanted).last().unwrap_or(1);
        let (low, high) = (*values.get(k - 1)?, *values.get(values.len().checked_sub(k)?)?);
        Some(Self { low, high, wanted, confidence: confidence(k).max(0.0) })
    }

    /// Returns whether there were enough values for the requested confidence.
    pub fn reached(&self) -> bool {
        self.confidence >= self.wanted
    }

    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

impl Welch {
    /// Tests the difference of the second mean from the first.
    pub fn of(first: &Summary, second: &Summary) -> Option<Self> {
        let [a, b] = [first, second].map(|s| (s.samples.len() as f64, s.stddev));
        let ((na, sa), (nb, sb)) = ((a.0, a.1?), (b.0, b.1?));
        let (va, vb) = (sa.powi(2) / na, sb.powi(2) / nb);
        let degrees = (va + vb).powi(2) / (va.powi(2) / (na - 1.0) + vb.powi(2) / (nb - 1.0));
        let t = (second.mean - first.mean) / (va + vb).sqrt();
        let p = 2.0 * StudentsT::new(0.0, 1.0, degrees).ok()?.sf(t.abs());
        Some(Self { t, degrees, p })
    }
}

impl Drift {
    /// Tests values in the order in which they were measured.
    fn of(values: &[f64]) -> Option<Self> {
        let n = values.len();
        if n < 3 {
            return None;
        }
        let pairs = || (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
        let slopes: Vec<f64> =
            pairs().map(|(i, j)| (values[j] - values[i]) / (j - i) as f64).collect();
        let count = |sign: f64| slopes.iter().filter(|slope| **slope * sign > 0.0).count();
        let (rising, falling) = (count(1.0), count(-1.0));
        let untied = (rising + falling) as f64;
        let all = slopes.len() as f64;
        let score = rising as f64 - falling as f64;
        let (tau, p) = if untied == 0.0 {
            (0.0, 1.0)
        } else if rising + falling == slopes.len() && n <= COUNTED {
            (score / all, chance_of_order(n, rising.min(falling)))
        } else {
            let deviations = score.abs() / variance_of_score(values).sqrt();
            (score / (all * untied).sqrt(), erfc(deviations / std::f64::consts::SQRT_2))
        };
        Some(Self { slope: median(&slopes)?, tau, p })
    }

    /// Returns whether random order would produce this drift in fewer than one of twenty cases.
    pub fn significant(&self) -> bool {
        self.p < 0.05
    }
}

/// Two-sided probability that at most `few` pairs of `n` values in random order are in the rarer
/// order.
fn chance_of_order(n: usize, few: usize) -> f64 {
    // Fractions of the orders of 1, 2, .. n values that have 0, 1, .. `few` inversions: the next
    // value can be inserted before any number of the existing ones.
    let mut shares = vec![0.0; few + 1];
    shares[0] = 1.0;
    for there in 1..n {
        shares = (0..=few)
            .map(|k| shares[k.saturating_sub(there)..=k].iter().sum::<f64>() / (there + 1) as f64)
            .collect();
    }
    (2.0 * shares.iter().sum::<f64>()).min(1.0)
}

/// Variance of Kendall's score of values in random order, with ties.
fn variance_of_score(values: &[f64]) -> f64 {
    let term = |n: f64| n * (n - 1.0) * (2.0 * n + 5.0);
    let values = sorted(values);
    let equal: f64 = values.chunk_by(|a, b| a == b).map(|group| term(group.len() as f64)).sum();
    (term(values.len() as f64) - equal) / 18.0
}

/// Median of the means of all pairs of values, each with itself too.
fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    let means: Vec<f64> = (0..values.len())
        .flat_map(|i| values[i..].iter().map(move |other| values[i].midpoint(*other)))
        .collect();
    median(&means)
}

/// Hedges' g of the second mean over the first, with the exact correction.
fn hedges(first: &Summary, second: &Summary) -> Option<f64> {
    let degrees = |s: &Summary| (s.samples.len() - 1) as f64;
    let all = degrees(first) + degrees(second);
    let squares = degrees(first) * first.stddev?.powi(2) + degrees(second) * second.stddev?.powi(2);
    let pooled = (squares / all).sqrt();
    let correction = (ln_gamma(all / 2.0) - ln_gamma((all - 1.0) / 2.0)).exp() / (all / 2.0).sqrt();
    (pooled > 0.0).then(|| correction * (second.mean - first.mean) / pooled)
}
