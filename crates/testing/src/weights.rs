//! Random matrix rows of every type, as stored in files.

use half::f16;
use plan::DType;

use crate::random::Random;

/// Offsets of the `f16` scales in a type's block: of codes, and of minima.
fn scales(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::TQ1_0 => &[52],
        DType::TQ2_0 => &[64],
        DType::MXFP4 | DType::IQ1_M => &[],
        _ => &[0],
    }
}

/// Writes the scales of a block.
pub fn put_scales(dtype: DType, block: &mut [u8], scale: f32, minimum: f32) {
    for (at, scale) in scales(dtype).iter().zip([scale, minimum]) {
        block[*at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    }
    match dtype {
        DType::MXFP4 => block[0] = (128.0 + scale.abs().log2()).round() as u8,
        DType::IQ1_M => {
            let bits = f16::from_f32(scale).to_bits();
            for (i, byte) in block[48..].iter_mut().skip(1).step_by(2).enumerate() {
                *byte = *byte & 15 | ((bits >> (4 * i) & 15) as u8 * 16);
            }
        }
        _ => {}
    }
}

/// Rows of a type, with random codes and finite scales.
pub fn raw(random: &mut Random, dtype: DType, rows: usize, k: usize) -> Vec<u8> {
    let blocks = rows * k / dtype.block_len();
    let mut out = Vec::new();
    for _ in 0..blocks {
        let at = out.len();
        out.extend((0..dtype.block_bytes()).map(|_| random.bits() as u8));
        let (scale, minimum) = (random.real(1.0) * 0.05, random.real(1.0));
        let block = &mut out[at..];
        match dtype {
            DType::F32 => block.copy_from_slice(&minimum.to_le_bytes()),
            DType::F16 => block.copy_from_slice(&f16::from_f32(minimum).to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&minimum.to_le_bytes()[2..]),
            _ => put_scales(dtype, block, scale, minimum),
        }
    }
    out
}
