//! Softmax attention of neighbouring tokens' query heads over one KV head's cache.
//!
//! A *line* is one query head of one token. Positions are taken in spans of `SPAN`, spans in runs of `RUN`:
//! within a span the scores, their maximum and the power of two next to its exponential, then each position's
//! exponential as a multiple of that power, and the sums of these and of what they weigh; spans are folded in
//! order into a run, runs in order into the whole, by factors that are powers of two themselves. Lines share each
//! byte of the cache that is read, but no number: the result of a line depends on its position alone. With one
//! token (decode) the limit is the cache's bytes once the context is long. With many (prefill) it is
//! multiply-adds: lines go in groups whose sums stay in registers, and what they meet is widened to `f32` once
//! for all groups, a span at a time, so that it stays in the first-level cache.

use std::marker::PhantomData;
use std::ops::Range;

use super::cache::{CacheFormat, read_keys, read_values};
use super::isa::{Isa, dispatch};
use super::packed::LINE;
use super::vector::{BIAS, BIAS_F, LANES, Simd, capped, exp_over_power};

/// Positions of a span and of a run. Fixed: they are part of the order in which numbers are added.
const SPAN: usize = 2 * LANES;
const RUN: usize = 8 * SPAN;

/// Most lines that go through a span together. It divides what widening costs each, and takes 2 to 3 KiB of
/// scratch.
const LINES: usize = 64;

/// Most lines of a group.
const GROUP: usize = 8;

/// Distance between lines' scores: those of a whole run would be in the same sets of the first-level cache.
const SCORES: usize = RUN + LANES;

/// How far ahead of the reader the cache is asked for, in bytes, where few lines share what is read: then
/// the limit is its bytes.
const AHEAD: usize = 8192;

/// Positions are scored in steps of this; a cache holds a multiple of it, so that reading past the last
/// position stays inside.
pub const POSITION_STEP: usize = SPAN;

/// `f32` values of scratch that [`attend`] needs for heads of `dim`: each line's query, scores, what a run and
/// what a span adds; and a span that is widened.
#[must_use]
pub const fn scratch_len(dim: usize) -> usize {
    LINES * (dim + SCORES + dim + dim) + SPAN * dim
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
    /// How the KV head's keys and values lie; there is the format for heads of `dim`.
    pub format: CacheFormat,
    pub places: Places,
    /// Where place 0 is.
    pub keys: *const u8,
    pub values: *const u8,
    /// Positions that the first token attends to, from 0; at least 1.
    pub positions: usize,
    /// How many of them, the last ones, are within its window; as many for the tokens after it.
    pub window: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Their soft cap.
    pub cap: Option<f32>,
    /// Of each query head a score that takes weight and has no value.
    pub sinks: Option<*const f32>,
    /// [`scratch_len`] values.
    pub scratch: *mut f32,
    /// Results of the first token: `heads` times `dim` values.
    pub out: *mut f32,
}

/// Where positions lie in a cache.
#[derive(Clone, Copy, Debug)]
pub enum Places {
    /// One after the other, and anew after so many: a multiple of [`POSITION_STEP`] no less than the spans of the window
    /// and the tokens together, or more than there are.
    Ring(usize),
    /// In blocks of so many positions, a multiple of [`POSITION_STEP`].
    Blocks {
        /// The number of each block of positions.
        table: *const u32,
        positions: usize,
        /// Places from a block to the next number's.
        pitch: usize,
    },
}

impl Attend {
    /// The place of the span at `p`.
    #[inline(always)]
    unsafe fn place(&self, p: usize) -> usize {
        match self.places {
            Places::Ring(positions) => p % positions,
            Places::Blocks { table, positions, pitch } => {
                // SAFETY: the caller's contract: the table says where each position lies that is attended to.
                let block = unsafe { *table.add(p / positions) } as usize;
                block * pitch + p % positions
            }
        }
    }

