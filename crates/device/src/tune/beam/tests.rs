//! Tests of the beam search, on a bench with a known optimum.

use super::*;
use crate::tune::store::Tried;
use crate::tune::{Candidates, Parameter, Scope};
use plan::sample::philox;

/// Three parameters with a planted optimum, a cost per step away from it, noise and drift.
struct Planted {
    best: [usize; 3],
    seed: u64,
    taken: u32,
    wrong: Option<Choice>,
    /// Choice that faults when timed.
    faulting: Option<Choice>,
    /// Stops after this many samples.
    stop_after: u32,
    checked: Vec<Choice>,
    timed: Vec<Choice>,
}

const VALUES: [u32; 6] = [1, 2, 4, 8, 16, 32];
const NAMES: [&str; 3] = ["a", "b", "c"];

fn choice(at: [usize; 3]) -> Choice {
    NAMES.iter().zip(at).map(|(name, i)| ((*name).to_owned(), VALUES[i])).collect()
}

fn space(from: [usize; 3]) -> Space {
    let parameter =
        |name| Parameter { name, meaning: "", values: VALUES.to_vec(), scope: Scope::Launch };
    let rule = |c: &Choice| {
        if c["a"] * c["b"] > 256 { Err("a x b: at most 256".to_owned()) } else { Ok(()) }
    };
    let parameters = NAMES.map(parameter).to_vec();
    Space::new(parameters, choice(from), "0123456789".to_owned(), Candidates::BuiltIn, rule)
}

impl Planted {
    fn new(seed: u64, best: [usize; 3]) -> Self {
        let (wrong, faulting, stop_after) = (None, None, u32::MAX);
        let (checked, timed) = (Vec::new(), Vec::new());
        Self { best, seed, taken: 0, wrong, faulting, stop_after, checked, timed }
    }

    fn cost(&self, choice: &Choice) -> f64 {
        let away = NAMES.iter().zip(self.best).map(|(name, best)| {
            let at = VALUES.iter().position(|v| *v == choice[*name]).unwrap();
            at.abs_diff(best) as f64
        });
        let bonus = if self.wrong.as_ref() == Some(choice) { 0.5 } else { 1.0 };
        1000.0 * bonus * away.map(|steps| 1.08f64.powf(steps)).product::<f64>()
    }

    /// 2 % either way, a disturbance of up to half in one of twelve samples, and a slow drift of 10
    /// %.
    fn noise(&mut self) -> f64 {
        self.taken += 1;
        let [a, b, c, _] = philox([self.taken, 0, 0, 0], self.seed);
        let unit = |word: u32| f64::from(word) / f64::from(u32::MAX);
        let stolen = if b % 12 == 0 { 0.5 * unit(c) } else { 0.0 };
        let drift = 0.1 * (f64::from(self.taken) / 150.0).sin();
        (1.0 + 0.04 * (unit(a) - 0.5) + stolen) * (1.0 + drift)
    }
}

impl Bench for Planted {
    fn check(&mut self, choice: &Choice) -> Result<(), Failure> {
        self.checked.push(choice.clone());
        if self.wrong.as_ref() == Some(choice) {
            return Err(Failure::Rejected("row 3 is wrong".into()));
        }
        Ok(())
    }

    fn time(&mut self, choice: &Choice) -> Result<f64, Failure> {
        assert!(self.checked.contains(choice), "timed before it was checked");
        if self.taken >= self.stop_after {
            return Err(Failure::Stopped);
        }
        if self.faulting.as_ref() == Some(choice) {
            return Err(Failure::Rejected("it faulted".into()));
        }
        self.timed.push(choice.clone());
        let cost = self.cost(choice);
        Ok(cost * self.noise())
    }
}

fn places(seed: u64) -> ([usize; 3], [usize; 3]) {
    let words = philox([9, 9, 9, 9], seed);
    let [a, b, c] = [0, 1, 2].map(|i: usize| words[i] as usize % 4);
    ([a, b, c], [b, c, a])
}

fn run(bench: &mut Planted, from: [usize; 3], settings: Settings) -> Result<Outcome, Failure> {
    search(&space(from), settings, Known::default(), bench, &mut |_, _| {})
}

