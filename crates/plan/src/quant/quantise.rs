//! The quantiser: deterministic, one pass, no search.
//!
//! `F16`, `BF16`, `Q8_0` and `Q4_0` give the bytes that ggml's reference gives. The K formats choose a
//! scale (and minimum) per sub-block from its range, improve it by one least-squares step, and
//! then round to the scales as stored; ggml searches over several candidates instead.

use half::{bf16, f16};

use super::block::{Block, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0, blocks_mut, pack_scales};
use super::{BLOCK, Error, SUPER_BLOCK, check};
use crate::DType;

/// Stores numbers as elements of `dtype`. The same numbers always give the same bytes.
///
/// # Errors
/// [`Error::NotReal`] for integer types, [`Error::Length`] unless `out` has room for exactly
/// `values.len()` elements, [`Error::Range`] for a number that is not finite or too large for a
/// block's scale (`F32`, `F16` and `BF16` take any number and round as IEEE 754 says).
pub fn quantise(dtype: DType, values: &[f32], out: &mut [u8]) -> Result<(), Error> {
    check(dtype, values.len(), out.len())?;
    match dtype {
        DType::F32 => each(values, out, f32::to_le_bytes),
        DType::F16 => each(values, out, |v| f16::from_f32(v).to_le_bytes()),
        DType::BF16 => each(values, out, |v| bf16::from_f32(v).to_le_bytes()),
        DType::Q8_0 => each_block::<Q8_0, BLOCK>(values, out, q8_0)?,
        DType::Q4_0 => each_block::<Q4_0, BLOCK>(values, out, q4_0)?,
        DType::Q4_K => each_block::<Q4_K, SUPER_BLOCK>(values, out, q4_k)?,
        DType::Q5_K => each_block::<Q5_K, SUPER_BLOCK>(values, out, q5_k)?,
        DType::Q6_K => each_block::<Q6_K, SUPER_BLOCK>(values, out, q6_k)?,
        DType::I32 => return Err(Error::NotReal { dtype }),
    }
    Ok(())
}

fn each<const N: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (from, to) in values.iter().zip(out.as_chunks_mut().0) {
        *to = encode(*from);
    }
}

/// The scale of a block would not be finite.
struct OutOfRange;

fn each_block<B: Block, const N: usize>(
    values: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; N]) -> Result<B, OutOfRange>,
) -> Result<(), Error> {
    for (i, (from, to)) in values.as_chunks().0.iter().zip(blocks_mut(out)).enumerate() {
        *to = encode(from).map_err(|OutOfRange| worst(B::DTYPE, i * N, from))?;
    }
    Ok(())
}

/// Names the element that made a block's scale not finite: the first NaN or the largest.
fn worst(dtype: DType, first: usize, values: &[f32]) -> Error {
    let rank = |v: f32| if v.is_nan() { f32::INFINITY } else { v.abs() };
    let (mut at, mut value) = (first, 0.0);
    for (i, v) in values.iter().enumerate() {
        if rank(*v) > rank(value) {
            (at, value) = (first + i, *v);
        }
    }
    Error::Range { dtype, at, value }
}

/// A scale as stored, and the number that it then is.
fn store_scale(d: f32) -> Result<([u8; 2], f32), OutOfRange> {
    let stored = f16::from_f32(d);
    if stored.is_finite() { Ok((stored.to_le_bytes(), stored.to_f32())) } else { Err(OutOfRange) }
}

/// `1 / x`, or 0 where that is not finite: values that small are stored as 0.
fn inverse(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The nearest integer, ties to even; exact for magnitudes below 2^22. The sum leaves the integer in
/// the mantissa, which is quicker than a call where the CPU has no rounding instruction.
fn nearest(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()) as i32
}

/// The element of largest magnitude, the first of equals. A NaN anywhere gives a NaN.
fn extreme(values: &[f32]) -> f32 {
    let (mut best, mut nan) = (0.0_f32, false);
    for v in values {
        nan |= v.is_nan();
        if v.abs() > best.abs() {
            best = *v;
        }
    }
    if nan { f32::NAN } else { best }
}

