//! Softmax attention of neighbouring tokens' query heads over one KV head's cache.
//!
//! A *line* is one query head of one token. Positions are taken in spans of [`SPAN`]: within a span the
//! scores of all lines and each line's maximum, then its exponentials and their sum, then the weighted sum
//! of values; spans are merged in order. Lines share each byte of the cache that is read, but no number: the
//! result of a line depends on its position alone. With one token (decode) the limit is the cache's bytes
//! once the context is long. With many (prefill) it is multiply-adds: lines go in groups whose sums stay in
//! registers, and what they meet is widened to `f32` once for all groups, a few positions at a time, so that
//! it stays in the first-level cache.

use std::marker::PhantomData;
use std::ops::Range;

use super::isa::{Isa, dispatch};
use super::packed::LINE;
use super::vector::{LANES, Simd, exp_to_88};

/// Positions of a span. Fixed: it is part of the order in which numbers are added.
pub const SPAN: usize = 512;

/// Most lines that go through a span together. It divides what widening costs each, and takes 2 to 3 KiB of
/// scratch.
const LINES: usize = 64;

/// Most lines of a group.
const GROUP: usize = 8;

/// Distance between lines' scores: those of a whole span would be in the same sets of the first-level cache.
const SCORES: usize = SPAN + LANES;

/// How far ahead of the reader the cache is asked for, in bytes, where few lines share what is read: then
/// the limit is its bytes.
const AHEAD: usize = 8192;

/// Positions are scored in steps of this; a cache holds a multiple of it, so that reading past the last
/// position stays inside.
pub const POSITION_STEP: usize = 2 * LANES;

/// Positions whose values are widened at a time: each line's sums are loaded and stored once for them.
const VALUES_STEP: usize = 2 * POSITION_STEP;

/// `f32` values of scratch that [`attend`] needs for heads of `dim`: each line's query, scores, sixteen
/// maxima and what a span adds; and what is widened.
#[must_use]
pub const fn scratch_len(dim: usize) -> usize {
    LINES * (dim + SCORES + LANES + dim) + VALUES_STEP * dim
}

/// One call of [`attend`].
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// Queries of the first token: `heads` times `dim` values.
    pub q: *const f32,
    /// Tokens, each one position further than the one before.
    pub rows: usize,
    /// Distance between tokens, in `q` and in `out`.
    pub stride: usize,
    /// Query heads of this KV head.
    pub heads: usize,
    /// Values of a head, a multiple of 16.
    pub dim: usize,
    /// The KV head's keys, as [`super::rope`] lays them out.
    pub keys: *const u16,
    /// The KV head's values.
    pub values: *const u16,
    /// Positions that the first token attends to, from 0; at least 1.
    pub positions: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// [`scratch_len`] values.
    pub scratch: *mut f32,
    /// Results of the first token: `heads` times `dim` values.
    pub out: *mut f32,
}

/// Writes each line's attention.
///
/// # Safety
///
/// The pointers are valid as described, the caches for the last token's positions rounded up to
/// [`POSITION_STEP`]; `scratch` and `out` are accessed by nobody else.
pub unsafe fn attend(isa: Isa, a: &Attend) {
    let total = a.rows * a.heads;
    for first in (0..total).step_by(LINES) {
        let lines = LINES.min(total - first);
        // SAFETY: the caller's contract; the lines are split without remainder.
        unsafe {
            if lines > GROUP {
                pass::<f32>(isa, a, first, lines);
            } else {
                pass::<u16>(isa, a, first, lines);
            }
        }
    }
}

dispatch! {
    /// Some lines together.
    ///
    /// # Safety
    ///
    /// As for [`attend`]; the lines are among those that there are.
    unsafe fn pass[C: Cached](a: &Attend, first: usize, lines: usize) = pass_in<C>;
}

#[inline(always)]
unsafe fn pass_in<S: Simd, C: Cached>(a: &Attend, first: usize, lines: usize) {
    // SAFETY: the caller's contract.
    unsafe { Pass::<C>::new(a, first, lines).run::<S>() }
}

/// What lines read of the cache.
trait Cached: Copy {
    /// Whether it is the cache itself, which few lines read.
    const DIRECT: bool;
    /// Positions whose values are taken at a time, a multiple of [`POSITION_STEP`].
    const VALUES: usize;
    /// `n` (a multiple of 16) values of the cache; `room` has place for them.
    unsafe fn read<S: Simd>(cache: *const u16, n: usize, room: *mut f32) -> *const Self;
    /// 16 of them.
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;
}

impl Cached for u16 {
    const DIRECT: bool = true;
    const VALUES: usize = SPAN;

