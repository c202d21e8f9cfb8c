//! Distances between two results.

use serde::Serialize;

/// Distance of values from the expected ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    pub max: f64,
    pub mean: f64,
    /// Root mean square of the expected values, at least the smallest normal `f32`.
    pub scale: f64,
    /// Number of values where only one side is NaN, or the infinities differ.
    pub unlike: usize,
}

impl Difference {
    /// Compares two results; values beyond the shorter one count as unlike.
    pub fn of(got: &[f32], want: &[f32]) -> Self {
        let mut d = Self { unlike: got.len().abs_diff(want.len()), ..Self::default() };
        let (mut squares, mut numbers) = (0.0, 0u32);
        for (&g, &w) in got.iter().zip(want) {
            if g.is_finite() && w.is_finite() {
                let error = (f64::from(g) - f64::from(w)).abs();
                d.max = d.max.max(error);
                d.mean += error;
                squares += f64::from(w).powi(2);
                numbers += 1;
            } else if !(g.is_nan() && w.is_nan()) && g != w {
                d.unlike += 1;
            }
        }
        let numbers = f64::from(numbers.max(1));
        d.mean /= numbers;
        d.scale = (squares / numbers).sqrt().max(f64::from(f32::MIN_POSITIVE));
        d
    }

    /// Largest distance in units of the scale; infinite if any values are unlike.
    pub fn relative(&self) -> f64 {
        if self.unlike > 0 { f64::INFINITY } else { self.max / self.scale }
    }
}

/// Bits of a number. All NaNs are equal: their payloads mean nothing.
pub fn bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

/// Returns whether two results are bit-identical.
pub fn equal(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| bits(a) == bits(b))
}

/// Index of the largest value, the first among equals.
pub fn argmax(values: &[f32]) -> usize {
    let best = values.iter().enumerate().filter(|(_, v)| !v.is_nan());
    best.fold((0, f32::NEG_INFINITY), |best, (i, &v)| if v > best.1 { (i, v) } else { best }).0
}

/// Lead of the largest value over the next.
pub fn margin(values: &[f32]) -> f64 {
    let best = argmax(values);
    let rest = values.iter().enumerate().filter(|(i, v)| *i != best && !v.is_nan());
    let next = rest.fold(f32::NEG_INFINITY, |next, (_, &v)| next.max(v));
    values.get(best).map_or(0.0, |&v| f64::from(v) - f64::from(next))
}

/// Log-probabilities of the logits.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let shifted = logits.iter().map(|&l| f64::from(l) - f64::from(largest));
    let total = shifted.clone().map(f64::exp).sum::<f64>().ln();
    shifted.map(|l| l - total).collect()
}

/// Kullback-Leibler divergence of the softmax of `got` from that of `want`, in nats.
pub fn divergence(want: &[f32], got: &[f32]) -> f64 {
    divergence_of(&log_softmax(want), &log_softmax(got))
}

/// Kullback-Leibler divergence from [`log_softmax`] of both.
pub fn divergence_of(want: &[f64], got: &[f64]) -> f64 {
    let terms = want.iter().zip(got).filter(|(p, _)| p.is_finite()).map(|(p, q)| p.exp() * (p - q));
    // Rounding may make the sum negative.
    terms.sum::<f64>().max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_relative_to_the_expected_values() {
        let d = Difference::of(&[3.0, -4.5], &[3.0, -4.0]);
        assert_eq!((d.max, d.mean, d.unlike), (0.5, 0.25, 0));
        assert!((d.scale - 12.5f64.sqrt()).abs() < 1e-12);
        let nan = f32::NAN;
        assert_eq!(Difference::of(&[nan, f32::INFINITY], &[nan, f32::INFINITY]).relative(), 0.0);
        assert_eq!(Difference::of(&[nan], &[1.0]).relative(), f64::INFINITY);
        assert_eq!(Difference::of(&[f32::INFINITY], &[f32::NEG_INFINITY]).unlike, 1);
        assert_eq!(Difference::of(&[1.0], &[1.0, 2.0]).unlike, 1);
    }

    #[test]
    fn the_divergence_matches_the_distributions() {
        assert_eq!(divergence(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0]), 0.0);
        // One half each, against nine to one.
        let kl = divergence(&[0.0, 0.0], &[9.0f32.ln(), 0.0]);
        let want = 0.5 * (0.5f64 / 0.9).ln() + 0.5 * (0.5f64 / 0.1).ln();
        assert!((kl - want).abs() < 1e-7, "{kl} for {want}");
        assert_eq!(divergence(&[0.0, f32::NEG_INFINITY], &[0.0, f32::NEG_INFINITY]), 0.0);
    }

    #[test]
    fn equality_is_bitwise() {
        let other = f32::from_bits(f32::NAN.to_bits() | 1);
        assert!(equal(&[1.0, f32::NAN], &[1.0, other]));
        assert!(
            !equal(&[0.0], &[-0.0]) && !equal(&[1.0], &[1.0f32.next_up()]) && !equal(&[1.0], &[])
        );
    }

    #[test]
    fn the_first_of_equals_wins_and_nan_never() {
        assert_eq!(argmax(&[1.0, 5.0, 5.0, f32::NAN]), 1);
        assert_eq!(margin(&[1.0, 5.0, 4.5]), 0.5);
        assert_eq!(argmax(&[]), 0);
    }
}
