//! Bookkeeping of ring entries and the timeline values that free them. Numbers only.

/// A ring with its timeline.
///
/// Counts never wrap around the ring: entry number `n` is at index `n % entries`. Timeline values
/// are compared modulo 2^64, as in the hardware's circular acquire.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    /// A power of two.
    entries: u32,
    /// Entries ever written.
    written: u64,
    /// Entries ever freed.
    freed: u64,
    /// The last value submitted.
    submitted: u64,
    /// The last timeline value read from memory.
    completed: u64,
    /// `written` after the submission of each value in flight, at the value modulo `entries`.
    ends: Box<[u64]>,
}

impl Ring {
    /// Maximum number of entries; far above what one channel needs.
    pub(super) const MAX_ENTRIES: u32 = 1 << 20;

    /// An empty ring whose timeline is at `start`; `None` for an invalid number of entries.
    pub(super) fn new(entries: u32, start: u64) -> Option<Self> {
        Self::fits(entries).then(|| Self {
            entries,
            written: 0,
            freed: 0,
            submitted: start,
            completed: start,
            ends: vec![0; entries as usize].into_boxed_slice(),
        })
    }

    pub(super) const fn fits(entries: u32) -> bool {
        entries.is_power_of_two() && 2 <= entries && entries <= Self::MAX_ENTRIES
    }

    /// Maximum number of entries in flight: one stays free, or a full ring would look empty
    /// (manual).
    pub(super) const fn capacity(&self) -> usize {
        self.entries as usize - 1
    }

    pub(super) const fn room(&self) -> usize {
        self.capacity() - (self.written - self.freed) as usize
    }

    /// The index of the entry `offset` after the last one written.
    pub(super) const fn index(&self, offset: usize) -> u32 {
        (self.written + offset as u64) as u32 & (self.entries - 1)
    }

    /// The index of the oldest entry that is not free.
    pub(super) const fn oldest(&self) -> u32 {
        self.freed as u32 & (self.entries - 1)
    }

    pub(super) const fn submitted(&self) -> u64 {
        self.submitted
    }

    pub(super) const fn completed(&self) -> u64 {
        self.completed
    }

    pub(super) const fn next_value(&self) -> u64 {
        self.submitted.wrapping_add(1)
    }

    fn slot(&self, value: u64) -> usize {
        value as usize & (self.entries as usize - 1)
    }

    /// Allocates `count` entries for the next value. The caller has checked that there is room.
    pub(super) fn submit(&mut self, count: usize) {
        self.written += count as u64;
        self.submitted = self.next_value();
        let slot = self.slot(self.submitted);
        self.ends[slot] = self.written;
    }

    /// Frees the entries up to value `found`; `false` when it is neither in flight nor the last one
    /// read.
    pub(super) fn complete(&mut self, found: u64) -> bool {
        let step = found.wrapping_sub(self.completed);
        if step > self.submitted.wrapping_sub(self.completed) {
            return false;
        }
        if step > 0 {
            self.freed = self.ends[self.slot(found)];
            self.completed = found;
        }
        true
    }

    pub(super) const fn has_completed(&self, value: u64) -> bool {
        // A signed difference, like the hardware's: values in flight are far closer than 2^63.
        self.completed.wrapping_sub(value) as i64 >= 0
    }
}
