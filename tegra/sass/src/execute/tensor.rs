//! Sums of products with the rounding of a tensor core: one block of products plus the accumulator
//! at a time.
//!
//! Products are exact. The terms of a block are aligned to the largest exponent, with one bit more
//! than single precision, and truncated there. Their sum is exact, then normalised and truncated
//! again or, for halves, rounded to nearest. F. Khattak and M. Mikaitis, *Accurate Models of NVIDIA
//! Tensor Cores* (arXiv 2512.07004), found this on Ampere (A100, A30, A2); the A2's chip, GA107,
//! has the tensor cores of sm_86. Their model leaves open signs of zeros and infinities: here a sum
//! of zero is positive, and infinities and NaN follow IEEE 754.

use super::number::{binary16, half_to_single};

/// Number of rows of the left matrix and columns of the right one.
pub(super) const ROWS: usize = 16;
pub(super) const COLUMNS: usize = 8;
/// Largest number of products in a result.
const DEPTH: usize = 16;
/// Fraction bits of an aligned term: 23 of single precision plus one.
const FRACTION: u32 = 24;
/// Exponents of zero and of non-finite values: below and above all others, in products too.
const ZERO: i32 = -(1 << 12);
const SPECIAL: i32 = 1 << 14;

/// A number with `BITS` fraction bits. Denormals have the smallest exponent of their format.
#[derive(Clone, Copy, Default)]
pub(crate) struct Term<const BITS: u32> {
    value: f32,
    significand: i32,
    exponent: i32,
}

/// A matrix element: the product of two has the fraction bits of an aligned term.
pub(crate) type Factor = Term<{ FRACTION / 2 }>;

impl<const BITS: u32> Term<BITS> {
    /// `bits` is the encoding without its sign, with `fraction` fraction bits and exponent bias
    /// `bias`.
    #[inline(always)]
    fn new(value: f32, bits: u32, fraction: u32, bias: i32) -> Self {
        let field = (bits >> fraction) as i32;
        let hidden = u32::from(field != 0) << fraction;
        let magnitude = (bits & ((1 << fraction) - 1) | hidden) as i32;
        // The bits below are zero for tf32 and bfloat16.
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

    /// A single-precision number, or one of a format that is its upper part.
    #[inline(always)]
    pub(super) fn single(value: f32) -> Self {
        Self::new(value, value.to_bits() & 0x7fff_ffff, 23, 127)
    }

    /// A half, given its encoding and its value.
    #[inline(always)]
    pub(super) fn half(half: u16, value: f32) -> Self {
        Self::new(value, u32::from(half & 0x7fff), 10, 15)
    }
}

/// Shape and rounding of a sum of products.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    /// Number of products in a result.
    pub(super) depth: usize,
    /// Number of products in a block; the sum of each block is rounded.
    pub(super) block: usize,
    /// Accumulator and result are halves instead of single precision.
    pub(super) half: bool,
}

/// Adds the products of rows and columns to `results`.
#[inline(always)]
pub(super) fn add(
    sums: Sums,
    rows: &[Factor],
    columns: &[Factor],
    results: &mut [[f32; COLUMNS]; ROWS],
) {
    let Sums { depth, block, half } = sums;
    // Smallest exponent to which terms are aligned.
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

/// Shifts a term of at most 27 bits to the right, truncating towards zero.
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

/// Truncates to single precision; infinite from 2^128 on.
#[inline(always)]
fn cut(value: f64) -> f32 {
    const LIMIT: f64 = (1u128 << 127) as f64 * 2.0;
    let nearest = value as f32;
    let beyond = f64::from(nearest.abs()) > value.abs() && value.abs() < LIMIT;
    f32::from_bits(nearest.to_bits().wrapping_sub(u32::from(beyond)))
}

/// Integer matrix product, or the number of differing bits. At most 256 products of 16 bits are
/// added, so no sum overflows 32 bits.
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