#[test]
fn a_planted_optimum_is_found_under_noise() {
    for seed in 0..50 {
        let (from, best) = places(seed);
        let mut bench = Planted::new(seed, best);
        let found = run(&mut bench, from, Settings::default()).unwrap();
        assert_eq!(found.choice, choice(best), "seed {seed} from {from:?}: {found:?}");
        assert!(found.complete);
        let gain = bench.cost(&choice(from)) / bench.cost(&choice(best));
        assert!((found.gain.median / gain - 1.0).abs() < 0.05, "seed {seed}: {found:?} for {gain}");
    }
}

#[test]
fn the_default_stays_unless_something_is_better() {
    for seed in 0..50 {
        let (from, _) = places(seed);
        let found = run(&mut Planted::new(seed, from), from, Settings::default()).unwrap();
        assert_eq!(found.choice, choice(from), "seed {seed}");
        assert_eq!(found.gain.interval, [1.0, 1.0]);
    }
}

#[test]
fn wrong_and_faulting_candidates_are_recorded_and_never_chosen() {
    for seed in 0..50 {
        let (from, best) = ([1, 1, 1], [3, 2, 2]);
        let mut bench = Planted::new(seed, best);
        bench.wrong = Some(choice([2, 1, 1]));
        bench.faulting = Some(choice(best));
        let found = run(&mut bench, from, Settings::default()).unwrap();
        let rejected: Vec<&Choice> = found.rejected.iter().map(|(choice, _)| choice).collect();
        assert!(rejected.contains(&&choice([2, 1, 1])) && rejected.contains(&&choice(best)));
        assert!(!rejected.contains(&&found.choice), "seed {seed}");
        assert!(!bench.timed.contains(&choice([2, 1, 1])), "a wrong one was timed");
        // The second best is one step from the optimum, which faults.
        let away = bench.cost(&found.choice) / bench.cost(&choice(best));
        assert!(away < 1.09, "seed {seed}: {found:?}");
        // A second search skips rejected candidates.
        let bad: Vec<Choice> = rejected.into_iter().cloned().collect();
        let mut again = Planted::new(seed + 100, best);
        let known = Known { bad: &bad, tried: &[] };
        let second = search(&space(from), Settings::default(), known, &mut again, &mut |_, _| {});
        assert!(second.unwrap().rejected.is_empty());
        assert!(bad.iter().all(|bad| !again.checked.contains(bad)));
    }
}

#[test]
fn a_wrong_heuristic_ends_the_search() {
    let mut bench = Planted::new(1, [2, 2, 2]);
    bench.wrong = Some(choice([1, 1, 1]));
    let failed = run(&mut bench, [1, 1, 1], Settings::default()).unwrap_err();
    assert_eq!(failed, Failure::Rejected("row 3 is wrong".into()));
}

/// The optimum is behind slower neighbours, so a beam of one does not find it.
#[test]
fn a_wider_beam_crosses_a_valley() {
    struct Valley(u32);
    impl Bench for Valley {
        fn check(&mut self, _: &Choice) -> Result<(), Failure> {
            Ok(())
        }
        fn time(&mut self, choice: &Choice) -> Result<f64, Failure> {
            self.0 += 1;
            let noise = 1.0 + f64::from(philox([self.0, 0, 0, 0], 5)[0] % 100) / 10_000.0;
            let c = if choice["c"] == 4 { 1.0 } else { 1.3 };
            let cost = c * match (choice["a"], choice["b"]) {
                (4, 4) => 60.0,
                (4, 2) | (2, 4) => 105.0,
                (2, 2) => 100.0,
                _ => 130.0,
            };
            Ok(noise * cost)
        }
    }
    for (width, found) in [(1, [1, 1, 2]), (3, [2, 2, 2])] {
        let settings = Settings { width, ..Settings::default() };
        let outcome =
            search(&space([1, 1, 2]), settings, Known::default(), &mut Valley(0), &mut |_, _| {});
        let chosen = outcome.unwrap().choice;
        assert_eq!((chosen["a"], chosen["b"]), (VALUES[found[0]], VALUES[found[1]]), "{width}");
    }
}