    #[inline(always)]
    unsafe fn read<S: Simd>(cache: *const u16, _: usize, _: *mut f32) -> *const Self {
        cache
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(p) }
    }
}

impl Cached for f32 {
    const DIRECT: bool = false;
    const VALUES: usize = VALUES_STEP;

    #[inline(always)]
    unsafe fn read<S: Simd>(cache: *const u16, n: usize, room: *mut f32) -> *const Self {
        for i in (0..n).step_by(LANES) {
            // SAFETY: the caller's contract.
            unsafe { S::store(room.add(i), S::load_f16(cache.add(i))) };
        }
        room
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load(p) }
    }
}

/// Calls a function for each group of lines: as many as an instruction set's registers hold two sums of. What
/// they cannot hold is not compiled.
macro_rules! each_group {
    ($pass:ident, $S:ident, $f:ident($($arg:expr),*)) => {{
        let mut line = 0;
        while line < $pass.lines {
            let left = $pass.lines - line;
            line += if const { $S::ACCUMULATORS >= 2 * GROUP } && left >= GROUP {
                $pass.$f::<$S, GROUP>(line $(, $arg)*);
                GROUP
            } else if const { $S::ACCUMULATORS >= 8 } && left >= 4 {
                $pass.$f::<$S, 4>(line $(, $arg)*);
                4
            } else if left >= 2 {
                $pass.$f::<$S, 2>(line $(, $arg)*);
                2
            } else {
                $pass.$f::<$S, 1>(line $(, $arg)*);
                1
            };
        }
    }};
}

/// Some lines that go through the spans together. What is in scratch lies line after line, but for queries,
/// group after group as `[dim / 16][lines][16]`.
struct Pass<'a, C> {
    a: &'a Attend,
    /// The first of them, and how many.
    first: usize,
    lines: usize,
    /// Positions that each attends to. Later tokens have more.
    positions: [usize; LINES],
    queries: *mut f32,
    scores: *mut f32,
    /// Each line's largest scores in a span, lane by lane.
    maxima: *mut f32,
    /// What a span adds to each line.
    parts: *mut f32,
    room: *mut f32,
    cached: PhantomData<C>,
}

impl<'a, C: Cached> Pass<'a, C> {
    #[inline(always)]
    unsafe fn new(a: &'a Attend, first: usize, lines: usize) -> Self {
        let mut positions = [0; LINES];
        for (line, positions) in positions[..lines].iter_mut().enumerate() {
            *positions = a.positions + (first + line) / a.heads;
        }
        // SAFETY: the caller's contract: `scratch_len` is the sum of these.
        unsafe {
            let queries = a.scratch;
            let scores = queries.add(LINES * a.dim);
            let maxima = scores.add(LINES * SCORES);
            let parts = maxima.add(LINES * LANES);
            let room = parts.add(LINES * a.dim);
            let cached = PhantomData;
            Self { a, first, lines, positions, queries, scores, maxima, parts, room, cached }
        }
    }

    /// Where a line lies in queries and results.
    #[inline(always)]
    fn place(&self, line: usize) -> usize {
        let (row, head) = ((self.first + line) / self.a.heads, (self.first + line) % self.a.heads);
        row * self.a.stride + head * self.a.dim
    }

    /// How many of `most` positions from `start` a line attends to.
    #[inline(always)]
    fn among(&self, line: usize, start: usize, most: usize) -> usize {
        self.positions[line].saturating_sub(start).min(most)
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self) {
        let (a, most) = (self.a, self.positions[self.lines - 1]);
        let mut totals = [Softmax::ZERO; LINES];
        // SAFETY: the caller's contract; spans and lines stay within caches, scratch and output.
        unsafe {
            each_group!(self, S, interleave());
            for start in (0..most).step_by(SPAN) {
                let end = most.min(start + SPAN).next_multiple_of(POSITION_STEP);
                for line in 0..self.lines {
                    S::store(self.maxima.add(line * LANES), S::splat(f32::NEG_INFINITY));
                }
                for p in (start..end).step_by(POSITION_STEP) {
                    let keys = a.keys.add(p * a.dim);
                    let keys = C::read::<S>(keys, POSITION_STEP * a.dim, self.room);
                    each_group!(self, S, score(keys, start, p));
                }
                let mut span = [Softmax::ZERO; LINES];
                for (line, span) in span[..self.lines].iter_mut().enumerate() {
                    *span = self.softmax::<S>(line, start);
                }
                for p in (start..end).step_by(C::VALUES) {
                    let values = a.values.add(p * a.dim);
                    let values = C::read::<S>(values, C::VALUES.min(end - p) * a.dim, self.room);
                    each_group!(self, S, weigh(values, start, p));
                }
                for line in 0..self.lines {
                    let (out, part) = (a.out.add(self.place(line)), self.parts.add(line * a.dim));
                    if start == 0 {
                        out.copy_from_nonoverlapping(part, a.dim);
                        totals[line] = span[line];
                    } else if self.positions[line] > start {
                        merge::<S>(a.dim, out, &mut totals[line], part, span[line]);
                    }
                }
            }
            for (line, &Softmax { sum, .. }) in totals[..self.lines].iter().enumerate() {
                let (out, sum) = (a.out.add(self.place(line)), S::splat(sum));
                for d in (0..a.dim).step_by(LANES) {
                    S::store(out.add(d), S::div(S::load(out.add(d)), sum));
                }
            }
        }
    }

