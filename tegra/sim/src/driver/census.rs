//! Numbers of objects that are alive, for leak checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One live object; the count falls when it is dropped.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How many objects of one kind are alive.
#[derive(Debug, Default)]
pub(super) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(super) fn one(&self) -> Counted {
        self.0.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(&self.0))
    }

    pub(super) fn now(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// Counts of what has no table of its own.
#[derive(Debug, Default)]
pub(super) struct Census {
    pub(super) mappings: Count,
    pub(super) address_spaces: Count,
    pub(super) tsgs: Count,
    pub(super) channels: Count,
    pub(super) events: Count,
}
