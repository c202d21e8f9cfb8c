//! Packed weights times activation rows.
//!
//! One weight block (16 rows by 32 columns) is unpacked into registers and meets every activation
//! row of a tile, up to [`TILE`]. With one row (decode) the kernel is a stream over the packed bytes.
//! With many (prefill) the sums lie in the first-level cache, the tile's activations in the second-level
//! one, and the integer dot products are the limit.
//!
//! An output is the sum, in order, over spans of columns whose activations share a scale: that scale times
//! the span's exact integer dot products, each times its own scale, added up by fused multiply-add. Where spans
//! are short, those of `LEAF` columns are added up by themselves before they meet others. Neither the rows nor
//! the row groups of the call enter into it. `docs/numerics.md` has every step.

mod tiled;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use super::activations::{self, F32Block, Q8Block, TILE};
use super::format::{self, Factors, Plain, Quant};
use super::isa::{Isa, dispatch};
use super::packed::{LINE, PackedLayout};
use super::vector::{BIAS, LANES, Simd, load_first, store_first};
use plan::DType;
use tiled::{HALF_TILE, WHOLE_TILE, tiled_in};

/// Columns whose products are added up before they meet those of other columns: no more than a superblock of
/// the long types has.
const LEAF: usize = 256;

/// Whether a leaf of a type with superblocks of `columns`, fewer than a leaf's, ends with superblock `s` of `of`.
const fn ends_leaf(columns: usize, s: usize, of: usize) -> bool {
    (s + 1).is_multiple_of(LEAF / columns) || s + 1 == of
}

/// How the loops of a product are arranged. Nothing of it enters into a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loops {
    /// How far ahead of the reader weights are prefetched, in bytes.
    pub prefetch_distance: usize,
    /// Rows of activations that meet a block of weights while it is in registers: a divisor of
    /// [`TILE`]. One row knows no other.
    pub tile: usize,
}

impl Loops {
    /// What is taken where nothing has been measured, for a product with `rows` rows. Several of them leave
    /// time between lines, as short codes do: that makes no stream that a processor would follow by itself.
    #[must_use]
    pub fn heuristic(isa: Isa, layout: &PackedLayout, rows: usize) -> Self {
        let prefetch_distance = if rows > 1 || layout.bits() < 4 { 8192 } else { isa.ahead() };
        Self { prefetch_distance, tile: TILE }
    }
}

