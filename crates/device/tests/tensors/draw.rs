//! Seeded random numbers.

/// Seeded random numbers, which select shapes and operations.
pub(super) struct Draw {
    pub(super) seed: u64,
    count: u32,
}

impl Draw {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        self.count += 1;
        plan::sample::philox([self.count, 0, 0, 7], self.seed)[0] as usize % n
    }

    pub(super) fn shape(&mut self, most: usize) -> Vec<usize> {
        let rank = 1 + self.below(3);
        (0..rank).map(|_| 1 + self.below(most)).collect()
    }
}
