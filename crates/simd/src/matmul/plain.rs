//! Products of weights that are not quantised (`F32`, `F16`, `BF16`).

use std::ops::Range;

use super::product::{Product, ends_leaf, finish, prefetch};
use crate::activations::{self, F32Block, TILE};
use crate::format::Plain;
use crate::packed::LINE;
use crate::vector::{LANES, Simd};

/// Columns of a superblock of plain weights.
pub(super) const PLAIN: usize = 16;

#[inline(always)]
pub(super) unsafe fn plain_in<S: Simd, P: Plain>(p: &Product<'_>, x: *const F32Block) {
    // SAFETY: the caller's contract.
    unsafe {
        for first in p.rows.clone().step_by(p.loops.tile) {
            let rows = first..p.rows.end.min(first + p.loops.tile);
            // The sums of one row stay in registers.
            if rows.len() == 1 {
                plain_tile::<S, P, 1>(p, x, rows);
            } else {
                plain_tile::<S, P, TILE>(p, x, rows);
            }
        }
    }
}

/// Sums of one row of a plain product: four accumulators of a leaf, which take its columns in turn, and the leaves
/// before.
#[derive(Clone, Copy)]
struct Chains<S: Simd> {
    open: [S::F; 4],
    closed: S::F,
}

impl<S: Simd> Chains<S> {
    /// # Safety
    ///
    /// As for [`Simd`], here and below.
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: the caller's contract.
        let zero = unsafe { S::splat(0.0) };
        Self { open: [zero; 4], closed: zero }
    }

    #[inline(always)]
    unsafe fn close(&mut self) {
        let [a, b, c, d] = self.open;
        // SAFETY: the caller's contract.
        unsafe {
            self.closed = S::add(self.closed, S::add(S::add(a, b), S::add(c, d)));
            self.open = [S::splat(0.0); 4];
        }
    }
}

/// Up to `N` rows times all row groups.
#[inline(always)]
pub(super) unsafe fn plain_tile<S: Simd, P: Plain, const N: usize>(
    p: &Product<'_>,
    x: *const F32Block,
    rows: Range<usize>,
) {
    // SAFETY: the caller's contract: weights of the layout's size, activations that cover its
    // columns in blocks of 32, rows of the product.
    unsafe {
        let superblocks = p.layout.superblocks();
        let bytes = PLAIN * LANES * P::WIDTH;
        let place = activations::place(rows.start, p.of, activations::blocks(p.layout.k()));
        let x = x.add(place.first).cast::<f32>();
        let n = rows.len().min(N);
        for group in p.groups.clone() {
            let mut w = p.weights.as_ptr().add(group * superblocks * bytes);
            let mut sums = [Chains::<S>::new(); N];
            for s in 0..superblocks {
                prefetch::<S>(w.wrapping_add(p.loops.prefetch_distance), 0, bytes / LINE);
                let mut columns = [S::splat(0.0); PLAIN];
                for (k, column) in columns.iter_mut().enumerate() {
                    *column = P::load::<S>(w.add(k * LANES * P::WIDTH));
                }
                let mut x = x.add(s / 2 * place.step * 32 + s % 2 * PLAIN);
                for sums in &mut sums[..if N == 1 { 1 } else { n }] {
                    let mut chains = sums.open;
                    for k in 0..PLAIN {
                        chains[k % 4] = S::fma(columns[k], S::splat(*x.add(k)), chains[k % 4]);
                    }
                    sums.open = chains;
                    if ends_leaf(PLAIN, s, superblocks) {
                        sums.close();
                    }
                    x = x.add(32);
                }
                w = w.add(bytes);
            }
            for (row, sums) in rows.clone().zip(&sums) {
                finish::<S>(p, group, row, sums.closed);
            }
        }
    }
}
