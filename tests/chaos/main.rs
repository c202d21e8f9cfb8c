//! Chaos tests: the whole daemon under a seeded mix of actions of clients, operators and the machine, on the CPU and on
//! the simulated Orin. A seed is a [`plan::Plan`], a list of steps. After the steps the daemon must be in its initial
//! state: [`judge`], [`census`] and the end of [`run`] check the promises of docs/reliability.md.
//!
//! | variable | meaning |
//! |---|---|
//! | `ORIND_CHAOS=N`, `ORIND_CHAOS=A..B` | the first N seeds (default 20); seeds A to B, B excluded |
//! | `ORIND_CHAOS_SEED=N` | only this seed; prints each step as it is executed |
//! | `ORIND_CHAOS_STEPS=1,4,7` | only these steps of that seed |
//!
//! The daemon is another process of this program ([`subject`]), with the simulator linked in, so that tests can read
//! the simulator's counts and set the wall clock.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and report")]

mod answer;
mod census;
mod clients;
mod hostile;
mod judge;
mod loops;
mod plan;
mod pulls;
mod reference;
mod request;
mod run;
mod shrink;
mod subject;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use plan::Plan;
use run::World;

/// Number of seeds without `ORIND_CHAOS`.
const SEEDS: u64 = 20;

/// Number of daemons under test at once.
const SIDE_BY_SIDE: usize = 2;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn seeds() -> Range<u64> {
    if let Some(seed) = variable("ORIND_CHAOS_SEED") {
        let seed = seed.parse().unwrap();
        return seed..seed + 1;
    }
    let Some(asked) = variable("ORIND_CHAOS") else { return 0..SEEDS };
    match asked.split_once("..") {
        Some((first, end)) => first.parse().unwrap()..end.parse().unwrap(),
        None => 0..asked.parse().unwrap(),
    }
}

/// Steps in `ORIND_CHAOS_STEPS`; all steps without it.
fn kept(plan: &Plan) -> Vec<usize> {
    match std::env::var("ORIND_CHAOS_STEPS") {
        // An empty list is valid: some failures need no step.
        Ok(steps) => steps.split(',').filter_map(|step| step.parse().ok()).collect(),
        Err(_) => (0..plan.steps.len()).collect(),
    }
}

/// Runs one seed and returns whether it passed. Reports a failure at once, since a thousand seeds take a while.
fn trial(world: &World, seed: u64) -> bool {
    let plan = Plan::new(seed);
    let kept = kept(&plan);
    let start = Instant::now();
    let failure = run::run(world, &plan, &kept).err();
    let seconds = start.elapsed().as_secs_f64();
    let (device, steps) = (plan.settings.device, kept.len());
    println!(
        "seed {seed}: {steps} steps on {device}, {seconds:.1} s, {}",
        failure.as_ref().map_or("ok".to_owned(), |failure| format!("FAILED {failure}"))
    );
    if let Some(failure) = &failure {
        println!("\n{}", shrink::report(world, &plan, &kept, failure));
    }
    failure.is_none()
}

#[test]
fn every_seed_keeps_the_promises() {
    let (seeds, start) = (seeds(), Instant::now());
    let world = World::new(variable("ORIND_CHAOS_SEED").is_some());
    // The report below replaces the panic message.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let (next, failures) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) {
                        break;
                    }
                    if !trial(&world, seed) {
                        failures.lock().push(seed);
                    }
                }
            });
        }
    });
    std::panic::set_hook(hook);
    let failures = failures.into_inner();
    let count = seeds.end - seeds.start;
    println!("{count} seeds, {} failed, {:.0} s", failures.len(), start.elapsed().as_secs_f64());
    assert!(failures.is_empty(), "failed seeds: {failures:?}");
}
