//! The modelled level-two cache: 4 MiB, 16 ways, sectors of 32 bytes.
//!
//! It only counts. Threads share it without locks: a lost update is a miscounted sector.

use std::sync::atomic::{AtomicU64, Ordering};

const BYTES: usize = 4 << 20;
const SECTOR: usize = 32;
const WAYS: usize = 16;
const SETS: usize = BYTES / SECTOR / WAYS;

/// Which sectors are in the cache. It outlives launches, as the real one does.
#[derive(Debug)]
pub struct Cache {
    /// Sector numbers and one, 0 for none; a set's ways lie together.
    tags: Box<[AtomicU64]>,
    /// The way that is replaced next.
    next: Box<[AtomicU64]>,
}

impl Default for Cache {
    fn default() -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { tags: zeros(SETS * WAYS), next: zeros(SETS) }
    }
}

impl Cache {
    /// Touches a sector; whether it was there.
    pub(crate) fn touch(&self, sector: u64) -> bool {
        // Neighbours go to different sets; the upper bits stir power-of-two strides.
        let set = (sector ^ (sector >> 13)) as usize % SETS;
        let tag = sector + 1;
        let ways = &self.tags[set * WAYS..][..WAYS];
        if ways.iter().any(|way| way.load(Ordering::Relaxed) == tag) {
            return true;
        }
        let way = self.next[set].load(Ordering::Relaxed) as usize % WAYS;
        self.next[set].store(way as u64 + 1, Ordering::Relaxed);
        ways[way].store(tag, Ordering::Relaxed);
        false
    }
}