    /// Bytes from the span at `p` to the one to ask for while it is read; to itself where there is none.
    #[inline(always)]
    unsafe fn ahead(&self, p: usize) -> isize {
        let row = self.format.row_bytes(self.dim);
        let later = p + (AHEAD / row).next_multiple_of(SPAN);
        if later >= self.positions {
            return 0;
        }
        // SAFETY: the caller's contract.
        let places = unsafe { self.place(later).wrapping_sub(self.place(p)) };
        places.wrapping_mul(row).cast_signed()
    }
}

/// Writes each line's attention.
///
/// # Safety
///
/// The pointers are valid as described, the caches for the last token's positions rounded up to
/// [`POSITION_STEP`], or for the ring or the blocks; `scratch` and `out` are accessed by nobody else.
pub unsafe fn attend(isa: Isa, a: &Attend) {
    let total = a.rows * a.heads;
    for first in (0..total).step_by(LINES) {
        let lines = LINES.min(total - first);
        // SAFETY: the caller's contract; the lines are split without remainder.
        unsafe {
            if lines > GROUP || a.format != CacheFormat::F16 {
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
    /// The keys of the span at `p`; `room` has place for them.
    unsafe fn keys<S: Simd>(a: &Attend, p: usize, room: *mut f32) -> *const Self;
    /// Its values.
    unsafe fn values<S: Simd>(a: &Attend, p: usize, room: *mut f32) -> *const Self;
    /// 16 of them.
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;
}

impl Cached for u16 {
    const DIRECT: bool = true;

    #[inline(always)]
    unsafe fn keys<S: Simd>(a: &Attend, p: usize, _: *mut f32) -> *const Self {
        // SAFETY: the caller's contract.
        unsafe { a.keys.cast::<Self>().add(a.place(p) * a.dim) }
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(a: &Attend, p: usize, _: *mut f32) -> *const Self {
        // SAFETY: the caller's contract.
        unsafe { a.values.cast::<Self>().add(a.place(p) * a.dim) }
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load_f16(p) }
    }
}

impl Cached for f32 {
    const DIRECT: bool = false;

    #[inline(always)]
    unsafe fn keys<S: Simd>(a: &Attend, p: usize, room: *mut f32) -> *const Self {
        let Attend { format, dim, .. } = *a;
        // SAFETY: the caller's contract.
        unsafe {
            let keys = a.keys.add(a.place(p) * format.row_bytes(dim));
            read_keys::<S>(format, keys, dim, SPAN, room);
        }
        room
    }

    #[inline(always)]
    unsafe fn values<S: Simd>(a: &Attend, p: usize, room: *mut f32) -> *const Self {
        let Attend { format, dim, .. } = *a;
        // SAFETY: the caller's contract.
        unsafe {
            let values = a.values.add(a.place(p) * format.row_bytes(dim));
            read_values::<S>(format, values, dim, SPAN, room);
        }
        room
    }

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const Self) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load(p) }
    }
}

/// A span of keys or values, or some of its rows.
#[derive(Clone, Copy)]
struct Span<C> {
    rows: *const C,
    /// Bytes to those that are asked for meanwhile.
    ahead: isize,
}

impl<C> Span<C> {
    #[inline(always)]
    fn later(self) -> *const u8 {
        self.rows.cast::<u8>().wrapping_offset(self.ahead)
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
    /// Positions that each attends to, from `hidden`. Later tokens have more of both.
    positions: [usize; LINES],
    hidden: [usize; LINES],
    queries: *mut f32,
    scores: *mut f32,
    /// What a run adds to each line, and what a span does.
    runs: *mut f32,
    spans: *mut f32,
    room: *mut f32,
    cached: PhantomData<C>,
}

impl<'a, C: Cached> Pass<'a, C> {
    #[inline(always)]
    unsafe fn new(a: &'a Attend, first: usize, lines: usize) -> Self {
        let mut positions = [0; LINES];
        let mut hidden = [0; LINES];
        for (line, (positions, hidden)) in
            positions[..lines].iter_mut().zip(&mut hidden).enumerate()
        {
            *positions = a.positions + (first + line) / a.heads;
            *hidden = positions.saturating_sub(a.window);
        }
        // SAFETY: the caller's contract: `scratch_len` is the sum of these.
        unsafe {
            let queries = a.scratch;
            let scores = queries.add(LINES * a.dim);
            let runs = scores.add(LINES * SCORES);
            let spans = runs.add(LINES * a.dim);
            let room = spans.add(LINES * a.dim);
            let cached = PhantomData;
            Self { a, first, lines, positions, hidden, queries, scores, runs, spans, room, cached }
        }
    }

