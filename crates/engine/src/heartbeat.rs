//! The engine thread's heartbeat: it beats when it answers a command, has a weight or a plan in place, and
//! after every step of a device. A thread that is stuck in a driver or in a loop of its own does not beat.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter shared by the thread and those who watch it.
#[derive(Clone, Debug, Default)]
pub(super) struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    pub(super) fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn beats(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
