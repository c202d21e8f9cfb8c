//! Two series measured in turn, held against each other round by round: what changed from round to round on
//! the machine touches both of a pair and leaves their ratio alone.
//!
//! The result is the median of the ratios with an interval that assumes no distribution. Beside it stand what
//! other reports print: Hodges and Lehmann's estimate, Welch's t, Hedges' g, and how the ratio drifted.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, ContinuousCDF, DiscreteCDF, StudentsT};
use statrs::function::erf::erfc;
use statrs::function::gamma::ln_gamma;

use bench::statistics::{CONFIDENCE, Summary, median, outliers, sorted};

/// The rule of [`Pairs::resolved`], in a line.
pub const RULE: &str = "resolved: the interval of the median ratio reaches its confidence (95 % takes 6 pairs) and \
     leaves out 1, and no significant drift over the rounds crosses 1";

/// Most rounds for which the chance of an order is counted and not approximated; scipy's limit.
const COUNTED: usize = 33;

/// Second over first, for series measured in turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// Of each round, in order. None is left out of anything.
    pub ratios: Vec<f64>,
    /// Median of the ratios.
    pub median: f64,
    pub interval: Interval,
    /// Median of the means of all pairs of ratios, as logarithms: steadier than the median where ratios lie
    /// symmetrically.
    pub hodges_lehmann: f64,
    /// `None` for fewer than two pairs, or where nothing varies.
    pub welch: Option<Welch>,
    /// Hedges' g: the difference of the means in pooled standard deviations, corrected for few samples.
    pub effect: Option<f64>,
    /// `None` for fewer than three pairs.
    pub drift: Option<Drift>,
    /// Places of ratios beyond Tukey's fences.
    pub outliers: Vec<usize>,
    /// Whether both series pass [`Summary::consistent`].
    pub consistent: bool,
    /// Whether there is a difference: see [`RULE`].
    pub resolved: bool,
}

/// Where a median lies, by order statistics: no distribution is assumed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// What was asked for, 0 to 1.
    pub wanted: f64,
    /// What these order statistics have: the next attainable one from `wanted`, or that of the whole range
    /// where there are too few values to reach it.
    pub confidence: f64,
}

/// Welch's test of the difference of two means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Welch {
    pub t: f64,
    pub degrees: f64,
    /// Two-sided.
    pub p: f64,
}

/// How the ratio moved over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Theil and Sen's slope of the ratio's logarithm, per round.
    pub slope: f64,
    /// Kendall's τ between round and ratio.
    pub tau: f64,
    /// Of τ, two-sided.
    pub p: f64,
}

impl Pairs {
    /// Holds `second` against `first` at [`CONFIDENCE`]. `None` unless they have the same number of values, at
    /// least one, all finite and above zero.
    pub fn of(first: &[f64], second: &[f64]) -> Option<Self> {
        Self::at(first, second, CONFIDENCE)
    }

    /// The same at another confidence, as several tests that are judged together need.
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
        // The fitted line through the median of the middle round ends half a drift away on both sides.
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
    /// The interval of the median between the k-th smallest and the k-th largest value, with the largest k whose
    /// confidence, `1 - 2 P(B(n, ½) < k)`, is at least the one wanted; `None` for no values.
    pub fn of_median(values: &[f64], wanted: f64) -> Option<Self> {
        let values = sorted(values);
        let binomial = Binomial::new(0.5, values.len() as u64).ok()?;
        let confidence = |k: usize| 1.0 - 2.0 * binomial.cdf(k as u64 - 1);
        let k = (2..=values.len() / 2).take_while(|k| confidence(*k) >= wanted).last().unwrap_or(1);
        let (low, high) = (*values.get(k - 1)?, *values.get(values.len().checked_sub(k)?)?);
        Some(Self { low, high, wanted, confidence: confidence(k).max(0.0) })
    }

    /// Whether there were values enough for the confidence wanted.
    pub fn reached(&self) -> bool {
        self.confidence >= self.wanted
    }

    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

impl Welch {
    /// Of the difference of the second mean from the first.
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
    /// Over values in the order in which they were measured.
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

    /// Whether chance alone orders rounds so in fewer than one of twenty cases.
    pub fn significant(&self) -> bool {
        self.p < 0.05
    }
}

/// Chance that so few of the pairs of `n` values in random order, or fewer, stand one way round; both ways counted.
fn chance_of_order(n: usize, few: usize) -> f64 {
    // Shares of the orders of 1, 2, .. n values that have 0, 1, .. `few` pairs the wrong way round: one more value
    // may go before any number of those that are there.
    let mut shares = vec![0.0; few + 1];
    shares[0] = 1.0;
    for there in 1..n {
        shares = (0..=few)
            .map(|k| shares[k.saturating_sub(there)..=k].iter().sum::<f64>() / (there + 1) as f64)
            .collect();
    }
    (2.0 * shares.iter().sum::<f64>()).min(1.0)
}

/// Variance of Kendall's score of values in random order, some of which may be equal.
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
