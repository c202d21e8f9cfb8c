//! `Q2_K`: 256 two-bit values in 16 sub-blocks, with a 4-bit scale and minimum each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::pairs;
use crate::DType;
use crate::quant::SUPER_BLOCK;
use crate::quant::fit::{fit_scale_and_min, inverse, nearest};
use crate::quant::format::{Format, Levels, Parts, SUB_BLOCK, Unstorable, half_to_f32, store_scale};

/// 256 values in 16 sub-blocks of 16: `(d * scale) * q - (dmin * min)`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q2_K {
    /// Scale of a sub-block in the low nibble, minimum in the high one.
    pub scales: [u8; SUPER_BLOCK / SUB_BLOCK],
    /// Each half of the block (128 values) has 32 bytes; byte `l` has value `l + 32 k` at bit `2 k`.
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
        let mut fits = [(0.0_f32, 0.0_f32); SUPER_BLOCK / SUB_BLOCK];
        for (fit, values) in fits.iter_mut().zip(values.as_chunks::<SUB_BLOCK>().0) {
            *fit = fit_scale_and_min::<3, SUB_BLOCK>(values, 3);
        }
        // A NaN or an infinity among the values is one among the scales; `max` would drop a NaN.
        if fits.iter().any(|(scale, min)| !(scale + min).is_finite()) {
            return Err(Unstorable::OutOfRange);
        }
        let largest =
            |pick: fn(&(f32, f32)) -> f32| fits.iter().map(pick).fold(0.0, f32::max) / 15.0;
        let (d, d_value) = store_scale(largest(|fit| fit.0))?;
        let (dmin, dmin_value) = store_scale(largest(|fit| fit.1))?;
        let four_bits = |x: f32, unit: f32| nearest(x * inverse(unit)).clamp(0, 15) as u8;
        let both = fits.map(|(scale, min)| (four_bits(scale, d_value), four_bits(min, dmin_value)));

        let mut codes = [0; SUPER_BLOCK];
        let subs = codes.as_chunks_mut::<SUB_BLOCK>().0.iter_mut();
        for ((to, from), (scale, min)) in subs.zip(values.as_chunks::<SUB_BLOCK>().0).zip(both) {
            let (scale, min) =
                (inverse(d_value * f32::from(scale)), dmin_value * f32::from(min));
            *to = from.map(|v| nearest((v + min) * scale).clamp(0, 3) as u8);
        }
        let scales = both.map(|(scale, min)| scale | min << 4);
        Ok(Self { scales, qs: pairs::join(&codes), d, dmin })
    }
}