    /// Queries of the group from `line`.
    #[inline(always)]
    unsafe fn interleave<S: Simd, const R: usize>(&self, line: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            for r in 0..R {
                let q = self.a.q.add(self.place(line + r));
                let to = self.queries.add(line * self.a.dim + r * LANES);
                for d in (0..self.a.dim).step_by(LANES) {
                    S::store(to.add(d * R), S::load(q.add(d)));
                }
            }
        }
    }

    /// Scores of the step at `p`, minus infinity beyond a line's positions.
    #[inline(always)]
    unsafe fn score<S: Simd, const R: usize>(
        &self,
        line: usize,
        keys: *const C,
        start: usize,
        p: usize,
    ) {
        let n: [usize; R] = std::array::from_fn(|r| self.among(line + r, p, POSITION_STEP));
        // SAFETY: the caller's contract: the cache holds whole steps of positions.
        unsafe {
            if n[R - 1] > LANES {
                self.dots::<S, R, 2>(line, keys, &n, start, p);
            } else if n[R - 1] > 0 {
                self.dots::<S, R, 1>(line, keys, &n, start, p);
            }
        }
    }

    /// [`Pass::score`] of the step's first `16 H` positions.
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize, const H: usize>(
        &self,
        line: usize,
        keys: *const C,
        n: &[usize; R],
        start: usize,
        p: usize,
    ) {
        let dim = self.a.dim;
        // SAFETY: the caller's contract.
        unsafe {
            let queries = self.queries.add(line * dim);
            let mut sums = [[S::splat(0.0); H]; R];
            for column in (0..dim).step_by(LANES) {
                let queries = queries.add(column * R);
                for i in 0..LANES {
                    let d = column + i;
                    let mut k = [S::splat(0.0); H];
                    for (half, k) in k.iter_mut().enumerate() {
                        *k = C::load::<S>(keys.add((half * dim + d) * LANES));
                    }
                    if const { C::DIRECT && R < GROUP } {
                        // A line for every two halves that are read.
                        S::prefetch(keys.cast::<u8>().wrapping_add(AHEAD + d * LINE));
                    }
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let q = S::splat(*queries.add(r * LANES + i));
                        for half in 0..H {
                            sums[half] = S::fma(q, k[half], sums[half]);
                        }
                    }
                }
            }
            let scale = S::splat(self.a.scale);
            for sum in sums.as_flattened_mut() {
                *sum = S::mul(*sum, scale);
            }
            if n[0] < H * LANES {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let n = n[r].saturating_sub(half * LANES);
                        *sum = S::first(*sum, n, S::splat(f32::NEG_INFINITY));
                    }
                }
            }
            let scores = self.scores.add(line * SCORES + p - start);
            for (r, sums) in sums.iter().enumerate() {
                let maxima = self.maxima.add((line + r) * LANES);
                let mut max = S::load(maxima);
                for (half, &score) in sums.iter().enumerate() {
                    S::store(scores.add(r * SCORES + half * LANES), score);
                    max = S::max(score, max);
                }
                S::store(maxima, max);
            }
        }
    }

    /// Turns a line's scores of a span into `e^(score - max)`. A NaN among them makes the sum NaN.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(&self, line: usize, start: usize) -> Softmax {
        // SAFETY: the caller's contract: scores are stored in whole vectors.
        unsafe {
            let max = S::max_lanes(S::load(self.maxima.add(line * LANES)));
            let mut sum = S::splat(0.0);
            for i in (0..self.among(line, start, SPAN)).step_by(LANES) {
                let at = self.scores.add(line * SCORES + i);
                let e = exp_to_88::<S>(S::sub(S::load(at), S::splat(max)));
                S::store(at, e);
                sum = S::add(sum, e);
            }
            Softmax { max, sum: S::sum(sum) }
        }
    }

    /// Adds `weight * value` over the positions from `p` of which there are `values`.
    #[inline(always)]
    unsafe fn weigh<S: Simd, const R: usize>(
        &self,
        line: usize,
        values: *const C,
        start: usize,
        p: usize,
    ) {
        let n: [usize; R] = std::array::from_fn(|r| self.among(line + r, p, C::VALUES));
        // SAFETY: the caller's contract; the scores are the weights by now.
        unsafe {
            let weights = self.scores.add(line * SCORES + p - start);
            let parts = self.parts.add(line * self.a.dim);
            // The first line has those positions that all share.
            if p == start || n[0] > 0 {
                self.columns::<S, R>(values, weights, 0..n[0], p == start, parts);
            }
            for r in 1..R {
                if n[r] > n[0] {
                    let weights = weights.add(r * SCORES);
                    let part = parts.add(r * self.a.dim);
                    self.columns::<S, 1>(values, weights, n[0]..n[r], false, part);
                }
            }
        }
    }

    /// Sums `weight * value` over some positions for `R` lines, to what `out` holds if they do not `begin`.
    #[inline(always)]
    unsafe fn columns<S: Simd, const R: usize>(
        &self,
        values: *const C,
        weights: *const f32,
        range: Range<usize>,
        begin: bool,
        out: *mut f32,
    ) {
        let (mut d, dims) = (0, self.a.dim / LANES);
        while d < dims {
            let (at, range) = (d * LANES, range.clone());
            // SAFETY: the caller's contract; the columns are split without remainder.
            unsafe {
                let (values, out) = (values.add(at), out.add(at));
                d += if const { S::ACCUMULATORS >= 8 * R } && dims - d >= 8 {
                    self.column::<S, R, 8>(values, weights, range, begin, out)
                } else if const { S::ACCUMULATORS >= 4 * R } && dims - d >= 4 {
                    self.column::<S, R, 4>(values, weights, range, begin, out)
                } else if const { S::ACCUMULATORS >= 2 * R } && dims - d >= 2 {
                    self.column::<S, R, 2>(values, weights, range, begin, out)
                } else {
                    self.column::<S, R, 1>(values, weights, range, begin, out)
                };
            }
        }
    }

    /// [`Pass::columns`], `16 V` of them; returns `V`.
    #[inline(always)]
    unsafe fn column<S: Simd, const R: usize, const V: usize>(
        &self,
        values: *const C,
        weights: *const f32,
        range: Range<usize>,
        begin: bool,
        out: *mut f32,
    ) -> usize {
        let dim = self.a.dim;
        // SAFETY: the caller's contract: rows of `dim` values.
        unsafe {
            let mut sums = [[S::splat(0.0); V]; R];
            if !begin {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (i, sum) in sums.iter_mut().enumerate() {
                        *sum = S::load(out.add(r * dim + i * LANES));
                    }
                }
            }
            for p in range {
                let row = values.add(p * dim);
                let mut v = [S::splat(0.0); V];
                for (i, v) in v.iter_mut().enumerate() {
                    *v = C::load::<S>(row.add(i * LANES));
                    if const { C::DIRECT && R < GROUP } && i % 2 == 0 {
                        S::prefetch(row.cast::<u8>().wrapping_add(AHEAD + i / 2 * LINE));
                    }
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let weight = S::splat(*weights.add(r * SCORES + p));
                    for i in 0..V {
                        sums[i] = S::fma(weight, v[i], sums[i]);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (i, &sum) in sums.iter().enumerate() {
                    S::store(out.add(r * dim + i * LANES), sum);
                }
            }
            V
        }
    }
}

