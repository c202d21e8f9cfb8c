//! Softmax attention of one token's query heads over one KV head's cache.
//!
//! Positions are taken in spans of [`SPAN`]: within a span the scores of up to four heads are
//! computed, then their maximum, exponentials and sum, then the weighted sum of values; spans are
//! merged in order. The result depends on the position alone, and the heads of a group share each
//! byte of the cache that is read. The limit is the cache's bytes once the context is long.

use super::isa::dispatch;
use super::simd::{LANES, Simd, exp};

/// Positions of a span. Fixed: it is part of the order in which numbers are added.
pub const SPAN: usize = 512;

/// Query heads that share one pass over a span.
const HEADS: usize = 4;

/// Positions are read in runs of this; a cache holds a multiple of it, so that reading past the
/// last position stays inside.
pub const POSITION_STEP: usize = 2 * LANES;

/// `f32` values of scratch that [`attend`] needs for heads of `dim`.
#[must_use]
pub const fn scratch_len(dim: usize) -> usize {
    HEADS * (SPAN + dim)
}

/// One call of [`attend`].
#[derive(Clone, Copy, Debug)]
pub struct Attend {
    /// Queries: `heads` rows of `dim`.
    pub q: *const f32,
    /// Query heads of this KV head.
    pub heads: usize,
    /// Values of a head, a multiple of 16.
    pub dim: usize,
    /// The KV head's keys, as [`super::rope`] lays them out.
    pub keys: *const u16,
    /// The KV head's values.
    pub values: *const u16,
    /// Positions to attend to, from 0; at least 1.
    pub positions: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// [`scratch_len`] values.
    pub scratch: *mut f32,
    /// Results: `heads` rows of `dim`.
    pub out: *mut f32,
}

dispatch! {
    /// Writes each head's attention.
    ///
    /// # Safety
    ///
    /// The pointers are valid as described, the caches for `positions` rounded up to
    /// [`POSITION_STEP`]; `scratch` and `out` are accessed by nobody else.
    pub unsafe fn attend(a: &Attend) = attend_in;
}

#[inline(always)]
unsafe fn attend_in<S: Simd>(a: &Attend) {
    // SAFETY: the caller's contract; the heads are split without remainder.
    unsafe {
        let mut head = 0;
        while head < a.heads {
            match a.heads - head {
                0..2 => head += heads::<S, 1>(a, head),
                2..4 => head += heads::<S, 2>(a, head),
                _ => head += heads::<S, HEADS>(a, head),
            }
        }
    }
}

/// `R` heads from `head`; returns `R`.
#[inline(always)]
unsafe fn heads<S: Simd, const R: usize>(a: &Attend, head: usize) -> usize {
    // SAFETY: the caller's contract; spans and rows stay within caches, scratch and output.
    unsafe {
        let q = a.q.add(head * a.dim);
        let out = a.out.add(head * a.dim);
        let scores = a.scratch;
        let part = a.scratch.add(HEADS * SPAN);
        let mut max = [f32::NEG_INFINITY; R];
        let mut sum = [0.0f32; R];
        let mut start = 0;
        while start < a.positions {
            let n = (a.positions - start).min(SPAN);
            score::<S, R>(a, q, start, n, scores);
            let to = if start == 0 { out } else { part };
            let mut span_max = [0.0f32; R];
            let mut span_sum = [0.0f32; R];
            for r in 0..R {
                (span_max[r], span_sum[r]) = softmax::<S>(scores.add(r * SPAN), n);
            }
            let dims = a.dim / LANES;
            let values = a.values.add(start * a.dim);
            for d in 0..dims / 4 {
                weigh::<S, R, 4>(a.dim, values, scores, n, to, d * 4 * LANES);
            }
            for d in dims / 4 * 4..dims {
                weigh::<S, R, 1>(a.dim, values, scores, n, to, d * LANES);
            }
            if start == 0 {
                (max, sum) = (span_max, span_sum);
            } else {
                for r in 0..R {
                    merge::<S>(
                        a.dim,
                        (out.add(r * a.dim), &mut max[r], &mut sum[r]),
                        (part.add(r * a.dim), span_max[r], span_sum[r]),
                    );
                }
            }
            start += n;
        }
        for (r, &sum) in sum.iter().enumerate() {
            for d in (0..a.dim).step_by(LANES) {
                let p = out.add(r * a.dim + d);
                S::store(p, S::div(S::load(p), S::splat(sum)));
            }
        }
        R
    }
}

/// Scores of `n` positions from `start`, minus infinity up to the next multiple of 32.
#[inline(always)]
unsafe fn score<S: Simd, const R: usize>(
    a: &Attend,
    q: *const f32,
    start: usize,
    n: usize,
    scores: *mut f32,
) {
    // SAFETY: the caller's contract: the cache holds whole steps of positions.
    unsafe {
        let scale = S::splat(a.scale);
        for p in (0..n).step_by(POSITION_STEP) {
            let k0 = a.keys.add((start + p) * a.dim);
            let k1 = k0.add(LANES * a.dim);
            let mut sums = [[S::splat(0.0); 2]; R];
            for d in 0..a.dim {
                let (c0, c1) = (S::load_f16(k0.add(d * LANES)), S::load_f16(k1.add(d * LANES)));
                for (r, sums) in sums.iter_mut().enumerate() {
                    let q = S::splat(*q.add(r * a.dim + d));
                    sums[0] = S::fma(q, c0, sums[0]);
                    sums[1] = S::fma(q, c1, sums[1]);
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (half, &sum) in sums.iter().enumerate() {
                    let at = p + half * LANES;
                    let masked = S::splat(f32::NEG_INFINITY);
                    let score = S::first(S::mul(sum, scale), n.saturating_sub(at), masked);
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

/// Sums `weight * value` over `n` positions for `R` heads and `16 V` columns from `column`.
#[inline(always)]
unsafe fn weigh<S: Simd, const R: usize, const V: usize>(
    dim: usize,
    values: *const u16,
    weights: *const f32,
    n: usize,
    out: *mut f32,
    column: usize,
) {
    // SAFETY: the caller's contract: `n` rows of `dim` values.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; R];
        for p in 0..n {
            let row = values.add(p * dim + column);
            let mut v = [S::splat(0.0); V];
            for (i, v) in v.iter_mut().enumerate() {
                *v = S::load_f16(row.add(i * LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(r * SPAN + p));
                for i in 0..V {
                    sums[i] = S::fma(weight, v[i], sums[i]);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            for (i, &sum) in sums.iter().enumerate() {
                S::store(out.add(r * dim + column + i * LANES), sum);
            }
        }
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
