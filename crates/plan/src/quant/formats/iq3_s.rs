//! Block layout and dequantiser of `IQ3_S`: 256 values with one of eight magnitudes; one index per
//! 4 values, one 4-bit scale per 32.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::grids;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, half_to_f32};

/// 256 values `(d * (2 scale + 1)) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ3_S {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Lower eight bits of the index of each 4 values.
    pub qs: [u8; SUPER_BLOCK / 4],
    /// Ninth bit of each index.
    pub qh: [u8; SUPER_BLOCK / 32],
    /// One sign bit per value.
    pub signs: [u8; SUPER_BLOCK / 8],
    /// Scales of 32 values, the first in the low nibble.
    pub scales: [u8; SUPER_BLOCK / 64],
}

impl Format<SUPER_BLOCK> for IQ3_S {
    const DTYPE: DType = DType::IQ3_S;
    const LEVELS: Levels =
        Levels::Table([-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15]);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let index =
            |j: usize| usize::from(self.qs[j]) | usize::from(self.qh[j / 8] >> (j % 8) & 1) << 8;
        let codes =
            grids::groups(|j| grids::IQ3_S.signed([index(2 * j), index(2 * j + 1)], self.signs[j]));
        let scale = |b: usize| self.scales[b / 2] >> (b % 2 * 4) & 15;
        let scales = std::array::from_fn(|sub| grids::odd(scale(sub / 2)));
        Parts { scales, ..Parts::scaled(half_to_f32(self.d), codes) }
    }
}