fn q8_0(values: &[f32; BLOCK]) -> Result<Q8_0, OutOfRange> {
    let d = extreme(values).abs() / 127.0;
    let scale = inverse(d);
    let (stored, _) = store_scale(d)?;
    let qs = values.map(|v| {
        // Half away from zero. Adding 0.5 first would round in the sum.
        let x = v * scale;
        let whole = x as i32;
        let rest = x - whole as f32;
        (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8
    });
    Ok(Q8_0 { d: stored, qs })
}

fn q4_0(values: &[f32; BLOCK]) -> Result<Q4_0, OutOfRange> {
    let d = extreme(values) / -8.0;
    let scale = inverse(d);
    let (stored, _) = store_scale(d)?;
    let q = values.map(|v| ((v * scale + 8.5) as u8).min(15));
    let mut qs = [0; BLOCK / 2];
    for (j, byte) in qs.iter_mut().enumerate() {
        *byte = q[j] | (q[j + BLOCK / 2] << 4);
    }
    Ok(Q4_0 { d: stored, qs })
}

fn q4_k(values: &[f32; SUPER_BLOCK]) -> Result<Q4_K, OutOfRange> {
    let (header, q) = scales_and_minima::<15>(values)?;
    Ok(Q4_K { d: header.d, dmin: header.dmin, scales: header.scales, qs: nibbles(&q) })
}

fn q5_k(values: &[f32; SUPER_BLOCK]) -> Result<Q5_K, OutOfRange> {
    let (header, q) = scales_and_minima::<31>(values)?;
    let mut qh = [0; SUPER_BLOCK / 8];
    for (sub, q) in q.chunks_exact(32).enumerate() {
        for (byte, q) in qh.iter_mut().zip(q) {
            *byte |= q >> 4 << sub;
        }
    }
    Ok(Q5_K { d: header.d, dmin: header.dmin, scales: header.scales, qh, qs: nibbles(&q) })
}

/// The lower four bits in the order of `Q4_K` and `Q5_K`.
fn nibbles(q: &[u8; SUPER_BLOCK]) -> [u8; SUPER_BLOCK / 2] {
    let mut qs = [0; SUPER_BLOCK / 2];
    for (bytes, q) in qs.chunks_exact_mut(32).zip(q.chunks_exact(64)) {
        for (l, byte) in bytes.iter_mut().enumerate() {
            *byte = (q[l] & 15) | (q[l + 32] << 4);
        }
    }
    qs
}

/// What `Q4_K` and `Q5_K` begin with.
struct Header {
    d: [u8; 2],
    dmin: [u8; 2],
    scales: [u8; 12],
}

/// Scales, minima and values from 0 to `MAX` of a block.
fn scales_and_minima<const MAX: i32>(
    values: &[f32; SUPER_BLOCK],
) -> Result<(Header, [u8; SUPER_BLOCK]), OutOfRange> {
    let mut fits = [(0.0_f32, 0.0_f32); 8];
    for (fit, values) in fits.iter_mut().zip(values.as_chunks::<32>().0) {
        *fit = fit_scale_and_min::<MAX>(values);
    }
    // A NaN or an infinity among the values is one among the scales; `max` would drop a NaN.
    if fits.iter().any(|(scale, min)| !(scale + min).is_finite()) {
        return Err(OutOfRange);
    }
    let largest = |pick: fn(&(f32, f32)) -> f32| fits.iter().map(pick).fold(0.0, f32::max) / 63.0;
    let (d, d_value) = store_scale(largest(|fit| fit.0))?;
    let (dmin, dmin_value) = store_scale(largest(|fit| fit.1))?;
    let six_bits = |x: f32, unit: f32| nearest(x * inverse(unit)).clamp(0, 63) as u8;
    let pairs = fits.map(|(scale, min)| (six_bits(scale, d_value), six_bits(min, dmin_value)));

    let mut q = [0; SUPER_BLOCK];
    for ((to, from), (scale, min)) in
        q.as_chunks_mut::<32>().0.iter_mut().zip(values.as_chunks::<32>().0).zip(pairs)
    {
        let (scale, min) = (inverse(d_value * f32::from(scale)), dmin_value * f32::from(min));
        *to = from.map(|v| nearest((v + min) * scale).clamp(0, MAX) as u8);
    }
    Ok((Header { d, dmin, scales: pack_scales(pairs) }, q))
}

/// Scale and minimum, neither negative, for which `scale * q - min` comes near `values` with `q`
/// from 0 to `MAX`.
fn fit_scale_and_min<const MAX: i32>(values: &[f32; 32]) -> (f32, f32) {
    let (mut low, mut high, mut nan) = (0.0_f32, 0.0_f32, false);
    for v in values {
        nan |= v.is_nan();
        low = if *v < low { *v } else { low };
        high = if *v > high { *v } else { high };
    }
    let range = high - low;
    if nan || !range.is_finite() {
        return (f32::NAN, f32::NAN);
    }
    let scale = range / MAX as f32;
    let per_unit = inverse(scale);
    let q = values.map(|v| nearest((v - low) * per_unit).clamp(0, MAX) as f32);
    let (mut sum_q, mut sum_qq, mut sum_x, mut sum_qx) = (0.0, 0.0, 0.0, 0.0);
    for (q, x) in q.iter().zip(values) {
        sum_q += q;
        sum_qq += q * q;
        sum_x += x;
        sum_qx += q * x;
    }
    let n = values.len() as f32;
    let determinant = n * sum_qq - sum_q * sum_q;
    if determinant <= 0.0 {
        return (scale, -low);
    }
    let better = (n * sum_qx - sum_q * sum_x) / determinant;
    let min = (sum_q * sum_qx - sum_qq * sum_x) / determinant;
    if better > 0.0 && min >= 0.0 && (better + min).is_finite() {
        (better, min)
    } else {
        (scale, -low)
    }
}

fn q6_k(values: &[f32; SUPER_BLOCK]) -> Result<Q6_K, OutOfRange> {
    let mut fits = [0.0_f32; 16];
    for (fit, values) in fits.iter_mut().zip(values.as_chunks::<16>().0) {
        *fit = fit_scale(values);
    }
    let (d, d_value) = store_scale(extreme(&fits) / -128.0)?;
    let per_unit = inverse(d_value);
    let scales = fits.map(|fit| nearest(fit * per_unit).clamp(-128, 127) as i8);

    let mut q = [0_u8; SUPER_BLOCK];
    for ((to, from), scale) in
        q.as_chunks_mut::<16>().0.iter_mut().zip(values.as_chunks::<16>().0).zip(scales)
    {
        let per_unit = inverse(d_value * f32::from(scale));
        *to = from.map(|v| (nearest(v * per_unit).clamp(-32, 31) + 32) as u8);
    }
    let (mut ql, mut qh) = ([0; SUPER_BLOCK / 2], [0; SUPER_BLOCK / 4]);
    for (half, q) in q.chunks_exact(128).enumerate() {
        for l in 0..64 {
            ql[half * 64 + l] = (q[l] & 15) | (q[l + 64] << 4);
        }
        for l in 0..32 {
            qh[half * 32 + l] =
                q[l] >> 4 | q[l + 32] >> 4 << 2 | q[l + 64] >> 4 << 4 | q[l + 96] >> 4 << 6;
        }
    }
    Ok(Q6_K { ql, qh, scales, d })
}

/// The scale, of either sign, for which `scale * q` comes near `values` with `q` from -32 to 31.
fn fit_scale(values: &[f32; 16]) -> f32 {
    let scale = extreme(values) / -32.0;
    if !scale.is_finite() {
        return f32::NAN;
    }
    let per_unit = inverse(scale);
    let q = values.map(|v| nearest(v * per_unit).clamp(-32, 31) as f32);
    let (mut sum_qq, mut sum_qx) = (0.0, 0.0);
    for (q, x) in q.iter().zip(values) {
        sum_qq += q * q;
        sum_qx += q * x;
    }
    let better = sum_qx / sum_qq;
    if better.is_finite() { better } else { scale }
}
