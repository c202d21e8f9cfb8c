//! How long a step may take before its channel counts as hung.
//!
//! Nobody can say beforehand how long a plan's step takes on a GPU whose clocks are its owner's, but one
//! that has run says it for the next. What is waited too long for is only a rebuild and a repetition, so
//! being wrong costs time and no token.

use std::collections::HashMap;
use std::time::Duration;

use crate::device::Prepared;

/// For a plan that has never run, and for any.
const LONGEST: Duration = Duration::from_secs(60);
/// For any plan: other users of the GPU and of the processor cause delays of their own.
const SHORTEST: Duration = Duration::from_millis(1500);
/// A step deeper in the context, or beside other work, is slower, but not by this much.
const SLACK: u32 = 4;

/// What the plans' steps have taken.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_known_has_two_seconds() {
        let (decode, prefill) = (Prepared(0), Prepared(1));
        let mut patience = Patience::default();
        assert_eq!(patience.with(decode), LONGEST);
        for ms in [70, 90, 80] {
            patience.took(decode, Duration::from_millis(4 * ms), 4);
        }
        assert_eq!(patience.with(decode), SHORTEST);
        assert!(SHORTEST < Duration::from_secs(2));
        patience.took(prefill, Duration::from_secs(1), 1);
        assert_eq!(patience.with(prefill), Duration::from_secs(4));
        patience.took(prefill, Duration::from_secs(1000), 1);
        assert_eq!(patience.with(prefill), LONGEST);
        assert_eq!(patience.with(decode), SHORTEST);
    }
}
