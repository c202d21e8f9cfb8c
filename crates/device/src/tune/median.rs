//! Median with a confidence interval that assumes no distribution.
//!
//! Half of all samples are below the true median, so the number below it is binomial: the `k`-th
//! smallest and the `k`-th largest of `n` samples enclose the median unless fewer than `k` are on
//! one side. `k` is the largest value for which that happens in at most 5 % of cases. Five samples
//! never suffice; six do if the interval spans all of them. One disturbed sample only moves the
//! ends.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub median: f64,
    /// 95 % interval; the range of all samples if there are fewer than [`FEWEST`].
    pub interval: [f64; 2],
}

pub const FEWEST: usize = 6;

impl Estimate {
    /// Median of samples; `None` if there are none or one is NaN.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        if !first.is_finite() || !last.is_finite() {
            return None;
        }
        let n = sorted.len();
        let median = sorted[(n - 1) / 2].midpoint(sorted[n / 2]);
        let out = outside(n);
        let interval = if out == 0 { [first, last] } else { [sorted[out - 1], sorted[n - out]] };
        Some(Self { median, interval })
    }

    /// Returns whether there are enough samples and the interval is above `value`.
    #[must_use]
    pub fn exceeds(samples: &[f64], value: f64) -> bool {
        samples.len() >= FEWEST && Self::of(samples).is_some_and(|e| e.interval[0] > value)
    }

    /// Returns whether there are enough samples and the interval is below `value`.
    #[must_use]
    pub fn is_below(samples: &[f64], value: f64) -> bool {
        samples.len() >= FEWEST && Self::of(samples).is_some_and(|e| e.interval[1] < value)
    }
}

/// Largest `k` with `2 P(Binomial(n, 1/2) < k) <= 5 %`.
fn outside(n: usize) -> usize {
    // Terms underflow to 0 beyond a thousand samples, which no search takes.
    let (mut term, mut below, mut k) = (0.5f64.powi(n.min(1000) as i32), 0.0, 0);
    loop {
        below += term;
        if 2.0 * below > 0.05 {
            return k;
        }
        k += 1;
        term *= (n + 1 - k) as f64 / k as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::sample::philox;

    /// Values from tables of the sign test.
    #[test]
    fn ranks_match_published_tables() {
        for (n, k) in [(5, 0), (6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (30, 10)] {
            assert_eq!(outside(n), k, "{n} samples");
        }
    }

    #[test]
    fn interval_ends_are_order_statistics() {
        let estimate = Estimate::of(&[5.0, 1.0, 4.0, 2.0, 3.0, 100.0]).unwrap();
        assert_eq!(estimate, Estimate { median: 3.5, interval: [1.0, 100.0] });
        assert!(Estimate::exceeds(&[1.1; 6], 1.0) && !Estimate::exceeds(&[1.1; 5], 1.0));
        assert!(Estimate::is_below(&[0.9; 6], 1.0) && !Estimate::is_below(&[0.9; 5], 1.0));
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn the_interval_covers_the_median_in_95_percent() {
        for n in [6, 9, 16] {
            let missed = (0..2000u32)
                .filter(|&run| {
                    // Far from normal, with median 1/4: the square of a uniform number.
                    let sample = |i: u32| (f64::from(philox([i, run, 0, 0], 3)[0]) / 4e9).powi(2);
                    let samples: Vec<f64> = (0..n).map(sample).collect();
                    let [low, high] = Estimate::of(&samples).unwrap().interval;
                    let median = (f64::from(u32::MAX) / 2.0 / 4e9).powi(2);
                    !(low..=high).contains(&median)
                })
                .count();
            assert!(missed <= 130, "{n} samples: {missed} of 2000 missed");
        }
    }
}
