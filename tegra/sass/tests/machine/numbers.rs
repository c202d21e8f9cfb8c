//! Numbers as instructions round, clamp and compare them, from their definitions and not from the machine.

use half::{bf16, f16};
use sass::isa::{Instruction, Modifier as M};

pub(super) fn double_bits(value: f64) -> u64 {
    if value.is_nan() { 0xfff8 << 48 } else { value.to_bits() }
}

pub(super) fn flushed_halves(i: &Instruction, word: u32, brain: bool) -> u32 {
    let exponent = if brain { 0x7f80 } else { 0x7c00 };
    let half = |half: u32| if half & exponent == 0 { half & 0x8000 } else { half };
    if i.has(M::Ftz) { half(word & 0xffff) | half(word >> 16) << 16 } else { word }
}

pub(super) fn float_bits(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

/// The single-precision number next to an exact one in a direction.
pub(super) fn directed(i: &Instruction, exact: f64) -> f32 {
    let near = exact as f32;
    let (below, above) =
        if f64::from(near) <= exact { (near, near.next_up()) } else { (near.next_down(), near) };
    let below_is_exact = f64::from(near) == exact;
    if below_is_exact
        || exact.is_nan()
        || i.modifiers.iter().all(|m| !matches!(m, M::Rm | M::Rp | M::Rz))
    {
        near
    } else if i.has(M::Rm) || i.has(M::Rz) && exact > 0.0 {
        below
    } else {
        above
    }
}

pub(super) fn flushed(i: &Instruction, value: f32) -> f32 {
    if (i.has(M::Ftz) || i.has(M::Fmz)) && value.is_subnormal() {
        0f32.copysign(value)
    } else {
        value
    }
}

pub(super) fn finish(i: &Instruction, value: f32) -> u32 {
    let mut value = flushed(i, value);
    if i.has(M::Sat) {
        value = if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) + 0.0 };
    }
    float_bits(value)
}

pub(super) fn source(i: &Instruction, value: f32) -> f64 {
    f64::from(flushed(i, value))
}

pub(super) fn related(i: &Instruction, order: Option<std::cmp::Ordering>) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let any = |m: &[M]| m.iter().any(|&m| i.has(m));
    match order {
        None => any(&[M::Nan, M::Ltu, M::Equ, M::Leu, M::Gtu, M::Neu, M::Geu, M::T]),
        Some(Less) => any(&[M::Lt, M::Le, M::Ne, M::Num, M::Ltu, M::Leu, M::Neu, M::T]),
        Some(Equal) => any(&[M::Eq, M::Le, M::Ge, M::Num, M::Equ, M::Leu, M::Geu, M::T]),
        Some(Greater) => any(&[M::Gt, M::Ge, M::Ne, M::Num, M::Gtu, M::Geu, M::Neu, M::T]),
    }
}

pub(super) fn joined(i: &Instruction, a: bool, b: bool) -> bool {
    match i.modifiers.iter().rev().find(|m| matches!(m, M::And | M::Or | M::Xor)) {
        Some(M::Or) => a || b,
        Some(M::Xor) => a != b,
        _ => a && b,
    }
}

pub(super) fn integer_type(i: &Instruction) -> (u32, bool) {
    for (m, t) in [
        (M::U8, (8, false)),
        (M::S8, (8, true)),
        (M::U16, (16, false)),
        (M::S16, (16, true)),
        (M::U32, (32, false)),
        (M::U64, (64, false)),
        (M::S64, (64, true)),
    ] {
        if i.has(m) {
            return t;
        }
    }
    (32, true)
}

/// The least and the largest number of a type.
pub(super) fn limits((bits, signed): (u32, bool)) -> (i128, i128) {
    let size = 1i128 << bits;
    if signed { (-size / 2, size / 2 - 1) } else { (0, size - 1) }
}

/// A number as the nearest integer of a type.
pub(super) fn to_integer(i: &Instruction, value: f64) -> i128 {
    let (bits, signed) = integer_type(i);
    if value.is_nan() {
        let upper = i.has(M::F64) || bits == 64;
        return match (upper, bits) {
            (false, _) => 0,
            (true, 64) => i128::from(i64::MIN),
            (true, _) => i128::from(i32::MIN),
        };
    }
    let (least, most) = limits((bits, signed));
    (rounded(i, value) as i128).clamp(least, most)
}

