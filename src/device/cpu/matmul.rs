//! Packed weights times activation rows.
//!
//! One weight block (16 rows by 32 columns) is unpacked into registers and meets every activation
//! row of a tile, up to [`TILE`]. With one row (decode) the accumulator stays in a register and the
//! kernel is a stream over the packed bytes. With many (prefill) the accumulators lie in the
//! first-level cache, the tile's activations in the second-level one, two row groups share each
//! activation that is read, and the integer dot products are the limit.
//!
//! An output is the sum over blocks of 32 columns (and planes), in order, of an exact integer dot
//! product times its scales, added by fused multiply-add. Neither the rows nor the row groups of the
//! call enter into it.

use std::ops::Range;

use super::activations::{self, F32Block, Q8Block, TILE};
use super::format::{self, Block, Form, Plain, Quant};
use super::isa::{Isa, dispatch};
use super::packed::{LINE, PackedLayout};
use super::simd::{LANES, Simd, load_first, store_first};
use crate::plan::DType;

/// How the loops of a product are arranged. Nothing of it enters into a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loops {
    /// How far ahead of the reader weights are asked for, in bytes.
    pub ahead: usize,
    /// Row groups that go together, 1 or 2: they share each activation that is read. More than the
    /// registers of the instruction set hold is taken as 1.
    pub together: usize,
    /// Rows of activations that meet a block of weights while it is in registers: a divisor of
    /// [`TILE`]. One row knows no other.
    pub tile: usize,
}

impl Loops {
    /// What is taken where nothing has been measured. Without asking ahead, a core of the machine
    /// that this was written on reads 10 to 13 GB/s of the 17 that it can; 4 to 16 KiB do about equally
    /// well. With many rows two groups go together; with one, which waits for memory, one stream does.
    #[must_use]
    pub const fn heuristic(rows: usize) -> Self {
        Self { ahead: 8192, together: if rows > 1 { 2 } else { 1 }, tile: TILE }
    }
}

/// Whether two row groups of a type can go together: where registers allow, and not with a minimum for
/// each group, where they are slower than one.
#[must_use]
pub const fn pairs(isa: Isa, dtype: DType) -> bool {
    isa.accumulators() >= WIDE && matches!(dtype, DType::Q8_0 | DType::Q4_0 | DType::Q6_K)
}

/// Accumulators of an instruction set that can take two row groups together.
const WIDE: usize = 16;

/// Activation rows as a product reads them, see [`super::activations`].
#[derive(Clone, Copy, Debug)]
pub enum Rows {
    /// For quantised weights.
    Q8 {
        /// The first block.
        blocks: *const Q8Block,
        /// Planes, 1 or 2.
        planes: usize,
    },
    /// For plain weights.
    F32(*const F32Block),
}

/// Everything about a product but the instruction set.
#[derive(Clone, Debug)]
pub struct Product<'a> {
    /// Layout of the weights.
    pub layout: &'a PackedLayout,
    /// The whole packed matrix.
    pub weights: &'a [u8],
    /// Row groups to compute: output columns `16 * start..16 * end`, cut at the matrix's rows.
    pub groups: Range<usize>,
    /// The activations.
    pub x: Rows,
    /// Rows of activations to compute, from the start of a tile.
    pub rows: Range<usize>,
    /// Rows that the activations are laid out for.
    pub of: usize,
    /// Where output column 0 of row 0 goes.
    pub out: *mut f32,
    /// Distance between output rows.
    pub stride: usize,
    /// What to add, laid out as the output; it may be the output itself.
    pub residual: Option<*const f32>,
    /// How it is done.
    pub loops: Loops,
}

