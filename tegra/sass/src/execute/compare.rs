//! Comparisons of integers, floats, doubles and halves.

use super::float::needs_care;
use super::lanes::{LANES, Lanes, gather, map2};
use super::number::{combined, flush, holds};
use super::packed::half_number;
use crate::program::op::{Combine, Compared, Relation};

/// Number of lanes that `map2` loops over.
const N: usize = LANES;

/// Returns both results of a comparison. The second is the opposite of the first, except for halves
/// and extremes.
#[inline(always)]
pub(crate) fn apply(
    compared: Compared,
    relation: Relation,
    a: u64,
    b: u64,
    extra: bool,
) -> (bool, bool) {
    let (low, other) = (a as u32, b as u32);
    let outcome = match compared {
        Compared::Integers { signed: true } => ordered(relation, (low as i32).cmp(&(other as i32))),
        Compared::Integers { signed: false } => ordered(relation, low.cmp(&other)),
        Compared::UpperIntegers { signed } => {
            let order = if signed { (low as i32).cmp(&(other as i32)) } else { low.cmp(&other) };
            // If the upper words are equal, the result for the lower words decides.
            if order.is_eq() { extra } else { ordered(relation, order) }
        }
        Compared::Floats { flush: flushed } => {
            let (low, other) = if flushed { (flush(low), flush(other)) } else { (low, other) };
            let number = |bits| f64::from(f32::from_bits(bits));
            holds(relation, number(low), number(other))
        }
        Compared::Doubles => holds(relation, f64::from_bits(a), f64::from_bits(b)),
        Compared::DoubleExtreme { maximum } => {
            let (a, b) = (f64::from_bits(a), f64::from_bits(b));
            // The first result selects the first operand; the second result is true if neither is a
            // number.
            let first = b.is_nan() && !a.is_nan() || if maximum { a > b } else { a < b };
            return (first, a.is_nan() && b.is_nan());
        }
        Compared::Halves { flush, both } => {
            let outcome = |half| {
                holds(relation, half_number(low, half, flush), half_number(other, half, flush))
            };
            let (first, second) = (outcome(0), outcome(1));
            if both {
                let all = combined(Combine::And, first, second);
                return (all, !all);
            }
            return (first, second);
        }
        Compared::Division => needs_care(low, other),
    };
    (outcome, !outcome)
}

#[inline(always)]
fn ordered(relation: Relation, order: std::cmp::Ordering) -> bool {
    match order {
        std::cmp::Ordering::Less => relation.less,
        std::cmp::Ordering::Equal => relation.equal,
        std::cmp::Ordering::Greater => relation.greater,
    }
}

#[inline(always)]
fn truth(value: bool) -> u32 {
    u32::from(value).wrapping_neg()
}

/// Returns the lanes in which a relation holds between integers. Two of the three outcomes (less,
/// equal, greater) give the same result, so only the third is computed.
#[inline(always)]
pub(super) fn integers(a: &Lanes, b: &Lanes, relation: Relation, signed: bool) -> u32 {
    let Relation { less, equal, greater, .. } = relation;
    let flip = if signed { 1 << 31 } else { 0 };
    let most = if less == equal { less } else { greater };
    let odd = if less != most {
        gather(&map2!(a, b, |a, b| truth(a ^ flip < b ^ flip)))
    } else if equal != most {
        gather(&map2!(a, b, |a, b| truth(a == b)))
    } else if greater != most {
        gather(&map2!(a, b, |a, b| truth(a ^ flip > b ^ flip)))
    } else {
        0
    };
    if most { !odd } else { odd }
}

/// Returns the lanes in which a relation holds between floats. Only outcomes whose result differs
/// from that of unordered operands are computed.
#[inline(always)]
pub(super) fn floats(a: &Lanes, b: &Lanes, relation: Relation) -> u32 {
    let number = f32::from_bits;
    let Relation { less, equal, greater, unordered } = relation;
    let mut odd = 0;
    if less != unordered {
        odd |= gather(&map2!(a, b, |a, b| truth(number(a) < number(b))));
    }
    if equal != unordered {
        odd |= gather(&map2!(a, b, |a, b| truth(number(a) == number(b))));
    }
    if greater != unordered {
        odd |= gather(&map2!(a, b, |a, b| truth(number(a) > number(b))));
    }
    if unordered { !odd } else { odd }
}
