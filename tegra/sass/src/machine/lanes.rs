//! Iteration over the lanes of a mask.

/// Iterates over the set bits of a mask, lowest first.
#[derive(Clone, Copy)]
pub(crate) struct Each(pub(crate) u32);

impl Iterator for Each {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let lane = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some(lane)
    }
}
