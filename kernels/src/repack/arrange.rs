//! Conversion of GGUF blocks to packed superblocks, for each weight type.
//!
//! The table lists the contents of a superblock in order: a number of pieces of 16 bytes, with what
//! they contain. A *step* is the `f16` scale of a block of 32 columns.
//!
//! | type | pieces | tail |
//! |---|---|---|
//! | Q8_0 | 1 with 8 steps; 16 with 8-bit integers in column order | |
//! | Q4_K | 1 head; 8 with nibbles, as in the file | |
//! | Q5_K | 1 head; 2 with fifth bits; 8 with nibbles, as in the file | |
//! | Q6_K | 1 with 16 scales; A, B and C for each 64 columns | `f16` |
//! | F16, BF16 | 32 with 8 columns each | |
//! | F32 | 64 with 4 columns each | |
//! | Q4_0 | 1 with 8 steps; 8 with the nibbles of a block, as in the file but in two's complement | |
//! | Q4_1 | 2 with 4 pairs of step and minimum; 8 with nibbles, as in the file | |
//! | Q5_0 | as Q4_0, with 2 of inverted fifth bits before the nibbles, which are as in the file | |
//! | Q5_1 | as Q4_1, with 2 of fifth bits before the nibbles | |
//! | IQ4_NL | 1 with 8 steps; 8 with 4-bit codes | |
//! | MXFP4 | 8 with 4-bit codes | 8 exponents |
//! | IQ4_XS | 8 with 4-bit codes | the file's first 8 bytes |
//! | Q2_K | 1 with 16 scales and minima; 4 with 2-bit values | as in the file |
//! | TQ2_0 | 4 with 2-bit values | as in the file |
//! | Q3_K, IQ2, IQ1 | 1 with 16 scales; 2 with third bits; 4 with 2-bit values | `f32` |
//! | IQ3 | 1 with 16 scales; 8 with 4-bit codes | `f32` |
//!
//! - The head of Q4_K and Q5_K is the file's, with blocks in the order 0 2 4 6 1 3 5 7, so that a
//!   byte of a word belongs to a pair of blocks.
//! - Fifth bits: word `b` belongs to block `b`; its bit `8 j + i` is that of column `4 i + j`.
//! - Q6_K: a value is the signed byte `v = 4 (q - 32)`, with two low bits of zero. A, B and C contain
//!   the `v` of the first three groups of 16 columns in their upper six bits. Their lower two bits
//!   contain the `v` of the fourth group: upper pair of bits in A, middle pair in B, lower pair in C.
//! - 4-bit codes: a piece is a block, one nibble per column, in column order.
//! - 2-bit values: a piece is 64 columns. In Q2_K and TQ2_0, byte `l` contains the columns `l`,
//!   `16 + l`, `32 + l` and `48 + l`. In types with third bits, nibble `n` of word `w` contains the
//!   columns `16 w + n` and `16 w + 8 + n`.
//! - Third bits: bit `4 n + j` of a block's word is that of column `8 j + n`.
//! - TQ1_0 is converted to TQ2_0. Types with one index for several weights are stored with one code
//!   per weight: IQ2 needs 3.6 bits per weight, IQ3 4.6.

use half::f16;
use plan::DType;
use plan::quant::{self, Format, blocks, scale_and_min};

/// Converts the blocks of a file, at most a superblock, to pieces and tail, which are zeroed
/// before.
pub(super) type Arrange = fn(&[u8], &mut [u8]);

/// Conversion of a type.
pub(super) fn of(dtype: DType) -> Arrange {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => |file, to| put(to, 0, file),
        DType::Q8_0 => q8_0,
        DType::Q4_0 => q4_0,
        DType::Q4_1 => q4_1,
        DType::Q5_0 => q5_0,
        DType::Q5_1 => q5_1,
        DType::IQ4_NL => iq4_nl,
        DType::MXFP4 => mxfp4,
        DType::IQ4_XS => iq4_xs,
        DType::Q2_K => q2_k,
        DType::TQ2_0 => ternary::<quant::TQ2_0>,
        DType::TQ1_0 => ternary::<quant::TQ1_0>,
        DType::Q3_K => byte_scales::<quant::Q3_K, 3>,
        DType::IQ3_S => byte_scales::<quant::IQ3_S, 4>,
        DType::IQ3_XXS => byte_scales::<quant::IQ3_XXS, 4>,
        DType::IQ2_S => byte_scales::<quant::IQ2_S, 3>,
        DType::IQ2_XS => byte_scales::<quant::IQ2_XS, 3>,
        DType::IQ2_XXS => byte_scales::<quant::IQ2_XXS, 3>,
        DType::IQ1_M => byte_scales::<quant::IQ1_M, 3>,
        DType::IQ1_S => byte_scales::<quant::IQ1_S, 3>,
        DType::Q4_K => q4_k,
        DType::Q5_K => q5_k,
        DType::Q6_K => q6_k,
        DType::I32 | DType::I8 | DType::U8 | DType::BOOL => {
            unreachable!("`Layout::new` refuses integers")
        }
    }
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

