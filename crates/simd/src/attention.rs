//! Softmax attention of neighbouring tokens' query heads over one KV head's cache.
//!
//! A *line* is one query head of one token. Positions are processed in spans of `SPAN`, and spans in runs of `RUN`.
//! Within a span, the kernel computes the scores, their maximum and the power of two next to its exponential; then
//! each position's exponential as a multiple of that power, and their sums with and without the values as weights.
//! Spans are added in order to a run, and runs in order to the result, with power-of-two factors. Lines share every
//! byte that is read from the cache, but no number: a line's result depends only on its position. With one token
//! (decode) and a long context, the cache's bandwidth is the limit. With many tokens (prefill), multiply-adds are.
//! Lines then form groups whose sums stay in registers. Keys and values are widened to `f32` once for all groups,
//! one span at a time, so that they stay in the first-level cache.

use std::marker::PhantomData;
use std::ops::Range;

use super::cache::{CacheFormat, read_keys, read_values};
use super::isa::{Isa, dispatch};
use super::packed::LINE;
use super::vector::{BIAS, BIAS_F, LANES, Simd, capped, exp_over_power};

/// Positions of a span and of a run. Both are fixed, because they determine the order of additions.
const SPAN: usize = 2 * LANES;
const RUN: usize = 8 * SPAN;

/// Most lines that process a span together. They share the cost of widening, and take 2 to 3 KiB of scratch.
const LINES: usize = 64;

/// Most lines of a group.
const GROUP: usize = 8;

/// Distance between lines' scores: without the padding, those of a run would share sets of the first-level cache.
const SCORES: usize = RUN + LANES;

/// Prefetch distance of the cache, in bytes, for few lines: bandwidth is then the limit.
const AHEAD: usize = 8192;

/// Number of positions scored at a time. The length of a cache is a multiple of it, so that reads beyond the last
/// position stay inside the cache.
pub const POSITION_STEP: usize = SPAN;

/// `f32` values of scratch that [`attend`] needs for heads of `dim`: queries, scores, sums of a run and of a span
/// for each line, and a widened span.
#[must_use]
pub const fn scratch_len(dim: usize) -> usize {
    LINES * (dim + SCORES + dim + dim) + SPAN * dim
}

/// Arguments of [`attend`].
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// Queries of the first token: `heads` times `dim` values.
    pub q: *const f32,
    /// Number of tokens, at consecutive positions.
    pub rows: usize,
    /// Distance between tokens, in `q` and in `out`.
    pub stride: usize,
    /// Query heads of this KV head.
    pub heads: usize,
    /// Values of a head, a multiple of 16.
    pub dim: usize,
    /// Format of the KV head's keys and values, which supports heads of `dim`.
    pub format: CacheFormat,
    pub places: Places,
    /// Address of place 0.
    pub keys: *const u8,
    pub values: *const u8,
    /// Positions that the first token attends to, from 0; at least 1.
    pub positions: usize,
    /// Length of the attention window, for every token.
    pub window: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Soft cap of the scores.
    pub cap: Option<f32>,
    /// One score per query head that takes weight and has no value (attention sink).
    pub sinks: Option<*const f32>,
    /// [`scratch_len`] values.
    pub scratch: *mut f32,
    /// Results of the first token: `heads` times `dim` values.
    pub out: *mut f32,
}

/// Mapping of positions to places in a cache.
#[derive(Clone, Copy, Debug)]
pub enum Places {
    /// Position modulo this number: a multiple of [`POSITION_STEP`], not less than the spans of the window and the
    /// tokens together, or larger than all positions.
    Ring(usize),
    /// Blocks of `positions` positions, a multiple of [`POSITION_STEP`].
    Blocks {
        /// Block number of each block of positions (block table).
        table: *const u32,
        positions: usize,
        /// Places between blocks of consecutive numbers.
        pitch: usize,
    },
}

impl Attend {
    /// Place of the span at `p`.
    #[inline(always)]
    unsafe fn place(&self, p: usize) -> usize {
        match self.places {
            Places::Ring(positions) => p % positions,
            Places::Blocks { table, positions, pitch } => {
                // SAFETY: the caller's contract: the table has an entry for each position that is attended to.
                let block = unsafe { *table.add(p / positions) } as usize;
                block * pitch + p % positions
            }
        }
    }

    /// Bytes from the span at `p` to the span to prefetch while it is read; 0 without one.
    #[inline(always)]
    unsafe fn prefetch_distance(&self, p: usize) -> isize {
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

/// Computes each line's attention.
///
/// # Safety
///
/// The pointers are valid as described, the caches for the last token's positions rounded up to [`POSITION_STEP`],
/// or for the ring or the blocks; no other thread accesses `scratch` and `out`.
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
    /// Processes some lines together.
    ///
    /// # Safety
    ///
    /// As for [`attend`]; the lines are among its lines.
    unsafe fn pass[C: Cached](a: &Attend, first: usize, lines: usize) = pass_in<C>;
}

#[inline(always)]
unsafe fn pass_in<S: Simd, C: Cached>(a: &Attend, first: usize, lines: usize) {
    // SAFETY: the caller's contract.
    unsafe { Pass::<C>::new(a, first, lines).run::<S>() }
}

/// Element type in which lines read the cache.
trait Cached: Copy {
    /// True if few lines read the cache itself, without widening.
    const DIRECT: bool;
    /// The keys of the span at `p`; `room` has space to widen them.
    unsafe fn keys<S: Simd>(a: &Attend, p: usize, room: *mut f32) -> *const Self;
    /// The values of the span at `p`.
    unsafe fn values<S: Simd>(a: &Attend, p: usize, room: *mut f32) -> *const Self;
    /// Loads 16 of them.
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
    /// Byte distance to the data to prefetch meanwhile.
    ahead: isize,
}

impl<C> Span<C> {
    #[inline(always)]
    fn later(self) -> *const u8 {
        self.rows.cast::<u8>().wrapping_offset(self.ahead)
    }
}

/// Calls a function for each group of lines. A group has as many lines as the instruction set's registers can hold
/// two sums for. Larger groups are not compiled.
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

/// Lines that are processed together. Scratch is ordered by line, except queries: those are ordered by group, `[dim
/// / 16][lines][16]`.
struct Pass<'a, C> {
    a: &'a Attend,
    /// Index of the first line, and number of lines.
    first: usize,
    lines: usize,
    /// Positions that each line attends to, from `hidden` on. Later tokens have larger values of both.
    positions: [usize; LINES],
    hidden: [usize; LINES],
    queries: *mut f32,
    scores: *mut f32,
    /// Per line, sums of a run, and of a span.
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

