//! Fit and packing of scales and minima in the K formats.

use crate::quant::fit::{fit_scale_and_min, inverse, nearest};
use crate::quant::format::{Parts, SUPER_BLOCK, Unstorable, half_to_f32, store_scale};

/// The 6-bit scale and minimum of sub-block `index` (0 to 7).
///
/// The lower six bits of bytes 0 to 3 are the scales of sub-blocks 0 to 3, those of bytes 4 to 7
/// their minima. Bytes 8 to 11 contain the lower four bits of scale (low nibble) and minimum (high
/// nibble) of sub-blocks 4 to 7; their upper two bits are the upper two bits of bytes 0 to 7.
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
pub(super) fn parts(
    d: [u8; 2],
    dmin: [u8; 2],
    scales: &[u8; 12],
    codes: [u8; SUPER_BLOCK],
) -> Parts<SUPER_BLOCK> {
    let both = |sub: usize| scale_and_min(scales, sub / 2);
    Parts {
        codes,
        d: half_to_f32(d),
        scales: std::array::from_fn(|sub| both(sub).0.cast_signed()),
        dmin: half_to_f32(dmin),
        minima: std::array::from_fn(|sub| both(sub).1.cast_signed()),
    }
}

/// Splits nibbles: 32 bytes per pair of sub-blocks, low nibbles for the even one, high nibbles for
/// the odd one.
#[inline]
pub(super) fn split(qs: &[u8; SUPER_BLOCK / 2]) -> [u8; SUPER_BLOCK] {
    let mut codes = [0; SUPER_BLOCK];
    for (pair, qs) in codes.as_chunks_mut::<64>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for (l, q) in qs.iter().enumerate() {
            pair[l] = q & 15;
            pair[l + 32] = q >> 4;
        }
    }
    codes
}

/// The inverse of [`split`], for the lower four bits.
pub(super) fn join(codes: &[u8; SUPER_BLOCK]) -> [u8; SUPER_BLOCK / 2] {
    let mut qs = [0; SUPER_BLOCK / 2];
    for (bytes, codes) in qs.chunks_exact_mut(32).zip(codes.chunks_exact(64)) {
        for (l, byte) in bytes.iter_mut().enumerate() {
            *byte = (codes[l] & 15) | (codes[l + 32] << 4);
        }
    }
    qs
}

/// Scales and minima as stored, and the codes that belong to them.
pub(super) struct Fitted<const SUBS: usize> {
    pub(super) d: [u8; 2],
    pub(super) dmin: [u8; 2],
    /// Scale and minimum of each sub-block.
    pub(super) pairs: [(u8, u8); SUBS],
    pub(super) codes: [u8; SUPER_BLOCK],
}

/// Fits scales and minima (0 to `limit`) of `SUBS` sub-blocks of `SUB` values, and codes (0 to
/// `MAX`), by `steps` least-squares steps.
pub(super) fn fit<const MAX: i32, const SUB: usize, const SUBS: usize>(
    values: &[f32; SUPER_BLOCK],
    steps: usize,
    limit: u8,
) -> Result<Fitted<SUBS>, Unstorable> {
    let mut fits = [(0.0_f32, 0.0_f32); SUBS];
    for (fit, values) in fits.iter_mut().zip(values.as_chunks::<SUB>().0) {
        *fit = fit_scale_and_min::<MAX, SUB>(values, steps);
    }
    // A value that is not finite makes a scale that is not finite; `max` would drop a NaN.
    if fits.iter().any(|(scale, min)| !(scale + min).is_finite()) {
        return Err(Unstorable::OutOfRange);
    }
    let largest =
        |pick: fn(&(f32, f32)) -> f32| fits.iter().map(pick).fold(0.0, f32::max) / f32::from(limit);
    let (d, d_value) = store_scale(largest(|fit| fit.0))?;
    let (dmin, dmin_value) = store_scale(largest(|fit| fit.1))?;
    let stored = |x: f32, unit: f32| nearest(x * inverse(unit)).clamp(0, i32::from(limit)) as u8;
    let pairs = fits.map(|(scale, min)| (stored(scale, d_value), stored(min, dmin_value)));

    let mut codes = [0; SUPER_BLOCK];
    let subs = codes.as_chunks_mut::<SUB>().0.iter_mut();
    for ((to, from), (scale, min)) in subs.zip(values.as_chunks::<SUB>().0).zip(pairs) {
        let (scale, min) = (inverse(d_value * f32::from(scale)), dmin_value * f32::from(min));
        *to = from.map(|v| nearest((v + min) * scale).clamp(0, MAX) as u8);
    }
    Ok(Fitted { d, dmin, pairs, codes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_scales_unpack() {
        let pairs: [(u8, u8); 8] = std::array::from_fn(|i| (i as u8 * 9, 63 - i as u8 * 7));
        let packed = pack_scales(pairs);
        assert_eq!(std::array::from_fn(|i| scale_and_min(&packed, i)), pairs);
    }
}
