//! Block layout, dequantiser and quantiser of `Q5_K`: 256 five-bit values in 8 sub-blocks, with a
//! 6-bit scale and minimum each.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::k_scales;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, Unstorable};

/// Like [`Q4_K`](super::Q4_K) with a fifth bit.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q5_K {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Scale of the minima, `f16`.
    pub dmin: [u8; 2],
    /// Eight 6-bit scales and minima (`k_scales`).
    pub scales: [u8; 12],
    /// Bit `s` of byte `l` is the fifth bit of value `l` of sub-block `s`.
    pub qh: [u8; SUPER_BLOCK / 8],
    /// The lower four bits, as in [`Q4_K`](super::Q4_K).
    pub qs: [u8; SUPER_BLOCK / 2],
}

impl Format<SUPER_BLOCK> for Q5_K {
    const DTYPE: DType = DType::Q5_K;
    const LEVELS: Levels = Levels::Minus(0);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let mut codes = k_scales::split(&self.qs);
        for (s, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, fifth) in codes.iter_mut().zip(self.qh) {
                *code |= (fifth >> s & 1) << 4;
            }
        }
        k_scales::parts(self.d, self.dmin, &self.scales, codes)
    }

    fn quantise(values: &[f32; SUPER_BLOCK]) -> Result<Self, Unstorable> {
        let k_scales::Fitted { d, dmin, pairs, codes } = k_scales::fit::<31, 32, 8>(values, 1, 63)?;
        let scales = k_scales::pack_scales(pairs);
        let mut qh = [0; SUPER_BLOCK / 8];
        for (s, codes) in codes.as_chunks::<32>().0.iter().enumerate() {
            for (byte, code) in qh.iter_mut().zip(codes) {
                *byte |= code >> 4 << s;
            }
        }
        Ok(Self { d, dmin, scales, qh, qs: k_scales::join(&codes) })
    }
}
