//! How long a step may take before its channel counts as hung.
//!
//! Nobody can say beforehand how long a plan's step takes on a GPU whose clocks are its owner's, but one
//! that has run says it for the next. What is waited too long for is only a rebuild and a repetition, so
//! being wrong costs time and no token.
//!
//! A step that may be long tells how far it is, and what counts is then not how long it takes but how
//! long it stands still: see [`Patience::watch`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::device::Prepared;
use crate::plan::Plan;

/// For a plan that has never run, and for any.
const LONGEST: Duration = Duration::from_secs(60);
/// For any plan: other users of the GPU and of the processor cause delays of their own.
const SHORTEST: Duration = Duration::from_millis(1500);
/// A step deeper in the context, or beside other work, is slower, but not by this much.
const SLACK: u32 = 4;
/// Between two looks at how far a step is.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes of weights that a decode step may read and still be short: a tenth of a second on the slowest
/// Orin's memory.
const SHORT_BYTES: u64 = 4 << 30;

/// Whether a step of the plan may be long, and is to tell how far it is: a prefill chunk, or a step of a
/// model of many gigabytes. Telling costs every launch a write, which decode should not pay.
pub(super) fn is_long(plan: &Plan) -> bool {
    plan.bucket.chunk > 1 || plan.cost().weight_bytes > SHORT_BYTES
}

/// What the plans' steps have taken; of those that tell how far they are, how long they stood still.
#[derive(Debug, Default)]
pub(super) struct Patience {
    slowest: HashMap<Prepared, Duration>,
}

impl Patience {
    /// How long to wait for a step of that plan.
    pub(super) fn with(&self, plan: Prepared) -> Duration {
        let known = self.slowest.get(&plan);
        known.map_or(LONGEST, |slowest| (*slowest * SLACK).clamp(SHORTEST, LONGEST))
    }

    /// Notes what `steps` steps of a plan have taken together.
    pub(super) fn took(&mut self, plan: Prepared, all: Duration, steps: usize) {
        let one = all / u32::try_from(steps.max(1)).unwrap_or(u32::MAX);
        let slowest = self.slowest.entry(plan).or_default();
        *slowest = one.max(*slowest);
    }

    /// Waits for a step that tells how far it is, by waits of a part of the time: `wait` for at most so
    /// long, `progress` for what changes while it gets on. Gives up after `patience` without change.
    /// Gives the longest time without.
    pub(super) fn watch<E>(
        patience: Duration,
        is_late: impl Fn(&E) -> bool,
        mut progress: impl FnMut() -> u64,
        mut now: impl FnMut() -> Instant,
        mut wait: impl FnMut(Duration) -> Result<(), E>,
    ) -> Result<Duration, E> {
        let (mut last, mut since, mut slowest) = (progress(), now(), Duration::ZERO);
        loop {
            let result = wait(LOOK.min(patience));
            let (found, still) = (progress(), now().saturating_duration_since(since));
            slowest = slowest.max(still);
            match result {
                Ok(()) => return Ok(slowest),
                Err(error) if !is_late(&error) => return Err(error),
                Err(_) if found != last => (last, since) = (found, now()),
                Err(error) if still >= patience => return Err(error),
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_step_that_is_known_has_two_seconds() {
        let (decode, prefill) = (Prepared(0), Prepared(1));
        let mut patience = Patience::default();
        assert_eq!(patience.with(decode), LONGEST);
        for ms in [70, 90, 80] {
            patience.took(decode, Duration::from_millis(4 * ms), 4);
        }
        assert_eq!(patience.with(decode), SHORTEST);
        assert!(SHORTEST + LOOK < Duration::from_secs(2));
        patience.took(prefill, Duration::from_secs(1), 1);
        assert_eq!(patience.with(prefill), Duration::from_secs(4));
        patience.took(prefill, Duration::from_secs(1000), 1);
        assert_eq!(patience.with(prefill), LONGEST);
        assert_eq!(patience.with(decode), SHORTEST);
    }

    /// A step of launches that take so many milliseconds each, of which the one `stuck` never ends, on
    /// a clock of its own: what the wait came to, and when.
    fn watch(
        launches: &[u64],
        stuck: Option<usize>,
        patience: Duration,
    ) -> (Result<Duration, &'static str>, Duration) {
        let start = Instant::now();
        let time = Cell::new(Duration::ZERO);
        let ends: Vec<Duration> = launches
            .iter()
            .scan(0, |at, ms| {
                *at += ms;
                Some(Duration::from_millis(*at))
            })
            .collect();
        let reached = || {
            let done = ends.iter().take_while(|end| **end <= time.get()).count();
            stuck.map_or(done, |stuck| done.min(stuck))
        };
        let result = Patience::watch(
            patience,
            |error: &&str| *error == "late",
            || reached() as u64,
            || start + time.get(),
            |limit| {
                let end = ends.last().copied().filter(|_| stuck.is_none());
                match end.filter(|end| *end <= time.get() + limit) {
                    Some(end) => {
                        time.set(end);
                        Ok(())
                    }
                    None => {
                        time.set(time.get() + limit);
                        Err("late")
                    }
                }
            },
        );
        (result, time.get())
    }

    #[test]
    fn a_long_step_that_gets_on_is_waited_for_and_one_that_stands_still_is_not() {
        // Ten seconds of work, none of it longer than 0.3 seconds.
        let launches: Vec<u64> = (0..50).map(|i| 100 + 4 * (i % 50)).collect();
        let (result, took) = watch(&launches, None, SHORTEST);
        assert_eq!(took, Duration::from_millis(launches.iter().sum()));
        let slowest = result.unwrap();
        assert!(slowest <= Duration::from_millis(296) + LOOK, "{slowest:?}");
        // So the next one is noticed within two seconds, wherever it hangs.
        let mut patience = Patience::default();
        patience.took(Prepared(0), slowest, 1);
        assert!(patience.with(Prepared(0)) + LOOK < Duration::from_secs(2));
        for stuck in [0, 1, 20, 49] {
            let (result, took) = watch(&launches, Some(stuck), patience.with(Prepared(0)));
            let hung_at = Duration::from_millis(launches[..stuck].iter().sum());
            assert_eq!(result, Err("late"));
            assert!(took - hung_at <= Duration::from_secs(2), "{stuck}: {:?}", took - hung_at);
        }
    }

    #[test]
    fn errors_other_than_lateness_end_the_watch() {
        let result =
            Patience::watch(LONGEST, |_: &&str| false, || 0, Instant::now, |_| Err("fault"));
        assert_eq!(result, Err("fault"));
    }
}