/// Of a softmax over some positions: the largest score, and the sum of exponentials relative to it.
#[derive(Clone, Copy)]
struct Softmax {
    max: f32,
    sum: f32,
}

impl Softmax {
    const ZERO: Self = Self { max: 0.0, sum: 0.0 };
}

/// Merges the unnormalised result of a span into that of the spans before it.
#[inline(always)]
unsafe fn merge<S: Simd>(
    dim: usize,
    out: *mut f32,
    total: &mut Softmax,
    part: *const f32,
    span: Softmax,
) {
    // SAFETY: the caller's contract: both rows hold `dim` values.
    unsafe {
        let new = if span.max > total.max { span.max } else { total.max };
        let mut factors = [0.0f32; LANES];
        factors[0] = total.max - new;
        factors[1] = span.max - new;
        S::store(factors.as_mut_ptr(), exp_to_88::<S>(S::load(factors.as_ptr())));
        let [old, add, ..] = factors;
        *total = Softmax { max: new, sum: total.sum.mul_add(old, span.sum * add) };
        for d in (0..dim).step_by(LANES) {
            let scaled = S::mul(S::load(part.add(d)), S::splat(add));
            S::store(out.add(d), S::fma(S::load(out.add(d)), S::splat(old), scaled));
        }
    }
}
