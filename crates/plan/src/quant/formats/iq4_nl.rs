//! Block layout, dequantiser and quantiser of `IQ4_NL`: 32 indices into 16 non-uniform levels, with
//! one scale.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{iq4, nibbles};
use crate::DType;
use crate::quant::fit::inverse;
use crate::quant::format::{BLOCK, Format, Levels, Parts, Unstorable, half_to_f32, store_scale};

/// 32 values `d * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ4_NL {
    /// Scale, `f16`.
    pub d: [u8; 2],
    /// Byte `j` contains code `j` in its low nibble and code `j + 16` in its high nibble.
    pub qs: [u8; BLOCK / 2],
}

impl Format<BLOCK> for IQ4_NL {
    const DTYPE: DType = DType::IQ4_NL;
    const LEVELS: Levels = Levels::Table(iq4::LEVELS);

    #[inline]
    fn parts(&self) -> Parts<BLOCK> {
        Parts::scaled(half_to_f32(self.d), nibbles::split(&self.qs))
    }

    fn quantise(values: &[f32; BLOCK]) -> Result<Self, Unstorable> {
        let (d, stored) = store_scale(iq4::scale(values))?;
        let per_unit = inverse(stored);
        Ok(Self { d, qs: nibbles::join(&values.map(|v| iq4::nearest(v * per_unit))) })
    }
}
