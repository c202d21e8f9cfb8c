//! Conversions between integers and floating point.

use super::lanes::map;
use super::number::{binary16, bits, flush, half_to_single, narrow, saturate, sum_to_odd};
use super::packed::directed16;
use crate::program::op::{Format, Integer, Lane, Round};

#[inline(always)]
pub(super) fn apply<const N: usize>(lane: &Lane, a: &[u32; N]) -> [u32; N] {
    match *lane {
        Lane::ToInteger { from, to, round, flush } => {
            map!(a, |a| to_integer(number(from, a, flush), from, to, round) as u32)
        }
        Lane::FromInteger {
            from: Integer { bits: 32, signed: true },
            to: Format::Single,
            round: Round::Nearest,
        } => map!(a, |a| (a as i32 as f32).to_bits()),
        Lane::FromInteger { from, to, round } => map!(a, |a| {
            // 32-bit integers are exact in double precision.
            let value = integer(from, u64::from(a)) as i64;
            match to {
                Format::Half => u32::from(directed16(value as f64, round)),
                _ => bits(narrow(value as f64, round)),
            }
        }),
        Lane::RoundToInteger { format: Format::Half, round, .. } => {
            map!(a, |a| u32::from(binary16(rounded(f64::from(half_to_single(a as u16)), round))))
        }
        Lane::RoundToInteger { round, flush: flushed, .. } => map!(a, |a| {
            let a = if flushed { flush(a) } else { a };
            bits(rounded(f64::from(f32::from_bits(a)), round) as f32)
        }),
        _ => *a,
    }
}

#[inline(always)]
fn number(from: Format, a: u32, flushed: bool) -> f64 {
    match from {
        Format::Half => f64::from(half_to_single(a as u16)),
        _ => f64::from(f32::from_bits(if flushed { flush(a) } else { a })),
    }
}

/// Rounds to an integral value.
#[inline(always)]
pub(crate) fn rounded(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
        Round::Zero => value.trunc(),
    }
}

/// Converts to an integer, sign-extended and saturated to the type. NaN becomes zero, or the least
/// integer of the type if either side has 64 bits.
#[inline(always)]
pub(crate) fn to_integer(value: f64, from: Format, to: Integer, round: Round) -> u64 {
    if value.is_nan() {
        return if from == Format::Double || to.bits == 64 {
            if to.bits == 64 { 1 << 63 } else { 1 << 31 }
        } else {
            0
        };
    }
    let whole = rounded(value, round);
    if to.bits == 64 && !to.signed {
        return whole as u64;
    }
    // The cast saturates at 64 bits.
    saturate64(whole as i64, to) as u64
}

#[inline(always)]
fn saturate64(value: i64, to: Integer) -> i64 {
    if to.bits == 64 { value } else { saturate(value, to) }
}

/// Reads an integer of a type from the low bits of a word.
#[inline(always)]
pub(crate) fn integer(from: Integer, word: u64) -> i128 {
    let left = 64 - u32::from(from.bits);
    if from.signed {
        i128::from((word << left) as i64 >> left)
    } else {
        i128::from(word << left >> left)
    }
}

/// Converts an integer to a double rounded to odd.
pub(crate) fn integer_to_odd(value: i128) -> f64 {
    // Both parts are exact: 32 bits each.
    let (high, low) = (value >> 32, value & 0xffff_ffff);
    sum_to_odd(high as f64 * 4_294_967_296.0, low as f64)
}
