//! Shrinks a failing plan: removes steps as long as it fails without them. Timing is not reproducible, so one passing
//! run proves nothing: the result may have more steps than necessary, never fewer.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::plan::Plan;
use crate::run::{self, World};

/// Limits of shrinking: number of runs, and time.
const RUNS: usize = 40;
const TIME: Duration = Duration::from_secs(150);

/// Report of a failure: the command that repeats it, and the shortest history found.
pub(crate) fn report(world: &World, plan: &Plan, kept: &[usize], failure: &str) -> String {
    let (shortest, last, runs) = shrink(world, plan, kept, failure);
    let steps: Vec<String> = shortest.iter().map(ToString::to_string).collect();
    let mut text = format!("seed {} fails: {last}\n", plan.number);
    let (number, from, to) = (plan.number, kept.len(), shortest.len());
    writeln!(text, "  again: ORIND_CHAOS_SEED={number} ORIND_CHAOS_STEPS={} cargo test --test chaos -- --nocapture", steps.join(","))
        .unwrap();
    writeln!(
        text,
        "  history, {to} of {from} steps after {runs} more runs, with {:?}:",
        plan.settings
    )
    .unwrap();
    for at in shortest {
        writeln!(text, "    {at:3} {:?}", plan.steps[at]).unwrap();
    }
    text
}

/// Returns the remaining steps, the failure of the last failing run, and the number of runs. Removes halves, then
/// quarters and so on, down to single steps.
fn shrink(
    world: &World,
    plan: &Plan,
    kept: &[usize],
    failure: &str,
) -> (Vec<usize>, String, usize) {
    let (mut kept, mut last, mut runs) = (kept.to_vec(), failure.to_owned(), 0);
    let start = Instant::now();
    let mut size = kept.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < kept.len() {
            if runs == RUNS || start.elapsed() > TIME {
                return (kept, last, runs);
            }
            let end = (at + size).min(kept.len());
            let without = [&kept[..at], &kept[end..]].concat();
            runs += 1;
            match run::run(world, plan, &without) {
                Ok(()) => at = end,
                Err(failure) => (kept, last) = (without, failure),
            }
        }
        size /= 2;
    }
    (kept, last, runs)
}
