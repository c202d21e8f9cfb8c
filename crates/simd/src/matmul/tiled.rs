//! Matrix products of many rows on a matrix unit (AMX).
//!
//! The unit computes the exact integer sums of a block, 16 matrix rows by up to 16 activation rows at a time.
//! Vector code combines them as `docs/numerics.md` describes, like the other loops. Weights are unpacked to signed
//! bytes in memory, 256 columns of two row groups at a time. They are multiplied with all activation rows, whose
//! blocks the unit reads in place.
//!
//! The sums of one row group and one tile of rows over those columns are a *column run*. While vector code adds up
//! one run, with partial sums in registers, the unit computes the next one. The results stay in the first-level
//! cache.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::product::{LAST, LEAF, Product, Q8Activations, finish, fits, prefetch, prefetch_out};
use crate::activations::{self, BLOCK, Q8Block, TILE};
use crate::format::{Factors, Quant};
use crate::packed::LINE;
use crate::vector::{BIAS, LANES, MINUS_BIAS, Simd, Tiles};

/// Activation rows in a full tile.
pub(super) const WHOLE_TILE: usize = 16;

/// Activation rows in a half tile: the fewest for which the unit is faster.
pub(super) const HALF_TILE: usize = 8;

/// Row groups that are multiplied with the same activations consecutively: the second finds them in the first-level
/// cache.
const GROUPS: usize = 2;

/// Blocks of the columns that are unpacked at a time: a leaf, or a long superblock.
const BLOCKS: usize = LEAF / BLOCK;

/// Most tile products of a column run: half blocks, or two planes of blocks.
const PRODUCTS: usize = 2 * BLOCKS;

/// Panic message for instruction sets without kernels for a matrix unit.
const NOT_TILED: &str = "an instruction set has a matrix unit only if kernels for it are compiled";

/// [`BLOCKS`] blocks of a row group.
#[repr(C, align(64))]
struct Unpacked<S: Simd> {
    /// Per block, 8 groups of 4 columns of 16 rows.
    weights: [[[u8; LINE]; 8]; BLOCKS],
    factors: Factors<S>,
    /// Initial value of a partial sum that starts at each block.
    minus_bias: [S::F; BLOCKS],
}

/// Results of a column run's tile products.
#[repr(C, align(64))]
struct Results([[[i32; LANES]; WHOLE_TILE]; PRODUCTS]);

/// Unpacks blocks of the `G` interleaved row groups at `w`, from block `first` on, to `to`: one superblock.
///
/// # Safety
///
/// As for [`Simd`]; `w` is valid for the superblock, `to` for the row groups.
#[inline(always)]
unsafe fn unpack<S: Simd, Q: Quant, const G: usize>(
    w: *const u8,
    first: usize,
    ahead: usize,
    to: *mut Unpacked<S>,
) {
    // SAFETY: the caller's contract; stores are into places that exist.
    unsafe {
        let ahead = w.wrapping_add(ahead);
        prefetch::<S>(ahead, 0, const { G * Q::FORM.line(0) });
        for g in 0..G {
            Q::scales::<S, G>(w, g, &raw mut (*to.add(g)).factors, first);
        }
        macro_rules! step {
            ($b:expr) => {
                let operands = Q::operands::<S, G>(w, $b);
                prefetch::<S>(ahead, G * Q::FORM.line($b), const { G * Q::FORM.bits });
                for g in 0..G {
                    let to = to.add(g);
                    let lines = (&raw mut (*to).weights[first + $b]).cast::<u8>();
                    for (i, &line) in operands[g].iter().enumerate() {
                        let excess = Q::FORM.excess($b, i / 4);
                        let line = if excess == 0 { line } else { S::sub_b(line, excess) };
                        S::store_b(lines.add(i * LINE), line);
                    }
                    if $b % Q::SPAN == 0 {
                        (*to).minus_bias[first + $b] =
                            Q::minus_bias::<S>(&raw const (*to).factors, first + $b);
                    }
                }
            };
        }
        for pair in 0..Q::COLUMNS / (2 * BLOCK) {
            step!(2 * pair);
            step!(2 * pair + 1);
        }
    }
}

/// Calls `$step!(r)` for every row `r` of a tile of `$rows`, with a literal `r`: a variable index would move a
/// run's registers to memory.
macro_rules! each_row {
    ($rows:expr, $step:ident) => {
        $step!(0);
        $step!(1);
        $step!(2);
        $step!(3);
        $step!(4);
        $step!(5);
        $step!(6);
        $step!(7);
        if const { $rows == WHOLE_TILE } {
            $step!(8);
            $step!(9);
            $step!(10);
            $step!(11);
            $step!(12);
            $step!(13);
            $step!(14);
            $step!(15);
        }
    };
}

/// Operands of one tile product.
#[derive(Clone, Copy)]
struct Factor {
    block: usize,
    half: usize,
    plane: usize,
}

