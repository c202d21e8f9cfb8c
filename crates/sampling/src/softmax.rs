//! Probabilities of a row of logits at temperature 1, in `f64`.

/// Normalisation of a row; single probabilities are computed on request.
pub(crate) struct Softmax {
    largest: f64,
    ln_sum: f64,
}

impl Softmax {
    pub(crate) fn new(logits: &[f32]) -> Self {
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
        Self { largest, ln_sum: sum.ln() }
    }

    /// Log-probability of a token with this logit.
    pub(crate) fn ln(&self, logit: f32) -> f64 {
        f64::from(logit) - self.largest - self.ln_sum
    }

    pub(crate) fn probability(&self, logit: f32) -> f64 {
        self.ln(logit).exp()
    }

    /// Entropy of the row in nats.
    pub(crate) fn entropy(&self, logits: &[f32]) -> f64 {
        let part = |logit: &f32| {
            let ln = self.ln(*logit);
            if ln.is_finite() { -ln * ln.exp() } else { 0.0 }
        };
        logits.iter().map(part).sum()
    }
}
