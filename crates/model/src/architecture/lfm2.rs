//! Hyperparameters of the architecture `lfm2`, read from GGUF metadata.
//!
//! The dense models of LFM2. Most layers have a gated short convolution, the others attention with QK norm.

use super::keys::Keys;
use super::rope;
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters, QkNorm, Recurrent};
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let taps = keys.number("shortconv.l_cache", 8)?;
    if taps < 2 {
        return Err(keys.reject("shortconv.l_cache", taps, "2 to 8"));
    }
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let rope = rope::read(keys, &attention)?;
    let feed_forward = FeedForward::Gated { activation: Activation::Silu, fused: false };
    let mut hyper = keys.model(keys.rms_norm()?, &attention, feed_forward, rope)?;
    hyper.output_norm = "token_embd_norm";
    let convolved = keys.without_attention(hyper.layers.len())?;
    for (layer, convolved) in hyper.layers.iter_mut().zip(convolved) {
        layer.attention.qk_norm = Some(QkNorm::Head);
        layer.recurrent = convolved.then_some(Recurrent::ShortConv { taps });
    }
    Ok(hyper)
}