/// Column run: one row group, one tile of rows, some columns.
#[derive(Clone, Copy)]
struct ColumnRun<S: Simd> {
    weights: *const Unpacked<S>,
    /// The first block of the first row.
    x: *const Q8Block,
    /// Sums of the rows.
    sums: *mut S::F,
    /// Leading rows that an earlier tile has already added.
    done: usize,
    /// True if the two planes of a block are both used.
    both: bool,
    /// The plane to use otherwise.
    plane: usize,
}

impl<S: Simd> ColumnRun<S> {
    /// Tile product `i`.
    #[inline(always)]
    const fn factor<Q: Quant>(&self, i: usize) -> Factor {
        if Q::HALVES {
            Factor { block: i / 2, half: i % 2, plane: self.plane }
        } else if Q::LEAVES && self.both {
            Factor { block: i / 2, half: 0, plane: i % 2 }
        } else {
            Factor { block: i, half: 0, plane: self.plane }
        }
    }
}

/// Strides of a tile's activations.
#[derive(Clone, Copy)]
struct Steps {
    /// Distance between planes.
    plane: usize,
    /// Distance between blocks.
    block: usize,
}

/// The activations of a tile product.
#[inline(always)]
fn activations_of<S: Simd>(run: &ColumnRun<S>, factor: Factor, steps: Steps) -> *const Q8Block {
    run.x.wrapping_add(factor.block * steps.block + factor.plane * steps.plane)
}

/// Computes tile products `2 * pair` and `2 * pair + 1` of a column run.
///
/// # Safety
///
/// As for [`Simd`]; the run is valid, and the unit is configured for its shape.
#[inline(always)]
unsafe fn multiply<S: Simd, Q: Quant, const R: usize>(
    run: &ColumnRun<S>,
    steps: Steps,
    pair: usize,
    results: *mut Results,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let place = |i: usize| {
            let factor = run.factor::<Q>(i);
            let x = activations_of(run, factor, steps);
            let x = (&raw const (*x).q).cast::<i8>().add(BLOCK / 2 * factor.half);
            let w = &raw const (*run.weights).weights[factor.block][4 * factor.half];
            (x, w.cast::<u8>(), (&raw mut (*results).0[i]).cast::<i32>())
        };
        let ((x0, w0, out0), (x1, w1, out1)) = (place(2 * pair), place(2 * pair + 1));
        let (x, w, out) = ([x0, x1], [w0, w1], [out0, out1]);
        if const { Q::HALVES } {
            S::Tiles::products::<R, 16>(x, w, out);
        } else {
            S::Tiles::products::<R, 32>(x, w, out);
        }
    }
}

/// Adds the results of tile product `i` of a column run to its partial sums (or leaves).
///
/// # Safety
///
/// As for [`Simd`]; the run is valid, and the product is complete.
#[inline(always)]
unsafe fn add<S: Simd, Q: Quant, const R: usize>(
    run: &ColumnRun<S>,
    steps: Steps,
    i: usize,
    results: *const Results,
    parts: &mut [S::F; R],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let factor = run.factor::<Q>(i);
        let x = activations_of(run, factor, steps);
        let factors = &raw const (*run.weights).factors;
        let scale = (*factors).scales[factor.half][factor.block];
        let minus_bias = (*run.weights).minus_bias[if Q::LEAVES { factor.block } else { 0 }];
        let negated = Q::FORM.negated(factor.block, factor.half);
        let bias = if negated { MINUS_BIAS } else { BIAS };
        let results = (&raw const (*results).0[i]).cast::<i32>();
        macro_rules! row {
            ($r:literal) => {
                let (part, x) = (parts[$r], x.add($r));
                let sum = S::load_i(results.add(LANES * $r));
                let sum = if const { Q::CONVERTED } {
                    S::to_f(sum)
                } else {
                    S::bits_f(S::add_i(sum, S::splat_i(bias)))
                };
                let mut of = S::fma(sum, scale, if Q::LEAVES { minus_bias } else { part });
                if const { Q::MINIMUM } {
                    let x = &*x;
                    let sum = S::splat(if Q::HALVES { x.sum_half(factor.half) } else { x.sum });
                    of = S::fma((*factors).minima[factor.half][factor.block], sum, of);
                }
                parts[$r] =
                    if const { Q::LEAVES } { S::fma(of, S::splat((*x).scale), part) } else { of };
            };
        }
        each_row!(R, row);
    }
}

/// Adds up a column run whose tile products are complete, while the unit computes those of `next`.
///
/// # Safety
///
/// As for [`Simd`]; the runs are valid, and the unit is configured for their shape.
#[inline(always)]
unsafe fn step<S: Simd, Q: Quant, const R: usize>(
    run: &ColumnRun<S>,
    next: Option<&ColumnRun<S>>,
    steps: Steps,
    pairs: usize,
    results: [*mut Results; 2],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let first = if Q::LEAVES { S::splat(0.0) } else { (*run.weights).minus_bias[0] };
        let mut parts = [first; R];
        for pair in 0..pairs {
            add::<S, Q, R>(run, steps, 2 * pair, results[0], &mut parts);
            add::<S, Q, R>(run, steps, 2 * pair + 1, results[0], &mut parts);
            // After the reads, four products away from a store whose distance is a page.
            if let Some(next) = next {
                multiply::<S, Q, R>(next, steps, pair, results[1]);
            }
        }
        let x = run.x.wrapping_add(run.plane * steps.plane);
        macro_rules! row {
            ($r:literal) => {
                if $r >= run.done {
                    let sum = run.sums.add($r);
                    *sum = if const { Q::LEAVES } {
                        S::add(*sum, parts[$r])
                    } else {
                        S::fma(parts[$r], S::splat((*x.add($r)).scale), *sum)
                    };
                }
            };
        }
        each_row!(R, row);
    }
}

