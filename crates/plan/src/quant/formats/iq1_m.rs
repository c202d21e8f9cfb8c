//! Block layout and dequantiser of `IQ1_M`: 256 values near -1, 0 or 1; one index and one shift per
//! 8 values, one 3-bit scale per 16.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::grids;
use crate::DType;
use crate::quant::format::{Format, Levels, Parts, SUPER_BLOCK, Suspect, half_to_f32};

/// 256 values `(d * (2 scale + 1) / 8) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ1_M {
    /// Lower eight bits of the index of each 8 values.
    pub qs: [u8; SUPER_BLOCK / 8],
    /// A nibble for each 8 values: three upper bits of the index, and a bit that is set if all are
    /// an eighth below the table's values instead of above.
    pub qh: [u8; SUPER_BLOCK / 16],
    /// Four little-endian words. The lower 12 bits are four 3-bit scales, of 16 values each. The
    /// upper nibble is a quarter of the `f16` scale of the scales.
    pub scales: [[u8; 2]; SUPER_BLOCK / 64],
}

/// The third and fourth nibble contain the exponent of the scale of the scales.
impl Suspect for [[u8; 2]; SUPER_BLOCK / 64] {
    #[inline]
    fn is_suspect(&self) -> bool {
        let [_, _, [_, third], [_, fourth]] = self;
        [0, third >> 4 | fourth & 0xf0].is_suspect()
    }
}

impl Format<SUPER_BLOCK> for IQ1_M {
    const DTYPE: DType = DType::IQ1_M;
    const LEVELS: Levels = Levels::Table(grids::IQ1_LEVELS);

    #[inline]
    fn parts(&self) -> Parts<SUPER_BLOCK> {
        let codes = grids::groups(|j| {
            let rest = self.qh[j / 2] >> (4 * (j % 2));
            let index = usize::from(self.qs[j]) | usize::from(rest & 7) << 8;
            let more = u8::from(rest & 8 == 0);
            grids::IQ1.of(index).map(|digit| 2 * digit + more)
        });
        let packed = self.scales.map(u16::from_le_bytes);
        let [a, b, c, e] = packed.map(|scales| scales >> 12);
        let d = half_to_f32((a | b << 4 | c << 8 | e << 12).to_le_bytes());
        let scale = |sub: usize| (packed[sub / 4] >> (3 * (sub % 4)) & 7) as u8;
        let scales = std::array::from_fn(|sub| grids::odd(scale(sub)));
        Parts { scales, ..Parts::scaled(d / 8.0, codes) }
    }
}
