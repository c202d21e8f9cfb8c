//! Convolutions of one channel by itself: sums of shifted lines.

use super::dense::{Function, applied};
use super::isa::dispatch;
use super::vector::{LANES, Simd, store_first};

/// Values behind a line that [`line()`] may read.
pub const BEHIND: usize = 4 * LANES;

/// One element of the windows: how far it lies from the first, and what it is multiplied with.
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
    /// `out` is valid for `n` values, `x` for as many from each tap on, and for [`BEHIND`] more.
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
    const WIDE: usize = 4;
    for first in (0..n).step_by(WIDE * LANES) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut sums = [S::splat(bias); WIDE];
            for tap in taps {
                let (weight, x) = (S::splat(tap.weight), x.add(first + tap.at));
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(weight, S::load(x.add(v * LANES)), *sum);
                }
            }
            for (v, sum) in sums.into_iter().enumerate() {
                let at = first + v * LANES;
                if at < n {
                    store_first::<S>(out.add(at), applied::<S>(function, sum), n - at);
                }
            }
        }
    }
}
