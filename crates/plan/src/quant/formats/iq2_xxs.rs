//! Block layout and dequantiser of `IQ2_XXS`: 256 values with one of three magnitudes; one index
//! per 8 values, one 4-bit scale per 32.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::grids;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, half_to_f32};

/// 256 values `(d * (2 scale + 1) / 8) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ2_XXS {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// For each 32 values: four indices, then little-endian four times seven signs and, in the top
    /// bits, the scale.
    pub qs: [[u8; 8]; SUPER_BLOCK / 32],
}

impl Format<SUPER_BLOCK> for IQ2_XXS {
    const DTYPE: DType = DType::IQ2_XXS;
    const LEVELS: Levels = Levels::Table(grids::IQ2_LEVELS);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let rest = |b: usize| {
            let [.., i, j, k, l] = self.qs[b];
            u32::from_le_bytes([i, j, k, l])
        };
        let codes = grids::groups(|j| {
            let signs = grids::even_signs(rest(j / 4) >> (7 * (j % 4)));
            grids::IQ2_XXS.signed(usize::from(self.qs[j / 4][j % 4]), signs)
        });
        let scales = std::array::from_fn(|sub| grids::odd((rest(sub / 2) >> 28) as u8));
        Parts { scales, ..Parts::scaled(half_to_f32(self.d) / 8.0, codes) }
    }
}