    /// Where a line lies in queries and results.
    #[inline(always)]
    fn place(&self, line: usize) -> usize {
        let (row, head) = ((self.first + line) / self.a.heads, (self.first + line) % self.a.heads);
        row * self.a.stride + head * self.a.dim
    }

    /// The lines that attend to one of `n` positions from `start`.
    #[inline(always)]
    fn attending(&self, start: usize, n: usize) -> Range<usize> {
        let first = self.positions[..self.lines].partition_point(|&positions| positions <= start);
        let end = self.hidden[..self.lines].partition_point(|&hidden| hidden < start + n);
        first.min(end)..end
    }

    /// How many of `most` positions from `start` a line attends to.
    #[inline(always)]
    fn among(&self, line: usize, start: usize, most: usize) -> usize {
        self.positions[line].saturating_sub(start).min(most)
    }

    /// How many of the first of them are before its window.
    #[inline(always)]
    fn before(&self, line: usize, start: usize, most: usize) -> usize {
        self.hidden[line].saturating_sub(start).min(most)
    }

    #[inline(always)]
    unsafe fn run<S: Simd>(&self) {
        let (a, most) = (self.a, self.positions[self.lines - 1]);
        let mut totals = [Softmax::ZERO; LINES];
        // SAFETY: the caller's contract; spans and lines stay within caches, scratch and output.
        unsafe {
            each_group!(self, S, interleave());
            // What is before every line's window is left out.
            let seen = self.hidden[0] / SPAN * SPAN;
            for start in (seen / RUN * RUN..most).step_by(RUN) {
                let end = most.min(start + RUN).next_multiple_of(SPAN);
                let begin = start.max(seen);
                for p in (begin..end).step_by(SPAN) {
                    let keys = Span { rows: C::keys::<S>(a, p, self.room), ahead: a.ahead(p) };
                    each_group!(self, S, score(keys, start, p));
                }
                let mut run = [Softmax::ZERO; LINES];
                for p in (begin..end).step_by(SPAN) {
                    let values = Span { rows: C::values::<S>(a, p, self.room), ahead: a.ahead(p) };
                    let mut span = [Softmax::ZERO; LINES];
                    for line in self.attending(p, SPAN) {
                        span[line] = self.softmax::<S>(line, start, p);
                    }
                    let sums = if p == begin { self.runs } else { self.spans };
                    each_group!(self, S, weigh(values, start, p, sums));
                    for line in self.attending(p, SPAN) {
                        let (run, run_sums) = (&mut run[line], self.runs.add(line * a.dim));
                        let sums = sums.add(line * a.dim);
                        if p != start.max(self.hidden[line] / SPAN * SPAN) {
                            run.fold::<S>(run_sums, span[line], sums, a.dim);
                            continue;
                        }
                        *run = span[line];
                        if p != begin {
                            run_sums.copy_from_nonoverlapping(sums, a.dim);
                        }
                    }
                }
                for line in self.attending(start, RUN) {
                    let (out, sums) = (a.out.add(self.place(line)), self.runs.add(line * a.dim));
                    if start == self.hidden[line] / RUN * RUN {
                        out.copy_from_nonoverlapping(sums, a.dim);
                        totals[line] = run[line];
                    } else {
                        totals[line].fold::<S>(out, run[line], sums, a.dim);
                    }
                }
            }
            if a.sinks.is_some() {
                self.spans.write_bytes(0, a.dim);
            }
            for (line, mut total) in totals[..self.lines].iter().copied().enumerate() {
                let out = a.out.add(self.place(line));
                if let Some(sinks) = a.sinks {
                    let sink = S::splat(*sinks.add((self.first + line) % a.heads));
                    let nothing = S::splat(f32::NEG_INFINITY);
                    let (sink, _) = Softmax::of::<S>([S::first(sink, 1, nothing), nothing]);
                    total.fold::<S>(out, sink, self.spans, a.dim);
                }
                let sum = S::splat(total.sum);
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

    /// Scores of the span at `p`, minus infinity beyond a line's positions.
    #[inline(always)]
    unsafe fn score<S: Simd, const R: usize>(
        &self,
        line: usize,
        keys: Span<C>,
        start: usize,
        p: usize,
    ) {
        let n: [usize; R] = std::array::from_fn(|r| self.among(line + r, p, SPAN));
        if self.before(line, p, SPAN) == SPAN {
            return;
        }
        // SAFETY: the caller's contract: the cache holds whole steps of positions.
        unsafe {
            if n[R - 1] > LANES {
                self.dots::<S, R, 2>(line, keys, &n, start, p);
            } else if n[R - 1] > 0 {
                self.dots::<S, R, 1>(line, keys, &n, start, p);
            }
        }
    }

    /// [`Pass::score`] of the span's first `16 H` positions.
    #[inline(always)]
    unsafe fn dots<S: Simd, const R: usize, const H: usize>(
        &self,
        line: usize,
        keys: Span<C>,
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
                        *k = C::load::<S>(keys.rows.add((half * dim + d) * LANES));
                    }
                    if const { C::DIRECT && R < GROUP } {
                        // A line for every two halves that are read.
                        S::prefetch(keys.later().wrapping_add(d * LINE));
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
            if let Some(cap) = self.a.cap {
                for sum in sums.as_flattened_mut() {
                    *sum = capped::<S>(cap, *sum);
                }
            }
            if self.hidden[line + R - 1] > p {
                for (r, sums) in sums.iter_mut().enumerate() {
                    let hidden = self.before(line + r, p, SPAN);
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let n = hidden.saturating_sub(half * LANES);
                        *sum = S::first(S::splat(f32::NEG_INFINITY), n, *sum);
                    }
                }
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
                for (half, &score) in sums.iter().enumerate() {
                    S::store(scores.add(r * SCORES + half * LANES), score);
                }
            }
        }
    }

    /// Turns a line's scores of the span at `p` into multiples of the power of two next to the greatest one's
    /// exponential. A NaN among them makes the sum NaN, and so does a greatest one without such a power.
    #[inline(always)]
    unsafe fn softmax<S: Simd>(&self, line: usize, start: usize, p: usize) -> Softmax {
        // SAFETY: the caller's contract: scores are stored in whole vectors.
        unsafe {
            let at = self.scores.add(line * SCORES + p - start);
            let mut scores = [S::load(at), S::splat(f32::NEG_INFINITY)];
            if self.among(line, p, SPAN) > LANES {
                scores[1] = S::load(at.add(LANES));
            }
            let (softmax, weights) = Softmax::of::<S>(scores);
            S::store(at, weights[0]);
            S::store(at.add(LANES), weights[1]);
            softmax
        }
    }

    /// Writes the sums of `weight * value` over the positions of the span at `p` to each line's place in `sums`.
    #[inline(always)]
    unsafe fn weigh<S: Simd, const R: usize>(
        &self,
        line: usize,
        values: Span<C>,
        start: usize,
        p: usize,
        sums: *mut f32,
    ) {
        let n: [usize; R] = std::array::from_fn(|r| self.among(line + r, p, SPAN));
        if n[R - 1] == 0 || self.before(line, p, SPAN) == SPAN {
            return;
        }
        // SAFETY: the caller's contract; the scores are the weights by now.
        unsafe {
            let weights = self.scores.add(line * SCORES + p - start);
            let sums = sums.add(line * self.a.dim);
            // The first line has those positions that all share.
            self.columns::<S, R>(values, weights, 0..n[0], true, sums);
            for r in 1..R {
                if n[r] > n[0] {
                    let weights = weights.add(r * SCORES);
                    let sums = sums.add(r * self.a.dim);
                    self.columns::<S, 1>(values, weights, n[0]..n[r], false, sums);
                }
            }
        }
    }

    /// Sums `weight * value` over some positions for `R` lines, to what `out` holds if they do not `begin`.
    #[inline(always)]
    unsafe fn columns<S: Simd, const R: usize>(
        &self,
        values: Span<C>,
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
                let values = Span { rows: values.rows.add(at), ..values };
                let out = out.add(at);
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
        values: Span<C>,
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
                let row = Span { rows: values.rows.add(p * dim), ..values };
                let mut v = [S::splat(0.0); V];
                for (i, v) in v.iter_mut().enumerate() {
                    *v = C::load::<S>(row.rows.add(i * LANES));
                    if const { C::DIRECT && R < GROUP } && i % 2 == 0 {
                        S::prefetch(row.later().wrapping_add(i / 2 * LINE));
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

/// Greatest magnitude of [`Softmax::power`]: what [`BIAS_F`] rounds.
const MOST_POWER: f32 = 4_194_304.0;

/// Of a softmax over some positions: the sum of exponentials, less a power of two that keeps them near 1.
#[derive(Clone, Copy)]
struct Softmax {
    power: i32,
    sum: f32,
}

impl Softmax {
    const ZERO: Self = Self { power: 0, sum: 0.0 };

    /// Of a span's scores, and the weight of each.
    ///
    /// # Safety
    ///
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn of<S: Simd>(scores: [S::F; 2]) -> (Self, [S::F; 2]) {
        // SAFETY: the caller's contract.
        unsafe {
            // A NaN is passed over.
            let max = S::max(scores[1], S::splat(f32::NEG_INFINITY));
            let max = S::max_lanes(S::max(scores[0], max));
            let exponent = max * std::f32::consts::LOG2_E;
            // Rounded by adding it to a number whose last bit is worth 1.
            let rounded = BIAS_F + exponent.clamp(-MOST_POWER, MOST_POWER);
            let power = rounded.to_bits().cast_signed() - BIAS;
            // Two calls instead of `scores.map(..)`: a closure inside `map` is compiled without the instruction
            // set of `S` and never inlined, which makes each intrinsic in it a call.
            let weights = [
                exp_over_power::<S>(scores[0], max, power),
                exp_over_power::<S>(scores[1], max, power),
            ];
            let sum = S::sum(S::add(weights[0], weights[1]));
            let sum = if exponent.abs() <= MOST_POWER { sum } else { f32::NAN };
            (Self { power, sum }, weights)
        }
    }

    /// Adds what further positions gave: their softmax, and the `dim` sums of what they weigh to `values`.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; both rows hold `dim` values.
    #[inline(always)]
    unsafe fn fold<S: Simd>(&mut self, values: *mut f32, more: Self, sums: *const f32, dim: usize) {
        let power = self.power.max(more.power);
        let (old, new) = (power_of_two(self.power - power), power_of_two(more.power - power));
        *self = Self { power, sum: more.sum.mul_add(new, self.sum * old) };
        // SAFETY: the caller's contract.
        unsafe {
            let (old, new) = (S::splat(old), S::splat(new));
            for d in (0..dim).step_by(LANES) {
                let kept = S::mul(S::load(values.add(d)), old);
                S::store(values.add(d), S::fma(S::load(sums.add(d)), new, kept));
            }
        }
    }
}

/// `2^n` for `n` up to 0, and 0 where it would not be a normal number.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((127 + n.max(-127)).cast_unsigned() << 23)
}
