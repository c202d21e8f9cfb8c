//! Block layout, dequantiser and quantiser of `TQ2_0`: 256 values of -1, 0 or 1 in two bits each,
//! with one scale.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{pairs, ternary};
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, Unstorable, half_to_f32};

/// 256 values `d * (q - 1)`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TQ2_0 {
    /// Each half of the block (128 values) has 32 bytes; byte `l` contains value `l + 32 k` at bit
    /// `2 k`.
    pub qs: [u8; SUPER_BLOCK / 4],
    /// Scale, `f16`.
    pub d: [u8; 2],
}

impl Format<SUPER_BLOCK> for TQ2_0 {
    const DTYPE: DType = DType::TQ2_0;
    const LEVELS: Levels = Levels::Minus(1);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        Parts::scaled(half_to_f32(self.d), pairs::split(&self.qs))
    }

    /// Matches ggml's reference bit for bit.
    fn quantise(values: &[f32; SUPER_BLOCK]) -> Result<Self, Unstorable> {
        let (d, digits) = ternary::fit(values)?;
        Ok(Self { qs: pairs::join(&digits), d })
    }
}
