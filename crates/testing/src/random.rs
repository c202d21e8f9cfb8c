//! Seeded random numbers: the seed is part of the test, so that failures are reproducible.

/// `SplitMix64` with its seed: the same seed gives the same numbers.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Between `-scale` and `scale`.
    pub fn real(&mut self, scale: f32) -> f32 {
        ((self.bits() >> 40) as f32 / 8_388_608.0 - 1.0) * scale
    }

    /// `count` numbers between `-scale` and `scale`.
    pub fn reals(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.real(scale)).collect()
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }
}