/// Activation rows as a product reads them, see [`super::activations`].
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
    /// Residual planes that there are, 1 or 2.
    pub residual_planes: usize,
    /// How many of them count: with 1, the second is passed over.
    pub used_planes: usize,
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
    pub x: Activations,
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
/// `x` holds [`blocks`](super::activations::blocks)`(k) * of` blocks in each residual plane, `rows` are some of `of`; `out` (and `residual`) are
/// valid for column range and rows as described, and nobody else accesses those elements meanwhile.
///
/// # Panics
///
/// The weights are not the layout's size, groups or rows are outside of theirs or the rows begin
/// inside a tile, groups are parts of panels, the instruction set has no kernels for the packing, the tile of
/// the loops does not divide [`TILE`], or the kind of activations is not the one that the weights' type needs.
pub unsafe fn matmul(isa: Isa, p: &Product<'_>) {
    assert_eq!(p.weights.len(), p.layout.bytes(), "packed size of the weights");
    assert!(p.groups.end <= p.layout.groups(), "row groups of the weights");
    assert!(p.rows.end <= p.of && p.rows.start.is_multiple_of(TILE), "rows of the activations");
    assert!(p.loops.tile > 0 && TILE.is_multiple_of(p.loops.tile), "{:?}", p.loops);
    let (width, whole) = (p.layout.panel_width(), p.layout.groups());
    assert!(isa.packings().contains(&(width * LANES)), "panels of {width} row groups");
    assert!(p.groups.start.is_multiple_of(width), "panels of {width} from {:?}", p.groups);
    assert!(p.groups.end.is_multiple_of(width) || p.groups.end == whole, "{:?}", p.groups);
    if p.rows.is_empty() {
        return;
    }
    // SAFETY: the caller's contract, and the checks above.
    unsafe {
        use DType::{
            IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, MXFP4, Q2_K,
            Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0, TQ2_0,
        };
        match (p.layout.dtype(), p.x) {
            (Q8_0, Activations::Q8(x)) => quantised::<format::Q8_0>(isa, p, x),
            (Q4_0, Activations::Q8(x)) => quantised::<format::Q4_0>(isa, p, x),
            (Q4_1, Activations::Q8(x)) => quantised::<format::Q4_1>(isa, p, x),
            (Q5_0, Activations::Q8(x)) => quantised::<format::Q5_0>(isa, p, x),
            (Q5_1, Activations::Q8(x)) => quantised::<format::Q5_1>(isa, p, x),
            (IQ4_NL, Activations::Q8(x)) => quantised::<format::IQ4_NL>(isa, p, x),
            (MXFP4, Activations::Q8(x)) => quantised::<format::MXFP4>(isa, p, x),
            (Q2_K, Activations::Q8(x)) => quantised::<format::Q2_K>(isa, p, x),
            (Q3_K, Activations::Q8(x)) => quantised::<format::Q3_K>(isa, p, x),
            (Q4_K, Activations::Q8(x)) => quantised::<format::Q4_K>(isa, p, x),
            (Q5_K, Activations::Q8(x)) => quantised::<format::Q5_K>(isa, p, x),
            (Q6_K, Activations::Q8(x)) => quantised::<format::Q6_K>(isa, p, x),
            (IQ4_XS, Activations::Q8(x)) => quantised::<format::IQ4_XS>(isa, p, x),
            (IQ3_S, Activations::Q8(x)) => quantised::<format::IQ3_S>(isa, p, x),
            (IQ3_XXS, Activations::Q8(x)) => quantised::<format::IQ3_XXS>(isa, p, x),
            // What they differ in is gone once they are packed.
            (IQ2_S | IQ2_XS | IQ2_XXS, Activations::Q8(x)) => {
                quantised::<format::IQ2_S>(isa, p, x);
            }
            (IQ1_S | IQ1_M, Activations::Q8(x)) => quantised::<format::IQ1_S>(isa, p, x),
            (TQ1_0 | TQ2_0, Activations::Q8(x)) => quantised::<format::TQ2_0>(isa, p, x),
            (DType::F32, Activations::F32(x)) => plain::<format::F32>(isa, p, x),
            (DType::F16, Activations::F32(x)) => plain::<format::F16>(isa, p, x),
            (DType::BF16, Activations::F32(x)) => plain::<format::BF16>(isa, p, x),
            (dtype, x) => panic!("{x:?} for weights of {dtype}"),
        }
    }
}

