//! `IQ1_M`: 256 values near -1, 0 or 1, eight to an index and each with a shift, and a 3-bit scale for 16.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::grids;
use crate::DType;
use crate::quant::SUPER_BLOCK;
use crate::quant::format::{Format, Levels, Parts, Suspect, half_to_f32};

/// 256 values `(d * (2 scale + 1) / 8) * level`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IQ1_M {
    /// Lower eight bits of the index of each 8 values.
    pub qs: [u8; SUPER_BLOCK / 8],
    /// A nibble for each 8 values: three upper bits of the index, and whether they are an eighth less than the table
    /// says or an eighth more.
    pub qh: [u8; SUPER_BLOCK / 16],
    /// Little-endian, in each of four three bits for the scales of four times 16 values and, topmost, a nibble of the
    /// `f16` that is the scale of the scales.
    pub scales: [[u8; 2]; SUPER_BLOCK / 64],
}

/// The nibbles of the scale of the scales: the third and the fourth have its exponent.
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
