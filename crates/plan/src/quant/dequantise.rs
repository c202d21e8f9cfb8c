//! The reference dequantiser: scalar, in ggml's order of operations.

use super::block::{Block, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, blocks, half_to_f32, scale_and_min};
use super::{BLOCK, Error, SUPER_BLOCK, check};
use crate::DType;

/// Turns stored elements into numbers: bit for bit what ggml's reference gives (the payload of a
/// NaN excepted).
///
/// # Errors
/// [`Error::NotReal`] for integer types, [`Error::Length`] unless `bytes` holds exactly
/// `out.len()` elements.
pub fn dequantise(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), Error> {
    check(dtype, out.len(), bytes.len())?;
    match dtype {
        DType::F32 => each(bytes, out, f32::from_le_bytes),
        DType::F16 => each(bytes, out, half_to_f32),
        DType::BF16 => {
            each(bytes, out, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16));
        }
        DType::Q8_0 => each_block::<Q8_0, BLOCK>(bytes, out, q8_0),
        DType::Q4_0 => each_block::<Q4_0, BLOCK>(bytes, out, q4_0),
        DType::Q4_K => each_block::<Q4_K, SUPER_BLOCK>(bytes, out, q4_k),
        DType::Q5_K => each_block::<Q5_K, SUPER_BLOCK>(bytes, out, q5_k),
        DType::Q6_K => each_block::<Q6_K, SUPER_BLOCK>(bytes, out, q6_k),
        DType::I32 => return Err(Error::NotReal { dtype }),
    }
    Ok(())
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    for (from, to) in bytes.as_chunks().0.iter().zip(out) {
        *to = decode(*from);
    }
}

fn each_block<B: Block, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&B, &mut [f32; N]),
) {
    for (block, to) in blocks(bytes).iter().zip(out.as_chunks_mut().0) {
        decode(block, to);
    }
}

fn q8_0(block: &Q8_0, out: &mut [f32; BLOCK]) {
    let d = half_to_f32(block.d);
    for (q, to) in block.qs.iter().zip(out) {
        *to = d * f32::from(*q);
    }
}

fn q4_0(block: &Q4_0, out: &mut [f32; BLOCK]) {
    let d = half_to_f32(block.d);
    for (j, q) in block.qs.iter().enumerate() {
        out[j] = d * f32::from((q & 15) as i8 - 8);
        out[j + BLOCK / 2] = d * f32::from((q >> 4) as i8 - 8);
    }
}

fn q4_k(block: &Q4_K, out: &mut [f32; SUPER_BLOCK]) {
    let (d, dmin) = (half_to_f32(block.d), half_to_f32(block.dmin));
    for (sub, to) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(&block.scales, sub);
        let (d, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (l, to) in to.iter_mut().enumerate() {
            let q = block.qs[sub / 2 * 32 + l] >> (sub % 2 * 4) & 15;
            *to = d * f32::from(q) - min;
        }
    }
}

fn q5_k(block: &Q5_K, out: &mut [f32; SUPER_BLOCK]) {
    let (d, dmin) = (half_to_f32(block.d), half_to_f32(block.dmin));
    for (sub, to) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_and_min(&block.scales, sub);
        let (d, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (l, to) in to.iter_mut().enumerate() {
            let low = block.qs[sub / 2 * 32 + l] >> (sub % 2 * 4) & 15;
            let high = block.qh[l] >> sub & 1;
            *to = d * f32::from(low | (high << 4)) - min;
        }
    }
}

fn q6_k(block: &Q6_K, out: &mut [f32; SUPER_BLOCK]) {
    let d = half_to_f32(block.d);
    for (sub, to) in out.chunks_exact_mut(16).enumerate() {
        let d = d * f32::from(block.scales[sub]);
        // Where the sub-block begins: half of the block, quarter of the half, within the quarter.
        let (half, quarter, first) = (sub / 8, sub / 2 % 4, sub % 2 * 16);
        for (l, to) in to.iter_mut().enumerate() {
            let low = block.ql[half * 64 + quarter % 2 * 32 + first + l] >> (quarter / 2 * 4) & 15;
            let high = block.qh[half * 32 + first + l] >> (quarter * 2) & 3;
            *to = d * f32::from((low | (high << 4)) as i8 - 32);
        }
    }
}
