//! Floating-point formats: exact widening, rounding, NaN, relations; saturation of integers.

use crate::program::op::{Combine, Integer, Relation, Round};

/// Canonical NaN of single precision.
pub(crate) const NAN: u32 = 0x7fff_ffff;

/// Bits of a number, with NaN made canonical.
#[inline(always)]
pub(crate) fn bits(value: f32) -> u32 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

/// Flushes a denormal to zero of the same sign.
#[inline(always)]
pub(crate) fn flush(value: u32) -> u32 {
    if value & 0x7f80_0000 == 0 { value & 0x8000_0000 } else { value }
}

/// Converts a double to single precision in a rounding mode.
#[inline(always)]
pub(crate) fn narrow(value: f64, round: Round) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    // The neighbour's bits differ by one: towards zero for one sign, away from it for the other.
    // The adjustment never crosses zero, because zero is exact or the result of a tiny number of
    // the same sign.
    let bits = near.to_bits();
    let negative = near.is_sign_negative();
    let (wrong, outwards) = match round {
        Round::Nearest => (false, false),
        Round::Down => (back > value, negative),
        Round::Up => (back < value, !negative),
        Round::Zero => (back.abs() > value.abs(), false),
    };
    let step = if outwards { 1 } else { u32::MAX };
    f32::from_bits(if wrong { bits.wrapping_add(step) } else { bits })
}

/// Sum rounded to odd. Rounding it again to a format with fewer than half the bits gives the
/// correctly rounded sum.
#[inline(always)]
pub(crate) fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let bb = sum - a;
    let rest = (a - (sum - bb)) + (b - bb);
    // Steps by one ulp towards the remainder if the last bit is even. The remainder of an infinite
    // sum is NaN and counts as exact.
    let bits = sum.to_bits();
    let away = (rest.to_bits() ^ bits) >> 63 == 0;
    let step = if away { 1 } else { u64::MAX };
    let inexact = (rest > 0.0) | (rest < 0.0);
    f64::from_bits(if inexact & (bits & 1 == 0) { bits.wrapping_add(step) } else { bits })
}

/// Converts a half to single precision exactly; branch-free, so that it vectorises.
#[inline(always)]
pub(crate) fn half_to_single(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let sign = u32::from(bits & 0x8000) << 16;
    // Scales by the difference of the exponent biases, which handles denormals.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | sign)
}

/// Converts to single precision, rounded to odd.
#[inline(always)]
fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    let back = f64::from(near);
    if back == value || near.is_nan() || near.to_bits() & 1 == 1 {
        return near;
    }
    // Infinity is even, so a finite number that rounded to infinity becomes the greatest finite
    // number, which is odd.
    if back.abs() < value.abs() {
        f32::from_bits(near.to_bits() + 1)
    } else {
        f32::from_bits(near.to_bits() - 1)
    }
}

/// Rounds to the nearest half.
#[inline(always)]
pub(crate) fn binary16(value: f64) -> u16 {
    // Rounds to odd in single precision first, so that only the second rounding counts.
    let single = to_odd(value);
    let bits = single.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return 0x7fff;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Denormal: adding 0.5 aligns and rounds the bits.
        let aligned = f32::from_bits(magnitude) + 0.5;
        return sign | (aligned.to_bits() - 0x3f00_0000) as u16;
    }
    let odd = magnitude >> 13 & 1;
    sign | ((magnitude - 0x3800_0000 + 0xfff + odd) >> 13) as u16
}

/// Rounds to the nearest bfloat16.
#[inline(always)]
pub(crate) fn brain(value: f64) -> u16 {
    let bits = to_odd(value).to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return 0x7fff;
    }
    let odd = bits >> 16 & 1;
    ((bits + 0x7fff + odd) >> 16) as u16
}

/// Returns whether a relation holds between two numbers.
#[inline(always)]
pub(crate) fn holds(relation: Relation, a: f64, b: f64) -> bool {
    if a < b {
        relation.less
    } else if a > b {
        relation.greater
    } else if a == b {
        relation.equal
    } else {
        relation.unordered
    }
}

/// Combines two predicates.
#[inline(always)]
pub(crate) fn combined(combine: Combine, a: bool, b: bool) -> bool {
    match combine {
        Combine::And => a & b,
        Combine::Or => a | b,
        Combine::Xor => a ^ b,
    }
}

/// Saturates to an integer type, sign-extended.
#[inline(always)]
pub(crate) fn saturate(value: i64, to: Integer) -> i64 {
    let bits = u32::from(to.bits.min(63));
    if to.signed {
        let limit = 1i64 << (bits - 1);
        value.clamp(-limit, limit - 1)
    } else {
        value.clamp(0, ((1i128 << bits) - 1) as i64)
    }
}
