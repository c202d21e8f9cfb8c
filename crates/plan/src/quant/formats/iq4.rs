//! Levels of `IQ4_NL` and `IQ4_XS` (ggml `kvalues_iq4nl`), and rounding to them.

use crate::quant::fit;
use crate::quant::format::BLOCK;

/// Denser around 0, where most weights are.
pub(super) const LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Code of the nearest level; the lower of two that are equally near.
pub(super) fn nearest(x: f32) -> u8 {
    // Counts the midpoints below `x`.
    let below = |pair: &[i8]| x > (f32::from(pair[0]) + f32::from(pair[1])) * 0.5;
    LEVELS.windows(2).map(|pair| u8::from(below(pair))).sum()
}

/// Scale with which the levels approximate `values`.
pub(super) fn scale(values: &[f32; BLOCK]) -> f32 {
    fit::fit_scale(values, -127.0, 2, |x| f32::from(LEVELS[usize::from(nearest(x))]))
}
