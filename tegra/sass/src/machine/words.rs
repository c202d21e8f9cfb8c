//! Words of memory: parts of them, and alignment.

use crate::program::op::Size;

/// Extracts and extends the value of a narrow load from its word.
#[inline(always)]
pub(crate) fn narrow(word: u32, address: u64, size: Size) -> u32 {
    let value = word >> (address % 4 * 8);
    match (size.bytes, size.signed) {
        (1, false) => value & 0xff,
        (1, true) => value as u8 as i8 as u32,
        (_, false) => value & 0xffff,
        (_, true) => value as u16 as i16 as u32,
    }
}

/// Returns a word after a narrow store.
#[inline(always)]
pub(crate) fn merge(old: u32, address: u64, bytes: u8, value: u32) -> u32 {
    let shift = (address % 4 * 8) as u32;
    let mask = ((1u32 << (8 * u32::from(bytes))) - 1) << shift;
    (old & !mask) | (value << shift & mask)
}

/// Returns whether an address is not a multiple of the access size, a power of two.
#[inline(always)]
pub(crate) fn misaligned(address: u64, bytes: u8) -> bool {
    address & (u64::from(bytes) - 1) != 0
}
