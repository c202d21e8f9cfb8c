//! Norms, activations and elementwise operations around projections.
//!
//! These touch a few kilobytes per token. Their limit is latency, not bandwidth.

use super::isa::dispatch;
use super::scores::sigmoid_of;
use super::vector::{LANES, Simd, capped, load_first, one_and_exp, store_first};
use plan::Activation;

dispatch! {
    /// Writes `x / sqrt(mean(x^2) + eps) * weight` to `y` (which may be `x`), all of `n` values.
    ///
    /// The squares are summed in 256 strides over the columns. A tree adds each 32 neighbouring strides, and the
    /// trees' results are added one after the other.
    ///
    /// # Safety
    ///
    /// `x`, `weight`, `y` are valid for `n` values; `y` is `x` or overlaps nothing.
    pub unsafe fn rms_norm(x: *const f32, weight: *const f32, y: *mut f32, n: usize, eps: f32) = rms_norm_in;

    /// Writes `x` minus its mean to `y` (which may be `x`), all of `n` values. The sum has the order of
    /// [`rms_norm`].
    ///
    /// # Safety
    ///
    /// `x`, `y` are valid for `n` values; `y` is `x` or overlaps nothing.
    pub unsafe fn centre(x: *const f32, y: *mut f32, n: usize) = centre_in;

    /// Writes `activation(gate) * up` to `y` (which may be `gate` or `up`).
    ///
    /// # Safety
    ///
    /// `gate`, `up`, `y` are valid for `n` values; `y` is one of them or overlaps nothing.
    pub unsafe fn glu(activation: Activation, gate: *const f32, up: *const f32, y: *mut f32, n: usize) = glu_in;

    /// Writes `activation(x)` to `y` (which may be `x`).
    ///
    /// # Safety
    ///
    /// As for [`centre`].
    pub unsafe fn activate(activation: Activation, x: *const f32, y: *mut f32, n: usize) = activate_in;

    /// Writes `cap * tanh(x / cap)` to `y` (which may be `x`).
    ///
    /// # Safety
    ///
    /// As for [`centre`].
    pub unsafe fn soft_cap(cap: f32, x: *const f32, y: *mut f32, n: usize) = soft_cap_in;

    /// Writes `x * factor` to `y` (which may be `x`).
    ///
    /// # Safety
    ///
    /// As for [`centre`].
    pub unsafe fn scale(factor: f32, x: *const f32, y: *mut f32, n: usize) = scale_in;

    /// Writes `g * sigmoid(slope * g) * (u + 1)` to `y` (which may be `gate` or `up`): `g` is the gate, at most
    /// `limit`; `u` is `up`, clamped to `limit` around 0.
    ///
    /// # Safety
    ///
    /// As for [`glu`].
    pub unsafe fn clamped_swiglu(gate: *const f32, up: *const f32, y: *mut f32, n: usize, slope: f32, limit: f32) = clamped_swiglu_in;

    /// Writes `x * sigmoid(gate)` to `y` (which may be `x`), computed as `x / (1 + exp(-gate))` by a product.
    ///
    /// # Safety
    ///
    /// As for [`glu`].
    pub unsafe fn gate(gate: *const f32, x: *const f32, y: *mut f32, n: usize) = gate_in;

    /// Writes `a * b` to `y` (which may be `a` or `b`).
    ///
    /// # Safety
    ///
    /// As for [`glu`].
    pub unsafe fn multiply(a: *const f32, b: *const f32, y: *mut f32, n: usize) = multiply_in;

    /// Adds `w * x` to `y`, rounded once.
    ///
    /// # Safety
    ///
    /// `x` and `y` are valid for `n` values and do not overlap.
    pub unsafe fn add_scaled(w: f32, x: *const f32, y: *mut f32, n: usize) = add_scaled_in;

    /// Writes `a + b` to `y` (which may be `a` or `b`).
    ///
    /// # Safety
    ///
    /// As for [`glu`].
    pub unsafe fn add(a: *const f32, b: *const f32, y: *mut f32, n: usize) = add_in;

    /// Index of the largest value, the lowest among equals. `None` if a value is NaN or infinite, or none is above
    /// minus infinity.
    ///
    /// # Safety
    ///
    /// `x` is valid for `n` values.
    pub unsafe fn argmax(x: *const f32, n: usize) -> Option<usize> = argmax_in;
}

/// Strides of the sum of squares, and the number of them that one tree adds up.
const STRIDES: usize = 256;
const TREE: usize = 2 * LANES;

/// Applies a function to each of `n` values of `x` and writes the results to `y`, vector by vector. This is a macro
/// because closures are not compiled for an instruction set.
macro_rules! each {
    ($S:ident, $x:expr, $y:expr, $n:expr, $v:ident => $f:expr) => {
        for i in (0..$n).step_by(LANES) {
            let $v = load_first::<$S>($x.add(i), $n - i);
            store_first::<$S>($y.add(i), $f, $n - i);
        }
    };
}

