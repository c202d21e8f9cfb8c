//! Block layout and dequantiser of `IQ2_S`: 256 values with one of three magnitudes; one index per
//! 8 values, one 4-bit scale per 16.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::grids;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, half_to_f32};

/// 256 values `(d * (2 scale + 1) / 8) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ2_S {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Lower eight bits of the index of each 8 values.
    pub qs: [u8; SUPER_BLOCK / 8],
    /// One sign bit per value.
    pub signs: [u8; SUPER_BLOCK / 8],
    /// Upper two bits of the indices, four to a byte.
    pub qh: [u8; SUPER_BLOCK / 32],
    /// Scales of 16 values, the first in the low nibble.
    pub scales: [u8; SUPER_BLOCK / 32],
}

impl Format<SUPER_BLOCK> for IQ2_S {
    const DTYPE: DType = DType::IQ2_S;
    const LEVELS: Levels = Levels::Table(grids::IQ2_LEVELS);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let codes = grids::groups(|j| {
            let upper = self.qh[j / 4] >> (2 * (j % 4)) & 3;
            let index = usize::from(self.qs[j]) | usize::from(upper) << 8;
            grids::IQ2_S.signed(index, self.signs[j])
        });
        let scale = |sub: usize| self.scales[sub / 2] >> (sub % 2 * 4) & 15;
        let scales = std::array::from_fn(|sub| grids::odd(scale(sub)));
        Parts { scales, ..Parts::scaled(half_to_f32(self.d) / 8.0, codes) }
    }
}
