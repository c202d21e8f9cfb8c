//! 32-bit integer arithmetic, logic and moves.

use super::convert::to_integer;
use super::lanes::{LANES, Lanes, gather, map, map2, map3, mask};
use super::number::saturate;
use crate::program::op::{Format, Lane, Shift};

#[inline(always)]
pub(super) fn apply<const N: usize>(lane: &Lane, [a, b, c]: [&[u32; N]; 3], p: u32) -> [u32; N] {
    match *lane {
        Lane::Select => map3!(a, b, &mask::<N>(p), |a, b, p| (a & p) | (b & !p)),
        Lane::Add3 => map3!(a, b, c, |a, b, c| a.wrapping_add(b).wrapping_add(c)),
        Lane::MultiplyAdd => map3!(a, b, c, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        Lane::Minimum { signed: true } => map3!(a, b, &mask::<N>(p), |a, b, p| {
            let (low, high) = ((a as i32).min(b as i32) as u32, (a as i32).max(b as i32) as u32);
            (low & p) | (high & !p)
        }),
        Lane::Minimum { signed: false } => {
            map3!(a, b, &mask::<N>(p), |a, b, p| (a.min(b) & p) | (a.max(b) & !p))
        }
        Lane::Absolute => map!(a, |a| (a as i32).unsigned_abs()),
        Lane::ShiftAdd { shift } => map2!(a, b, |a, b| (a << (shift & 31)).wrapping_add(b)),
        Lane::ShiftAddHigh { shift, signed, carry } => {
            let carry = if carry { mask(p) } else { [0; N] };
            let mut d = [0; N];
            for lane in 0..N {
                let high = if signed { (a[lane] as i32 >> 31) as u32 } else { c[lane] };
                let value = u64::from(high) << 32 | u64::from(a[lane]);
                let upper = (value << (shift & 31) >> 32) as u32;
                d[lane] = upper.wrapping_add(b[lane]).wrapping_sub(carry[lane]);
            }
            d
        }
        Lane::Logic { table } => logic(table, a, b, c),
        Lane::Shift(shift) => shifted(shift, a, b, c),
        Lane::Extend { signed, wrap } => map2!(a, b, |a, b| {
            let bits = if wrap { b & 31 } else { b.min(32) };
            let left = 32 - bits;
            if left == 32 {
                0
            } else if signed {
                ((a << left) as i32 >> left) as u32
            } else {
                a << left >> left
            }
        }),
        Lane::Mask { wrap } => map2!(a, b, |a, b| {
            let (first, bits) = if wrap { (a & 31, b & 31) } else { (a.min(32), b.min(32)) };
            (((1u64 << bits) - 1) << first) as u32
        }),
        Lane::Permute => map3!(a, b, c, |a, b, c| permute(a, b, c)),
        Lane::PermuteBy(selectors) => map3!(a, b, c, |a, b, c| {
            let select = selectors[(b & 3) as usize];
            permute(a, u32::from(select), c)
        }),
        Lane::CountOnes => map!(a, |a| a.count_ones()),
        Lane::LeadingOne { signed, distance } => map!(a, |a| leading_one(a, signed, distance)),
        Lane::Reverse => map!(a, |a| a.reverse_bits()),
        Lane::Dot4 { a: left, b: right } => map3!(a, b, c, |a, b, c| {
            let mut sum = c;
            for byte in 0..4 {
                let product = byte_of(a, byte, left).wrapping_mul(byte_of(b, byte, right));
                sum = sum.wrapping_add(product as u32);
            }
            sum
        }),
        Lane::Dot2 { a: left, b: right, high } => map3!(a, b, c, |a, b, c| {
            let mut sum = c;
            for half in 0..2 {
                let word = (a >> (16 * half)) as u16;
                let word = if left { i32::from(word as i16) } else { i32::from(word) };
                let byte = byte_of(b, half + if high { 2 } else { 0 }, right);
                sum = sum.wrapping_add(word.wrapping_mul(byte) as u32);
            }
            sum
        }),
        Lane::AbsoluteDifference { signed } => map3!(a, b, c, |a, b, c| {
            let difference = if signed { (a as i32).abs_diff(b as i32) } else { a.abs_diff(b) };
            difference.wrapping_add(c)
        }),
        Lane::AbsoluteDifference4 { signed, sum } => map3!(a, b, c, |a, b, c| {
            let (mut packed, mut total) = (0, c);
            for byte in 0..4 {
                let difference = byte_of(a, byte, signed).abs_diff(byte_of(b, byte, signed));
                packed |= (difference & 0xff) << (8 * byte);
                total = total.wrapping_add(difference);
            }
            if sum { total } else { packed.wrapping_add(c) }
        }),
        Lane::PackIntegers { to, rounded } => map3!(a, b, c, |a, b, c| {
            let narrow = |word: u32| match rounded {
                None => saturate(i64::from(word as i32), to),
                Some(round) => {
                    let value = f64::from(f32::from_bits(word));
                    to_integer(value, Format::Single, to, round) as i64
                }
            };
            let bits = u32::from(to.bits);
            let low = |word: u32| narrow(word) as u64 & ((1 << bits) - 1);
            ((u64::from(c) << (2 * bits)) | low(a) << bits | low(b)) as u32
        }),
        Lane::Saturate(to) => map!(a, |a| saturate(i64::from(a as i32), to) as u32),
        // `apply` handles the other families.
        _ => map!(a, |a| a),
    }
}

#[inline(always)]
fn byte_of(word: u32, byte: u32, signed: bool) -> i32 {
    let value = (word >> (8 * byte)) as u8;
    if signed { i32::from(value as i8) } else { i32::from(value) }
}

/// Any bitwise operation on three words; common tables have a fast path.
#[inline(always)]
fn logic<const N: usize>(table: u8, a: &[u32; N], b: &[u32; N], c: &[u32; N]) -> [u32; N] {
    match table {
        0xc0 => map2!(a, b, |a, b| a & b),
        0xfc => map2!(a, b, |a, b| a | b),
        0x3c => map2!(a, b, |a, b| a ^ b),
        0x80 => map3!(a, b, c, |a, b, c| a & b & c),
        0xfe => map3!(a, b, c, |a, b, c| a | b | c),
        0x96 => map3!(a, b, c, |a, b, c| a ^ b ^ c),
        0xf8 => map3!(a, b, c, |a, b, c| a | (b & c)),
        0xea => map3!(a, b, c, |a, b, c| (a & b) | c),
        _ => map3!(a, b, c, |a, b, c| logic_word(table, a, b, c)),
    }
}

/// Bitwise function of three words, given its truth table: bit `4a + 2b + c`.
#[inline(always)]
pub(crate) fn logic_word(table: u8, a: u32, b: u32, c: u32) -> u32 {
    let term = |index: u32, word: u32| (u32::from(table) >> index & 1).wrapping_neg() & word;
    term(0, !a & !b & !c)
        | term(1, !a & !b & c)
        | term(2, !a & b & !c)
        | term(3, !a & b & c)
        | term(4, a & !b & !c)
        | term(5, a & !b & c)
        | term(6, a & b & !c)
        | term(7, a & b & c)
}

/// Position of the leading one, or of the leading bit that differs from the sign: counted from bit
/// 0, or from bit 31 if `distance` is set. All ones if there is none.
#[inline(always)]
pub(crate) fn leading_one(a: u32, signed: bool, distance: bool) -> u32 {
    let value = if signed { a ^ (a as i32 >> 31) as u32 } else { a };
    if value == 0 {
        return !0;
    }
    let zeros = value.leading_zeros();
    if distance { zeros } else { 31 - zeros }
}

#[inline(always)]
fn shifted<const N: usize>(shift: Shift, a: &[u32; N], b: &[u32; N], c: &[u32; N]) -> [u32; N] {
    let (limit, wrap) = if shift.wide { (63u32, 63) } else { (32, 31) };
    map3!(a, b, c, |low, amount, high| {
        let amount =
            if shift.wrap { amount & wrap } else { amount.min(limit + u32::from(shift.wide)) };
        let value = u64::from(high) << 32 | u64::from(low);
        let result = if shift.left {
            if amount > 63 { 0 } else { value << amount }
        } else if shift.signed {
            (value as i64 >> amount.min(63)) as u64
        } else if amount > 63 {
            0
        } else {
            value >> amount
        };
        if shift.high { (result >> 32) as u32 } else { result as u32 }
    })
}

/// Selects four bytes of two words; the top bit of a selector replicates the sign of the byte.
#[inline(always)]
fn permute(a: u32, select: u32, c: u32) -> u32 {
    let bytes = u64::from(c) << 32 | u64::from(a);
    let mut d = 0;
    for position in 0..4 {
        let selector = select >> (4 * position) & 0xf;
        let mut byte = (bytes >> (8 * (selector & 7))) as u32 & 0xff;
        if selector & 8 != 0 {
            byte = if byte & 0x80 != 0 { 0xff } else { 0 };
        }
        d |= byte << (8 * position);
    }
    d
}

/// Sums of three words, a constant and up to two carries, given as lane masks.
#[inline(always)]
pub(super) fn add_carries(
    a: &Lanes,
    b: &Lanes,
    c: &Lanes,
    extra: u32,
    carries: [u32; 2],
) -> (Lanes, u32, u32) {
    let [first, second] = carries.map(mask::<LANES>);
    let (mut sum, mut one, mut two) = ([0; LANES], [0; LANES], [0; LANES]);
    for lane in 0..LANES {
        // At most two of these steps carry, because the sum is below 3 * 2^32.
        let partial = a[lane].wrapping_add(b[lane]);
        let total = partial.wrapping_add(c[lane]);
        let small = extra.wrapping_sub(first[lane]).wrapping_sub(second[lane]);
        let result = total.wrapping_add(small);
        let carried =
            u32::from(partial < a[lane]) + u32::from(total < partial) + u32::from(result < total);
        sum[lane] = result;
        one[lane] = u32::from(carried >= 1).wrapping_neg();
        two[lane] = u32::from(carried >= 2).wrapping_neg();
    }
    (sum, gather(&one), gather(&two))
}
