//! Router probabilities of a mixture of experts from its logits: softmax and sigmoid, as `plan::RouterScores`
//! defines them.

use super::isa::dispatch;
use super::vector::{LANES, Simd, exp, load_first, one_and_exp, store_first};

dispatch! {
    /// Writes `exp(x - max) / sum` to `y`. The sum has 16 accumulators over the columns, which a tree adds up.
    ///
    /// # Safety
    ///
    /// `x` and `y` are valid for `n` values; `y` is `x` or overlaps nothing.
    pub unsafe fn softmax(x: *const f32, y: *mut f32, n: usize) = softmax_in;

    /// Writes `1 / (1 + exp(-x))` to `y`.
    ///
    /// # Safety
    ///
    /// As for [`softmax`].
    pub unsafe fn sigmoid(x: *const f32, y: *mut f32, n: usize) = sigmoid_in;
}

#[inline(always)]
unsafe fn softmax_in<S: Simd>(x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        let mut max = S::splat(f32::NEG_INFINITY);
        for i in (0..n).step_by(LANES) {
            // `max` with a NaN returns its second operand.
            max = S::max(S::first(load_first::<S>(x.add(i), n - i), n - i, max), max);
        }
        let max = S::splat(S::max_lanes(max));
        let mut sum = S::splat(0.0);
        for i in (0..n).step_by(LANES) {
            let e = exp::<S>(S::sub(load_first::<S>(x.add(i), n - i), max));
            sum = S::add(sum, S::first(e, n - i, S::splat(0.0)));
            store_first::<S>(y.add(i), e, n - i);
        }
        let sum = S::splat(S::sum(sum));
        for i in (0..n).step_by(LANES) {
            store_first::<S>(y.add(i), S::div(load_first::<S>(y.add(i), n - i), sum), n - i);
        }
    }
}

/// `1 / (1 + exp(-x))`
///
/// # Safety
///
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn sigmoid_of<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe { S::div(S::splat(1.0), one_and_exp::<S>(S::sub(S::splat(0.0), x))) }
}

#[inline(always)]
unsafe fn sigmoid_in<S: Simd>(x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller's contract; every access is cut at `n`.
    unsafe {
        for i in (0..n).step_by(LANES) {
            let value = sigmoid_of::<S>(load_first::<S>(x.add(i), n - i));
            store_first::<S>(y.add(i), value, n - i);
        }
    }
}
