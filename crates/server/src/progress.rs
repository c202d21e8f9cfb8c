//! Progress of work that must not stop: engine threads, and the preparation of prompts. `/health`
//! reports work that has stopped.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time without progress after which work counts as stopped. One step of a large model on a CPU takes
/// seconds.
const STOPPED: Duration = Duration::from_secs(30);

/// Longest interval between two observations that counts. A longer one means that the process was
/// stopped or the machine suspended.
const INTERVAL: Duration = Duration::from_secs(2);

/// A counter that grows with the work, as last observed.
pub(super) struct Progress(Mutex<Observed>);

struct Observed {
    count: u64,
    at: Instant,
    /// Time without progress.
    still: Duration,
}

impl Default for Progress {
    fn default() -> Self {
        Self(Mutex::new(Observed { count: 0, at: Instant::now(), still: Duration::ZERO }))
    }
}

impl Progress {
    /// Observes the counter. Called about once a second; `idle` if there is no work.
    pub(super) fn observe(&self, count: u64, idle: bool) {
        let mut seen = self.0.lock();
        let now = Instant::now();
        let passed = now.duration_since(std::mem::replace(&mut seen.at, now)).min(INTERVAL);
        let moved = std::mem::replace(&mut seen.count, count) != count;
        seen.still = if moved || idle { Duration::ZERO } else { seen.still + passed };
    }

    /// Seconds without progress, if they are too many.
    pub(super) fn stopped_for(&self) -> Option<u64> {
        let still = self.0.lock().still;
        (still >= STOPPED).then_some(still.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_without_progress_is_reported_and_idleness_is_not() {
        let progress = Progress::default();
        let pass = || progress.0.lock().at = Instant::now() - Duration::from_secs(100);
        for count in [1, 2, 2, 2] {
            pass();
            progress.observe(count, false);
        }
        // Two intervals, however long the process was stopped.
        assert_eq!(progress.stopped_for(), None);
        for _ in 0..14 {
            pass();
            progress.observe(2, false);
        }
        assert_eq!(progress.stopped_for(), Some(32));
        progress.observe(2, true);
        assert_eq!(progress.stopped_for(), None);
        progress.observe(3, false);
        assert_eq!(progress.stopped_for(), None);
    }
}
