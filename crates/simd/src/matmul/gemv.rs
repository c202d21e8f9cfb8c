//! Products of quantised weights with one activation row.

use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

use super::block::{Block, add_block, operands};
use super::gemm::gemm_tile;
use super::product::{Product, Q8Activations, TOO_WIDE, ends_leaf, finish, fits, prefetch};
use crate::activations;
use crate::format::{Factors, Quant};
use crate::vector::Simd;

/// Matrix-vector product: streams the weights, with sums in registers. Scalar code, which has no registers for them,
/// shares the loops of [`gemm_tile`].
#[inline(always)]
pub(super) unsafe fn gemv_in<S: Simd, Q: Quant, const G: usize, const P: usize>(
    p: &Product<'_>,
    x: Q8Activations,
    first: usize,
    row: usize,
) {
    if const { !fits::<S, G>() } {
        unreachable!("{TOO_WIDE}");
    }
    if const { S::ACCUMULATORS == 1 } {
        // SAFETY: the caller's contract.
        return unsafe { gemm_tile::<S, Q, G, 1>(p, x, first, row..row + 1) };
    }
    // SAFETY: as in `gemm_tile`.
    unsafe {
        let mut w = p.weights.as_ptr().add(first * p.layout.group_bytes());
        let count = activations::blocks(p.layout.k()) * x.residual_planes;
        let place = activations::place(row, p.of, count);
        let mut blocks = x.blocks.add(place.first);
        let (mut sums, mut closed) = ([S::splat(0.0); G], [S::splat(0.0); G]);
        let superblocks = p.layout.superblocks();
        let mut factors = MaybeUninit::<[Factors<S>; G]>::uninit();
        let factors = factors.as_mut_ptr().cast::<Factors<S>>();
        for s in 0..superblocks {
            let ahead = w.wrapping_add(p.loops.prefetch_distance);
            prefetch::<S>(ahead, 0, const { G * Q::FORM.line(0) });
            for g in 0..G {
                Q::scales::<S, G>(w, g, factors.add(g), 0);
            }
            // Two variables instead of an array: compilers keep arrays with variable indices in memory.
            let (mut first_parts, mut second_parts) =
                ([[S::splat(0.0); 1]; G], [[S::splat(0.0); 1]; G]);
            macro_rules! begin {
                ($b:expr, $parts:ident) => {
                    for (g, part) in $parts.iter_mut().enumerate() {
                        *part = [Q::minus_bias::<S>(factors.add(g), $b)];
                    }
                };
            }
            macro_rules! end {
                ($x:expr, $parts:ident) => {
                    let scale = S::splat((*$x).scale);
                    for (sum, &[part]) in sums.iter_mut().zip(&$parts) {
                        *sum = S::fma(part, scale, *sum);
                    }
                };
            }
            macro_rules! plane {
                ($b:expr, $plane:literal, $parts:ident, $operands:ident) => {
                    let x = blocks.add(($b * x.residual_planes + $plane) * place.step);
                    if const { Q::LEAVES } {
                        begin!($b, $parts);
                    }
                    let w = Block { operands: &$operands, factors, b: $b };
                    $parts = add_block::<S, Q, G, 1>(w, x, || $parts);
                    if const { Q::LEAVES } {
                        end!(x, $parts);
                    }
                };
            }
            macro_rules! step {
                ($b:expr) => {
                    // Hardware prefetchers follow a stream whose lines are requested in order; a compiler would mix
                    // the requests of several blocks.
                    compiler_fence(Ordering::SeqCst);
                    let operands = operands::<S, Q, G>(w, $b);
                    prefetch::<S>(ahead, G * Q::FORM.line($b), const { G * Q::FORM.bits });
                    plane!($b, 0, first_parts, operands);
                    if const { P == 2 } {
                        plane!($b, 1, second_parts, operands);
                    }
                };
            }
            if const { !Q::LEAVES } {
                begin!(0, first_parts);
                second_parts = first_parts;
            }
            for pair in 0..Q::COLUMNS / 64 {
                step!(2 * pair);
                step!(2 * pair + 1);
            }
            if const { !Q::LEAVES } {
                end!(blocks, first_parts);
                if const { P == 2 } {
                    end!(blocks.add(place.step), second_parts);
                }
            }
            w = w.add(G * Q::BYTES);
            blocks = blocks.add(Q::COLUMNS / 32 * x.residual_planes * place.step);
            if const { Q::LEAVES } && ends_leaf(Q::COLUMNS, s, superblocks) {
                for (closed, sum) in closed.iter_mut().zip(&mut sums) {
                    (*closed, *sum) = (S::add(*closed, *sum), S::splat(0.0));
                }
            }
        }
        let sums = if const { Q::LEAVES } { closed } else { sums };
        for (g, &sum) in sums.iter().enumerate() {
            finish::<S>(p, first + g, row, sum);
        }
    }
}
