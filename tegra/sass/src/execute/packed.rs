//! Packed pairs of binary16 or bfloat16, low element in the low bits.
//!
//! Sums, products and fused multiply-adds are computed exactly and rounded once, to nearest.

use super::lanes::{map2, map3, mask};
use super::number::{self, binary16, brain, combined, half_to_single, holds, sum_to_odd};
use crate::program::op::{Lane, Packed, Round};

/// Evaluates an expression for both halves of a word.
macro_rules! both {
    (|$half:ident| $body:expr) => {{
        let low = {
            let $half = 0;
            let value: u16 = $body;
            u32::from(value)
        };
        let high = {
            let $half = 1;
            let value: u16 = $body;
            u32::from(value)
        };
        low | high << 16
    }};
}

#[inline(always)]
pub(super) fn apply<const N: usize>(lane: &Lane, [a, b, c]: [&[u32; N]; 3], p: u32) -> [u32; N] {
    match *lane {
        Lane::PackedAdd(mode) if plain(mode) => {
            map2!(a, b, |a, b| both!(|half| round_half(odd_sum(single(a, half), single(b, half)))))
        }
        Lane::PackedMultiply(mode) if plain(mode) => {
            map2!(a, b, |a, b| both!(|half| round_half(single(a, half) * single(b, half))))
        }
        Lane::PackedFused(mode) if plain(mode) => map3!(a, b, c, |a, b, c| {
            both!(|half| round_half(odd_sum(single(a, half) * single(b, half), single(c, half))))
        }),
        Lane::PackedAdd(mode) => map2!(a, b, |a, b| {
            both!(|half| finish(mode, sum_to_odd(read(mode, a, half), read(mode, b, half))))
        }),
        Lane::PackedMultiply(mode) => {
            map2!(a, b, |a, b| both!(|half| finish(
                mode,
                read(mode, a, half) * read(mode, b, half)
            )))
        }
        Lane::PackedFused(mode) => map3!(a, b, c, |a, b, c| {
            both!(|half| {
                let product = read(mode, a, half) * read(mode, b, half);
                finish(mode, sum_to_odd(product, read(mode, c, half)))
            })
        }),
        Lane::PackedAddWide { saturate } => map2!(a, b, |a, b| {
            let sum = half_to_single(a as u16) + half_to_single(b as u16);
            number::bits(match (saturate, sum > 0.0) {
                (false, _) => sum,
                (true, true) => sum.min(1.0),
                (true, false) => 0.0,
            })
        }),
        Lane::PackedMinimum { packed, nan, sign } => map3!(a, b, &mask::<N>(p), |a, b, p| {
            both!(|half| minimum(packed, part(a, half), part(b, half), p != 0, nan, sign))
        }),
        Lane::PackedCompare { relation, brain, flush, combine, float } => {
            let mode = Packed { brain, flush, saturate: false, relu: false };
            map3!(a, b, &mask::<N>(p), |a, b, p| {
                both!(|half| {
                    let holds = holds(relation, read(mode, a, half), read(mode, b, half));
                    match (combined(combine, holds, p != 0), float) {
                        (false, _) => 0,
                        (true, false) => 0xffff,
                        (true, true) => 0x3c00,
                    }
                })
            })
        }
        Lane::Pack { brain, relu, round } => map2!(a, b, |high, low| {
            let mode = Packed { brain, flush: false, saturate: false, relu };
            let pack = |bits: u32| directed(mode, f64::from(f32::from_bits(bits)), round);
            u32::from(pack(high)) << 16 | u32::from(pack(low))
        }),
        _ => *a,
    }
}

/// Returns whether an operation is binary16 without modifiers. Its products are exact in single
/// precision; its sums are exact or rounded to odd.
const fn plain(mode: Packed) -> bool {
    !mode.brain && !mode.flush && !mode.saturate && !mode.relu
}

#[inline(always)]
fn single(word: u32, half: u32) -> f32 {
    half_to_single(part(word, half))
}

/// Branch-free sum rounded to odd.
#[inline(always)]
fn odd_sum(a: f32, b: f32) -> f32 {
    let sum = a + b;
    let bb = sum - a;
    let rest = (a - (sum - bb)) + (b - bb);
    let bits = sum.to_bits();
    let away = (rest.to_bits() ^ bits) & 0x8000_0000 == 0;
    let step = if away { 1 } else { u32::MAX };
    // The remainder of an infinite sum is NaN, so the sum counts as exact.
    let inexact = (rest > 0.0) | (rest < 0.0);
    f32::from_bits(if inexact & (bits & 1 == 0) { bits.wrapping_add(step) } else { bits })
}