fn q8_0(file: &[u8], to: &mut [u8]) {
    for (b, block) in blocks::<quant::Q8_0, 32>(file).iter().enumerate() {
        put(to, 2 * b, &block.d);
        put(to, 16 + 32 * b, &block.qs.map(i8::cast_unsigned));
    }
}

fn q4_k(file: &[u8], to: &mut [u8]) {
    for block in blocks::<quant::Q4_K, 256>(file) {
        put(to, 0, &head(block.d, block.dmin, &block.scales));
        put(to, 16, &block.qs);
    }
}

fn q5_k(file: &[u8], to: &mut [u8]) {
    for block in blocks::<quant::Q5_K, 256>(file) {
        put(to, 0, &head(block.d, block.dmin, &block.scales));
        for b in 0..8 {
            let fifth = |l: usize| block.qh[l] >> b & 1;
            put(to, 16 + 4 * b, &by_byte(fifth).to_le_bytes());
        }
        put(to, 48, &block.qs);
    }
}

/// Bits of a block: bit `8 j + i` is of column `4 i + j`.
fn by_byte(bit: impl Fn(usize) -> u8) -> u32 {
    (0..32).map(|l| u32::from(bit(l)) << (8 * (l % 4) + l / 4)).sum()
}

/// Head of Q4_K and Q5_K, with scales and minima in the kernels' order.
fn head(d: [u8; 2], dmin: [u8; 2], scales: &[u8; 12]) -> [u8; 16] {
    let mut to = [0; 16];
    put(&mut to, 0, &d);
    put(&mut to, 2, &dmin);
    for (i, block) in [0, 2, 4, 6, 1, 3, 5, 7].into_iter().enumerate() {
        let (scale, minimum) = scale_and_min(scales, block);
        if i < 4 {
            to[4 + i] |= scale;
            to[8 + i] |= minimum;
        } else {
            to[8 + i] = scale & 15 | minimum << 4;
            to[i] |= scale >> 4 << 6;
            to[4 + i] |= minimum >> 4 << 6;
        }
    }
    to
}

fn q6_k(file: &[u8], to: &mut [u8]) {
    for block in blocks::<quant::Q6_K, 256>(file) {
        let codes = block.parts().codes;
        put(to, 0, &block.scales.map(i8::cast_unsigned));
        for (codes, to) in codes.as_chunks::<64>().0.iter().zip(to[16..].chunks_exact_mut(48)) {
            for l in 0..16 {
                // 4 (q - 32): shifted by two bits, the top bit flipped.
                let v = [0, 1, 2, 3].map(|i| codes[16 * i + l] << 2 ^ 0x80);
                for (i, low) in [v[3] >> 6, v[3] >> 4 & 3, v[3] >> 2 & 3].into_iter().enumerate() {
                    to[16 * i + l] = v[i] | low;
                }
            }
        }
        put(to, 208, &block.d);
    }
}

fn q4_0(file: &[u8], to: &mut [u8]) {
    for (b, block) in blocks::<quant::Q4_0, 32>(file).iter().enumerate() {
        put(to, 2 * b, &block.d);
        put(to, 16 + 16 * b, &block.qs.map(|two| two ^ 0x88));
    }
}

fn q4_1(file: &[u8], to: &mut [u8]) {
    for (b, block) in blocks::<quant::Q4_1, 32>(file).iter().enumerate() {
        put(to, 4 * b, &block.d);
        put(to, 4 * b + 2, &block.m);
        put(to, 32 + 16 * b, &block.qs);
    }
}

