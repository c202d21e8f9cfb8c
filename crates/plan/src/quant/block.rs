//! Memory layout of the blocks, as in files (ggml `ggml-common.h`).
//!
//! Every field is bytes, so a block may lie at any address; `f16` fields are little-endian.

use half::f16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK, SUPER_BLOCK};
use crate::DType;

/// A block format that consists of bytes only.
pub trait Block: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    const DTYPE: DType;
}

/// 32 values `d * q`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q8_0 {
    /// Scale, `f16`.
    pub d: [u8; 2],
    pub qs: [i8; BLOCK],
}

/// 32 values `d * (q - 8)`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q4_0 {
    /// Scale, `f16`.
    pub d: [u8; 2],
    /// Byte `j` holds value `j` in its low nibble and value `j + 16` in its high one.
    pub qs: [u8; BLOCK / 2],
}

/// 256 values in 8 sub-blocks of 32: `(d * scale) * q - (dmin * min)`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q4_K {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Scale of the minima, `f16`.
    pub dmin: [u8; 2],
    /// Eight 6-bit scales and minima: [`scale_and_min`].
    pub scales: [u8; 12],
    /// 32 bytes for each pair of sub-blocks: low nibbles are the even one, high nibbles the odd.
    pub qs: [u8; SUPER_BLOCK / 2],
}

/// As [`Q4_K`] with a fifth bit.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q5_K {
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
    /// Scale of the minima, `f16`.
    pub dmin: [u8; 2],
    /// Eight 6-bit scales and minima: [`scale_and_min`].
    pub scales: [u8; 12],
    /// Bit `s` of byte `l` is the fifth bit of value `l` of sub-block `s`.
    pub qh: [u8; SUPER_BLOCK / 8],
    /// The lower four bits, as in [`Q4_K`].
    pub qs: [u8; SUPER_BLOCK / 2],
}

/// 256 values in 16 sub-blocks of 16: `(d * scale) * (q - 32)`.
///
/// Each half of the block (128 values, in 4 quarters of 32) has 64 bytes of `ql` and 32 of `qh`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Q6_K {
    /// Lower four bits: byte `l` of a half is value `l` (low nibble) and `l + 64` (high).
    pub ql: [u8; SUPER_BLOCK / 2],
    /// Upper two bits: byte `l` of a half has those of value `l + 32 k` at bit `2 k`.
    pub qh: [u8; SUPER_BLOCK / 4],
    pub scales: [i8; SUPER_BLOCK / 16],
    /// Scale of the scales, `f16`.
    pub d: [u8; 2],
}

macro_rules! blocks_of {
    ($($dtype:ident),*) => {$(
        impl Block for $dtype {
            const DTYPE: DType = DType::$dtype;
        }
        const _: () = assert!(size_of::<$dtype>() == DType::$dtype.block_bytes());
    )*};
}
blocks_of!(Q8_0, Q4_0, Q4_K, Q5_K, Q6_K);

/// The whole blocks in `bytes`; what is left over at the end is not part of the result.
#[must_use]
pub fn blocks<B: Block>(bytes: &[u8]) -> &[B] {
    let Ok((blocks, _)) = <[B]>::ref_from_prefix(bytes) else { unreachable!("{ANYWHERE}") };
    blocks
}

/// The whole blocks in `bytes`, to be written.
#[must_use]
pub fn blocks_mut<B: Block>(bytes: &mut [u8]) -> &mut [B] {
    let Ok((blocks, _)) = <[B]>::mut_from_prefix(bytes) else { unreachable!("{ANYWHERE}") };
    blocks
}

/// Why there are always blocks, if none at all.
const ANYWHERE: &str = "a block may lie at any address, and there may be none";

/// The 6-bit scale and minimum of sub-block `index` (0 to 7) of a [`Q4_K`] or [`Q5_K`] block.
///
/// Bytes 0 to 3 have the scales of sub-blocks 0 to 3 in their lower six bits, bytes 4 to 7 the
/// minima. Bytes 8 to 11 have the lower four bits of scale (low nibble) and minimum (high) of
/// sub-blocks 4 to 7, whose upper two bits are the upper two of bytes 0 to 7.
#[inline]
#[must_use]
pub const fn scale_and_min(scales: &[u8; 12], index: usize) -> (u8, u8) {
    if index < 4 {
        (scales[index] & 63, scales[index + 4] & 63)
    } else {
        let low = scales[index + 4];
        ((low & 15) | (scales[index - 4] >> 6 << 4), (low >> 4) | (scales[index] >> 6 << 4))
    }
}

/// The inverse of [`scale_and_min`] for all sub-blocks; each number must be below 64.
pub(super) fn pack_scales(pairs: [(u8, u8); 8]) -> [u8; 12] {
    let mut scales = [0; 12];
    for (index, (scale, min)) in pairs.into_iter().enumerate() {
        if index < 4 {
            scales[index] |= scale;
            scales[index + 4] |= min;
        } else {
            scales[index + 4] = (scale & 15) | (min << 4);
            scales[index - 4] |= scale >> 4 << 6;
            scales[index] |= min >> 4 << 6;
        }
    }
    scales
}

#[inline]
pub(super) fn half_to_f32(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}
