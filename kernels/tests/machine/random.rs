//! Seeded random numbers.

use half::f16;

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next() as u8
    }

    /// Between `-scale` and `scale`.
    pub(crate) fn real(&mut self, scale: f32) -> f32 {
        ((self.next() >> 40) as f32 / 8_388_608.0 - 1.0) * scale
    }

    pub(crate) fn reals(&mut self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|_| self.real(scale)).collect()
    }

    pub(crate) fn half(&mut self, scale: f32) -> f16 {
        f16::from_f32(self.real(scale))
    }
}
