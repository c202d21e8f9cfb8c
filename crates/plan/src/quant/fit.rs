//! Least-squares fits of scales and minima, shared by the quantisers.

/// `1 / x`, or 0 if that is not finite: such small values are stored as 0.
pub(super) fn inverse(x: f32) -> f32 {
    let inverse = 1.0 / x;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Nearest integer, ties to even; exact for magnitudes below 2^22. The addition leaves the integer
/// in the mantissa, which is faster than a call on CPUs without a rounding instruction.
pub(super) fn nearest(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()) as i32
}

/// Nearest integer, halves away from zero, for magnitudes that fit an `i8`. Adding 0.5 first would
/// round the sum.
pub(super) fn nearest_away(x: f32) -> i8 {
    let whole = x as i32;
    let rest = x - whole as f32;
    (whole + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)) as i8
}

/// Element of largest magnitude, the first among equals. NaN if any element is NaN.
pub(super) fn extreme(values: &[f32]) -> f32 {
    let (mut best, mut nan) = (0.0_f32, false);
    for v in values {
        nan |= v.is_nan();
        if v.abs() > best.abs() {
            best = *v;
        }
    }
    if nan { f32::NAN } else { best }
}

/// Smallest and largest element; both NaN if any element is NaN.
pub(super) fn ends(values: &[f32]) -> (f32, f32) {
    let (mut low, mut high, mut nan) = (f32::INFINITY, f32::NEG_INFINITY, false);
    for v in values {
        nan |= v.is_nan();
        low = if *v < low { *v } else { low };
        high = if *v > high { *v } else { high };
    }
    if nan { (f32::NAN, f32::NAN) } else { (low, high) }
}

/// Scale, of either sign, with which `scale * level` approximates `values`. The first guess maps
/// the extreme element to `least`, the level of greatest magnitude. `level` returns the nearest
/// level.
pub(super) fn fit_scale<const N: usize>(
    values: &[f32; N],
    least: f32,
    steps: usize,
    level: impl Fn(f32) -> f32,
) -> f32 {
    let mut scale = extreme(values) / least;
    if !scale.is_finite() {
        return f32::NAN;
    }
    for _ in 0..steps {
        let per_unit = inverse(scale);
        let levels = values.map(|v| level(v * per_unit));
        let (mut sum_qq, mut sum_qx) = (0.0, 0.0);
        for (q, x) in levels.iter().zip(values) {
            sum_qq += q * q;
            sum_qx += q * x;
        }
        let better = sum_qx / sum_qq;
        if !better.is_finite() {
            break;
        }
        scale = better;
    }
    scale
}

/// Non-negative scale and minimum with which `scale * q - min` approximates `values`, `q` from 0 to
/// `MAX`.
pub(super) fn fit_scale_and_min<const MAX: i32, const N: usize>(
    values: &[f32; N],
    steps: usize,
) -> (f32, f32) {
    let (low, high) = ends(values);
    let low = if low > 0.0 { 0.0 } else { low };
    let span = if high > 0.0 { high - low } else { -low };
    if !span.is_finite() {
        return (f32::NAN, f32::NAN);
    }
    let (mut scale, mut min) = (span / MAX as f32, -low);
    for _ in 0..steps {
        let per_unit = inverse(scale);
        let q = values.map(|v| nearest((v + min) * per_unit).clamp(0, MAX) as f32);
        let (mut sum_q, mut sum_qq, mut sum_x, mut sum_qx) = (0.0, 0.0, 0.0, 0.0);
        for (q, x) in q.iter().zip(values) {
            sum_q += q;
            sum_qq += q * q;
            sum_x += x;
            sum_qx += q * x;
        }
        let n = N as f32;
        let determinant = n * sum_qq - sum_q * sum_q;
        if determinant <= 0.0 {
            break;
        }
        let better = (n * sum_qx - sum_q * sum_x) / determinant;
        let better_min = (sum_q * sum_qx - sum_qq * sum_x) / determinant;
        if !(better > 0.0 && better_min >= 0.0 && (better + better_min).is_finite()) {
            break;
        }
        (scale, min) = (better, better_min);
    }
    (scale, min)
}