/// Rounds single precision to the nearest half, without branches.
#[inline(always)]
fn round_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + odd) >> 13;
    let aligned = f32::from_bits(magnitude) + 0.5;
    let small = aligned.to_bits().wrapping_sub(0x3f00_0000);
    let finite = if magnitude < 0x3880_0000 { small } else { normal };
    let large = if magnitude >= 0x4780_0000 { 0x7c00 } else { finite };
    (if magnitude > 0x7f80_0000 { 0x7fff } else { large | sign }) as u16
}

#[inline(always)]
fn part(word: u32, half: u32) -> u16 {
    (word >> (16 * half)) as u16
}

#[inline(always)]
fn read(mode: Packed, word: u32, half: u32) -> f64 {
    let bits = flushed(mode, part(word, half));
    f64::from(if mode.brain { f32::from_bits(u32::from(bits) << 16) } else { half_to_single(bits) })
}

#[inline(always)]
fn finish(mode: Packed, value: f64) -> u16 {
    // NaN saturates to zero and is otherwise kept, because comparisons with NaN are false.
    let value = if mode.saturate {
        if value > 0.0 { value.min(1.0) } else { 0.0 }
    } else if mode.relu && value < 0.0 {
        0.0
    } else {
        value
    };
    flushed(mode, if mode.brain { brain(value) } else { binary16(value) })
}

/// Flushes a denormal to zero of the same sign, if the mode requires it.
#[inline(always)]
fn flushed(mode: Packed, bits: u16) -> u16 {
    let exponent = if mode.brain { 0x7f80 } else { 0x7c00 };
    if mode.flush && bits & exponent == 0 { bits & 0x8000 } else { bits }
}

/// Converts to a half in a rounding mode.
#[inline(always)]
fn directed(mode: Packed, value: f64, round: Round) -> u16 {
    let bits = finish(mode, value);
    let back =
        if mode.brain { f32::from_bits(u32::from(bits) << 16) } else { half_to_single(bits) };
    let (back, negative) = (f64::from(back), bits >> 15 == 1);
    match round {
        Round::Zero if back.abs() > value.abs() => bits - 1,
        Round::Down if back > value => {
            if negative {
                bits + 1
            } else {
                bits - 1
            }
        }
        Round::Up if back < value => {
            if negative {
                bits - 1
            } else {
                bits + 1
            }
        }
        _ => bits,
    }
}

/// Converts to binary16 in a rounding mode.
#[inline(always)]
pub(crate) fn directed16(value: f64, round: Round) -> u16 {
    directed(Packed { brain: false, flush: false, saturate: false, relu: false }, value, round)
}

/// Converts to bfloat16 in a rounding mode.
pub(crate) fn directed_brain(value: f64, round: Round) -> u16 {
    directed(Packed { brain: true, flush: false, saturate: false, relu: false }, value, round)
}

#[inline(always)]
fn minimum(mode: Packed, a: u16, b: u16, smaller: bool, nan: bool, sign: bool) -> u16 {
    let product = (a ^ b) & 0x8000;
    let kept = |bits: u16| {
        let bits = flushed(mode, bits);
        if sign { bits & 0x7fff } else { bits }
    };
    let (a, b) = (kept(a), kept(b));
    let (x, y) = (read(mode, u32::from(a), 0), read(mode, u32::from(b), 0));
    let result = if x.is_nan() && y.is_nan() || nan && (x.is_nan() || y.is_nan()) {
        return 0x7fff;
    } else if x.is_nan() {
        b
    } else if y.is_nan() {
        a
    } else {
        let order = |bits: u16| (bits ^ ((bits as i16 >> 15) as u16 >> 1)) as i16;
        if (order(a) < order(b)) == smaller { a } else { b }
    };
    if sign { result | product } else { result }
}

/// Reads one half of a word as a number.
#[inline(always)]
pub(crate) fn half_number(word: u32, half: u32, flush: bool) -> f64 {
    read(Packed { brain: false, flush, saturate: false, relu: false }, word, half)
}
