//! Operations on 64-bit numbers.

use super::convert::{integer, integer_to_odd, rounded, to_integer};
use super::lanes::{LANES, Lanes};
use super::number::{bits, flush, half_to_single, narrow};
use super::packed::{directed_brain, directed16};
use crate::program::op::{Format, Round, Wide};

/// Canonical NaN of double precision.
const NAN: u64 = 0xfff8_0000_0000_0000;

/// Applies a 64-bit operation: result and carry.
#[inline(always)]
pub(crate) fn apply(wide: &Wide, a: u64, b: u64, c: u64, carry: bool) -> (u64, bool) {
    let double = f64::from_bits;
    let value = match *wide {
        Wide::MultiplyAdd { signed, high, narrow, negate } => {
            let product = if signed {
                (i64::from(a as u32 as i32) * i64::from(b as u32 as i32)) as u64
            } else {
                u64::from(a as u32) * u64::from(b as u32)
            };
            if narrow {
                let sum = product.wrapping_add(c).wrapping_add(u64::from(carry));
                return (sum & 0xffff_ffff, false);
            }
            let c = if negate { c.wrapping_neg() } else { c };
            let (sum, first) = product.overflowing_add(c);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            return (if high { sum >> 32 } else { sum }, first | second);
        }
        Wide::DoubleAdd(round) => double_bits(add(double(a), double(b), round)),
        Wide::DoubleMultiply(round) => double_bits(multiply(double(a), double(b), round)),
        Wide::DoubleFused(round) => double_bits(fused(double(a), double(b), double(c), round)),
        Wide::Convert { from, to, round, flush: flushed } => convert(a, from, to, round, flushed),
        Wide::ToInteger { from, to, round, flush: flushed } => {
            let value = match from {
                Format::Double => double(a),
                _ => single(a as u32, from, flushed),
            };
            to_integer(value, from, to, round)
        }
        Wide::FromInteger { from, to, round } => {
            let value = integer(from, a);
            match to {
                Format::Half => u64::from(directed16(integer_to_odd(value), round)),
                Format::Single | Format::Brain => {
                    u64::from(bits(narrow(integer_to_odd(value), round)))
                }
                Format::Double => directed_integer(value, round).to_bits(),
            }
        }
        Wide::RoundToInteger { round } => double_bits(rounded(double(a), round)),
    };
    (value, false)
}

fn single(a: u32, from: Format, flushed: bool) -> f64 {
    if from == Format::Half {
        f64::from(half_to_single(a as u16))
    } else {
        f64::from(f32::from_bits(if flushed { flush(a) } else { a }))
    }
}

pub(super) fn double_bits(value: f64) -> u64 {
    if value.is_nan() { NAN } else { value.to_bits() }
}

fn convert(a: u64, from: Format, to: Format, round: Round, flushed: bool) -> u64 {
    let value = match from {
        Format::Double => f64::from_bits(a),
        _ => single(a as u32, from, flushed),
    };
    match to {
        Format::Half => u64::from(directed16(value, round)),
        Format::Brain => u64::from(directed_brain(value, round)),
        Format::Single => {
            let result = bits(narrow(value, round));
            u64::from(if flushed { flush(result) } else { result })
        }
        Format::Double => double_bits(value),
    }
}

/// Adjusts a result rounded to nearest to another rounding mode, given the remainder.
fn directed(near: f64, rest: f64, round: Round) -> f64 {
    if !near.is_finite() {
        // An overflow towards zero yields the greatest finite number.
        return near;
    }
    match round {
        Round::Down if rest < 0.0 => near.next_down(),
        Round::Up if rest > 0.0 => near.next_up(),
        Round::Zero if rest != 0.0 && (rest < 0.0) == (near > 0.0) => {
            f64::from_bits(near.to_bits() - 1)
        }
        _ => near,
    }
}

/// Remainder of a sum rounded to nearest.
fn sum_rest(a: f64, b: f64, sum: f64) -> f64 {
    let bb = sum - a;
    (a - (sum - bb)) + (b - bb)
}

fn add(a: f64, b: f64, round: Round) -> f64 {
    let sum = a + b;
    if round == Round::Nearest {
        return sum;
    }
    if round == Round::Down
        && sum == 0.0
        && (a != 0.0 || a.is_sign_negative() != b.is_sign_negative())
    {
        return -0.0;
    }
    directed(sum, sum_rest(a, b, sum), round)
}

fn multiply(a: f64, b: f64, round: Round) -> f64 {
    let product = a * b;
    if round == Round::Nearest { product } else { directed(product, a.mul_add(b, -product), round) }
}

pub(super) fn fused(a: f64, b: f64, c: f64, round: Round) -> f64 {
    let near = a.mul_add(b, c);
    if round == Round::Nearest {
        return near;
    }
    let product = a * b;
    let sum = product + c;
    let rest = (sum - near) + (sum_rest(product, c, sum) + a.mul_add(b, -product));
    directed(near, rest, round)
}

fn directed_integer(value: i128, round: Round) -> f64 {
    let near = value as f64;
    directed(near, (value - near as i128) as f64, round)
}

/// A 64-bit product plus a 64-bit addend: both words of the sum.
#[inline(always)]
pub(super) fn multiply_add(a: &Lanes, b: &Lanes, c: [&Lanes; 2], signed: bool) -> [Lanes; 2] {
    let mut sum = [[0; LANES]; 2];
    for lane in 0..LANES {
        let product = if signed {
            (i64::from(a[lane] as i32) * i64::from(b[lane] as i32)) as u64
        } else {
            u64::from(a[lane]) * u64::from(b[lane])
        };
        let value = product.wrapping_add(u64::from(c[0][lane]) | u64::from(c[1][lane]) << 32);
        sum[0][lane] = value as u32;
        sum[1][lane] = (value >> 32) as u32;
    }
    sum
}