    /// Offset of a line in queries and results.
    #[inline(always)]
    fn place(&self, line: usize) -> usize {
        let (row, head) = ((self.first + line) / self.a.heads, (self.first + line) % self.a.heads);
        row * self.a.stride + head * self.a.dim
    }

    /// The lines that attend to at least one of `n` positions from `start`.
    #[inline(always)]
    fn attending(&self, start: usize, n: usize) -> Range<usize> {
        let first = self.positions[..self.lines].partition_point(|&positions| positions <= start);
        let end = self.hidden[..self.lines].partition_point(|&hidden| hidden < start + n);
        first.min(end)..end
    }

    /// Number of positions, at most `most` from `start`, that a line attends to.
    #[inline(always)]
    fn among(&self, line: usize, start: usize, most: usize) -> usize {
        self.positions[line].saturating_sub(start).min(most)
    }

    /// Number of these positions before the line's window.
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
            // Spans before every line's window are skipped.
            let seen = self.hidden[0] / SPAN * SPAN;
            for start in (seen / RUN * RUN..most).step_by(RUN) {
                let end = most.min(start + RUN).next_multiple_of(SPAN);
                let begin = start.max(seen);
                for p in (begin..end).step_by(SPAN) {
                    let keys =
                        Span { rows: C::keys::<S>(a, p, self.room), ahead: a.prefetch_distance(p) };
                    each_group!(self, S, score(keys, start, p));
                }
                let mut run = [Softmax::ZERO; LINES];
                for p in (begin..end).step_by(SPAN) {
                    let values = Span {
                        rows: C::values::<S>(a, p, self.room),
                        ahead: a.prefetch_distance(p),
                    };
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

    /// Loads the queries of the group that begins at `line`.
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

    /// Scores of the span at `p`; minus infinity at positions that a line does not attend to.
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
                        // One cache line per two half spans.
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

    /// Replaces a line's scores of the span at `p` by exponentials, as multiples of the power of two next to the
    /// greatest one. The sum becomes NaN if a score is NaN, or the greatest score has no such power.
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

    /// Writes the sums of `weight * value` over the positions of the span at `p` to each line's part of `sums`.
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
            // The first line attends to the positions that all lines share.
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

    /// Sums `weight * value` over some positions for `R` lines. Adds to `out` unless `begin` is set.
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

    /// [`Pass::columns`] for `16 V` columns; returns `V`.
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

/// Greatest magnitude of [`Softmax::power`] that [`BIAS_F`] can round.
const MOST_POWER: f32 = 4_194_304.0;

/// Partial softmax over some positions: the sum of exponentials, divided by a power of two that keeps it near 1.
#[derive(Clone, Copy)]
struct Softmax {
    power: i32,
    sum: f32,
}

impl Softmax {
    const ZERO: Self = Self { power: 0, sum: 0.0 };

    /// The partial softmax of a span's scores, and the weight of each position.
    ///
    /// # Safety
    ///
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn of<S: Simd>(scores: [S::F; 2]) -> (Self, [S::F; 2]) {
        // SAFETY: the caller's contract.
        unsafe {
            // This order of operands ignores a NaN.
            let max = S::max(scores[1], S::splat(f32::NEG_INFINITY));
            let max = S::max_lanes(S::max(scores[0], max));
            let exponent = max * std::f32::consts::LOG2_E;
            // Adding a number whose last bit is worth 1 rounds to an integer.
            let rounded = BIAS_F + exponent.clamp(-MOST_POWER, MOST_POWER);
            let power = rounded.to_bits().cast_signed() - BIAS;
            // Two calls instead of `scores.map(..)`: a closure inside `map` is compiled without the instruction set
            // of `S` and never inlined, so that each intrinsic in it becomes a call.
            let weights = [
                exp_over_power::<S>(scores[0], max, power),
                exp_over_power::<S>(scores[1], max, power),
            ];
            let sum = S::sum(S::add(weights[0], weights[1]));
            let sum = if exponent.abs() <= MOST_POWER { sum } else { f32::NAN };
            (Self { power, sum }, weights)
        }
    }

    /// Adds the results of further positions: their softmax, and their `dim` weighted sums to `values`.
    ///
    /// # Safety
    ///
    /// As for [`Simd`]; both rows have `dim` values.
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

/// `2^n` for `n` up to 0; 0 if the result is not a normal number.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((127 + n.max(-127)).cast_unsigned() << 23)
}
