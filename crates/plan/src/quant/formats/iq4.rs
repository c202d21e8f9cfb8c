//! The 16 levels of `IQ4_NL` and `IQ4_XS`, and the nearest of them (ggml `kvalues_iq4nl`).

use crate::quant::BLOCK;
use crate::quant::fit;

/// Close together around 0, where most weights are.
pub(super) const LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The code of the nearest level, the lower one of two that are equally near.
pub(super) fn nearest(x: f32) -> u8 {
    // How many midpoints are below.
    let below = |pair: &[i8]| x > (f32::from(pair[0]) + f32::from(pair[1])) * 0.5;
    LEVELS.windows(2).map(|pair| u8::from(below(pair))).sum()
}

/// The scale for which levels come near `values`.
pub(super) fn scale(values: &[f32; BLOCK]) -> f32 {
    fit::fit_scale(values, -127.0, 2, |x| f32::from(LEVELS[usize::from(nearest(x))]))
}
