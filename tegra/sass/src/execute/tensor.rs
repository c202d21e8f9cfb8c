//! Sums of products as a tensor core makes them: a block of products and the accumulator at a time.
//!
//! Products are exact. All terms of a block are aligned to the one of the largest exponent, with one bit more than
//! single precision has, what is shifted out is cut off, and the sum of the rest is exact: only then is it
//! normalised, and cut off once more or, for halves, rounded to nearest. F. Khattak and M. Mikaitis, *Accurate
//! Models of NVIDIA Tensor Cores* (arXiv 2512.07004), found this for Ampere: their model of A100, A30 and A2, of
//! which the last, GA107, has the tensor cores of sm_86. Theirs does not say what becomes of zeros' signs and of
//! infinities; here a sum of zero is positive, and infinities and NaN are as in IEEE 754.

use super::number::{binary16, half_to_single};

/// Rows of the left matrix and columns of the right one.
pub(super) const ROWS: usize = 16;
pub(super) const COLUMNS: usize = 8;
/// Products that a result needs at most.
const DEPTH: usize = 16;
/// Bits behind the point of an aligned term: 23 of single precision, and the one more.
const FRACTION: u32 = 24;
/// Exponents of zero and of what is not finite: below and above all others, in a product too.
const ZERO: i32 = -(1 << 12);
const SPECIAL: i32 = 1 << 14;

/// A number with `BITS` bits behind the point of its significand; a denormal has the least exponent of its format.
#[derive(Clone, Copy, Default)]
pub(crate) struct Term<const BITS: u32> {
    value: f32,
    significand: i32,
    exponent: i32,
}

/// An element of a matrix: a product of two has the bits of an aligned term.
pub(crate) type Factor = Term<{ FRACTION / 2 }>;

impl<const BITS: u32> Term<BITS> {
    /// `bits` are a format's without its sign, with so many bits behind the point and such a bias.
    #[inline(always)]
    fn new(value: f32, bits: u32, fraction: u32, bias: i32) -> Self {
        let field = (bits >> fraction) as i32;
        let hidden = u32::from(field != 0) << fraction;
        let magnitude = (bits & ((1 << fraction) - 1) | hidden) as i32;
        // What lies below is zero: of tf32 and bfloat16.
        let widened = if fraction > BITS {
            magnitude >> (fraction - BITS)
        } else {
            magnitude << (BITS - fraction)
        };
        let significand = if value.is_sign_negative() { -widened } else { widened };
        let exponent = match value {
            0.0 => ZERO,
            _ if value.is_finite() => field.max(1) - bias,
            _ => SPECIAL,
        };
        Self { value, significand, exponent }
    }

    /// Of single precision, or a format that is its upper part.
    #[inline(always)]
    pub(super) fn single(value: f32) -> Self {
        Self::new(value, value.to_bits() & 0x7fff_ffff, 23, 127)
    }

    /// Of a half, whose value is given too.
    #[inline(always)]
    pub(super) fn half(half: u16, value: f32) -> Self {
        Self::new(value, u32::from(half & 0x7fff), 10, 15)
    }
}

/// What a tensor core makes of its matrices.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    /// Products that a result needs.
    pub(super) depth: usize,
    /// Products of a block; each block's sum is rounded.
    pub(super) block: usize,
    /// Whether accumulator and result are halves, and not single.
    pub(super) half: bool,
}

/// Adds the products of rows and columns to the accumulator.
#[inline(always)]
pub(super) fn add(
    sums: Sums,
    rows: &[Factor],
    columns: &[Factor],
    results: &mut [[f32; COLUMNS]; ROWS],
) {
    let Sums { depth, block, half } = sums;
    // Nothing is aligned to a smaller exponent.
    let floor = if half { -20 } else { -132 };
    let (mut significands, mut exponents) = ([[0; COLUMNS]; DEPTH], [[0; COLUMNS]; DEPTH]);
    for (inner, factors) in columns.chunks_exact(COLUMNS).enumerate() {
        for (column, factor) in factors.iter().enumerate() {
            significands[inner][column] = factor.significand;
            exponents[inner][column] = factor.exponent;
        }
    }
    for first in (0..depth).step_by(block) {
        let inner = first..first + block;
        for (row, results) in rows.chunks_exact(depth).zip(results.iter_mut()) {
            let factors = || row[inner.clone()].iter().zip(inner.clone());
            let (mut top, mut total) = ([0; COLUMNS], [0; COLUMNS]);
            for c in 0..COLUMNS {
                top[c] = Term::<FRACTION>::single(results[c]).exponent.max(floor);
            }
            for (factor, inner) in factors() {
                for c in 0..COLUMNS {
                    top[c] = top[c].max(factor.exponent.wrapping_add(exponents[inner][c]));
                }
            }
            for c in 0..COLUMNS {
                let start = Term::<FRACTION>::single(results[c]);
                total[c] = aligned(start.significand, top[c].wrapping_sub(start.exponent));
            }
            for (factor, inner) in factors() {
                for c in 0..COLUMNS {
                    let product = factor.significand.wrapping_mul(significands[inner][c]);
                    let exponent = factor.exponent.wrapping_add(exponents[inner][c]);
                    total[c] =
                        aligned(product, top[c].wrapping_sub(exponent)).wrapping_add(total[c]);
                }
            }
            for c in 0..COLUMNS {
                let exact = if top[c] < SPECIAL / 2 {
                    let unit = f64::from_bits(((top[c] - FRACTION as i32 + 1023) as u64) << 52);
                    f64::from(total[c]) * unit
                } else {
                    let column = columns[first * COLUMNS + c..].iter().step_by(COLUMNS);
                    ieee(results[c], &row[inner.clone()], column)
                };
                results[c] = if half { half_to_single(binary16(exact)) } else { cut(exact) };
            }
        }
    }
}

/// A term of 27 bits at most, moved to the right; what falls out is cut off, towards zero.
#[inline(always)]
fn aligned(significand: i32, shift: i32) -> i32 {
    let shift = shift.min(30) as u32;
    let below = 1i32.wrapping_shl(shift).wrapping_sub(1);
    significand.wrapping_add(significand >> 31 & below).wrapping_shr(shift)
}

fn ieee<'a>(start: f32, row: &[Factor], column: impl Iterator<Item = &'a Factor>) -> f64 {
    let products = row.iter().zip(column).map(|(a, b)| f64::from(a.value) * f64::from(b.value));
    products.fold(f64::from(start), |sum, product| sum + product)
}

/// Single precision, what does not fit cut off; from 2^128 on infinite.
#[inline(always)]
fn cut(value: f64) -> f32 {
    const LIMIT: f64 = (1u128 << 127) as f64 * 2.0;
    let nearest = value as f32;
    let beyond = f64::from(nearest.abs()) > value.abs() && value.abs() < LIMIT;
    f32::from_bits(nearest.to_bits().wrapping_sub(u32::from(beyond)))
}

/// The product of integer matrices, or how many of their bits differ. No sum leaves 32 bits: there are 256 products at
/// most, of 16 bits.
#[inline(always)]
pub(super) fn integer_products(
    depth: usize,
    differ: bool,
    rows: &[i32],
    columns: &[i32],
    results: &mut [[i32; COLUMNS]; ROWS],
) {
    let (columns, _) = columns.as_chunks::<COLUMNS>();
    for (row, results) in rows.chunks_exact(depth).zip(results) {
        for (&x, column) in row.iter().zip(columns) {
            for (result, &y) in results.iter_mut().zip(column) {
                let term = if differ { x ^ y } else { x.wrapping_mul(y) };
                *result = result.wrapping_add(term);
            }
        }
    }
}
