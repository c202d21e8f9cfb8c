//! Scores: mean and error of each token's negative log-probability, the divergence per token, and
//! its percentiles.
//!
//! Logarithms are natural, divergences are in nats, and everything is computed in `f64` from the
//! logits.

use serde::Serialize;

use parity::measure::{argmax, divergence_of, log_softmax};

/// Percentiles to report, as fractions.
pub const PERCENTILES: [f64; 11] = [0.0, 0.001, 0.01, 0.05, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0];

/// Running mean and variance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    count: u64,
    sum: f64,
    squares: f64,
}

/// A mean and its standard error, assuming independent numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Estimate {
    pub mean: f64,
    pub error: f64,
}

impl Mean {
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.squares += value * value;
    }

    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    #[must_use]
    pub fn estimate(&self) -> Estimate {
        let n = self.count.max(1) as f64;
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        Estimate { mean, error: (variance / (n - 1.0).max(1.0)).sqrt() }
    }
}

impl Estimate {
    /// Exponential of the estimate, with first-order error propagation.
    #[must_use]
    pub fn exp(self) -> Self {
        let mean = self.mean.exp();
        Self { mean, error: mean * self.error }
    }
}

/// Prediction from a row of logits, and the token that followed.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Log-probability of each token.
    log: Vec<f64>,
    top: usize,
    /// Negative log-probability of the token that followed.
    pub cost: f64,
}

impl Prediction {
    /// `None` if a logit is not finite or the token is out of range.
    #[must_use]
    pub fn new(logits: &[f32], came: u32) -> Option<Self> {
        if logits.iter().any(|logit| !logit.is_finite()) {
            return None;
        }
        let log = log_softmax(logits);
        Some(Self { top: argmax(logits), cost: -*log.get(came as usize)?, log })
    }

    /// Compares the prediction of a model with that of the base.
    #[must_use]
    pub fn beside(&self, base: &Self) -> Pair {
        Pair {
            base: base.cost,
            model: self.cost,
            divergence: divergence_of(&base.log, &self.log),
            same: base.top == self.top,
        }
    }
}

/// Two models at one token.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub base: f64,
    pub model: f64,
    /// KL divergence from the base's distribution to the model's.
    pub divergence: f64,
    /// True if the most likely token is the same.
    pub same: bool,
}

/// Comparison of a model with its base, token by token.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    base: Mean,
    model: Mean,
    difference: Mean,
    divergence: Mean,
    same: Mean,
    /// Divergence at each scored token, 8 bytes each.
    all: Vec<f64>,
}

/// Summary of the comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Divergence {
    pub perplexity: Estimate,
    pub base_perplexity: Estimate,
    /// Perplexity of the model over that of the base.
    pub ratio: Estimate,
    /// Mean divergence, in nats.
    pub kl: Estimate,
    /// [`PERCENTILES`] of the divergence, each with its value.
    pub percentiles: Vec<(f64, f64)>,
    /// Fraction of tokens with the same most likely token.
    pub top1_agreement: Estimate,
}

impl Pairs {
    pub fn add(&mut self, pair: Pair) {
        self.base.add(pair.base);
        self.model.add(pair.model);
        self.difference.add(pair.model - pair.base);
        self.divergence.add(pair.divergence);
        self.same.add(f64::from(u8::from(pair.same)));
        self.all.push(pair.divergence);
    }

    #[must_use]
    pub const fn count(&self) -> u64 {
        self.model.count()
    }

    /// Mean divergence so far.
    #[must_use]
    pub fn divergence(&self) -> f64 {
        self.divergence.estimate().mean
    }

    #[must_use]
    pub fn summarise(mut self) -> Divergence {
        self.all.sort_by(f64::total_cmp);
        Divergence {
            perplexity: self.model.estimate().exp(),
            base_perplexity: self.base.estimate().exp(),
            ratio: self.difference.estimate().exp(),
            kl: self.divergence.estimate(),
            percentiles: PERCENTILES.map(|part| (part, percentile(&self.all, part))).to_vec(),
            top1_agreement: self.same.estimate(),
        }
    }
}

/// Interpolates between the two nearest sorted values, like numpy's `percentile` by default.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let below = (at as usize).min(last);
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    low + (high - low) * (at - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_mean_and_standard_error() {
        let mut mean = Mean::default();
        [1.0, 2.0, 3.0, 6.0].into_iter().for_each(|value| mean.add(value));
        let Estimate { mean: m, error } = mean.estimate();
        // Sample variance 14/3, over 4.
        assert!((m - 3.0).abs() < 1e-12 && (error - (14.0_f64 / 12.0).sqrt()).abs() < 1e-12);
        assert_eq!(Mean::default().estimate(), Estimate::default());
        let one = Estimate { mean: 2.0, error: 0.5 }.exp();
        assert!((one.error - 0.5 * 2.0_f64.exp()).abs() < 1e-12);
    }

    #[test]
    fn percentiles_interpolate_between_values() {
        let values = [0.0, 1.0, 2.0, 4.0];
        for (part, expected) in [(0.0, 0.0), (0.5, 1.5), (0.9, 3.4), (1.0, 4.0)] {
            assert!((percentile(&values, part) - expected).abs() < 1e-12, "{part}");
        }
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_pair_has_the_divergence_from_the_base() {
        // One half each; nine to one.
        let base = Prediction::new(&[0.0, 0.0], 1).unwrap();
        let model = Prediction::new(&[9.0_f32.ln(), 0.0], 1).unwrap();
        let pair = model.beside(&base);
        let expected = 0.5 * (0.5_f64 / 0.9).ln() + 0.5 * (0.5_f64 / 0.1).ln();
        assert!((pair.divergence - expected).abs() < 1e-6, "{pair:?}");
        assert!(
            (pair.base - 2.0_f64.ln()).abs() < 1e-12 && (pair.model - 10.0_f64.ln()).abs() < 1e-6
        );
        // The first of equal tokens is the most likely.
        assert!(pair.same);
        assert!(Prediction::new(&[0.0, f32::NAN], 0).is_none());
        assert!(Prediction::new(&[0.0, 0.0], 2).is_none());
        let mut pairs = Pairs::default();
        pairs.add(pair);
        let summary = pairs.summarise();
        assert!((summary.ratio.mean - 5.0).abs() < 1e-5, "{summary:?}");
        assert_eq!((summary.top1_agreement.mean, summary.percentiles.len()), (1.0, 11));
    }
}
