//! Statistics of repeated measurements: [`Summary`] of one series, [`Pairs`] of two alternating
//! ones.

pub use crate::pairs::{Drift, Interval, Pairs, RULE, Welch};
pub use bench::statistics::{
    CONFIDENCE, DEFINITION, FLOOR, Percentiles, Summary, median, outliers, sorted, student_t_975,
};

#[cfg(test)]
mod tests {
    use super::*;
    use plan::sample::philox;
    use serde_json::Value;

    /// By hand: mean 12, deviations 2 1 0 1 2, variance 10/4.
    #[test]
    fn a_small_sample_matches_values_by_hand() {
        let s = Summary::of(vec![12.0, 14.0, 10.0, 11.0, 13.0]).unwrap();
        assert_eq!((s.median, s.mean, s.min, s.max), (12.0, 12.0, 10.0, 14.0));
        let stddev = s.stddev.unwrap();
        assert!((stddev - 1.581_139).abs() < 1e-6);
        // 2.776445 * 1.581139 * sqrt(1.2)
        assert!((s.spread.unwrap() - 4.808_944).abs() < 1e-5, "{:?}", s.spread);
    }

    #[test]
    fn even_single_and_invalid_samples_are_handled() {
        assert_eq!(Summary::of(vec![1.0, 4.0, 2.0, 8.0]).unwrap().median, 3.0);
        let one = Summary::of(vec![5.0]).unwrap();
        assert_eq!((one.median, one.stddev, one.spread), (5.0, None, None));
        assert_eq!(Summary::of(vec![]), None);
        assert_eq!(Summary::of(vec![1.0, f64::NAN]), None);
        // Identical repetitions still report the minimum spread.
        assert_eq!(Summary::of(vec![100.0; 5]).unwrap().spread, Some(1.0));
    }

    /// `tests/data/statistics/make.py` has the scipy calls.
    #[test]
    fn numbers_match_scipy() {
        let data: Value =
            serde_json::from_str(include_str!("../../../tests/data/statistics/scipy.json"))
                .unwrap();
        let near = |found: f64, expected: &Value, what: &str| {
            let expected = expected.as_f64().unwrap();
            let error = (found - expected).abs() / expected.abs().max(1e-3);
            assert!(error < 1e-9, "{what}: {found} {expected}");
        };
        for (degrees, quantile) in data["student_t_975"].as_object().unwrap() {
            near(student_t_975(degrees.parse().unwrap()).unwrap(), quantile, degrees);
        }
        for case in data["cases"].as_array().unwrap() {
            let series =
                |name: &str| -> Vec<f64> { serde_json::from_value(case[name].clone()).unwrap() };
            let (first, second) = (series("first"), series("second"));
            let name = case["name"].as_str().unwrap();

            let expected = &case["summary"];
            let found = Summary::of(first.clone()).unwrap();
            near(found.median, &expected["median"], name);
            near(found.mean, &expected["mean"], name);
            near(found.stddev.unwrap(), &expected["stddev"], name);
            near(found.cv.unwrap(), &expected["cv"], name);
            let half = expected["half_prediction"].as_f64().unwrap();
            near(found.spread.unwrap(), &half.max(FLOOR * found.median).into(), name);
            assert_eq!(
                serde_json::to_value(&found.outliers).unwrap(),
                expected["outliers"],
                "{name}"
            );
            let percentiles = Percentiles::of(&first).unwrap();
            let all = [Some(percentiles.p50), percentiles.p90, percentiles.p99, percentiles.p99_9];
            for (at, found) in all.into_iter().enumerate() {
                assert_eq!(found.is_some(), first.len() >= [1, 10, 100, 1000][at], "{name}");
                if let Some(found) = found {
                    near(found, &expected["percentiles"][at], name);
                }
            }

            let expected = &case["pairs"];
            let found = Pairs::of(&first, &second).unwrap();
            let (interval, welch) = (found.interval, found.welch.unwrap());
            let drift = found.drift.unwrap();
            for (value, key) in [
                (found.median, "median"),
                (interval.low, "low"),
                (interval.high, "high"),
                (interval.confidence, "confidence"),
                (found.hodges_lehmann, "hodges_lehmann"),
                (welch.t, "t"),
                (welch.degrees, "degrees"),
                (welch.p, "p"),
                (found.effect.unwrap(), "hedges"),
                (drift.slope, "slope"),
                (drift.tau, "tau"),
                (drift.p, "kendall_p"),
            ] {
                near(value, &expected[key], &format!("{name}, {key}"));
            }
            assert_eq!(interval.reached(), first.len() >= 6, "{name}");
        }
    }

