//! Single precision.
//!
//! Additions, products and fused multiply-adds are rounded correctly in all four rounding modes.
//! Special functions are the mathematical functions rounded to single precision. The tables of the
//! hardware are undocumented; its results differ by up to about 2^-22 relative (absolute for sine
//! and cosine of up to one turn, and for the logarithm near one). Denormal sources and results of
//! special functions are flushed to zero; the scaling code that compilers emit around them shows
//! this.

use super::lanes::{map, map2, map3, mask};
use super::number::{
    NAN, binary16, bits, combined, flush, half_to_single, holds, narrow, sum_to_odd,
};
use crate::program::op::{Float, Function, Lane, Round};

#[inline(always)]
pub(super) fn apply<const N: usize>(lane: &Lane, [a, b, c]: [&[u32; N]; 3], p: u32) -> [u32; N] {
    match *lane {
        Lane::FloatAdd(mode) if simple(mode) => {
            map2!(a, b, |a, b| bits(f32::from_bits(a) + f32::from_bits(b)))
        }
        Lane::FloatMultiply(mode) if simple(mode) => {
            map2!(a, b, |a, b| bits(f32::from_bits(a) * f32::from_bits(b)))
        }
        Lane::FloatFused(mode) if simple(mode) => fuse([a, b, c]),
        Lane::FloatFused(mode) if simple(Float { saturate: false, ..mode }) => {
            map3!(a, b, c, |a, b, c| {
                clamp(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
            })
        }
        Lane::FloatAdd(mode) => map2!(a, b, |a, b| add(mode, a, b)),
        Lane::FloatMultiply(mode) => map2!(a, b, |a, b| multiply(mode, a, b)),
        Lane::FloatFused(mode) => map3!(a, b, c, |a, b, c| fused(mode, a, b, c)),
        Lane::FloatScaled { mode, exponent } => {
            let scale = f64::from_bits(((1023 + i64::from(exponent)) as u64) << 52);
            map2!(a, b, |a, b| {
                // The product has 48 bits, and its exponent is far from the limits of a double.
                finish(mode, product(mode, source(mode, a), source(mode, b)) * scale)
            })
        }
        Lane::FloatCompare { relation, flush: flushed, combine } => {
            map3!(a, b, &mask::<N>(p), |a, b, p| {
                let (a, b) = if flushed { (flush(a), flush(b)) } else { (a, b) };
                let number = |bits| f64::from(f32::from_bits(bits));
                let holds = holds(relation, number(a), number(b));
                if combined(combine, holds, p != 0) { 1f32.to_bits() } else { 0 }
            })
        }
        Lane::FloatMinimum { flush: flushed, nan, sign } => {
            map3!(a, b, &mask::<N>(p), |a, b, p| {
                let (a, b) = if flushed { (flush(a), flush(b)) } else { (a, b) };
                minimum(a, b, p != 0, nan, sign)
            })
        }
        Lane::Function(function) => map!(a, |a| special(function, a)),
        Lane::HalfFunction(function) => map!(a, |a| {
            u32::from(binary16(mathematical(function, f64::from(half_to_single(a as u16)))))
        }),
        _ => *a,
    }
}

/// Results of a fused multiply-add without modifiers; none for other operations.
#[inline(always)]
pub(super) fn plainly_fused<const N: usize>(
    lane: &Lane,
    sources: [&[u32; N]; 3],
) -> Option<[u32; N]> {
    matches!(*lane, Lane::FloatFused(mode) if simple(mode)).then(|| fuse(sources))
}

#[inline(always)]
fn fuse<const N: usize>([a, b, c]: [&[u32; N]; 3]) -> [u32; N] {
    map3!(a, b, c, |a, b, c| {
        bits(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
    })
}

const fn simple(mode: Float) -> bool {
    matches!(mode.round, Round::Nearest) && !mode.flush && !mode.saturate && !mode.zero_wins
}

#[inline(always)]
fn source(mode: Float, value: u32) -> f64 {
    f64::from(f32::from_bits(if mode.flush { flush(value) } else { value }))
}

#[inline(always)]
fn finish(mode: Float, value: f64) -> u32 {
    let mut result = bits(narrow(value, mode.round));
    if mode.flush {
        result = flush(result);
    }
    if mode.saturate { clamp(f32::from_bits(result)) } else { result }
}

/// Bits of a number clamped to 0..1. NaN becomes zero, because comparisons with NaN are false.
#[inline(always)]
fn clamp(value: f32) -> u32 {
    let low = if value > 0.0 { value } else { 0.0 };
    (if low < 1.0 { low } else { 1.0 }).to_bits()
}

#[inline(always)]
fn zero_sum(round: Round, a: f64, b: f64, sum: f64) -> f64 {
    // The sum of two opposite numbers is negative zero when rounding down.
    if round == Round::Down
        && sum == 0.0
        && a == -b
        && (a != 0.0 || a.is_sign_negative() != b.is_sign_negative())
    {
        -0.0
    } else {
        sum
    }
}

#[inline(always)]
fn add(mode: Float, a: u32, b: u32) -> u32 {
    let (a, b) = (source(mode, a), source(mode, b));
    finish(mode, zero_sum(mode.round, a, b, sum_to_odd(a, b)))
}

#[inline(always)]
fn product(mode: Float, a: f64, b: f64) -> f64 {
    if mode.zero_wins && (a == 0.0 || b == 0.0) { 0.0 } else { a * b }
}

#[inline(always)]
fn multiply(mode: Float, a: u32, b: u32) -> u32 {
    finish(mode, product(mode, source(mode, a), source(mode, b)))
}

#[inline(always)]
fn fused(mode: Float, a: u32, b: u32, c: u32) -> u32 {
    let (product, c) = (product(mode, source(mode, a), source(mode, b)), source(mode, c));
    finish(mode, zero_sum(mode.round, product, c, sum_to_odd(product, c)))
}

/// Minimum or maximum. A number wins over NaN unless `nan` is set. With `sign`, the magnitudes are
/// compared and the result takes the sign of the product.
#[inline(always)]
fn minimum(a: u32, b: u32, smaller: bool, nan: bool, sign: bool) -> u32 {
    let product = (a ^ b) & 0x8000_0000;
    let (a, b) = if sign { (a & 0x7fff_ffff, b & 0x7fff_ffff) } else { (a, b) };
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    let result = if x.is_nan() && y.is_nan() || nan && (x.is_nan() || y.is_nan()) {
        return NAN;
    } else if x.is_nan() {
        b
    } else if y.is_nan() {
        a
    } else {
        // Compares as integers, so that -0 is below +0.
        let order = |bits: u32| (bits ^ ((bits as i32 >> 31) as u32 >> 1)) as i32;
        if (order(a) < order(b)) == smaller { a } else { b }
    };
    if sign { result | product } else { result }
}

fn special(function: Function, a: u32) -> u32 {
    if function == Function::ReciprocalHigh || function == Function::ReciprocalRootHigh {
        return special_high(function, a);
    }
    let x = f64::from(f32::from_bits(flush(a)));
    flush(bits(mathematical(function, x) as f32))
}

fn mathematical(function: Function, x: f64) -> f64 {
    let turns = |x: f64| (x - x.round()) * std::f64::consts::TAU;
    match function {
        Function::Cos => turns(x).cos(),
        Function::Sin => turns(x).sin(),
        Function::Exp2 => x.exp2(),
        Function::Log2 => x.log2(),
        Function::Reciprocal => 1.0 / x,
        Function::ReciprocalRoot => 1.0 / x.sqrt(),
        Function::Root => x.sqrt(),
        Function::Tanh => x.tanh(),
        Function::ReciprocalHigh | Function::ReciprocalRootHigh => x,
    }
}

/// Upper word of the reciprocal or reciprocal square root of a double, given its upper word.
fn special_high(function: Function, a: u32) -> u32 {
    let x = f64::from_bits(u64::from(a) << 32);
    let x = if x.is_subnormal() { 0.0f64.copysign(x) } else { x };
    let result = if function == Function::ReciprocalHigh { 1.0 / x } else { 1.0 / x.sqrt() };
    if result.is_nan() {
        0x7fff_ffff
    } else if result.is_subnormal() {
        ((result.to_bits() >> 32) & 0x8000_0000) as u32
    } else {
        (result.to_bits() >> 32) as u32
    }
}

/// Returns whether `a / b` needs the slow path of a division, because intermediate results could
/// overflow or underflow. The limits of the hardware are undocumented; with these, every quotient
/// and every partial result of the compiler's sequence is a normal number.
pub(crate) fn needs_care(a: u32, b: u32) -> bool {
    let exponent = |bits: u32| (bits >> 23 & 0xff) as i32;
    let (x, y) = (exponent(a), exponent(b));
    x == 255 || y == 255 || x == 0 || y == 0 || y > 252 || x <= 24 || (x - y).abs() >= 124
}
