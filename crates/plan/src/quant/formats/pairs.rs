//! Order of bit pairs in super-blocks: each half (128 values) has 32 bytes; byte `l` contains value
//! `l + 32 k` at bit `2 k`.

use crate::quant::format::SUPER_BLOCK;

#[inline]
pub(super) fn split(qs: &[u8; SUPER_BLOCK / 4]) -> [u8; SUPER_BLOCK] {
    let mut codes = [0; SUPER_BLOCK];
    for (half, qs) in codes.as_chunks_mut::<128>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for (k, quarter) in half.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            *quarter = qs.map(|q| q >> (2 * k) & 3);
        }
    }
    codes
}

/// The inverse of [`split`], for the lower two bits.
pub(super) fn join(codes: &[u8; SUPER_BLOCK]) -> [u8; SUPER_BLOCK / 4] {
    let mut qs = [0; SUPER_BLOCK / 4];
    for (half, qs) in codes.as_chunks::<128>().0.iter().zip(qs.as_chunks_mut::<32>().0) {
        for (k, quarter) in half.as_chunks::<32>().0.iter().enumerate() {
            for (to, code) in qs.iter_mut().zip(quarter) {
                *to |= (code & 3) << (2 * k);
            }
        }
    }
    qs
}
