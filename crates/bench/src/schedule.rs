//! Choice of tests, repetitions and order: those requested, or those that fit the time limit.

use super::spec::{Kind, Spec, Test};
use plan::sample::philox;

/// Automatic tests, tried in this order until one set fits the time limit.
const AUTOMATIC: [(&[u32], u32); 6] = [
    (&Spec::PROMPTS, 128),
    (&[32, 128, 512], 128),
    (&[32, 128, 512], 64),
    (&[32, 128], 64),
    (&[32, 128], 32),
    (&[32], 32),
];

/// Minimum repetitions that must fit for a set to be chosen; only the last set may have fewer.
const COMFORTABLE: u32 = 5;

/// Fraction by which a further sequence lengthens a decode step; only for estimates.
const FURTHER_SEQUENCE: f64 = 0.3;

/// Speed of the machine according to the probe, in tokens per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) prefill: f64,
    pub(super) decode: f64,
}

impl Speed {
    /// Seconds of one run of a test, including its preparation.
    pub(super) fn seconds(&self, test: &Test) -> f64 {
        let before = f64::from(test.start() * test.batch) / self.prefill;
        let tokens = f64::from(test.tokens);
        before
            + match test.kind {
                Kind::Prefill => tokens / self.prefill,
                Kind::Decode => {
                    tokens / self.decode * (1.0 + FURTHER_SEQUENCE * f64::from(test.batch - 1))
                }
            }
    }
}

/// Shuffles items (Fisher-Yates) by a seed and the identity of the order.
pub fn shuffle<T>(items: &mut [T], seed: u64, of: [u32; 2]) {
    for i in (1..items.len()).rev() {
        let draw = philox([i as u32, of[0], of[1], 0x0bde], seed)[0];
        items.swap(i, draw as usize % (i + 1));
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Schedule {
    pub(super) tests: Vec<Test>,
    pub(super) repetitions: u32,
    /// Estimated duration in seconds.
    pub(super) estimate: f64,
}

/// Chooses the open parts of a [`Spec`], for sequences of at most `context` tokens that it
/// [fits](Spec::fits).
pub(super) fn choose(spec: &Spec, speed: Speed, context: usize) -> Schedule {
    let round = |tests: &[Test]| tests.iter().map(|test| speed.seconds(test)).sum::<f64>();
    let warmup = |tests: &[Test]| {
        let short: Vec<Test> = tests.iter().copied().map(shortened).collect();
        f64::from(spec.warmup) * round(&short)
    };
    let mut options = AUTOMATIC.iter().map(|&(prompts, generate)| {
        let mut tests = Test::all(
            spec.prompts.as_deref().unwrap_or(prompts),
            spec.generate.as_deref().unwrap_or(&[generate]),
            &spec.depths,
            &spec.batches,
        );
        let asked_for = |test: &Test| match test.kind {
            Kind::Prefill => spec.prompts.is_some(),
            Kind::Decode => spec.generate.is_some(),
        };
        tests.retain(|test| asked_for(test) || test.context() <= context as u64);
        tests
    });
    let wanted = spec.repetitions.unwrap_or(COMFORTABLE);
    let fits = |tests: &Vec<Test>| {
        let seconds = warmup(tests) + f64::from(wanted) * round(tests);
        !tests.is_empty() && seconds <= spec.budget_seconds
    };
    let poorest = options.clone().next_back().unwrap_or_default();
    let tests = options.find(fits).unwrap_or(poorest);
    let [fewest, most] = Spec::REPETITIONS;
    let repetitions = spec.repetitions.unwrap_or_else(|| {
        let room = (spec.budget_seconds - warmup(&tests)) / round(&tests);
        (room as u32).clamp(fewest, most)
    });
    let estimate = warmup(&tests) + f64::from(repetitions) * round(&tests);
    Schedule { tests, repetitions, estimate }
}

/// Returns a shorter version of the test for a warm-up round.
pub(super) fn shortened(test: Test) -> Test {
    let most = match test.kind {
        Kind::Prefill => 128,
        Kind::Decode => 16,
    };
    Test { tokens: test.tokens.min(most), depth: test.depth.min(128), ..test }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(schedule: &Schedule) -> Vec<String> {
        schedule.tests.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn fast_machines_run_everything_ten_times() {
        let schedule = choose(&Spec::default(), Speed { prefill: 10_000.0, decode: 150.0 }, 4096);
        assert_eq!(names(&schedule), ["pp32", "pp128", "pp256", "pp512", "tg128"]);
        assert_eq!(schedule.repetitions, 10);
    }

    #[test]
    fn slow_machines_run_fewer_tests_but_at_least_one() {
        let mut last = f64::INFINITY;
        for slower in [1.0, 2.0, 4.0, 8.0, 1000.0] {
            let speed = Speed { prefill: 150.0 / slower, decode: 16.0 / slower };
            let schedule = choose(&Spec::default(), speed, 4096);
            let tokens: u64 = schedule.tests.iter().map(Test::total_tokens).sum();
            assert!(tokens as f64 <= last && !schedule.tests.is_empty());
            assert!((3..=10).contains(&schedule.repetitions));
            if slower <= 8.0 {
                assert!(schedule.estimate <= Spec::default().budget_seconds, "{schedule:?}");
            }
            last = tokens as f64;
        }
    }

    #[test]
    fn requested_tests_ignore_the_time_limit() {
        let spec = Spec {
            prompts: Some(vec![4096]),
            generate: Some(vec![0]),
            repetitions: Some(20),
            budget_seconds: 1.0,
            ..Spec::default()
        };
        let schedule = choose(&spec, Speed { prefill: 10.0, decode: 1.0 }, 4096);
        assert_eq!((names(&schedule), schedule.repetitions), (vec!["pp4096".to_owned()], 20));
    }

    #[test]
    fn only_requested_tests_may_exceed_the_context() {
        let fast = Speed { prefill: 10_000.0, decode: 150.0 };
        let schedule = choose(&Spec::default(), fast, 256);
        assert_eq!(names(&schedule), ["pp32", "pp128", "pp256", "tg128"]);
        let spec = Spec { generate: Some(vec![300]), ..Spec::default() };
        assert_eq!(names(&choose(&spec, fast, 64)), ["pp32", "tg300"]);
        let spec = Spec { prompts: Some(vec![]), ..Spec::default() };
        assert_eq!(names(&choose(&spec, fast, 40)), ["tg32"]);
    }

    #[test]
    fn depths_and_batches_multiply_the_chosen_tests() {
        let spec = Spec { prompts: Some(vec![]), batches: vec![1, 2], ..Spec::default() };
        let schedule = choose(&spec, Speed { prefill: 150.0, decode: 20.0 }, 4096);
        assert_eq!(names(&schedule), ["tg128", "tg128 x2"]);
    }
}
