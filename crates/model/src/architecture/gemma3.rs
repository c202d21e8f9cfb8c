//! Hyperparameters of the architecture `gemma3`, read from GGUF metadata.
//!
//! Five layers with a sliding window and a rotation of their own for each full layer; QK norm in place of soft caps on
//! scores.

use super::rope;
use super::{gemma, gemma2, keys::Keys};
use crate::error::Result;
use crate::hyper::{Hyperparameters, Logits, QkNorm};

/// Base of the rotation in layers with a sliding window.
const BASE: f32 = 10_000.0;

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = gemma::describe(keys)?;
    hyper.logits = Logits { scale: None, cap: keys.set("final_logit_softcapping")? };
    if let Some(window) = keys.window()? {
        if keys.positive("rope.freq_base_swa")?.is_none() {
            let rotated = keys.rotated("", hyper.layers[0].attention.head_size)?;
            hyper.ropes.push(rope::unscaled(BASE, rotated));
        }
        gemma2::windows(keys, &mut hyper, 6, window)?;
    }
    for layer in &mut hyper.layers {
        layer.norm_after = true;
        layer.attention.qk_norm = Some(QkNorm::Head);
    }
    gemma2::scale_of_27b(&mut hyper, 62);
    Ok(hyper)
}
