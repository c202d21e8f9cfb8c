//! Block layout, dequantiser and quantiser of `Q8_0`: 32 signed bytes with one scale.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::DType;
use crate::quant::fit::{extreme, inverse, nearest_away};
use crate::quant::format::{BLOCK, Format, Levels, Parts, Unstorable, half_to_f32, store_scale};

/// 32 values `d * q`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q8_0 {
    /// Scale, `f16`.
    pub d: [u8; 2],
    pub qs: [i8; BLOCK],
}

impl Format<BLOCK> for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const LEVELS: Levels = Levels::Minus(128);

    #[inline]
    fn parts(&self) -> Parts<BLOCK> {
        Parts::scaled(half_to_f32(self.d), self.qs.map(|q| q.cast_unsigned() ^ 128))
    }

    /// Matches ggml's reference bit for bit.
    fn quantise(values: &[f32; BLOCK]) -> Result<Self, Unstorable> {
        let d = extreme(values).abs() / 127.0;
        let scale = inverse(d);
        let (stored, _) = store_scale(d)?;
        Ok(Self { d: stored, qs: values.map(|v| nearest_away(v * scale)) })
    }
}
