//! Quantiser of `TQ1_0` and `TQ2_0`: weights become -1, 0 or 1 times the greatest of them.

use crate::quant::fit::{extreme, inverse, nearest_away};
use crate::quant::format::{SUPER_BLOCK, Unstorable, store_scale};

/// The stored scale, and the digits: 0, 1, 2 for -1, 0, 1.
pub(super) fn fit(values: &[f32; SUPER_BLOCK]) -> Result<([u8; 2], [u8; SUPER_BLOCK]), Unstorable> {
    let d = extreme(values).abs();
    let per_unit = inverse(d);
    let (d, _) = store_scale(d)?;
    Ok((d, values.map(|v| (nearest_away(v * per_unit) + 1).cast_unsigned())))
}