/// At least `R` rows, up to [`TILE`], times all row groups of the product.
///
/// # Safety
///
/// As for [`matmul`](super::dispatch::matmul); the rows are the product's.
#[inline(always)]
pub(super) unsafe fn tiled_in<S: Simd, Q: Quant, const R: usize>(
    p: &Product<'_>,
    x: Q8Activations,
    rows: Range<usize>,
) {
    if const { !S::TILED } {
        unreachable!("{NOT_TILED}");
    }
    // SAFETY: the weights are the layout's size, the activations cover its columns; the row groups and the rows are
    // the product's. All scratch is written before it is read.
    unsafe {
        let mut unpacked = MaybeUninit::<[Unpacked<S>; GROUPS]>::uninit();
        let mut results = MaybeUninit::<[Results; 2]>::uninit();
        let mut sums = MaybeUninit::<[[S::F; TILE]; GROUPS]>::uninit();
        let unpacked = unpacked.as_mut_ptr().cast::<Unpacked<S>>();
        let results = results.as_mut_ptr().cast::<Results>();
        let sums = sums.as_mut_ptr().cast::<S::F>();

        let count = activations::blocks(p.layout.k()) * x.residual_planes;
        let place = activations::place(rows.start, p.of, count);
        let steps = Steps { plane: place.step, block: place.step * x.residual_planes };
        let (n, all) = (rows.len(), activations::blocks(p.layout.k()));
        let superblock = Q::COLUMNS / BLOCK;
        // If a span is as long as a column run, each plane has its own run.
        let (together, apart) = if Q::LEAVES { (x.used_planes, 1) } else { (1, x.used_planes) };
        if const { Q::HALVES } {
            S::Tiles::open::<R, 16>();
        } else {
            S::Tiles::open::<R, 32>();
        }
        for group in p.groups.clone().step_by(GROUPS) {
            let groups = (p.groups.end - group).min(GROUPS);
            for sum in 0..groups * TILE {
                *sums.add(sum) = S::splat(0.0);
            }
            let sets = if p.layout.interleave() == groups { 1 } else { groups };
            for first in (0..all).step_by(BLOCKS) {
                let blocks = (all - first).min(BLOCKS);
                for set in 0..sets {
                    let to = unpacked.add(set);
                    for b in (0..blocks).step_by(superblock) {
                        let width = groups / sets;
                        let offset = (first + b) / superblock * width * Q::BYTES;
                        let w = (group + set) * p.layout.group_bytes() + offset;
                        let (w, ahead) = (p.weights.as_ptr().add(w), p.loops.prefetch_distance);
                        if const { fits::<S, GROUPS>() } && width == GROUPS {
                            unpack::<S, Q, GROUPS>(w, b, ahead, to);
                        } else {
                            unpack::<S, Q, 1>(w, b, ahead, to);
                        }
                    }
                }
                if first + blocks == all {
                    for (g, i) in (0..groups).flat_map(|g| (0..LAST).map(move |i| (g, i))) {
                        prefetch_out::<S, 1>(p, group + g, &rows, i);
                    }
                }
                // The last tile ends at the last row; it skips the rows that it shares with the previous one.
                let tiles = n.div_ceil(R);
                let run = |i: usize| {
                    let (tile, g, plane) = (i / apart / groups, i / apart % groups, i % apart);
                    let row = (tile * R).min(n - R);
                    ColumnRun {
                        weights: unpacked.add(g),
                        x: x.blocks.add(place.first + first * steps.block + row),
                        sums: sums.add(g * TILE + row),
                        done: tile * R - row,
                        both: together == 2,
                        plane,
                    }
                };
                let pairs = if Q::HALVES { blocks } else { blocks * together / 2 };
                let mut this = run(0);
                for pair in 0..pairs {
                    multiply::<S, Q, R>(&this, steps, pair, results);
                }
                let runs = tiles * groups * apart;
                for i in 0..runs {
                    let next = (i + 1 < runs).then(|| run(i + 1));
                    let of = [results.add(i % 2), results.add((i + 1) % 2)];
                    step::<S, Q, R>(&this, next.as_ref(), steps, pairs, of);
                    this = next.unwrap_or(this);
                }
            }
            for g in 0..groups {
                for (r, row) in rows.clone().enumerate() {
                    finish::<S>(p, group + g, row, *sums.add(g * TILE + r));
                }
            }
        }
        S::Tiles::close();
    }
}
