//! Heartbeat of the engine thread: a counter that grows with each command, each uploaded weight, each
//! prepared plan, and each step. It stops if the thread is stuck in a driver or in a loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counter that is shared between the thread and its observers.
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