fn q5_0(file: &[u8], to: &mut [u8]) {
    for (b, block) in blocks::<quant::Q5_0, 32>(file).iter().enumerate() {
        put(to, 2 * b, &block.d);
        put(to, 16 + 4 * b, &(!fifths(block.qh)).to_le_bytes());
        put(to, 48 + 16 * b, &block.qs);
    }
}

fn q5_1(file: &[u8], to: &mut [u8]) {
    for (b, block) in blocks::<quant::Q5_1, 32>(file).iter().enumerate() {
        put(to, 4 * b, &block.d);
        put(to, 4 * b + 2, &block.m);
        put(to, 32 + 4 * b, &fifths(block.qh).to_le_bytes());
        put(to, 64 + 16 * b, &block.qs);
    }
}

fn fifths(qh: [u8; 4]) -> u32 {
    by_byte(|l| qh[l / 8] >> (l % 8) & 1)
}

fn iq4_nl(file: &[u8], to: &mut [u8]) {
    for (b, block) in blocks::<quant::IQ4_NL, 32>(file).iter().enumerate() {
        put(to, 2 * b, &block.d);
        fours(&block.parts().codes, &mut to[16 + 16 * b..]);
    }
}

fn mxfp4(file: &[u8], to: &mut [u8]) {
    let tail = to.len() - 8;
    for (b, block) in blocks::<quant::MXFP4, 32>(file).iter().enumerate() {
        to[tail + b] = block.e;
        fours(&block.parts().codes, &mut to[16 * b..]);
    }
}

fn iq4_xs(file: &[u8], to: &mut [u8]) {
    for (block, file) in blocks::<quant::IQ4_XS, 256>(file).iter().zip(file.chunks(136)) {
        fours(&block.parts().codes, to);
        put(to, 128, &file[..8]);
    }
}

fn q2_k(file: &[u8], to: &mut [u8]) {
    for block in blocks::<quant::Q2_K, 256>(file) {
        put(to, 0, &block.scales);
        pairs(&block.parts().codes, &mut to[16..]);
        put(to, 80, &block.d);
        put(to, 82, &block.dmin);
    }
}

fn ternary<F: Format<256>>(file: &[u8], to: &mut [u8]) {
    for block in blocks::<F, 256>(file) {
        let parts = block.parts();
        pairs(&parts.codes, to);
        // It was `f16` in the file.
        put(to, 64, &f16::from_f32(parts.d).to_le_bytes());
    }
}

/// Types with a signed-byte scale per 16 columns, and codes of `BITS` bits.
fn byte_scales<F: Format<256>, const BITS: usize>(file: &[u8], to: &mut [u8]) {
    for block in blocks::<F, 256>(file) {
        let parts = block.parts();
        put(to, 0, &parts.scales.map(i8::cast_unsigned));
        let codes = if BITS == 3 { threes } else { fours::<256> };
        codes(&parts.codes, &mut to[16..]);
        put(to, 16 + 32 * BITS, &parts.d.to_le_bytes());
    }
}

/// 4-bit codes, in column order.
fn fours<const N: usize>(codes: &[u8; N], to: &mut [u8]) {
    for (two, byte) in codes.as_chunks::<2>().0.iter().zip(to) {
        *byte = two[0] | two[1] << 4;
    }
}

/// 2-bit codes.
fn pairs(codes: &[u8; 256], to: &mut [u8]) {
    for (codes, to) in codes.as_chunks::<64>().0.iter().zip(to.chunks_exact_mut(16)) {
        for (l, byte) in to.iter_mut().enumerate() {
            *byte = (0..4).map(|k| codes[16 * k + l] << (2 * k)).sum();
        }
    }
}

/// 3-bit codes: third bits, then pairs of bits.
fn threes(codes: &[u8; 256], to: &mut [u8]) {
    let (thirds, pairs) = to.split_at_mut(32);
    let blocks = thirds.chunks_exact_mut(4).zip(pairs.chunks_exact_mut(8));
    for (codes, (thirds, pairs)) in codes.as_chunks::<32>().0.iter().zip(blocks) {
        let (mut third, mut low) = (0_u32, [0_u32; 2]);
        for (l, &code) in codes.iter().enumerate() {
            let nibble = 4 * (l % 8);
            third |= u32::from(code >> 2) << (nibble + l / 8);
            low[l / 16] |= u32::from(code & 3) << (nibble + l / 8 % 2 * 2);
        }
        put(thirds, 0, &third.to_le_bytes());
        put(pairs, 0, low.map(u32::to_le_bytes).as_flattened());
    }
}
