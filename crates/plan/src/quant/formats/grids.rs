//! Lookup tables of the IQ types, which store several values as one index (ggml `iq2xxs_grid` and
//! its siblings), and the codes of their entries.
//!
//! A table in `grids` (made by `tests/data/quant/make.py`) has 16 bits, little-endian, per entry:
//! eight 2-bit or four 4-bit magnitude numbers. A magnitude number and a sign make a code.

use crate::quant::format::SUPER_BLOCK;

/// Table with eight values per entry.
pub(super) struct Eights(&'static [u8]);

/// Table with four values per entry.
pub(super) struct Fours(&'static [u8]);

pub(super) const IQ2_XXS: Eights = Eights(include_bytes!("grids/iq2_xxs.bin"));
pub(super) const IQ2_XS: Eights = Eights(include_bytes!("grids/iq2_xs.bin"));
pub(super) const IQ2_S: Eights = Eights(include_bytes!("grids/iq2_s.bin"));
pub(super) const IQ1: Eights = Eights(include_bytes!("grids/iq1.bin"));
pub(super) const IQ3_XXS: Fours = Fours(include_bytes!("grids/iq3_xxs.bin"));
pub(super) const IQ3_S: Fours = Fours(include_bytes!("grids/iq3_s.bin"));

/// Levels of the IQ2 types: magnitudes 8, 25 and 43 with either sign.
pub(super) const IQ2_LEVELS: [i8; 16] = [-43, -25, -8, 8, 25, 43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Levels of the IQ1 types, in eighths: -1, 0 and 1, each shifted by an eighth up or down.
pub(super) const IQ1_LEVELS: [i8; 16] = [-9, -7, -1, 1, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn entry(table: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([table[2 * index], table[2 * index + 1]])
}

impl Eights {
    /// Magnitude numbers of the eight values of an entry.
    #[inline]
    pub(super) fn of(&self, index: usize) -> [u8; 8] {
        let entry = entry(self.0, index);
        std::array::from_fn(|i| (entry >> (2 * i) & 3) as u8)
    }

    /// Codes of an entry, with one bit per sign.
    #[inline]
    pub(super) fn signed(&self, index: usize, signs: u8) -> [u8; 8] {
        with_signs::<3, 8>(self.of(index), signs)
    }
}

impl Fours {
    /// Codes of two consecutive entries, with one bit per sign.
    #[inline]
    pub(super) fn signed(&self, indices: [usize; 2], signs: u8) -> [u8; 8] {
        let entries = indices.map(|index| entry(self.0, index));
        let magnitude = |i: usize| (entries[i / 4] >> (4 * (i % 4)) & 15) as u8;
        with_signs::<8, 8>(std::array::from_fn(magnitude), signs)
    }
}

/// Levels are sorted: the first is the negative of the greatest magnitude.
#[inline]
fn with_signs<const MAGNITUDES: u8, const N: usize>(magnitudes: [u8; N], signs: u8) -> [u8; N] {
    std::array::from_fn(|i| match signs >> i & 1 {
        0 => MAGNITUDES + magnitudes[i],
        _ => MAGNITUDES - 1 - magnitudes[i],
    })
}

/// Eight signs of which seven are stored: an even number of them is negative (ggml `ksigns_iq2xs`).
#[inline]
pub(super) const fn even_signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Codes of a super-block, from 32 groups of eight.
#[inline]
pub(super) fn groups(group: impl Fn(usize) -> [u8; 8]) -> [u8; SUPER_BLOCK] {
    let mut codes = [0; SUPER_BLOCK];
    for (j, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
        *codes = group(j);
    }
    codes
}

/// Maps a stored scale to an odd number: `2 n + 1`.
#[inline]
pub(super) const fn odd(n: u8) -> i8 {
    (2 * n + 1).cast_signed()
}
