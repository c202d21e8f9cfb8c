//! From repetitions to a number and an interval.
//!
//! The number is the median, which one disturbed repetition does not move. The interval is half the 95 %
//! prediction interval of one further repetition, `t(0.975, n-1) * s * sqrt(1 + 1/n)` with the sample's
//! standard deviation `s`: *could another run have given that?* It is wider than the uncertainty of the
//! median, for the drift of shared machines, and [`FLOOR`] of the median at least: where code and pages come
//! to lie differs from process to process, which no repetition inside one process can see.

use serde::{Deserialize, Serialize};

/// Smallest spread claimed, as a fraction of the median.
pub const FLOOR: f64 = 0.01;

/// One line that says what is printed behind `±`.
pub const DEFINITION: &str = "median ± half the 95 % prediction interval of one further repetition \
     (Student's t on the interleaved repetitions, at least 1 %)";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The measurements, in the order they were made.
    pub samples: Vec<f64>,
    pub median: f64,
    pub mean: f64,
    pub min: f64,
    pub max: f64,
    /// Sample standard deviation; `None` for one measurement.
    pub stddev: Option<f64>,
    /// What is printed behind `±`; `None` for one measurement.
    pub spread: Option<f64>,
}

impl Summary {
    /// Summarises measurements; `None` when there are none or one is not finite.
    pub fn of(samples: Vec<f64>) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let n = samples.len() as f64;
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        let median = low.midpoint(high);
        let mean = samples.iter().sum::<f64>() / n;
        let stddev = (samples.len() > 1).then(|| {
            let squares: f64 = samples.iter().map(|x| (x - mean).powi(2)).sum();
            (squares / (n - 1.0)).sqrt()
        });
        let spread = stddev.map(|s| {
            let half = student_t_975(samples.len() - 1) * s * (1.0 + 1.0 / n).sqrt();
            half.max(FLOOR * median.abs())
        });
        Some(Self {
            median,
            mean,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            stddev,
            spread,
            samples,
        })
    }

    /// The same in another unit.
    pub fn scaled(&self, factor: f64) -> Self {
        Self {
            samples: self.samples.iter().map(|x| x * factor).collect(),
            median: self.median * factor,
            mean: self.mean * factor,
            min: self.min * factor,
            max: self.max * factor,
            stddev: self.stddev.map(|x| x * factor),
            spread: self.spread.map(|x| x * factor),
        }
    }

    /// True when the other's median lies within this one's spread.
    pub fn agrees_with(&self, other: &Self) -> bool {
        self.spread.is_some_and(|spread| (self.median - other.median).abs() <= spread)
    }
}

/// The 0.975 quantile of Student's t. Exact to three digits up to 30 degrees of freedom, by the
/// Cornish-Fisher expansion beyond.
fn student_t_975(degrees: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    let z = 1.959_964_f64;
    let n = degrees.max(1);
    TABLE.get(n - 1).copied().unwrap_or_else(|| {
        let n = n as f64;
        z + (z.powi(3) + z) / (4.0 * n)
            + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::sample::philox;

    /// Worked by hand: mean 12, deviations 2 1 0 1 2, variance 10/4.
    #[test]
    fn a_small_sample_by_hand() {
        let s = Summary::of(vec![12.0, 14.0, 10.0, 11.0, 13.0]).unwrap();
        assert_eq!((s.median, s.mean, s.min, s.max), (12.0, 12.0, 10.0, 14.0));
        let stddev = s.stddev.unwrap();
        assert!((stddev - 1.581_139).abs() < 1e-6);
        // 2.776 * 1.581139 * sqrt(1.2)
        assert!((s.spread.unwrap() - 4.808_19).abs() < 1e-4, "{:?}", s.spread);
    }

    #[test]
    fn even_single_and_broken_samples() {
        assert_eq!(Summary::of(vec![1.0, 4.0, 2.0, 8.0]).unwrap().median, 3.0);
        let one = Summary::of(vec![5.0]).unwrap();
        assert_eq!((one.median, one.stddev, one.spread), (5.0, None, None));
        assert_eq!(Summary::of(vec![]), None);
        assert_eq!(Summary::of(vec![1.0, f64::NAN]), None);
        // Repetitions that agree to the last digit still do not claim more than the floor.
        assert_eq!(Summary::of(vec![100.0; 5]).unwrap().spread, Some(1.0));
    }

    #[test]
    fn quantiles_meet_where_table_and_expansion_join() {
        // t(0.975) of 40, 60, 120 degrees in any printed table.
        for (degrees, quantile) in [(40, 2.021), (60, 2.000), (120, 1.980)] {
            assert!((student_t_975(degrees) - quantile).abs() < 6e-4, "{degrees}");
        }
    }

    /// Standard normal deviates, Box and Muller.
    fn normal(run: u32, i: u32) -> f64 {
        let [a, b, ..] = philox([i, run, 1, 0], 77);
        let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        (-2.0 * unit(a).ln()).sqrt() * (std::f64::consts::TAU * unit(b)).cos()
    }

    /// Two runs back to back on a machine with that noise: how often does the second median lie
    /// within the first run's spread?
    fn agreement(repetitions: u32, noise: impl Fn(u32, u32, &mut f64) -> f64) -> f64 {
        let pairs = 2000;
        let agreed = (0..pairs)
            .filter(|&pair| {
                let mut state = 0.0;
                let mut run = |from: u32| {
                    let samples = (from..from + repetitions)
                        .map(|i| 100.0 + noise(pair, i, &mut state))
                        .collect();
                    Summary::of(samples).unwrap()
                };
                run(0).agrees_with(&run(repetitions))
            })
            .count();
        agreed as f64 / f64::from(pairs)
    }

    #[test]
    fn a_second_run_agrees_on_noisy_machines() {
        for repetitions in [3, 5, 10] {
            let steady = agreement(repetitions, |run, i, _| 3.0 * normal(run, i));
            // Mostly quiet, now and then a repetition that lost up to a third to a neighbour.
            let stolen = agreement(repetitions, |run, i, _| {
                let lost = philox([i, run, 2, 0], 5)[0] % 100;
                normal(run, i) - if lost < 12 { 3.0 * f64::from(lost) } else { 0.0 }
            });
            // Slow drift with memory (first-order autoregression, 0.7) under the noise.
            let drift = agreement(repetitions, |run, i, state| {
                *state = 0.7 * *state + normal(run, i + 1000);
                *state + normal(run, i)
            });
            println!("{repetitions}: steady {steady}, stolen {stolen}, drift {drift}");
            assert!(steady > 0.95 && stolen > 0.95 && drift > 0.90);
        }
    }
}
