//! The modelled level-two cache: 4 MiB, 16 ways, lines of 128 bytes in four sectors.
//!
//! The cache only counts. Threads share it without locks; a lost update miscounts a sector.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const BYTES: usize = 4 << 20;
const LINE: usize = 128;
const WAYS: usize = 16;
const SETS: usize = BYTES / LINE / WAYS;
/// Bits of a sector mask.
const SECTORS: u32 = 4;

/// Sectors in the cache. They survive launches, as on hardware.
#[derive(Debug)]
pub struct Cache {
    /// Line number plus one (0 for none) above the sector mask; the ways of a set are adjacent.
    tags: Box<[AtomicU64]>,
    /// Next way to replace, by set.
    next: Box<[AtomicU64]>,
    /// Most recently hit way of each set, which is checked first.
    last: Box<[AtomicU8]>,
}

impl Default for Cache {
    fn default() -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let last = (0..SETS).map(|_| AtomicU8::new(0)).collect();
        Self { tags: zeros(SETS * WAYS), next: zeros(SETS), last }
    }
}

impl Cache {
    /// Touches sectors of a line; returns the number of misses.
    pub(crate) fn touch(&self, line: u64, sectors: u64) -> u64 {
        // Adjacent lines map to different sets; the upper bits spread power-of-two strides.
        let set = (line ^ (line >> 11)) as usize % SETS;
        let tag = line + 1;
        let ways = &self.tags[set * WAYS..][..WAYS];
        let old = |way: &AtomicU64| way.load(Ordering::Relaxed);
        let holds = |way: &usize| old(&ways[*way]) >> SECTORS == tag;
        let last = usize::from(self.last[set].load(Ordering::Relaxed)) % WAYS;
        let found = Some(last).filter(holds).or_else(|| {
            let found = (0..WAYS).find(holds)?;
            self.last[set].store(found as u8, Ordering::Relaxed);
            Some(found)
        });
        if let Some(way) = found.map(|way| &ways[way]) {
            let missing = sectors & !old(way);
            if missing != 0 {
                way.store(old(way) | sectors, Ordering::Relaxed);
            }
            return u64::from(missing.count_ones());
        }
        let way = self.next[set].load(Ordering::Relaxed) as usize % WAYS;
        self.next[set].store(way as u64 + 1, Ordering::Relaxed);
        ways[way].store(tag << SECTORS | sectors, Ordering::Relaxed);
        self.last[set].store(way as u8, Ordering::Relaxed);
        u64::from(sectors.count_ones())
    }
}
