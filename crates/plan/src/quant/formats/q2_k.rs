//! Block layout, dequantiser and quantiser of `Q2_K`: 256 two-bit values in 16 sub-blocks, with a
//! 4-bit scale and minimum each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{k_scales, pairs};
use crate::DType;
use crate::quant::format::{
    Format, Levels, Parts, SUB_BLOCK, SUPER_BLOCK, Unstorable, half_to_f32,
};

/// 256 values in 16 sub-blocks of 16: `(d * scale) * q - (dmin * min)`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q2_K {
    /// Scale of a sub-block in the low nibble, minimum in the high nibble.
    pub scales: [u8; SUPER_BLOCK / SUB_BLOCK],
    /// Each half of the block (128 values) has 32 bytes; byte `l` contains value `l + 32 k` at bit
    /// `2 k`.
    pub qs: [u8; SUPER_BLOCK / 4],
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Scale of the minima, `f16`.
    pub dmin: [u8; 2],
}

impl Format<SUPER_BLOCK> for Q2_K {
    const DTYPE: DType = DType::Q2_K;
    const LEVELS: Levels = Levels::Minus(0);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        Parts {
            codes: pairs::split(&self.qs),
            d: half_to_f32(self.d),
            scales: self.scales.map(|both| (both & 15).cast_signed()),
            dmin: half_to_f32(self.dmin),
            minima: self.scales.map(|both| (both >> 4).cast_signed()),
        }
    }

    fn quantise(values: &[f32; SUPER_BLOCK]) -> Result<Self, Unstorable> {
        let k_scales::Fitted { d, dmin, pairs: both, codes } =
            k_scales::fit::<3, SUB_BLOCK, 16>(values, 3, 15)?;
        let scales = both.map(|(scale, min)| scale | min << 4);
        Ok(Self { scales, qs: pairs::join(&codes), d, dmin })
    }
}