#[test]
fn the_budget_reserves_the_final_comparison() {
    for samples in [7, 40, 80, 120, 200, 400] {
        let mut bench = Planted::new(3, [3, 3, 3]);
        let settings = Settings { samples, ..Settings::default() };
        let found = run(&mut bench, [0, 0, 0], settings).unwrap();
        assert!(u64::from(bench.taken) <= samples && found.samples == u64::from(bench.taken));
        assert!(!found.complete);
        assert_eq!(found.choice == choice([0, 0, 0]), samples < 137, "{samples}: {found:?}");
    }
    let settings = Settings { samples: 5, ..Settings::default() };
    let none = run(&mut Planted::new(3, [3, 3, 3]), [0, 0, 0], settings);
    assert_eq!(none, Err(Failure::Stopped), "not even the heuristic was timed");
}

#[test]
fn a_stopped_search_keeps_proven_results() {
    let mut proved = 0;
    for stop_after in (1..400).step_by(7) {
        let mut bench = Planted::new(4, [3, 1, 1]);
        bench.stop_after = stop_after;
        match run(&mut bench, [0, 0, 0], Settings::default()) {
            Ok(found) => {
                assert!(bench.cost(&found.choice) <= bench.cost(&choice([0, 0, 0])));
                assert!(!found.complete || found.choice == choice([3, 1, 1]));
                proved += u32::from(found.choice != choice([0, 0, 0]));
            }
            Err(failure) => assert!(failure == Failure::Stopped && stop_after <= 7, "{failure}"),
        }
    }
    assert!(proved > 20, "{proved}");
}

/// However often it is interrupted, no candidate is measured twice, and the result is that of an
/// uninterrupted search.
#[test]
fn an_interrupted_search_continues() {
    for every in [120, 200, 400] {
        let (from, best) = ([0, 0, 0], [3, 1, 1]);
        let mut tried: Vec<Tried> = Vec::new();
        let mut searches = 0;
        let found = loop {
            searches += 1;
            assert!(searches < 200, "it gets nowhere in {every} samples");
            let mut bench = Planted::new(40 + searches, best);
            bench.wrong = Some(choice([1, 0, 0]));
            bench.stop_after = every;
            let mut now = Vec::new();
            let known = Known { bad: &[], tried: &tried };
            let result =
                search(&space(from), Settings::default(), known, &mut bench, &mut |c, v| {
                    now.push(Tried { choice: c.clone(), verdict: v.clone() });
                });
            let before = tried.len();
            tried.extend(now);
            // None is tried again; the winner is compared with and must be checked for that.
            for Tried { choice, verdict } in &tried[..before] {
                let won = matches!(verdict, Verdict::Faster(_));
                let last = result.as_ref().is_ok_and(|found| found.complete);
                assert!(won || last || !bench.timed.contains(choice), "{choice:?} {verdict:?}");
            }
            match result {
                Ok(found) if found.complete => break found,
                Ok(found) => assert_eq!(found.tried, tried.len(), "each one counts"),
                Err(failure) => assert_eq!(failure, Failure::Stopped),
            }
        };
        assert!(searches > 1, "{every} samples are not all");
        assert_eq!(found.choice, choice(best), "{found:?}");
        assert!(found.before > 0 && found.before < found.tried);
        assert_eq!(found.rejected.len(), 1, "what was refused before stays so");
    }
}

#[test]
fn verification_detects_a_winner_that_no_longer_wins() {
    let space = space([1, 1, 1]);
    let settings = Settings::default();
    let winner = choice([2, 2, 2]);
    let still = verify(&space, &winner, settings, &mut Planted::new(5, [2, 2, 2])).unwrap();
    assert_eq!(still.choice, winner);
    let lost = verify(&space, &winner, settings, &mut Planted::new(5, [1, 1, 1])).unwrap();
    assert_eq!(lost.choice, choice([1, 1, 1]));
    let mut wrong = Planted::new(5, [2, 2, 2]);
    wrong.wrong = Some(winner.clone());
    assert!(matches!(verify(&space, &winner, settings, &mut wrong), Err(Failure::Rejected(_))));
}
