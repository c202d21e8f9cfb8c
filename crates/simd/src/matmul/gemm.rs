//! Products of quantised weights with a tile of activation rows, in vector registers.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::block::{Block, fold, operands};
use super::product::{
    LAST, Product, Q8Activations, TOO_WIDE, ends_leaf, finish, fits, prefetch, prefetch_out,
};
use crate::activations::{self, Q8Block, TILE};
use crate::format::{Factors, Quant};
use crate::packed::LINE;
use crate::vector::Simd;

/// Chooses the number of rows by the number of registers.
#[inline(always)]
pub(super) unsafe fn gemm_in<S: Simd, Q: Quant, const G: usize>(
    p: &Product<'_>,
    x: Q8Activations,
    first: usize,
    rows: Range<usize>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if const { !fits::<S, G>() } {
            unreachable!("{TOO_WIDE}");
        } else if const { S::ACCUMULATORS >= 16 && G == 1 } {
            gemm_tile::<S, Q, G, 8>(p, x, first, rows);
        } else if const { S::ACCUMULATORS >= 4 } {
            gemm_tile::<S, Q, G, 4>(p, x, first, rows);
        } else {
            gemm_tile::<S, Q, G, 1>(p, x, first, rows);
        }
    }
}

/// [`gemm`], `R` rows at a time.
#[inline(always)]
pub(super) unsafe fn gemm_tile<S: Simd, Q: Quant, const G: usize, const R: usize>(
    p: &Product<'_>,
    x: Q8Activations,
    first: usize,
    rows: Range<usize>,
) {
    // SAFETY: the weights are the layout's size, the activations cover its columns; the row groups and
    // the rows are the product's.
    unsafe {
        let mut w = p.weights.as_ptr().add(first * p.layout.group_bytes());
        let count = activations::blocks(p.layout.k()) * x.residual_planes;
        let place = activations::place(rows.start, p.of, count);
        let mut blocks = x.blocks.add(place.first);
        let (n, whole) = (rows.len(), rows.len() / R * R);
        // Half a page from the activations: a store to a sum would delay reads whose distance is a multiple of a
        // page.
        let mut space = [MaybeUninit::<S::F>::uninit(); 7 * TILE];
        let space = space.as_mut_ptr().cast::<S::F>();
        let apart = blocks.addr().wrapping_sub(space.addr()) / LINE;
        let sums = space.add((apart + TILE / 2) % TILE);
        let parts = sums.add(G * TILE);
        // With leaves, each block has its own activation scale, and its parts stay in registers.
        let closed = if const { Q::LEAVES } { parts } else { sums };
        start_parts::<S, G>(sums, [S::splat(0.0); G], n);
        start_parts::<S, G>(closed, [S::splat(0.0); G], n);
        let mut factors = MaybeUninit::<[Factors<S>; G]>::uninit();
        let factors = factors.as_mut_ptr().cast::<Factors<S>>();
        let superblocks = p.layout.superblocks();
        let before = (superblocks * Q::COLUMNS / 32).saturating_sub(LAST);
        for s in 0..superblocks {
            let ahead = w.wrapping_add(p.loops.prefetch_distance);
            prefetch::<S>(ahead, 0, const { G * Q::FORM.line(0) });
            for g in 0..G {
                Q::scales::<S, G>(w, g, factors.add(g), 0);
            }
            let mut minus_bias = [S::splat(0.0); G];
            macro_rules! begin {
                ($b:expr) => {
                    for (g, minus_bias) in minus_bias.iter_mut().enumerate() {
                        *minus_bias = Q::minus_bias::<S>(factors.add(g), $b);
                    }
                };
            }
            macro_rules! step {
                ($b:expr) => {
                    let operands = operands::<S, Q, G>(w, $b);
                    prefetch::<S>(ahead, G * Q::FORM.line($b), const { G * Q::FORM.bits });
                    if const { Q::LEAVES } {
                        begin!($b);
                    }
                    if let Some(i) = (s * Q::COLUMNS / 32 + $b).checked_sub(before) {
                        prefetch_out::<S, G>(p, first, &rows, i);
                    }
                    let w = Block { operands: &operands, factors, b: $b };
                    for plane in 0..x.used_planes {
                        let x = blocks.add(($b * x.residual_planes + plane) * place.step);
                        let parts = parts.add(plane * G * TILE);
                        for r in (0..whole).step_by(R) {
                            let (sums, parts) = (sums.add(r), parts.add(r));
                            fold::<S, Q, G, R>(w, minus_bias, x.add(r), sums, parts);
                        }
                        for r in whole..n {
                            let (sums, parts) = (sums.add(r), parts.add(r));
                            fold::<S, Q, G, 1>(w, minus_bias, x.add(r), sums, parts);
                        }
                    }
                };
            }
            if const { !Q::LEAVES } {
                begin!(0);
                for plane in 0..x.used_planes {
                    start_parts::<S, G>(parts.add(plane * G * TILE), minus_bias, n);
                }
            }
            for pair in 0..Q::COLUMNS / 64 {
                step!(2 * pair);
                step!(2 * pair + 1);
            }
            if const { !Q::LEAVES } {
                for plane in 0..x.used_planes {
                    let (x, parts) = (blocks.add(plane * place.step), parts.add(plane * G * TILE));
                    scale_parts::<S, G>(x, parts, sums, n);
                }
            }
            w = w.add(G * Q::BYTES);
            blocks = blocks.add(Q::COLUMNS / 32 * x.residual_planes * place.step);
            if const { Q::LEAVES } && ends_leaf(Q::COLUMNS, s, superblocks) {
                close_leaf::<S, G>(closed, sums, n);
            }
        }
        for g in 0..G {
            for (r, row) in rows.clone().enumerate() {
                finish::<S>(p, first + g, row, *closed.add(g * TILE + r));
            }
        }
    }
}

/// Sets parts or sums of `n` rows to their initial values.
///
/// # Safety
///
/// As for [`Simd`]; `parts` is valid for `n` values of each row group.
#[inline(always)]
unsafe fn start_parts<S: Simd, const G: usize>(parts: *mut S::F, initial: [S::F; G], n: usize) {
    for (g, &value) in initial.iter().enumerate() {
        for r in 0..n {
            // SAFETY: the caller's contract.
            unsafe { *parts.add(g * TILE + r) = value };
        }
    }
}

/// Adds the parts of a superblock in one plane, times their activation scales, to the sums of `n` rows.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `n` blocks, `parts` and `sums` for `n` values of each row group.
#[inline(always)]
unsafe fn scale_parts<S: Simd, const G: usize>(
    x: *const Q8Block,
    parts: *const S::F,
    sums: *mut S::F,
    n: usize,
) {
    for g in 0..G {
        for r in 0..n {
            // SAFETY: the caller's contract.
            unsafe {
                let (sum, part) = (sums.add(g * TILE + r), *parts.add(g * TILE + r));
                *sum = S::fma(part, S::splat((*x.add(r)).scale), *sum);
            }
        }
    }
}

/// Adds the sums of a leaf to those of the leaves before it, and clears them.
///
/// # Safety
///
/// As for [`Simd`]; `closed` and `sums` are valid for `n` values of each row group.
#[inline(always)]
unsafe fn close_leaf<S: Simd, const G: usize>(closed: *mut S::F, sums: *mut S::F, n: usize) {
    for g in 0..G {
        for i in g * TILE..g * TILE + n {
            // SAFETY: the caller's contract.
            unsafe {
                *closed.add(i) = S::add(*closed.add(i), *sums.add(i));
                *sums.add(i) = S::splat(0.0);
            }
        }
    }
}
