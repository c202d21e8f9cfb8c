//! Softmax attention of neighbouring tokens' query heads over one KV head's cache.
//!
//! A *line* is one query head of one token. Positions are taken in spans of [`SPAN`]: within a span
//! the scores of some lines are computed together, then each line's maximum, exponentials and sum,
//! then the weighted sum of values; spans are merged in order. Lines share each byte of the cache
//! that is read, but no number: the result of a line depends on its position alone. With one token
//! (decode) the limit is the cache's bytes once the context is long; with many (prefill), where up to
//! `LINES` lines go together, it is multiply-adds.

use std::ops::Range;

use super::isa::dispatch;
use super::packed::LINE;
use super::simd::{LANES, Simd, exp};

/// Positions of a span. Fixed: it is part of the order in which numbers are added.
pub const SPAN: usize = 512;

/// Most lines that share one pass over a span.
const LINES: usize = 8;

/// How far ahead of the reader the cache is asked for, in bytes, where few lines share what is read: then
/// the limit is its bytes.
const AHEAD: usize = 8192;

/// Positions are read in runs of this; a cache holds a multiple of it, so that reading past the
/// last position stays inside.
pub const POSITION_STEP: usize = 2 * LANES;

/// `f32` values of scratch that [`attend`] needs for heads of `dim`: queries, scores, and what a span
/// adds.
#[must_use]
pub const fn scratch_len(dim: usize) -> usize {
    LINES * (dim + SPAN + dim)
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

dispatch! {
    /// Writes each line's attention.
    ///
    /// # Safety
    ///
    /// The pointers are valid as described, the caches for the last token's positions rounded up to
    /// [`POSITION_STEP`]; `scratch` and `out` are accessed by nobody else.
    pub unsafe fn attend(a: &Attend) = attend_in;
}

#[inline(always)]
unsafe fn attend_in<S: Simd>(a: &Attend) {
    // SAFETY: the caller's contract; the lines are split without remainder.
    unsafe {
        let (mut line, total) = (0, a.rows * a.heads);
        while line < total {
            // Two accumulators for each line's scores. What a set cannot hold is not compiled for it.
            let left = total - line;
            line += if const { S::ACCUMULATORS >= 2 * LINES } && left >= LINES {
                lines::<S, LINES>(a, line)
            } else if const { S::ACCUMULATORS >= 8 } && left >= 4 {
                lines::<S, 4>(a, line)
            } else if left >= 2 {
                lines::<S, 2>(a, line)
            } else {
                lines::<S, 1>(a, line)
            };
        }
    }
}

/// `R` lines from `first`; returns `R`.
#[inline(always)]
unsafe fn lines<S: Simd, const R: usize>(a: &Attend, first: usize) -> usize {
    // SAFETY: the caller's contract; spans and rows stay within caches, scratch and output.
    unsafe {
        let queries = a.scratch;
        let scores = queries.add(LINES * a.dim);
        let part = scores.add(LINES * SPAN);
        let mut out = [a.out; R];
        let mut parts = [part; R];
        let mut positions = [0; R];
        for r in 0..R {
            let (row, head) = ((first + r) / a.heads, (first + r) % a.heads);
            let at = row * a.stride + head * a.dim;
            positions[r] = a.positions + row;
            out[r] = a.out.add(at);
            parts[r] = part.add(r * a.dim);
            for d in 0..a.dim {
                *queries.add(d * R + r) = *a.q.add(at + d);
            }
        }
        let mut max = [f32::NEG_INFINITY; R];
        let mut sum = [0.0f32; R];
        let mut start = 0;
        while start < positions[R - 1] {
            // Later tokens have more positions, so the first line has those that all share.
            let mut n = [0; R];
            for r in 0..R {
                n[r] = positions[r].saturating_sub(start).min(SPAN);
            }
            score::<S, R>(a, queries, start, &n, scores);
            let to = if start == 0 { &out } else { &parts };
            let mut span_max = [0.0f32; R];
            let mut span_sum = [0.0f32; R];
            for r in 0..R {
                (span_max[r], span_sum[r]) = softmax::<S>(scores.add(r * SPAN), n[r]);
            }
            let values = a.values.add(start * a.dim);
            columns::<S, R>(a.dim, values, scores, 0..n[0], to);
            for r in 1..R {
                if n[r] > n[0] {
                    columns::<S, 1>(a.dim, values, scores.add(r * SPAN), n[0]..n[r], &[to[r]]);
                }
            }
            if start == 0 {
                (max, sum) = (span_max, span_sum);
            } else {
                for r in 0..R {
                    if n[r] > 0 {
                        merge::<S>(
                            a.dim,
                            (out[r], &mut max[r], &mut sum[r]),
                            (parts[r], span_max[r], span_sum[r]),
                        );
                    }
                }
            }
            start += SPAN;
        }
        for (&out, &sum) in out.iter().zip(&sum) {
            for d in (0..a.dim).step_by(LANES) {
                let p = out.add(d);
                S::store(p, S::div(S::load(p), S::splat(sum)));
            }
        }
        R
    }
}

/// Scores of a span: of line `r`, `n[r]` positions from `start`, minus infinity from there on. The
/// last line has most.
#[inline(always)]
unsafe fn score<S: Simd, const R: usize>(
    a: &Attend,
    queries: *const f32,
    start: usize,
    n: &[usize; R],
    scores: *mut f32,
) {
    // SAFETY: the caller's contract: the cache holds whole steps of positions.
    unsafe {
        let scale = S::splat(a.scale);
        for p in (0..n[R - 1]).step_by(POSITION_STEP) {
            let k0 = a.keys.add((start + p) * a.dim);
            let k1 = k0.add(LANES * a.dim);
            let mut sums = [[S::splat(0.0); 2]; R];
            for d in 0..a.dim {
                let (c0, c1) = (S::load_f16(k0.add(d * LANES)), S::load_f16(k1.add(d * LANES)));
                if const { R < LINES } {
                    // A line for every two halves that are read.
                    S::prefetch(k0.cast::<u8>().wrapping_add(AHEAD + d * LINE));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let q = S::splat(*queries.add(d * R + r));
                    sums[0] = S::fma(q, c0, sums[0]);
                    sums[1] = S::fma(q, c1, sums[1]);
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (half, &sum) in sums.iter().enumerate() {
                    let at = p + half * LANES;
                    let masked = S::splat(f32::NEG_INFINITY);
                    let score = S::first(S::mul(sum, scale), n[r].saturating_sub(at), masked);
                    S::store(scores.add(r * SPAN + at), score);
                }
            }
        }
    }
}

/// Turns `n` scores into `e^(score - max)`; returns the maximum and the sum. A NaN among them makes
/// the sum NaN.
#[inline(always)]
unsafe fn softmax<S: Simd>(scores: *mut f32, n: usize) -> (f32, f32) {
    // SAFETY: the caller's contract: scores are stored in whole vectors.
    unsafe {
        let mut max = S::splat(f32::NEG_INFINITY);
        for i in (0..n).step_by(LANES) {
            max = S::max(S::load(scores.add(i)), max);
        }
        let max = S::max_lanes(max);
        let mut sum = S::splat(0.0);
        for i in (0..n).step_by(LANES) {
            let e = exp::<S>(S::sub(S::load(scores.add(i)), S::splat(max)));
            S::store(scores.add(i), e);
            sum = S::add(sum, e);
        }
        (max, S::sum(sum))
    }
}

/// Sums `weight * value` over a range of positions for `R` lines; what does not begin at 0 adds to
/// what `out` holds.
#[inline(always)]
unsafe fn columns<S: Simd, const R: usize>(
    dim: usize,
    values: *const u16,
    weights: *const f32,
    range: Range<usize>,
    out: &[*mut f32; R],
) {
    let (mut d, dims) = (0, dim / LANES);
    while d < dims {
        let (at, range) = (d * LANES, range.clone());
        // SAFETY: the caller's contract; the columns are split without remainder.
        unsafe {
            d += if const { S::ACCUMULATORS >= 8 * R } && dims - d >= 8 {
                weigh::<S, R, 8>(dim, values, weights, range, out, at)
            } else if const { S::ACCUMULATORS >= 4 * R } && dims - d >= 4 {
                weigh::<S, R, 4>(dim, values, weights, range, out, at)
            } else if const { S::ACCUMULATORS >= 2 * R } && dims - d >= 2 {
                weigh::<S, R, 2>(dim, values, weights, range, out, at)
            } else {
                weigh::<S, R, 1>(dim, values, weights, range, out, at)
            };
        }
    }
}

/// [`columns`] for the `16 V` columns from `column`; returns `V`.
#[inline(always)]
unsafe fn weigh<S: Simd, const R: usize, const V: usize>(
    dim: usize,
    values: *const u16,
    weights: *const f32,
    range: Range<usize>,
    out: &[*mut f32; R],
    column: usize,
) -> usize {
    // SAFETY: the caller's contract: rows of `dim` values.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; R];
        if range.start > 0 {
            for (sums, out) in sums.iter_mut().zip(out) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(out.add(column + i * LANES));
                }
            }
        }
        for p in range {
            let row = values.add(p * dim + column);
            let mut v = [S::splat(0.0); V];
            for (i, v) in v.iter_mut().enumerate() {
                *v = S::load_f16(row.add(i * LANES));
                if const { R < LINES } && i % 2 == 0 {
                    S::prefetch(row.cast::<u8>().wrapping_add(AHEAD + i / 2 * LINE));
                }
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(r * SPAN + p));
                for i in 0..V {
                    sums[i] = S::fma(weight, v[i], sums[i]);
                }
            }
        }
        for (sums, out) in sums.iter().zip(out) {
            for (i, &sum) in sums.iter().enumerate() {
                S::store(out.add(column + i * LANES), sum);
            }
        }
        V
    }
}

/// Merges the unnormalised result of a span into that of the spans before it.
#[inline(always)]
unsafe fn merge<S: Simd>(
    dim: usize,
    into: (*mut f32, &mut f32, &mut f32),
    from: (*const f32, f32, f32),
) {
    // SAFETY: the caller's contract: both rows hold `dim` values.
    unsafe {
        let (out, max, sum) = into;
        let (part, part_max, part_sum) = from;
        let new = if part_max > *max { part_max } else { *max };
        let mut factors = [0.0f32; LANES];
        factors[0] = *max - new;
        factors[1] = part_max - new;
        S::store(factors.as_mut_ptr(), exp::<S>(S::load(factors.as_ptr())));
        let [old, add, ..] = factors;
        *max = new;
        *sum = (*sum).mul_add(old, part_sum * add);
        for d in (0..dim).step_by(LANES) {
            let scaled = S::mul(S::load(part.add(d)), S::splat(add));
            S::store(out.add(d), S::fma(S::load(out.add(d)), S::splat(old), scaled));
        }
    }
}