/// Computes a range of output columns.
///
/// # Safety
///
/// `x` holds [`blocks`](super::activations::blocks)`(k) * of` blocks in each plane, `rows` are some of `of`; `out` (and `residual`) are
/// valid for column range and rows as described, and nobody else accesses those elements meanwhile.
///
/// # Panics
///
/// The weights are not the layout's size, groups or rows are outside of theirs or the rows begin
/// inside a tile, the tile of the loops does not divide [`TILE`], or the kind of activations is not the
/// one that the weights' type needs.
pub unsafe fn matmul(isa: Isa, p: &Product<'_>) {
    assert_eq!(p.weights.len(), p.layout.bytes(), "packed size of the weights");
    assert!(p.groups.end <= p.layout.groups(), "row groups of the weights");
    let quantised = matches!(p.x, Rows::Q8 { .. });
    assert_eq!(quantised, p.layout.quantised(), "activations for {}", p.layout.dtype());
    assert!(p.rows.end <= p.of && p.rows.start.is_multiple_of(TILE), "rows of the activations");
    assert!(p.loops.tile > 0 && TILE.is_multiple_of(p.loops.tile), "{:?}", p.loops);
    if p.rows.is_empty() {
        return;
    }
    // SAFETY: the caller's contract, and the checks above.
    unsafe {
        match p.layout.dtype() {
            DType::Q8_0 => q8_0(isa, p),
            DType::Q4_0 => q4_0(isa, p),
            DType::Q4_K => q4_k(isa, p),
            DType::Q5_K => q5_k(isa, p),
            DType::Q6_K => q6_k(isa, p),
            DType::F32 => f32(isa, p),
            DType::F16 => f16(isa, p),
            DType::BF16 => bf16(isa, p),
            DType::I32 => unreachable!("no layout exists for I32"),
        }
    }
}