// A function for each shape of the loops: a compiler takes the square of the time for twice the code.
dispatch! {
    /// One row of the panel of `G` row groups from `first`, with `P` residual planes.
    ///
    /// # Safety
    ///
    /// As for [`matmul`]; panel and row are the product's.
    unsafe fn gemv[Q: Quant, const G: usize, const P: usize](p: &Product<'_>, x: Q8Activations, first: usize, row: usize) = gemv_in<Q, G, P>;

    /// Up to [`TILE`] rows of the panel of `G` row groups from `first`.
    ///
    /// # Safety
    ///
    /// As for [`matmul`]; panel and rows are the product's.
    unsafe fn gemm[Q: Quant, const G: usize](p: &Product<'_>, x: Q8Activations, first: usize, rows: Range<usize>) = gemm_in<Q, G>;

    /// At least `R` rows, up to [`TILE`], of all the product's row groups, by a matrix unit.
    ///
    /// # Safety
    ///
    /// As for [`matmul`]; the rows are the product's.
    unsafe fn tiled[Q: Quant, const R: usize](p: &Product<'_>, x: Q8Activations, rows: Range<usize>) = tiled_in<Q, R>;

    /// The whole of a product with weights that are not quantised.
    ///
    /// # Safety
    ///
    /// As for [`matmul`].
    unsafe fn plain[P: Plain](p: &Product<'_>, x: *const F32Block) = plain_in<P>;
}

/// Row groups of the widest panel.
const PAIRS: usize = 2;

/// The whole of a product with quantised weights.
///
/// # Safety
///
/// As for [`matmul`].
unsafe fn quantised<Q: Quant>(isa: Isa, p: &Product<'_>, x: Q8Activations) {
    for first in p.rows.clone().step_by(p.loops.tile) {
        let rows = first..p.rows.end.min(first + p.loops.tile);
        if isa.tiles && rows.len() >= HALF_TILE {
            // SAFETY: the caller's contract.
            unsafe {
                match rows.len() {
                    ..WHOLE_TILE => tiled::<Q, HALF_TILE>(isa, p, x, rows),
                    _ => tiled::<Q, WHOLE_TILE>(isa, p, x, rows),
                }
            }
            continue;
        }
        let mut group = p.groups.start;
        while group < p.groups.end {
            let pair = p.layout.panel_width() == PAIRS && group + 1 < p.groups.end;
            // SAFETY: the caller's contract.
            unsafe {
                match (pair, rows.len(), x.used_planes) {
                    (false, 1, 1) => gemv::<Q, 1, 1>(isa, p, x, group, first),
                    (false, 1, _) => gemv::<Q, 1, 2>(isa, p, x, group, first),
                    (false, ..) => gemm::<Q, 1>(isa, p, x, group, rows.clone()),
                    (true, 1, 1) => gemv::<Q, PAIRS, 1>(isa, p, x, group, first),
                    (true, 1, _) => gemv::<Q, PAIRS, 2>(isa, p, x, group, first),
                    (true, ..) => gemm::<Q, PAIRS>(isa, p, x, group, rows.clone()),
                }
            }
            group += if pair { PAIRS } else { 1 };
        }
    }
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

/// A weight block of each of `G` row groups.
#[derive(Clone, Copy)]
struct Block<'a, S: Simd, const G: usize> {
    operands: &'a [[S::B; 8]; G],
    /// Of `G` row groups, the superblock's.
    factors: *const Factors<S>,
    /// Which of the superblock it is.
    b: usize,
}

/// The integers of block `b` of a superblock as [`add_half`] takes them.
///
/// # Safety
///
/// As for [`Quant::operands`].
#[inline(always)]
unsafe fn operands<S: Simd, Q: Quant, const G: usize>(sb: *const u8, b: usize) -> [[S::B; 8]; G] {
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

/// What the dot products of block `b`, or of half `half` of it, start from, for `R` neighbouring rows.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks.
#[inline(always)]
unsafe fn start<S: Simd, Q: Quant, const G: usize, const R: usize>(
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
/// A function that is always inlined, as [`start`] is, and no closure: a compiler may leave a closure that is
/// called twice out of line, where it has none of the instruction set's features and calls each instruction.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks.
#[inline(always)]
unsafe fn add_half<S: Simd, Q: Quant, const G: usize, const R: usize>(
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
            S::dots_u(dots, operands, q)
        }
    }
}

/// What one weight block of each of `G` row groups contributes to `R` neighbouring rows, added to what
/// `parts` gives, which is asked late: until then the registers are the products'.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks.
#[inline(always)]
unsafe fn add_block<S: Simd, Q: Quant, const G: usize, const R: usize>(
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
unsafe fn scale_half<S: Simd, Q: Quant, const G: usize, const R: usize>(
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

/// [`add_block`] to sums in memory, of which those of a row group lie [`TILE`] apart from the next one's. Where blocks
/// share a scale of activations, to `parts`; else from `minus_bias`, and what comes of it, scaled, to `sums`.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `R` blocks, `sums` and `parts` for `R` values of each row group.
#[inline(always)]
unsafe fn fold<S: Simd, Q: Quant, const G: usize, const R: usize>(
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

/// Prefetches lines of a superblock at `w`, which lies ahead: those that are read here, so that the requests are spread
/// over the work.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn prefetch<S: Simd>(w: *const u8, first: usize, lines: usize) {
    for line in 0..lines {
        // SAFETY: the caller's contract.
        unsafe { S::prefetch(w.wrapping_add((first + line) * LINE)) };
    }
}

/// Whether an instruction set has registers for panels of `G` row groups: what it has not is not compiled.
const fn fits<S: Simd, const G: usize>() -> bool {
    G == 1 || G * 8 <= S::ACCUMULATORS
}

/// What [`fits`] rules out.
const TOO_WIDE: &str = "a layout has only panels that the instruction set has registers for";

/// Streams of weights, and sums that stay in registers.
#[inline(always)]
unsafe fn gemv_in<S: Simd, Q: Quant, const G: usize, const P: usize>(
    p: &Product<'_>,
    x: Q8Activations,
    first: usize,
    row: usize,
) {
    if const { !fits::<S, G>() } {
        unreachable!("{TOO_WIDE}");
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
            // Two variables and no array: a compiler keeps what is indexed in memory.
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
                    // Processors follow a stream whose lines are asked for in order; a compiler would mix
                    // those of several blocks.
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

/// The last blocks of a tile, under which the lines of its output are fetched.
const LAST: usize = 8;

/// Prefetches part `i` of [`LAST`] of the output's lines: a store to one that is far away holds up every store
/// after it.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn prefetch_out<S: Simd, const G: usize>(
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

/// As many rows at a time as there are registers for.
#[inline(always)]
unsafe fn gemm_in<S: Simd, Q: Quant, const G: usize>(
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
unsafe fn gemm_tile<S: Simd, Q: Quant, const G: usize, const R: usize>(
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
        // Half a page from the activations: a store to a sum would delay reads that are a multiple of a
        // page behind it.
        let mut space = [MaybeUninit::<S::F>::uninit(); 7 * TILE];
        let space = space.as_mut_ptr().cast::<S::F>();
        let apart = blocks.addr().wrapping_sub(space.addr()) / LINE;
        let sums = space.add((apart + TILE / 2) % TILE);
        let parts = sums.add(G * TILE);
        // Where there are leaves a scale of activations is one block's, whose part stays in registers.
        let closed = if const { Q::LEAVES } { parts } else { sums };
        for g in 0..G {
            for r in 0..n {
                *sums.add(g * TILE + r) = S::splat(0.0);
                *closed.add(g * TILE + r) = S::splat(0.0);
            }
        }
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
                for (plane, g) in
                    (0..x.used_planes).flat_map(|plane| (0..G).map(move |g| (plane, g)))
                {
                    for r in 0..n {
                        *parts.add((plane * G + g) * TILE + r) = minus_bias[g];
                    }
                }
            }
            for pair in 0..Q::COLUMNS / 64 {
                step!(2 * pair);
                step!(2 * pair + 1);
            }
            if const { !Q::LEAVES } {
                for (plane, g) in
                    (0..x.used_planes).flat_map(|plane| (0..G).map(move |g| (plane, g)))
                {
                    let x = blocks.add(plane * place.step);
                    for r in 0..n {
                        let (sum, part) =
                            (sums.add(g * TILE + r), *parts.add((plane * G + g) * TILE + r));
                        *sum = S::fma(part, S::splat((*x.add(r)).scale), *sum);
                    }
                }
            }
            w = w.add(G * Q::BYTES);
            blocks = blocks.add(Q::COLUMNS / 32 * x.residual_planes * place.step);
            if const { Q::LEAVES } && ends_leaf(Q::COLUMNS, s, superblocks) {
                for g in 0..G {
                    for i in g * TILE..g * TILE + n {
                        *closed.add(i) = S::add(*closed.add(i), *sums.add(i));
                        *sums.add(i) = S::splat(0.0);
                    }
                }
            }
        }
        for g in 0..G {
            for (r, row) in rows.clone().enumerate() {
                finish::<S>(p, first + g, row, *closed.add(g * TILE + r));
            }
        }
    }
}

/// Columns of a superblock of plain weights.
const PLAIN: usize = 16;

#[inline(always)]
unsafe fn plain_in<S: Simd, P: Plain>(p: &Product<'_>, x: *const F32Block) {
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

/// The sums of a row of plain products: of a leaf four chains, which take its columns in turn, and the leaves
/// before it.
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

/// Up to `N` rows of all row groups.
#[inline(always)]
unsafe fn plain_tile<S: Simd, P: Plain, const N: usize>(
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
