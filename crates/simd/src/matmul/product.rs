//! Arguments of a matrix product, and the steps that all of its kernels share: leaves, prefetches, output.

use std::ops::Range;

use crate::activations::{F32Block, Q8Block, TILE};
use crate::isa::Isa;
use crate::packed::{LINE, PackedLayout};
use crate::vector::{LANES, Simd, load_first, store_first};

/// Columns that form a leaf: their products are added up before they are added to those of other columns. Not
/// larger than a long superblock.
pub(super) const LEAF: usize = 256;

/// True if superblock `s` of `of` ends a leaf, for a type with superblocks of `columns`, fewer than a leaf.
pub(super) const fn ends_leaf(columns: usize, s: usize, of: usize) -> bool {
    (s + 1).is_multiple_of(LEAF / columns) || s + 1 == of
}

/// Loop parameters of a product. They do not change a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loops {
    /// Prefetch distance of weights, in bytes.
    pub prefetch_distance: usize,
    /// Activation rows that are multiplied with a weight block in registers: a divisor of [`TILE`]. Ignored with
    /// one row.
    pub tile: usize,
}

impl Loops {
    /// Parameters for a product with `rows` rows that has not been tuned. With several rows or short codes, time
    /// passes between lines, and hardware prefetchers do not detect a stream.
    #[must_use]
    pub fn heuristic(isa: Isa, layout: &PackedLayout, rows: usize) -> Self {
        let prefetch_distance =
            if rows > 1 || layout.bits() < 4 { 8192 } else { isa.prefetch_distance() };
        Self { prefetch_distance, tile: TILE }
    }
}

/// Activation rows in the form that a product reads, see [`crate::activations`].
#[derive(Clone, Copy, Debug)]
pub enum Activations {
    Q8(Q8Activations),
    F32(*const F32Block),
}

/// Quantised activation rows.
#[derive(Clone, Copy, Debug)]
pub struct Q8Activations {
    /// The first block.
    pub blocks: *const Q8Block,
    /// Residual planes in the blocks, 1 or 2.
    pub residual_planes: usize,
    /// Residual planes to use: with 1, the second is skipped.
    pub used_planes: usize,
}

/// Arguments of a product, except the instruction set.
#[derive(Clone, Debug)]
pub struct Product<'a> {
    /// Layout of the weights.
    pub layout: &'a PackedLayout,
    /// The whole packed matrix.
    pub weights: &'a [u8],
    /// Row groups to compute: output columns `16 * start..16 * end`, limited by the matrix's rows.
    pub groups: Range<usize>,
    pub x: Activations,
    /// Activation rows to compute; the first one starts a tile.
    pub rows: Range<usize>,
    /// Rows that the activations were packed for.
    pub of: usize,
    /// Address of output column 0 of row 0.
    pub out: *mut f32,
    /// Distance between output rows.
    pub stride: usize,
    /// Addend with the layout of the output; may be the output itself.
    pub residual: Option<*const f32>,
    /// Loop parameters.
    pub loops: Loops,
}

/// Writes (or adds) 16 output columns of one row.
///
/// # Safety
///
/// As for [`Simd`]; `group` is one of the product's, `row` one of its rows.
#[inline(always)]
pub(super) unsafe fn finish<S: Simd>(p: &Product<'_>, group: usize, row: usize, sum: S::F) {
    // SAFETY: the columns that the matrix has are within the caller's output.
    unsafe {
        let column = group * LANES;
        let n = (p.layout.rows() - column).min(LANES);
        let at = row * p.stride + column;
        let sum = match p.residual {
            Some(r) => S::add(load_first::<S>(r.add(at), n), sum),
            None => sum,
        };
        store_first::<S>(p.out.add(at), sum, n);
    }
}

/// Prefetches lines of the superblock at `w`, ahead of the reader. Each block prefetches its own lines, which
/// spreads the requests.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn prefetch<S: Simd>(w: *const u8, first: usize, lines: usize) {
    for line in 0..lines {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(w.wrapping_add((first + line) * LINE)) };
    }
}

/// True if the instruction set has registers for `G` interleaved row groups. Other combinations are not compiled.
pub(super) const fn fits<S: Simd, const G: usize>() -> bool {
    G == 1 || G * 8 <= S::ACCUMULATORS
}

/// Panic message for combinations that [`fits`] excludes.
pub(super) const TOO_WIDE: &str =
    "a layout interleaves no more row groups than the instruction set has registers for";

/// Number of blocks at the end of a tile during which its output lines are prefetched.
pub(super) const LAST: usize = 8;

/// Prefetches part `i` of [`LAST`] of the output's lines: a store to a distant line delays every store after it.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn prefetch_out<S: Simd, const G: usize>(
    p: &Product<'_>,
    first: usize,
    rows: &Range<usize>,
    i: usize,
) {
    for row in i * rows.len() / LAST..(i + 1) * rows.len() / LAST {
        let at = (rows.start + row) * p.stride + first * LANES;
        for g in 0..G {
            // SAFETY: the caller's contract.
            unsafe { S::prefetch(p.out.wrapping_add(at + g * LANES).cast()) };
        }
    }
}
