//! QMD chains: how many launches the hardware is given at once.
//!
//! Completion of a launch starts the next one of its chain. Behind a chain the host unit waits
//! until the GPU is idle and releases a semaphore. Other programs get their turn only there, and
//! releases are the progress that the watchdog sees, so no chain may take longer than the watchdog
//! waits.

use std::time::Duration;

use super::super::launch::Launch;
use super::super::limit;
use super::watchdog;
use crate::modes;

/// Most launches of a chain, unless longer ones are proven on this Orin.
const SHORT: usize = 32;

/// Most time of a chain by the estimate, except for a single launch.
pub(crate) const fn turn(chains: modes::Chains) -> Duration {
    match chains {
        modes::Chains::Full => limit::LONGEST,
        modes::Chains::Split | modes::Chains::Serial => limit::TURN,
    }
}

/// Launches of a step, divided into chains.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::gpu) struct Chains {
    /// Number of launches of each chain.
    pub(in crate::gpu) lengths: Vec<usize>,
    /// Polls without progress after which the channel counts as hung.
    pub(super) polls: u32,
}

/// Upper bound and estimate of a launch's duration.
#[derive(Clone, Copy)]
struct Times {
    at_most: Duration,
    estimate: Duration,
}

impl Chains {
    /// Chains of a plan whose rows see `context` positions.
    pub(in crate::gpu) fn of(launches: &[Launch], context: u64, mode: modes::Mode) -> Self {
        let times = |launch| Times {
            at_most: limit::at_most(launch, context),
            estimate: limit::estimate(launch, context),
        };
        Self::between(launches.iter().map(times), mode)
    }

    fn between(launches: impl Iterator<Item = Times>, mode: modes::Mode) -> Self {
        let longest = mode.longest.max(1) as usize;
        let turn = turn(mode.chains);
        let most = match mode.chains {
            modes::Chains::Full => longest,
            modes::Chains::Split => longest.min(SHORT),
            modes::Chains::Serial => 1,
        };
        let mut lengths: Vec<usize> = Vec::new();
        let (mut estimate, mut at_most, mut longest) =
            (Duration::ZERO, Duration::ZERO, limit::LONGEST);
        for launch in launches {
            match lengths.last_mut() {
                Some(length) if *length < most && estimate + launch.estimate <= turn => {
                    *length += 1;
                    estimate += launch.estimate;
                    at_most += launch.at_most;
                }
                _ => {
                    lengths.push(1);
                    (estimate, at_most) = (launch.estimate, launch.at_most);
                }
            }
            longest = longest.max(at_most);
        }
        Self { lengths, polls: watchdog::polls(longest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::Mode;

    fn lengths(milliseconds: &[u64], chains: modes::Chains, longest: u32) -> Vec<usize> {
        let times = |&n: &u64| Times {
            at_most: Duration::from_millis(6 * n),
            estimate: Duration::from_millis(n),
        };
        let mode = Mode { chains, longest, ..Mode::default() };
        Chains::between(milliseconds.iter().map(times), mode).lengths
    }

    #[test]
    fn a_chain_ends_before_it_is_too_long_by_count_or_by_time() {
        use modes::Chains::{Full, Serial, Split};
        assert_eq!(lengths(&[1; 70], Split, 2048), [32, 32, 6]);
        assert_eq!(lengths(&[1; 70], Split, 20), [20, 20, 20, 10]);
        assert_eq!(lengths(&[20, 30, 1, 49, 50, 60, 1], Split, 2048), [2, 2, 1, 1, 1]);
        assert_eq!(lengths(&[1; 70], Full, 2048), [70]);
        assert_eq!(lengths(&[1; 70], Full, 64), [64, 6]);
        assert_eq!(lengths(&[400; 5], Full, 64), [2, 2, 1]);
        assert_eq!(lengths(&[1; 3], Serial, 2048), [1, 1, 1]);
        assert_eq!(lengths(&[], Split, 32), [0; 0]);
    }

    #[test]
    fn longer_chains_have_longer_timeouts() {
        let polls = |at_most: u64, count: usize| {
            let (at_most, estimate) = (Duration::from_millis(at_most), Duration::from_millis(1));
            let times = vec![Times { at_most, estimate }; count];
            Chains::between(times.into_iter(), Mode::default()).polls
        };
        assert_eq!(polls(10, 32), polls(1, 1));
        assert_eq!(polls(125, 32), 60);
        assert_eq!(polls(4000, 1), 60);
    }
}
