//! Counts of live objects, for leak checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Guard of one counted object; dropping it decrements the count.
#[derive(Debug)]
pub(super) struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Number of live objects of one kind.
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

/// Counts of objects that are in no table.
#[derive(Debug, Default)]
pub(super) struct Census {
    pub(super) mappings: Count,
    pub(super) address_spaces: Count,
    pub(super) tsgs: Count,
    pub(super) channels: Count,
    pub(super) events: Count,
}
