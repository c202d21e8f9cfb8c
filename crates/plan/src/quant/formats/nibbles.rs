//! Order of nibbles and fifth bits in blocks of 32. Byte `j` contains value `j` in its low nibble
//! and value `j + 16` in its high nibble; bit `j` of four bytes is the fifth bit of value `j`.

use crate::quant::format::BLOCK;

#[inline]
pub(super) fn split(qs: &[u8; BLOCK / 2]) -> [u8; BLOCK] {
    let mut codes = [0; BLOCK];
    for (j, q) in qs.iter().enumerate() {
        codes[j] = q & 15;
        codes[j + BLOCK / 2] = q >> 4;
    }
    codes
}

/// The inverse of [`split`], for the lower four bits.
pub(super) fn join(codes: &[u8; BLOCK]) -> [u8; BLOCK / 2] {
    std::array::from_fn(|j| (codes[j] & 15) | (codes[j + BLOCK / 2] << 4))
}

#[inline]
pub(super) fn split_five(qh: [u8; 4], qs: &[u8; BLOCK / 2]) -> [u8; BLOCK] {
    let mut codes = split(qs);
    let fifth = u32::from_le_bytes(qh);
    for (j, code) in codes.iter_mut().enumerate() {
        *code |= (fifth >> j & 1) as u8 * 16;
    }
    codes
}

/// The fifth bits of [`split_five`].
pub(super) fn fifth(codes: &[u8; BLOCK]) -> [u8; 4] {
    let bits = codes.iter().enumerate().map(|(j, code)| u32::from(code >> 4 & 1) << j);
    bits.sum::<u32>().to_le_bytes()
}
