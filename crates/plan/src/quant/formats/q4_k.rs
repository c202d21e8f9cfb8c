//! Block layout, dequantiser and quantiser of `Q4_K`: 256 nibbles in 8 sub-blocks, with a 6-bit
//! scale and minimum each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::k_scales;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, Unstorable};

/// 256 values in 8 sub-blocks of 32: `(d * scale) * q - (dmin * min)`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q4_K {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Scale of the minima, `f16`.
    pub dmin: [u8; 2],
    /// Eight 6-bit scales and minima (`k_scales`).
    pub scales: [u8; 12],
    /// 32 bytes per pair of sub-blocks: low nibbles for the even one, high nibbles for the odd one.
    pub qs: [u8; SUPER_BLOCK / 2],
}

impl Format<SUPER_BLOCK> for Q4_K {
    const DTYPE: DType = DType::Q4_K;
    const LEVELS: Levels = Levels::Minus(0);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        k_scales::parts(self.d, self.dmin, &self.scales, k_scales::split(&self.qs))
    }

    fn quantise(values: &[f32; SUPER_BLOCK]) -> Result<Self, Unstorable> {
        let k_scales::Fitted { d, dmin, pairs, codes } = k_scales::fit::<15, 32, 8>(values, 1, 63)?;
        let scales = k_scales::pack_scales(pairs);
        Ok(Self { d, dmin, scales, qs: k_scales::join(&codes) })
    }
}
