//! Hyperparameters of the architecture `gemma2`, read from GGUF metadata.
//!
//! Gemma with norms after each block, soft caps on scores and logits, and a sliding window in every other layer.

use super::rope;
use super::{gemma, keys::Keys};
use crate::error::Result;
use crate::hyper::{Hyperparameters, Logits};
use plan::Scalar;

/// Window if the file has none.
const WINDOW: usize = 4096;

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = gemma::describe(keys)?;
    let window = keys.window()?.unwrap_or(WINDOW);
    let cap = Scalar::new(keys.positive("attn_logit_softcapping")?.unwrap_or(50.0));
    hyper.logits = Logits {
        scale: None,
        cap: Some(keys.positive("final_logit_softcapping")?.unwrap_or(30.0)),
    };
    windows(keys, &mut hyper, 2, window)?;
    for layer in &mut hyper.layers {
        layer.norm_after = true;
        layer.attention.scores.cap = Some(cap);
    }
    scale_of_27b(&mut hyper, 46);
    Ok(hyper)
}

/// Sets the sliding window of all layers but every `period`th. If the file has a base for their rotation, it is used
/// without scaling.
pub(super) fn windows(
    keys: &Keys<'_>,
    hyper: &mut Hyperparameters,
    period: usize,
    window: usize,
) -> Result<()> {
    let windowed = keys.windowed(hyper.layers.len(), period)?;
    if let Some(base) = keys.positive("rope.freq_base_swa")? {
        let rotated = keys.rotated("", hyper.layers[0].attention.head_size)?;
        hyper.ropes.push(rope::unscaled(base, rotated));
    }
    let local = hyper.ropes.len() - 1;
    for (layer, windowed) in hyper.layers.iter_mut().zip(windowed) {
        if windowed {
            layer.attention.scores.window = Some(window);
            layer.attention.rope = local;
        }
    }
    Ok(())
}

/// Sets the scale of scores of the 27B models, which divide by the root of another width. The number of layers
/// identifies them.
pub(super) fn scale_of_27b(hyper: &mut Hyperparameters, layers: usize) {
    if hyper.layers.len() == layers {
        for layer in &mut hyper.layers {
            let width = hyper.width / layer.attention.heads;
            layer.attention.scores.scale = Scalar::new(1.0 / (width as f32).sqrt());
        }
    }
}
