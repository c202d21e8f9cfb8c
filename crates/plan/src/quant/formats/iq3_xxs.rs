//! Block layout and dequantiser of `IQ3_XXS`: 256 values with one of eight magnitudes; one index
//! per 4 values, one 4-bit scale per 32.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::grids;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, half_to_f32};

/// 256 values `(d * (2 scale + 1) / 4) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ3_XXS {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Index of each 4 values.
    pub qs: [u8; SUPER_BLOCK / 4],
    /// For each 32 values, little-endian: four times seven signs and, in the top bits, the scale.
    pub scales_and_signs: [[u8; 4]; SUPER_BLOCK / 32],
}

impl Format<SUPER_BLOCK> for IQ3_XXS {
    const DTYPE: DType = DType::IQ3_XXS;
    const LEVELS: Levels =
        Levels::Table([-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62]);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let rest = |b: usize| u32::from_le_bytes(self.scales_and_signs[b]);
        let codes = grids::groups(|j| {
            let signs = grids::even_signs(rest(j / 4) >> (7 * (j % 4)));
            grids::IQ3_XXS.signed([0, 1].map(|i| usize::from(self.qs[2 * j + i])), signs)
        });
        let scales = std::array::from_fn(|sub| grids::odd((rest(sub / 2) >> 28) as u8));
        Parts { scales, ..Parts::scaled(half_to_f32(self.d) / 4.0, codes) }
    }
}