pub(super) fn rounded(i: &Instruction, value: f64) -> f64 {
    if i.has(M::Floor) {
        value.floor()
    } else if i.has(M::Ceil) {
        value.ceil()
    } else if i.has(M::Trunc) {
        value.trunc()
    } else {
        value.round_ties_even()
    }
}

/// The nearest number with so many bits behind the leading one, and an exponent not below the least.
/// (`half` looks at the upper bits of a double alone.)
fn coarse(value: f64, bits: i32, least: i32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least);
    let step = 2f64.powi(exponent - bits);
    (value / step).round_ties_even() * step
}

/// The half next to an exact number in a direction: halves in their order, the numbers one by one.
pub(super) fn directed_half(i: &Instruction, exact: f64) -> u16 {
    if exact.is_nan() {
        return 0x7fff;
    }
    let up = i.has(M::Rp) || i.has(M::Rz) && exact.is_sign_negative();
    if !up && !i.has(M::Rm) && !i.has(M::Rz) {
        return half_bits(exact);
    }
    let negative = exact.is_sign_negative();
    // By magnitude: the greatest not beyond it, or the least not short of it.
    let size = exact.abs();
    let outwards = up != negative;
    let below = (0..=0x7c00u16).rev().find(|&h| f16::from_bits(h).to_f64() <= size).unwrap();
    let exactly = f16::from_bits(below).to_f64() == size;
    let magnitude = if outwards && !exactly { below + 1 } else { below };
    magnitude | u16::from(negative) << 15
}

/// As above, of the upper halves of single-precision numbers.
pub(super) fn directed_brain(i: &Instruction, exact: f64) -> u16 {
    if exact.is_nan() {
        return 0x7fff;
    }
    if exact.is_infinite() {
        return bf16::from_f64(exact).to_bits();
    }
    let negative = exact.is_sign_negative();
    let (down, up, zero) = (i.has(M::Rm), i.has(M::Rp), i.has(M::Rz));
    let value = |bits: u16| bf16::from_bits(bits).to_f64();
    let below = (0..=0x7f80u16).rev().find(|&b| value(b) <= exact.abs()).unwrap();
    let short = exact.abs() - value(below);
    let magnitude = if short == 0.0 || zero || up && negative || down && !negative {
        below
    } else if up || down {
        below + 1
    } else {
        return bf16::from_f64(coarse(exact, 7, -126)).to_bits();
    };
    magnitude | u16::from(negative) << 15
}

fn half_bits(value: f64) -> u16 {
    f16::from_f64(coarse(value, 10, -14)).to_bits()
}

pub(super) fn pack(brain: bool, values: [f64; 2], i: &Instruction) -> u32 {
    let bits = values.map(|value| {
        let value = if i.has(M::Sat) {
            if value > 0.0 { value.min(1.0) } else { 0.0 }
        } else if i.has(M::Relu) && value < 0.0 {
            0.0
        } else {
            value
        };
        match (value.is_nan(), brain) {
            (true, _) => 0x7fff,
            (false, true) => bf16::from_f64(coarse(value, 7, -126)).to_bits(),
            (false, false) => half_bits(value),
        }
    });
    flushed_halves(i, u32::from(bits[0]) | u32::from(bits[1]) << 16, brain)
}

/// A sum whose last bit says whether there is a rest, so that rounding it to fewer bits is rounding
/// the exact sum: rounding to odd.
pub(super) fn nudged(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let (large, small) = if a.abs() > b.abs() { (a, b) } else { (b, a) };
    let rest = small - (sum - large);
    match (sum.to_bits() & 1, rest.partial_cmp(&0.0)) {
        (0, Some(std::cmp::Ordering::Greater)) => sum.next_up(),
        (0, Some(std::cmp::Ordering::Less)) => sum.next_down(),
        _ => sum,
    }
}

/// As above; opposite numbers that cancel give a negative zero when rounding down.
pub(super) fn summed(i: &Instruction, a: f64, b: f64) -> f64 {
    let sum = nudged(a, b);
    let opposite = a.is_sign_negative() != b.is_sign_negative();
    if sum == 0.0 && opposite && i.has(M::Rm) { -0.0 } else { sum }
}
