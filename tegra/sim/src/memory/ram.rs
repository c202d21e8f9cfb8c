//! Accounting of RAM.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// RAM that ALLOC charges. Only a counter, because memfds are sparse.
#[derive(Debug)]
pub struct Ram {
    total: u64,
    used: AtomicU64,
}

impl Ram {
    /// Creates RAM of `total` free bytes.
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicU64::new(0) })
    }

    /// Returns the total number of bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of free bytes.
    pub fn free(&self) -> u64 {
        self.total - self.used.load(Ordering::Relaxed)
    }

    /// Charges `bytes` until the charge is dropped; none if too few are free.
    #[must_use]
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= self.total)
            })
            .ok()?;
        Some(Charge { ram: Arc::clone(self), bytes })
    }
}

/// Bytes charged to [`Ram`], released on drop.
#[derive(Debug)]
pub struct Charge {
    ram: Arc<Ram>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ram.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
