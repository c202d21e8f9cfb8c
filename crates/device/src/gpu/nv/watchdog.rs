//! Watchdog: declares a channel hung if a step makes no progress.
//!
//! Progress is the end of a step and of each of its [QMD chains](super::chains). Their longest
//! duration is computed in advance, so a plan's first execution is watched too.
//!
//! Time is counted in polls of a tenth of a second, not by a clock, so time in which the process or
//! the machine was stopped does not count. A false alarm only costs a rebuild and a repetition,
//! never a token.

use std::time::Duration;

/// Interval between two polls.
const POLL: Duration = Duration::from_millis(100);
/// Fewest polls: 1.5 times the longest launch that can be split.
const POLLS: u32 = 15;

/// Polls without progress after which a channel counts as hung, if progress is due after `longest`.
pub(super) fn polls(longest: Duration) -> u32 {
    let polls = (longest * 3 / 2).as_nanos().div_ceil(POLL.as_nanos());
    u32::try_from(polls).unwrap_or(u32::MAX).max(POLLS)
}

/// Waits for a step. `poll` waits up to the given time and returns a value that changes with
/// progress. Fails after `polls` polls without change; `polls` may depend on the progress.
pub(super) fn watch<P: PartialEq, E>(
    polls: impl Fn(&P) -> u32,
    is_late: impl Fn(&E) -> bool,
    mut poll: impl FnMut(Duration) -> (P, Result<(), E>),
) -> Result<(), E> {
    let (mut seen, mut still) = (None, 0);
    loop {
        let (progress, result) = poll(POLL);
        match result {
            Err(error) if is_late(&error) => {
                still = if seen.as_ref() == Some(&progress) { still + 1 } else { 0 };
                if still >= polls(&progress) {
                    return Err(error);
                }
                seen = Some(progress);
            }
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::limit;
    use super::*;

    #[test]
    fn a_hang_is_noticed_within_two_seconds() {
        // The first poll, and those without news.
        assert!(POLL * (POLLS + 2) < Duration::from_secs(2));
        assert!(POLL * POLLS >= limit::LONGEST * 3 / 2);
    }

    /// Runs a step whose launches take the given numbers of polls; launch `stuck` never ends.
    /// Returns the result and the number of polls.
    fn wait_for(launches: &[u32], stuck: Option<usize>) -> (Result<(), &'static str>, u32) {
        let ends: Vec<u32> = launches
            .iter()
            .scan(0, |at, n| {
                Some({
                    *at += n;
                    *at
                })
            })
            .collect();
        let mut now = 0;
        let result = watch(
            |_| POLLS,
            |error: &&str| *error == "late",
            |limit| {
                assert_eq!(limit, POLL);
                now += 1;
                let done = ends.iter().take_while(|end| **end <= now).count();
                let done = stuck.map_or(done, |stuck| done.min(stuck));
                (done, if done == ends.len() { Ok(()) } else { Err("late") })
            },
        );
        (result, now)
    }

    #[test]
    fn only_steps_without_progress_time_out() {
        let launches: Vec<u32> = (0..50).map(|i| 1 + i % 15).collect();
        assert_eq!(wait_for(&launches, None), (Ok(()), launches.iter().sum()));
        for stuck in [0, 1, 20, 49] {
            let (result, polls) = wait_for(&launches, Some(stuck));
            assert_eq!(result, Err("late"));
            let hung_at: u32 = launches[..stuck].iter().sum();
            assert!(polls - hung_at <= POLLS + 1, "{stuck}: {}", polls - hung_at);
        }
    }

    #[test]
    fn other_errors_end_the_wait() {
        let result = watch(|()| POLLS, |_: &&str| false, |_| ((), Err("fault")));
        assert_eq!(result, Err("fault"));
    }
}