dispatch! {
    unsafe fn q8_0(p: &Product<'_>) = quantised<format::Q8_0>;
    unsafe fn q4_0(p: &Product<'_>) = quantised<format::Q4_0>;
    unsafe fn q4_k(p: &Product<'_>) = quantised<format::Q4K>;
    unsafe fn q5_k(p: &Product<'_>) = quantised<format::Q5K>;
    unsafe fn q6_k(p: &Product<'_>) = quantised<format::Q6K>;
    unsafe fn f32(p: &Product<'_>) = plain<format::F32>;
    unsafe fn f16(p: &Product<'_>) = plain<format::F16>;
    unsafe fn bf16(p: &Product<'_>) = plain<format::BF16>;
}

/// Writes (or adds) 16 output columns of one row.
///
/// # Safety
///
/// As for [`Simd`]; `group` is one of the product's, `row` one of its rows.
#[inline(always)]
unsafe fn finish<S: Simd>(p: &Product<'_>, group: usize, row: usize, sum: S::F) {
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

/// Adds what one weight block of each of `G` row groups contributes to `R` neighbouring rows. A
/// row's sums lie side by side: 4 KiB apart, a store to one would hold up the load of the next.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks, `sums` for `R` times `G` values.
#[inline(always)]
unsafe fn fold<S: Simd, Q: Quant, const G: usize, const R: usize>(
    w: &[Block<S>; G],
    x: *const Q8Block,
    sums: *mut S::F,
) {
    // SAFETY: the caller's contract; reads are within the blocks.
    unsafe {
        let mut low = [[S::splat_i(0); G]; R];
        let mut high = [[S::splat_i(0); G]; R];
        for r in 0..R {
            let x = x.add(r);
            match Q::FORM {
                Form::Signed => low[r] = [S::init_8((*x).less128); G],
                Form::Offset8 => low[r] = [S::splat_i((*x).less8); G],
                Form::Offset32 => {
                    low[r] = [S::splat_i((*x).less32[0]); G];
                    high[r] = [S::splat_i((*x).less32[1]); G];
                }
                Form::Minimum => {}
            }
        }
        for g in 0..8 {
            // In turns where two chains grow.
            let g = if Q::FORM == Form::Offset32 { g / 2 + g % 2 * 4 } else { g };
            for r in 0..R {
                let q = (&raw const (*x.add(r)).q).cast::<i8>().add(4 * g);
                for (i, w) in w.iter().enumerate() {
                    match Q::FORM {
                        Form::Signed => low[r][i] = S::dot_8(low[r][i], w.w[g], q),
                        Form::Offset32 if g >= 4 => {
                            high[r][i] = S::dot_u(high[r][i], w.w[g], q);
                        }
                        _ => low[r][i] = S::dot_u(low[r][i], w.w[g], q),
                    }
                }
            }
        }
        for r in 0..R {
            let x = x.add(r);
            for (i, w) in w.iter().enumerate() {
                let dot = if let Form::Minimum = Q::FORM {
                    // The minimum's product need not wait for the integers.
                    let minimum = S::mul(w.second, S::splat((*x).sum));
                    S::fma(S::to_f(low[r][i]), w.scale, minimum)
                } else {
                    // The rounded product of scale and integer: the bias goes without a trace.
                    S::fma(S::bits_f(low[r][i]), w.scale, w.unbias)
                };
                let dot = match Q::FORM {
                    Form::Offset32 => S::fma(S::to_f(high[r][i]), w.second, dot),
                    _ => dot,
                };
                let sum = sums.add(r * G + i);
                *sum = S::fma(dot, S::splat((*x).scale), *sum);
            }
        }
    }
}

/// Calls `$step!(b)` for every block `b` of a superblock, `b` a literal.
macro_rules! each_block {
    ($columns:expr, $step:ident) => {
        $step!(0);
        $step!(1);
        if $columns == 256 {
            $step!(2);
            $step!(3);
            $step!(4);
            $step!(5);
            $step!(6);
            $step!(7);
        }
    };
}

#[inline(always)]
unsafe fn quantised<S: Simd, Q: Quant>(p: &Product<'_>) {
    // SAFETY: the caller's contract.
    unsafe {
        let Rows::Q8 { blocks, planes } = p.x else { return };
        let x = Planes { blocks, planes };
        if p.of == 1 {
            let mut group = p.groups.start;
            while const { S::ACCUMULATORS >= WIDE && !matches!(Q::FORM, Form::Minimum) }
                && p.loops.together == 2
                && group + 2 <= p.groups.end
            {
                match planes {
                    1 => single::<S, Q, 1, 2>(p, blocks, group),
                    _ => single::<S, Q, 2, 2>(p, blocks, group),
                }
                group += 2;
            }
            for group in group..p.groups.end {
                match planes {
                    1 => single::<S, Q, 1, 1>(p, blocks, group),
                    _ => single::<S, Q, 2, 1>(p, blocks, group),
                }
            }
            return;
        }
        for first in p.rows.clone().step_by(p.loops.tile) {
            let rows = first..p.rows.end.min(first + p.loops.tile);
            let mut group = p.groups.start;
            while const { S::ACCUMULATORS >= WIDE && !matches!(Q::FORM, Form::Minimum) }
                && p.loops.together == 2
                && group + 2 <= p.groups.end
            {
                // Four rows keep more products in flight; with two scales the registers end at two.
                if const { matches!(Q::FORM, Form::Offset32) } {
                    tile::<S, Q, 2, 2>(p, x, group, rows.clone());
                } else {
                    tile::<S, Q, 2, 4>(p, x, group, rows.clone());
                }
                group += 2;
            }
            for group in group..p.groups.end {
                tile::<S, Q, 1, 4>(p, x, group, rows.clone());
            }
        }
    }
}

/// Asks for the lines of a superblock of `bytes` at `w`, which lies ahead: part `i` of `parts` of
/// them, so that the requests are spread over the work.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn ask<S: Simd>(w: *const u8, i: usize, bytes: usize, parts: usize) {
    let lines = bytes / LINE;
    for line in i * lines / parts..(i + 1) * lines / parts {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(w.wrapping_add(line * LINE)) };
    }
}

/// [`Rows::Q8`], unwrapped.
#[derive(Clone, Copy)]
struct Planes {
    blocks: *const Q8Block,
    planes: usize,
}

/// One row and `G` row groups: as many streams over the weights. `P` is the number of planes.
#[inline(always)]
unsafe fn single<S: Simd, Q: Quant, const P: usize, const G: usize>(
    p: &Product<'_>,
    x: *const Q8Block,
    group: usize,
) {
    // SAFETY: the weights are the layout's size, and the activations cover its columns.
    unsafe {
        let superblocks = p.layout.superblocks();
        let (bytes, ahead) = (superblocks * Q::BYTES, p.loops.ahead);
        let mut w = p.weights.as_ptr().add(group * bytes);
        let mut blocks = x;
        let mut sums = [S::splat(0.0); G];
        for _ in 0..superblocks {
            macro_rules! step {
                ($b:literal) => {
                    let mut block = [Q::block::<S>(w, $b); G];
                    ask::<S>(w.wrapping_add(ahead), $b, Q::BYTES, Q::COLUMNS / 32);
                    for (i, block) in block.iter_mut().enumerate().skip(1) {
                        let w = w.add(i * bytes);
                        *block = Q::block::<S>(w, $b);
                        ask::<S>(w.wrapping_add(ahead), $b, Q::BYTES, Q::COLUMNS / 32);
                    }
                    for plane in 0..P {
                        let x = blocks.add($b * P + plane);
                        fold::<S, Q, G, 1>(&block, x, sums.as_mut_ptr());
                    }
                };
            }
            each_block!(Q::COLUMNS, step);
            w = w.add(Q::BYTES);
            blocks = blocks.add(Q::COLUMNS / 32 * P);
        }
        for (i, &sum) in sums.iter().enumerate() {
            finish::<S>(p, group + i, 0, sum);
        }
    }
}

/// Up to [`TILE`] rows of `G` row groups, `R` rows at a time.
#[inline(always)]
unsafe fn tile<S: Simd, Q: Quant, const G: usize, const R: usize>(
    p: &Product<'_>,
    x: Planes,
    group: usize,
    rows: Range<usize>,
) {
    // SAFETY: as in `single`; the row groups and rows are the product's.
    unsafe {
        let superblocks = p.layout.superblocks();
        let (bytes, ahead) = (superblocks * Q::BYTES, p.loops.ahead);
        let mut w = p.weights.as_ptr().add(group * bytes);
        let count = activations::blocks(p.layout.k()) * x.planes;
        let place = activations::place(rows.start, p.of, count);
        let mut blocks = x.blocks.add(place.first);
        let (n, whole) = (rows.len(), rows.len() / R * R);
        let mut sums = [[S::splat(0.0); G]; TILE];
        let to = sums.as_mut_ptr().cast::<S::F>();
        for _ in 0..superblocks {
            macro_rules! step {
                ($b:literal) => {
                    let mut block = [Q::block::<S>(w, $b); G];
                    ask::<S>(w.wrapping_add(ahead), $b, Q::BYTES, Q::COLUMNS / 32);
                    for (i, block) in block.iter_mut().enumerate().skip(1) {
                        let w = w.add(i * bytes);
                        *block = Q::block::<S>(w, $b);
                        ask::<S>(w.wrapping_add(ahead), $b, Q::BYTES, Q::COLUMNS / 32);
                    }
                    for plane in 0..x.planes {
                        let x = blocks.add(($b * x.planes + plane) * place.step);
                        for r in (0..whole).step_by(R) {
                            fold::<S, Q, G, R>(&block, x.add(r), to.add(r * G));
                        }
                        for r in whole..n {
                            fold::<S, Q, G, 1>(&block, x.add(r), to.add(r * G));
                        }
                    }
                };
            }
            each_block!(Q::COLUMNS, step);
            w = w.add(Q::BYTES);
            blocks = blocks.add(Q::COLUMNS / 32 * x.planes * place.step);
        }
        for (r, sums) in rows.zip(&sums) {
            for (i, &sum) in sums.iter().enumerate() {
                finish::<S>(p, group + i, r, sum);
            }
        }
    }
}

/// Columns of a superblock of plain weights.
const PLAIN: usize = 16;

#[inline(always)]
unsafe fn plain<S: Simd, P: Plain>(p: &Product<'_>) {
    // SAFETY: the caller's contract: weights of the layout's size, activations that cover its
    // columns in blocks of 32, `first + rows` within the rows.
    unsafe {
        let Rows::F32(x) = p.x else { return };
        let superblocks = p.layout.superblocks();
        let bytes = PLAIN * LANES * P::WIDTH;
        for first in p.rows.clone().step_by(p.loops.tile) {
            let rows = p.loops.tile.min(p.rows.end - first);
            let place = activations::place(first, p.of, activations::blocks(p.layout.k()));
            let x = x.add(place.first).cast::<f32>();
            for group in p.groups.clone() {
                let mut w = p.weights.as_ptr().add(group * superblocks * bytes);
                // Two chains per row: even and odd columns.
                let mut sums = [[S::splat(0.0); 2]; TILE];
                for s in 0..superblocks {
                    ask::<S>(w.wrapping_add(p.loops.ahead), 0, bytes, 1);
                    let mut columns = [S::splat(0.0); PLAIN];
                    for (k, column) in columns.iter_mut().enumerate() {
                        *column = P::load::<S>(w.add(k * LANES * P::WIDTH));
                    }
                    let mut x = x.add(s / 2 * place.step * 32 + s % 2 * PLAIN);
                    for sums in &mut sums[..rows] {
                        for k in 0..PLAIN {
                            sums[k % 2] = S::fma(columns[k], S::splat(*x.add(k)), sums[k % 2]);
                        }
                        x = x.add(32);
                    }
                    w = w.add(bytes);
                }
                for (r, sums) in sums[..rows].iter().enumerate() {
                    finish::<S>(p, group, first + r, S::add(sums[0], sums[1]));
                }
            }
        }
    }
}
