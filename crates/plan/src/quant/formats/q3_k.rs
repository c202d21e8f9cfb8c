//! Block layout, dequantiser and quantiser of `Q3_K`: 256 three-bit values, offset 4, in 16
//! sub-blocks with a 6-bit scale each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::pairs;
use crate::DType;
use crate::quant::fit::{extreme, fit_scale, inverse, nearest};
use crate::quant::format::{
    Format, Levels, Parts, SUB_BLOCK, SUPER_BLOCK, Unstorable, half_to_f32, store_scale,
};

/// 256 values in 16 sub-blocks of 16: `(d * (scale - 32)) * (q - 4)`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q3_K {
    /// Bit `b` of byte `l` is the third bit of value `l + 32 b`.
    pub hmask: [u8; SUPER_BLOCK / 8],
    /// Lower two bits: each half of the block (128 values) has 32 bytes; byte `l` contains value
    /// `l + 32 k` at bit `2 k`.
    pub qs: [u8; SUPER_BLOCK / 4],
    /// Lower four bits of the scales: byte `j` of the first eight contains those of sub-block `j`
    /// (low nibble) and `j + 8` (high nibble). The upper two bits of sub-block `j` are in byte `8 +
    /// j % 4` at bit `j / 4 * 2`.
    pub scales: [u8; 12],
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
}

impl Format<SUPER_BLOCK> for Q3_K {
    const DTYPE: DType = DType::Q3_K;
    const LEVELS: Levels = Levels::Minus(4);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let mut codes = pairs::split(&self.qs);
        for (b, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, mask) in codes.iter_mut().zip(self.hmask) {
                *code |= (mask >> b & 1) << 2;
            }
        }
        let scales = std::array::from_fn(|j| {
            let lower = self.scales[j % 8] >> (j / 8 * 4) & 15;
            let upper = self.scales[8 + j % 4] >> (j / 4 * 2) & 3;
            (lower | upper << 4).cast_signed() - 32
        });
        Parts { scales, ..Parts::scaled(half_to_f32(self.d), codes) }
    }

    fn quantise(values: &[f32; SUPER_BLOCK]) -> Result<Self, Unstorable> {
        let level = |x: f32| nearest(x).clamp(-4, 3);
        let mut fits = [0.0_f32; SUPER_BLOCK / SUB_BLOCK];
        for (fit, values) in fits.iter_mut().zip(values.as_chunks::<SUB_BLOCK>().0) {
            *fit = fit_scale(values, -4.0, 2, |x| level(x) as f32);
        }
        let (d, d_value) = store_scale(extreme(&fits) / -32.0)?;
        let per_unit = inverse(d_value);
        let fits = fits.map(|fit| nearest(fit * per_unit).clamp(-32, 31));

        let mut codes = [0_u8; SUPER_BLOCK];
        let subs = codes.as_chunks_mut::<SUB_BLOCK>().0.iter_mut();
        for ((to, from), scale) in subs.zip(values.as_chunks::<SUB_BLOCK>().0).zip(fits) {
            let per_unit = inverse(d_value * scale as f32);
            *to = from.map(|v| (level(v * per_unit) + 4) as u8);
        }
        let mut hmask = [0; SUPER_BLOCK / 8];
        for (b, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            for (mask, code) in hmask.iter_mut().zip(codes) {
                *mask |= code >> 2 << b;
            }
        }
        let mut scales = [0; 12];
        for (j, scale) in fits.into_iter().enumerate() {
            let scale = (scale + 32) as u8;
            scales[j % 8] |= (scale & 15) << (j / 8 * 4);
            scales[8 + j % 4] |= scale >> 4 << (j / 4 * 2);
        }
        Ok(Self { hmask, qs: pairs::join(&codes), scales, d })
    }
}
