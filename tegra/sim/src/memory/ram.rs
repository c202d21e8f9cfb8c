//! How much memory there is, and how much of it is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's memory, of which ALLOC takes pages. Only a count: memfds are sparse.
#[derive(Debug)]
pub struct Ram {
    total: u64,
    used: AtomicU64,
}

impl Ram {
    /// Memory of `total` bytes, all free.
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicU64::new(0) })
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that nobody has taken.
    pub fn free(&self) -> u64 {
        self.total - self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, until the charge is dropped; none when there are not as many.
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

/// Bytes taken from [`Ram`]; given back on drop.
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
