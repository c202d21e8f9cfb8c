//! Block layout, dequantiser and quantiser of `Q6_K`: 256 six-bit values, offset 32, in 16
//! sub-blocks with an 8-bit scale each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::pairs;
use crate::DType;
use crate::quant::fit::{extreme, fit_scale, inverse, nearest};
use crate::quant::format::{
    Format, Levels, Parts, SUB_BLOCK, SUPER_BLOCK, Unstorable, half_to_f32, store_scale,
};

/// 256 values in 16 sub-blocks of 16: `(d * scale) * (q - 32)`.
///
/// Each half of the block (128 values, in 4 quarters of 32) has 64 bytes of `ql` and 32 of `qh`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q6_K {
    /// Lower four bits: byte `l` of a half contains value `l` (low nibble) and `l + 64` (high
    /// nibble).
    pub ql: [u8; SUPER_BLOCK / 2],
    /// Upper two bits: byte `l` of a half contains those of value `l + 32 k` at bit `2 k`.
    pub qh: [u8; SUPER_BLOCK / 4],
    pub scales: [i8; SUPER_BLOCK / SUB_BLOCK],
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
}

impl Format<SUPER_BLOCK> for Q6_K {
    const DTYPE: DType = DType::Q6_K;
    const LEVELS: Levels = Levels::Minus(32);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let mut codes = pairs::split(&self.qh).map(|pair| pair << 4);
        for (half, ql) in codes.as_chunks_mut::<128>().0.iter_mut().zip(self.ql.as_chunks::<64>().0)
        {
            for (l, q) in ql.iter().enumerate() {
                half[l] |= q & 15;
                half[l + 64] |= q >> 4;
            }
        }
        Parts { scales: self.scales, ..Parts::scaled(half_to_f32(self.d), codes) }
    }

    fn quantise(values: &[f32; SUPER_BLOCK]) -> Result<Self, Unstorable> {
        let level = |x: f32| nearest(x).clamp(-32, 31);
        let mut fits = [0.0_f32; SUPER_BLOCK / SUB_BLOCK];
        for (fit, values) in fits.iter_mut().zip(values.as_chunks::<SUB_BLOCK>().0) {
            *fit = fit_scale(values, -32.0, 1, |x| level(x) as f32);
        }
        let (d, d_value) = store_scale(extreme(&fits) / -128.0)?;
        let per_unit = inverse(d_value);
        let scales = fits.map(|fit| nearest(fit * per_unit).clamp(-128, 127) as i8);

        let mut codes = [0_u8; SUPER_BLOCK];
        let subs = codes.as_chunks_mut::<SUB_BLOCK>().0.iter_mut();
        for ((to, from), scale) in subs.zip(values.as_chunks::<SUB_BLOCK>().0).zip(scales) {
            let per_unit = inverse(d_value * f32::from(scale));
            *to = from.map(|v| (level(v * per_unit) + 32) as u8);
        }
        let mut ql = [0; SUPER_BLOCK / 2];
        for (half, codes) in ql.as_chunks_mut::<64>().0.iter_mut().zip(codes.as_chunks::<128>().0) {
            *half = std::array::from_fn(|l| (codes[l] & 15) | (codes[l + 64] << 4));
        }
        Ok(Self { ql, qh: pairs::join(&codes.map(|code| code >> 4)), scales, d })
    }
}
