//! Block layout, dequantiser and quantiser of `IQ4_XS`: 256 indices into the levels of `IQ4_NL`, in
//! 8 sub-blocks with a 6-bit scale each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{iq4, nibbles};
use crate::DType;
use crate::quant::fit::{extreme, inverse, nearest};
use crate::quant::format::{
    BLOCK, Format, Levels, Parts, SUPER_BLOCK, Unstorable, half_to_f32, store_scale,
};

/// 256 values in 8 sub-blocks of 32: `(d * (scale - 32)) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ4_XS {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Upper two bits of the scales; those of sub-block `b` start at bit `2 b`.
    pub scales_h: [u8; 2],
    /// Lower four bits of the scales: two sub-blocks per byte, the even one in the low nibble.
    pub scales_l: [u8; SUPER_BLOCK / 64],
    /// 16 bytes for each sub-block, in the order of [`IQ4_NL`](super::IQ4_NL).
    pub qs: [[u8; BLOCK / 2]; SUPER_BLOCK / BLOCK],
}

impl Format<SUPER_BLOCK> for IQ4_XS {
    const DTYPE: DType = DType::IQ4_XS;
    const LEVELS: Levels = Levels::Table(iq4::LEVELS);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let upper = u16::from_le_bytes(self.scales_h);
        let mut codes = [0; SUPER_BLOCK];
        for (to, qs) in codes.as_chunks_mut().0.iter_mut().zip(&self.qs) {
            *to = nibbles::split(qs);
        }
        let scale = |b: usize| {
            let lower = self.scales_l[b / 2] >> (b % 2 * 4) & 15;
            (lower | ((upper >> (2 * b) & 3) as u8 * 16)).cast_signed() - 32
        };
        let scales = std::array::from_fn(|sub| scale(sub / 2));
        Parts { scales, ..Parts::scaled(half_to_f32(self.d), codes) }
    }

    fn quantise(values: &[f32; SUPER_BLOCK]) -> Result<Self, Unstorable> {
        let mut fits = [0.0_f32; SUPER_BLOCK / BLOCK];
        for (fit, values) in fits.iter_mut().zip(values.as_chunks().0) {
            *fit = iq4::scale(values);
        }
        let (d, d_value) = store_scale(extreme(&fits) / -32.0)?;
        let per_unit = inverse(d_value);
        let scales = fits.map(|fit| nearest(fit * per_unit).clamp(-32, 31));

        let mut block =
            Self { d, scales_h: [0; _], scales_l: [0; _], qs: [[0; _]; SUPER_BLOCK / BLOCK] };
        let mut upper = 0_u16;
        for (b, (scale, values)) in
            scales.into_iter().zip(values.as_chunks::<BLOCK>().0).enumerate()
        {
            let stored = (scale + 32) as u8;
            block.scales_l[b / 2] |= (stored & 15) << (b % 2 * 4);
            upper |= u16::from(stored >> 4) << (2 * b);
            let per_unit = inverse(d_value * scale as f32);
            block.qs[b] = nibbles::join(&values.map(|v| iq4::nearest(v * per_unit)));
        }
        block.scales_h = upper.to_le_bytes();
        Ok(block)
    }
}