    /// Standard normal deviates by Box-Muller.
    fn normal(run: u32, i: u32) -> f64 {
        let [a, b, ..] = philox([i, run, 1, 0], 77);
        let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        (-2.0 * unit(a).ln()).sqrt() * (std::f64::consts::TAU * unit(b)).cos()
    }

    /// Share of second runs with a median within the first run's spread, on a machine
    /// with this noise.
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
            // Mostly quiet, with an occasional repetition that loses up to a third to a neighbour.
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

    /// Share of comparisons in which pairs detect a difference, on a machine whose speed walks by 5 % per round.
    fn resolved(rounds: u32, ratio: f64, drift: f64) -> f64 {
        let runs = 1000;
        let seen = (0..runs)
            .filter(|&run| {
                let mut walk = 0.0;
                let (first, second): (Vec<f64>, Vec<f64>) = (0..rounds)
                    .map(|i| {
                        walk += 0.05 * normal(run, i);
                        let measured =
                            |of: u32, log: f64| (walk + log + 0.02 * normal(run, of + i)).exp();
                        (measured(1000, 0.0), measured(2000, ratio.ln() + drift * f64::from(i)))
                    })
                    .unzip();
                Pairs::of(&first, &second).unwrap().resolved
            })
            .count();
        seen as f64 / f64::from(runs)
    }

    #[test]
    fn pairs_find_real_differences_and_few_others() {
        let found = [(10, 0.92), (20, 0.92), (20, 1.0), (5, 0.5)].map(|(n, r)| resolved(n, r, 0.0));
        let drift = resolved(20, 0.96, 0.01);
        println!("{found:?}, drift {drift}");
        assert!(found[0] > 0.85 && found[1] > 0.99, "{found:?}");
        assert!(found[2] < 0.05 && found[3] == 0.0, "{found:?}");
        assert!(drift < 0.05, "{drift}");
    }

    #[test]
    fn unpairable_series_are_rejected() {
        assert_eq!(Pairs::of(&[1.0, 2.0], &[1.0]), None);
        assert_eq!(Pairs::of(&[], &[]), None);
        assert_eq!(Pairs::of(&[1.0], &[0.0]), None);
        assert_eq!(Pairs::of(&[1.0], &[f64::NAN]), None);
        let one = Pairs::of(&[1.0], &[2.0]).unwrap();
        assert_eq!((one.welch, one.effect, one.drift, one.resolved), (None, None, None, false));
        assert!(one.median == 2.0 && one.interval.confidence < 1e-9);
        // Without variance there is no t, and the difference is certain.
        let same = Pairs::of(&[1.0; 6], &[2.0; 6]).unwrap();
        assert_eq!((same.welch, same.effect, same.resolved), (None, None, true));
        assert_eq!(Pairs::of(&[3.0; 9], &[3.0; 9]).unwrap().drift.unwrap().p, 1.0);
    }

    #[test]
    fn outliers_are_reported_and_kept() {
        let mut samples = vec![10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.1, 9.9, 10.0];
        samples.insert(4, 5.0);
        let summary = Summary::of(samples).unwrap();
        assert_eq!((summary.outliers.as_slice(), summary.min), ([4].as_slice(), 5.0));
        assert!(!summary.consistent() && summary.stddev.unwrap() > 1.0);
    }
}