#[inline(always)]
unsafe fn rms_norm_in<S: Simd>(x: *const f32, weight: *const f32, y: *mut f32, n: usize, eps: f32) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let sum = total::<S, true>(x, n);
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

/// Sum of `n` values, or of their squares: in [`STRIDES`] sums, which trees add up.
///
/// # Safety
///
/// As for [`Simd`]; `x` is valid for `n` values.
#[inline(always)]
unsafe fn total<S: Simd, const SQUARES: bool>(x: *const f32, n: usize) -> f32 {
    let mut sum = 0.0;
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        for first in (0..n.min(STRIDES)).step_by(TREE) {
            let mut sums = [S::splat(0.0); 2];
            for row in (first..n).step_by(STRIDES) {
                for (half, sum) in sums.iter_mut().enumerate() {
                    let at = (row + half * LANES).min(n);
                    let v = load_first::<S>(x.add(at), n - at);
                    *sum = if SQUARES { S::fma(v, v, *sum) } else { S::add(*sum, v) };
                }
            }
            sum += S::sum(S::add(sums[0], sums[1]));
        }
    }
    sum
}

#[inline(always)]
unsafe fn centre_in<S: Simd>(x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let sum = total::<S, false>(x, n);
        #[expect(clippy::cast_precision_loss, reason = "a row is far below 2^24 values")]
        let mean = S::splat(sum / n as f32);
        each!(S, x, y, n, v => S::sub(v, mean));
    }
}

/// `x / (1 + exp(-angle))`; the angle is `x` for SiLU, `(b x^2 + a) x` for other activations.
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
unsafe fn activated<S: Simd>(activation: Activation, x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let angle = match (activation, activation.angle()) {
            (Activation::Silu, _) => x,
            (_, [a, b]) => S::mul(S::fma(S::mul(x, x), S::splat(b), S::splat(a)), x),
        };
        S::div(x, one_and_exp::<S>(S::sub(S::splat(0.0), angle)))
    }
}

#[inline(always)]
unsafe fn activate_in<S: Simd>(activation: Activation, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { each!(S, x, y, n, v => activated::<S>(activation, v)) }
}

#[inline(always)]
unsafe fn glu_in<S: Simd>(
    activation: Activation,
    gate: *const f32,
    up: *const f32,
    y: *mut f32,
    n: usize,
) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let gate = activated::<S>(activation, load_first::<S>(gate.add(i), n - i));
            let up = load_first::<S>(up.add(i), n - i);
            store_first::<S>(y.add(i), S::mul(gate, up), n - i);
        }
    }
}

#[inline(always)]
unsafe fn soft_cap_in<S: Simd>(cap: f32, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { each!(S, x, y, n, v => capped::<S>(cap, v)) }
}

#[inline(always)]
unsafe fn scale_in<S: Simd>(factor: f32, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { each!(S, x, y, n, v => S::mul(v, S::splat(factor))) }
}

#[inline(always)]
unsafe fn clamped_swiglu_in<S: Simd>(
    gate: *const f32,
    up: *const f32,
    y: *mut f32,
    n: usize,
    slope: f32,
    limit: f32,
) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let (one, most, least) = (S::splat(1.0), S::splat(limit), S::splat(-limit));
        for i in (0..n).step_by(LANES) {
            let g = S::min(load_first::<S>(gate.add(i), n - i), most);
            let u = S::max(S::min(load_first::<S>(up.add(i), n - i), most), least);
            let g = S::div(g, one_and_exp::<S>(S::mul(g, S::splat(-slope))));
            store_first::<S>(y.add(i), S::mul(g, S::add(u, one)), n - i);
        }
    }
}

#[inline(always)]
unsafe fn gate_in<S: Simd>(gate: *const f32, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let g = load_first::<S>(gate.add(i), n - i);
            let open = sigmoid_of::<S>(g);
            store_first::<S>(y.add(i), S::mul(load_first::<S>(x.add(i), n - i), open), n - i);
        }
    }
}

#[inline(always)]
unsafe fn multiply_in<S: Simd>(a: *const f32, b: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let (a, b) = (load_first::<S>(a.add(i), n - i), load_first::<S>(b.add(i), n - i));
            store_first::<S>(y.add(i), S::mul(a, b), n - i);
        }
    }
}

#[inline(always)]
unsafe fn add_scaled_in<S: Simd>(w: f32, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let (x, to) = (load_first::<S>(x.add(i), n - i), y.add(i));
            store_first::<S>(to, S::fma(S::splat(w), x, load_first::<S>(to, n - i)), n - i);
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
