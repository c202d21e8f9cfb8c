//! Root-mean-square normalisation and the elementwise pieces around projections.
//!
//! These touch a few kilobytes per token; their limit is latency, not bytes.

use super::isa::dispatch;
use super::vector::{LANES, Simd, exp, load_first, store_first};

dispatch! {
    /// Writes `x / sqrt(mean(x^2) + eps) * weight` to `y` (which may be `x`), all of `n` values.
    ///
    /// The squares are summed in 256 strides over the columns, each 32 neighbouring ones of them in a tree, the
    /// trees one after the other.
    ///
    /// # Safety
    ///
    /// `x`, `weight`, `y` are valid for `n` values; `y` is `x` or overlaps nothing.
    pub unsafe fn rms_norm(x: *const f32, weight: *const f32, y: *mut f32, n: usize, eps: f32) = rms_norm_in;

    /// Writes `gate * sigmoid(gate) * up` to `y` (which may be `gate` or `up`).
    ///
    /// # Safety
    ///
    /// `gate`, `up`, `y` are valid for `n` values; `y` is one of them or overlaps nothing.
    pub unsafe fn swiglu(gate: *const f32, up: *const f32, y: *mut f32, n: usize) = swiglu_in;

    /// Writes `a + b` to `y` (which may be `a` or `b`).
    ///
    /// # Safety
    ///
    /// As for [`swiglu`].
    pub unsafe fn add(a: *const f32, b: *const f32, y: *mut f32, n: usize) = add_in;

    /// Index of the largest value, the lowest among equals; none where a NaN or infinity is among them, or
    /// nothing above minus infinity.
    ///
    /// # Safety
    ///
    /// `x` is valid for `n` values.
    pub unsafe fn argmax(x: *const f32, n: usize) -> Option<usize> = argmax_in;
}

/// Strides of the squares' sums, and how many of them a tree adds up.
const STRIDES: usize = 256;
const TREE: usize = 2 * LANES;

#[inline(always)]
unsafe fn rms_norm_in<S: Simd>(x: *const f32, weight: *const f32, y: *mut f32, n: usize, eps: f32) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let mut sum = 0.0;
        for first in (0..n.min(STRIDES)).step_by(TREE) {
            let mut squares = [S::splat(0.0); 2];
            for row in (first..n).step_by(STRIDES) {
                for (half, sum) in squares.iter_mut().enumerate() {
                    let at = (row + half * LANES).min(n);
                    let v = load_first::<S>(x.add(at), n - at);
                    *sum = S::fma(v, v, *sum);
                }
            }
            sum += S::sum(S::add(squares[0], squares[1]));
        }
        #[expect(clippy::cast_precision_loss, reason = "a row is far below 2^24 values")]
        let scale = S::splat(1.0 / (sum / n as f32 + eps).sqrt());
        let mut i = 0;
        while i < n {
            let v = S::mul(load_first::<S>(x.add(i), n - i), scale);
            store_first::<S>(y.add(i), S::mul(v, load_first::<S>(weight.add(i), n - i)), n - i);
            i += LANES;
        }
    }
}

#[inline(always)]
unsafe fn swiglu_in<S: Simd>(gate: *const f32, up: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let (zero, one) = (S::splat(0.0), S::splat(1.0));
        let mut i = 0;
        while i < n {
            let g = load_first::<S>(gate.add(i), n - i);
            let u = load_first::<S>(up.add(i), n - i);
            let silu = S::div(g, S::add(one, exp::<S>(S::sub(zero, g))));
            store_first::<S>(y.add(i), S::mul(silu, u), n - i);
            i += LANES;
        }
    }
}

#[inline(always)]
unsafe fn add_in<S: Simd>(a: *const f32, b: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let mut i = 0;
        while i < n {
            let sum = S::add(load_first::<S>(a.add(i), n - i), load_first::<S>(b.add(i), n - i));
            store_first::<S>(y.add(i), sum, n - i);
            i += LANES;
        }
    }
}

#[inline(always)]
unsafe fn argmax_in<S: Simd>(x: *const f32, n: usize) -> Option<usize> {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let infinity = S::splat(f32::INFINITY);
        let mut max = S::splat(f32::NEG_INFINITY);
        let mut i = 0;
        while i < n {
            // A NaN becomes infinity.
            let v = S::min(load_first::<S>(x.add(i), n - i), infinity);
            max = S::max(S::first(v, n - i, max), max);
            i += LANES;
        }
        let max = S::max_lanes(max);
        if max.is_finite() { (0..n).find(|&i| *x.add(i) == max) } else { None }
    }
}
