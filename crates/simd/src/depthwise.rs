//! Depthwise convolutions: sums of shifted lines of one channel.

use super::dense::{Function, applied};
use super::isa::dispatch;
use super::vector::{LANES, Simd, store_first};

/// Number of values that [`line()`] may read behind a line.
pub const BEHIND: usize = 4 * LANES;

/// One element of the windows: its distance from the first one, and its weight.
#[derive(Clone, Copy, Debug)]
pub struct Tap {
    pub at: usize,
    pub weight: f32,
}

dispatch! {
    /// Writes `function` of `bias` plus the sum of `weight * x[at + i]` over the taps, in their order, for each `i` below `n`.
    ///
    /// # Safety
    ///
    /// `out` is valid for `n` values, `x` for `n` values from each tap on, and for [`BEHIND`] more.
    pub unsafe fn line(taps: &[Tap], bias: f32, function: Function, x: *const f32, out: *mut f32, n: usize) = line_in;
}

#[inline(always)]
unsafe fn line_in<S: Simd>(
    taps: &[Tap],
    bias: f32,
    function: Function,
    x: *const f32,
    out: *mut f32,
    n: usize,
) {
    for first in (0..n).step_by(4 * LANES) {
        // SAFETY: the caller's contract.
        unsafe {
            let (x, out, n) = (x.add(first), out.add(first), n - first);
            match n.div_ceil(LANES) {
                1 => part::<S, 1>(taps, bias, function, x, out, n),
                2 => part::<S, 2>(taps, bias, function, x, out, n),
                3 => part::<S, 3>(taps, bias, function, x, out, n),
                _ => part::<S, 4>(taps, bias, function, x, out, n),
            }
        }
    }
}

/// Computes at most `V` vectors of a line.
#[inline(always)]
unsafe fn part<S: Simd, const V: usize>(
    taps: &[Tap],
    bias: f32,
    function: Function,
    x: *const f32,
    out: *mut f32,
    n: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [S::splat(bias); V];
        for tap in taps {
            let (weight, x) = (S::splat(tap.weight), x.add(tap.at));
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(weight, S::load(x.add(v * LANES)), *sum);
            }
        }
        for (v, sum) in sums.into_iter().enumerate() {
            let at = v * LANES;
            store_first::<S>(out.add(at), applied::<S>(function, sum), n - at);
        }
    }
}
