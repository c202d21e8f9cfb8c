//! Products of one quantised weight block with activation rows.

use crate::activations::{Q8Block, TILE};
use crate::format::{Factors, Quant};
use crate::vector::{BIAS, Simd};

/// A weight block of each of `G` row groups.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, S: Simd, const G: usize> {
    pub(super) operands: &'a [[S::B; 8]; G],
    /// The superblock's scales and minima, for `G` row groups.
    pub(super) factors: *const Factors<S>,
    /// Index of the block in its superblock.
    pub(super) b: usize,
}

/// The integers of block `b` of a superblock, in the form that [`add_half`] takes.
///
/// # Safety
///
/// As for [`Quant::operands`].
#[inline(always)]
pub(super) unsafe fn operands<S: Simd, Q: Quant, const G: usize>(
    sb: *const u8,
    b: usize,
) -> [[S::B; 8]; G] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut w = Q::operands::<S, G>(sb, b);
        if const { Q::SIGNED } {
            for w in w.as_flattened_mut() {
                *w = S::operand_8(*w);
            }
        }
        w
    }
}

/// Initial values of the dot products of block `b`, or of half `half` of it, for `R` neighbouring rows.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks.
#[inline(always)]
pub(super) unsafe fn start<S: Simd, Q: Quant, const G: usize, const R: usize>(
    x: *const Q8Block,
    b: usize,
    half: usize,
) -> [[S::I; R]; G] {
    // SAFETY: the caller's contract; reads are within the blocks.
    unsafe {
        let (negated, excess) = (Q::FORM.negated(b, half), Q::FORM.excess(b, half));
        let bias = if Q::CONVERTED { BIAS } else { 0 };
        let mut dots = [S::splat_i(0); R];
        for (r, dot) in dots.iter_mut().enumerate() {
            let x = &*x.add(r);
            *dot = if const { Q::SIGNED } {
                S::init_8(x.less128)
            } else {
                let start = match (negated, Q::HALVES) {
                    (false, false) => x.less(excess),
                    (false, true) => x.less_half(excess, half),
                    (true, false) => x.less_negated(excess),
                    (true, true) => x.less_negated_half(excess, half),
                };
                S::splat_i(start - bias)
            };
        }
        [dots; G]
    }
}

/// Adds the dot products of half `half` of a weight block of each of `G` row groups with `R` neighbouring rows.
///
/// This is a function that is always inlined, like [`start`], not a closure: a closure that is called twice may not
/// be inlined, and is then compiled without the instruction set, so that each intrinsic becomes a call.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks.
#[inline(always)]
pub(super) unsafe fn add_half<S: Simd, Q: Quant, const G: usize, const R: usize>(
    dots: [[S::I; R]; G],
    w: Block<'_, S, G>,
    x: *const Q8Block,
    half: usize,
) -> [[S::I; R]; G] {
    // SAFETY: the caller's contract; reads are within the blocks.
    unsafe {
        let q = (&raw const (*x).q).cast::<i8>().add(16 * half);
        let mut operands = [[w.operands[0][0]; 4]; G];
        for (to, w) in operands.iter_mut().zip(w.operands) {
            *to = [w[4 * half], w[4 * half + 1], w[4 * half + 2], w[4 * half + 3]];
        }
        if const { Q::SIGNED } {
            S::dots_8(dots, operands, q)
        } else {
            S::dots_u(dots, operands, q, const { Q::FORM.greatest_operand() })
        }
    }
}

/// The contribution of one weight block of each of `G` row groups to `R` neighbouring rows, added to the result of
/// `parts`. `parts` is called late, because the dot products need the registers until then.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks.
#[inline(always)]
pub(super) unsafe fn add_block<S: Simd, Q: Quant, const G: usize, const R: usize>(
    w: Block<'_, S, G>,
    x: *const Q8Block,
    parts: impl FnOnce() -> [[S::F; R]; G],
) -> [[S::F; R]; G] {
    // SAFETY: the caller's contract; reads are within the blocks.
    unsafe {
        let dots = start::<S, Q, G, R>(x, w.b, 0);
        let mut dots = add_half::<S, Q, G, R>(dots, w, x, 0);
        if const { !Q::HALVES } {
            dots = add_half::<S, Q, G, R>(dots, w, x, 1);
        }
        let mut parts = scale_half::<S, Q, G, R>(dots, w, x, 0, parts());
        if const { Q::HALVES } {
            let dots = start::<S, Q, G, R>(x, w.b, 1);
            let dots = add_half::<S, Q, G, R>(dots, w, x, 1);
            parts = scale_half::<S, Q, G, R>(dots, w, x, 1, parts);
        }
        parts
    }
}

/// Adds the dot products of half `half` of a weight block, or of the whole of it, to `parts`.
///
/// # Safety
///
/// As for [`add_block`].
#[inline(always)]
pub(super) unsafe fn scale_half<S: Simd, Q: Quant, const G: usize, const R: usize>(
    dots: [[S::I; R]; G],
    w: Block<'_, S, G>,
    x: *const Q8Block,
    half: usize,
    mut parts: [[S::F; R]; G],
) -> [[S::F; R]; G] {
    // SAFETY: the caller's contract; the form has the factors that are read.
    unsafe {
        for r in 0..R {
            for g in 0..G {
                let scale = (*w.factors.add(g)).scales[half][w.b];
                let sum = if const { Q::CONVERTED } {
                    S::to_f(dots[g][r])
                } else {
                    S::bits_f(dots[g][r])
                };
                parts[g][r] = S::fma(sum, scale, parts[g][r]);
            }
            if const { Q::MINIMUM } {
                let x = &*x.add(r);
                let sum = S::splat(if Q::HALVES { x.sum_half(half) } else { x.sum });
                for (g, parts) in parts.iter_mut().enumerate() {
                    let minimum = (*w.factors.add(g)).minima[half][w.b];
                    parts[r] = S::fma(minimum, sum, parts[r]);
                }
            }
        }
        parts
    }
}

/// [`add_block`] to sums in memory; those of neighbouring row groups are [`TILE`] apart. If blocks share an
/// activation scale, adds to `parts`. Otherwise starts from `minus_bias`, and adds the scaled result to `sums`.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks, `sums` and `parts` for `R` values of each row group.
#[inline(always)]
pub(super) unsafe fn fold<S: Simd, Q: Quant, const G: usize, const R: usize>(
    w: Block<'_, S, G>,
    minus_bias: [S::F; G],
    x: *const Q8Block,
    sums: *mut S::F,
    parts: *mut S::F,
) {
    // SAFETY: the caller's contract; reads are within the blocks.
    unsafe {
        let before = || {
            let mut before = [[minus_bias[0]; R]; G];
            for (g, before) in before.iter_mut().enumerate() {
                for (r, before) in before.iter_mut().enumerate() {
                    *before = if Q::LEAVES { minus_bias[g] } else { *parts.add(g * TILE + r) };
                }
            }
            before
        };
        let part = add_block::<S, Q, G, R>(w, x, before);
        for (g, part) in part.iter().enumerate() {
            for (r, &part) in part.iter().enumerate() {
                let at = g * TILE + r;
                if const { Q::LEAVES } {
                    *sums.add(at) = S::fma(part, S::splat((*x.add(r)).scale), *sums.add(at));
                } else {
                    *parts.add(at) = part;
                }
            }
        }
    }
}
