//! The watchdog: how long a step may stand still before its channel counts as hung.
//!
//! What counts is not how long a step takes but how long it goes without progress. Its end is progress,
//! and the end of each of its [chains](super::chains). How long those take at most is known before
//! anything has run, so that the first execution of a plan is watched like any other.
//!
//! Time is counted in polls, each a tenth of a second of waiting, and not by a clock: nobody concludes
//! anything from time in which this process, or the machine, was stopped.
//!
//! What is waited too long for is only a rebuild and a repetition, so being wrong costs time and no token.

use std::time::Duration;

/// Between two polls of how far a step is.
const POLL: Duration = Duration::from_millis(100);
/// The least of them: half as long again as the longest launch that can be had in parts.
const POLLS: u32 = 15;

/// Polls without progress after which a channel counts as hung, where there is some after so long at most.
pub(super) fn polls(longest: Duration) -> u32 {
    let polls = (longest * 3 / 2).as_nanos().div_ceil(POLL.as_nanos());
    u32::try_from(polls).unwrap_or(u32::MAX).max(POLLS)
}

/// Waits for a step: `poll` waits so long at most, and gives what changes while the step progresses.
/// Gives up after `polls` polls, which may depend on how far it is, without change.
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
        // The poll in which it began, and those that saw nothing new.
        assert!(POLL * (POLLS + 2) < Duration::from_secs(2));
        assert!(POLL * POLLS >= limit::LONGEST * 3 / 2);
    }

    /// Steps of launches that take so many polls each, of which the one `stuck` never ends: what the
    /// wait came to, and after how many polls.
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
    fn a_step_that_progresses_is_waited_for_and_one_that_stands_still_is_not() {
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
    fn errors_other_than_lateness_end_the_watch() {
        let result = watch(|()| POLLS, |_: &&str| false, |_| ((), Err("fault")));
        assert_eq!(result, Err("fault"));
    }
}
