//! Block layout, dequantiser and quantiser of `Q5_0`: 32 five-bit values, offset 16, with one
//! scale.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::nibbles;
use crate::DType;
use crate::quant::fit::{extreme, inverse};
use crate::quant::format::{BLOCK, Format, Levels, Parts, Unstorable, half_to_f32, store_scale};

/// 32 values `d * (q - 16)`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q5_0 {
    /// Scale, `f16`.
    pub d: [u8; 2],
    /// Bit `j` is the fifth bit of value `j`.
    pub qh: [u8; 4],
    /// Lower four bits: byte `j` contains value `j` in its low nibble and value `j + 16` in its
    /// high nibble.
    pub qs: [u8; BLOCK / 2],
}

impl Format<BLOCK> for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const LEVELS: Levels = Levels::Minus(16);

    #[inline]
    fn parts(&self) -> Parts<BLOCK> {
        Parts::scaled(half_to_f32(self.d), nibbles::split_five(self.qh, &self.qs))
    }

    /// Matches ggml's reference bit for bit.
    fn quantise(values: &[f32; BLOCK]) -> Result<Self, Unstorable> {
        let d = extreme(values) / -16.0;
        let scale = inverse(d);
        let (d, _) = store_scale(d)?;
        let codes = values.map(|v| ((v * scale + 16.5) as u8).min(31));
        Ok(Self { d, qh: nibbles::fifth(&codes), qs: nibbles::join(&codes) })
    }
}
