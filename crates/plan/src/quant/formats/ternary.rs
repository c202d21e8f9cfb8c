//! What `TQ1_0` and `TQ2_0` have in common: weights that are -1, 0 or 1 times the greatest of them.

use crate::quant::SUPER_BLOCK;
use crate::quant::fit::{extreme, inverse, nearest_away};
use crate::quant::format::{Unstorable, store_scale};

/// The scale as stored, and the digits: 0, 1, 2 for -1, 0, 1.
pub(super) fn fit(values: &[f32; SUPER_BLOCK]) -> Result<([u8; 2], [u8; SUPER_BLOCK]), Unstorable> {
    let d = extreme(values).abs();
    let per_unit = inverse(d);
    let (d, _) = store_scale(d)?;
    Ok((d, values.map(|v| (nearest_away(v * per_unit) + 1).cast_unsigned())))
}
