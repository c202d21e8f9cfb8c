//! Block layout, dequantiser and quantiser of `Q4_1`: 32 nibbles with one scale and one offset.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::nibbles;
use crate::DType;
use crate::quant::fit::{ends, inverse};
use crate::quant::format::{BLOCK, Format, Levels, Parts, Unstorable, half_to_f32, store_scale};

/// 32 values `d * q + m`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q4_1 {
    /// Scale, `f16`.
    pub d: [u8; 2],
    /// Offset, `f16`.
    pub m: [u8; 2],
    /// Byte `j` contains value `j` in its low nibble and value `j + 16` in its high nibble.
    pub qs: [u8; BLOCK / 2],
}

impl Format<BLOCK> for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const LEVELS: Levels = Levels::Minus(0);

    #[inline]
    fn parts(&self) -> Parts<BLOCK> {
        let (dmin, minima) = (-half_to_f32(self.m), [1; _]);
        Parts { dmin, minima, ..Parts::scaled(half_to_f32(self.d), nibbles::split(&self.qs)) }
    }

    /// Matches ggml's reference bit for bit.
    fn quantise(values: &[f32; BLOCK]) -> Result<Self, Unstorable> {
        let (low, high) = ends(values);
        let d = (high - low) / 15.0;
        let scale = inverse(d);
        let ((d, _), (m, _)) = (store_scale(d)?, store_scale(low)?);
        let codes = values.map(|v| (((v - low) * scale + 0.5) as u8).min(15));
        Ok(Self { d, m, qs: nibbles::join(&codes) })
    }
}
