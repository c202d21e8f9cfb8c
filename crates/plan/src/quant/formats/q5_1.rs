//! Block layout, dequantiser and quantiser of `Q5_1`: 32 five-bit values with one scale and one
//! offset.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::nibbles;
use crate::DType;
use crate::quant::fit::{ends, inverse};
use crate::quant::format::{BLOCK, Format, Levels, Parts, Unstorable, half_to_f32, store_scale};

/// 32 values `d * q + m`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q5_1 {
    /// Scale, `f16`.
    pub d: [u8; 2],
    /// Offset, `f16`.
    pub m: [u8; 2],
    /// Bit `j` is the fifth bit of value `j`.
    pub qh: [u8; 4],
    /// Lower four bits: byte `j` contains value `j` in its low nibble and value `j + 16` in its
    /// high nibble.
    pub qs: [u8; BLOCK / 2],
}

impl Format<BLOCK> for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const LEVELS: Levels = Levels::Minus(0);

    #[inline]
    fn parts(&self) -> Parts<BLOCK> {
        let (dmin, minima) = (-half_to_f32(self.m), [1; _]);
        Parts {
            dmin,
            minima,
            ..Parts::scaled(half_to_f32(self.d), nibbles::split_five(self.qh, &self.qs))
        }
    }

    /// Matches ggml's reference bit for bit.
    fn quantise(values: &[f32; BLOCK]) -> Result<Self, Unstorable> {
        let (low, high) = ends(values);
        let d = (high - low) / 31.0;
        let scale = inverse(d);
        let ((d, _), (m, _)) = (store_scale(d)?, store_scale(low)?);
        let codes = values.map(|v| (((v - low) * scale + 0.5) as u8).min(31));
        Ok(Self { d, m, qh: nibbles::fifth(&codes), qs: nibbles::join(&codes) })
    }
}
