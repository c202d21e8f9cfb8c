//! Block layout and dequantiser of `IQ1_S`: 256 values near -1, 0 or 1; one index per 8 values, one
//! 3-bit scale and one shift per 32.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::grids;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, half_to_f32};

/// 256 values `(d * (2 scale + 1) / 8) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ1_S {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Lower eight bits of the index of each 8 values.
    pub qs: [u8; SUPER_BLOCK / 8],
    /// For each 32 values, little-endian: three upper bits of four indices, three bits of the
    /// scale, and a bit that is set if all are an eighth below the table's values instead of above.
    pub qh: [[u8; 2]; SUPER_BLOCK / 32],
}

impl Format<SUPER_BLOCK> for IQ1_S {
    const DTYPE: DType = DType::IQ1_S;
    const LEVELS: Levels = Levels::Table(grids::IQ1_LEVELS);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let rest = |b: usize| u16::from_le_bytes(self.qh[b]);
        let codes = grids::groups(|j| {
            let rest = rest(j / 4);
            let index = usize::from(self.qs[j]) | usize::from(rest >> (3 * (j % 4)) & 7) << 8;
            let more = u8::from(rest & 0x8000 == 0);
            grids::IQ1.of(index).map(|digit| 2 * digit + more)
        });
        let scales = std::array::from_fn(|sub| grids::odd((rest(sub / 2) >> 12 & 7) as u8));
        Parts { scales, ..Parts::scaled(half_to_f32(self.d) / 8.0, codes) }
    }
}
