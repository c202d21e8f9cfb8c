//! `lfm2`: the dense models of LFM2. Short convolutions between gates, and some layers with attention, whose queries
//! and keys are normalised.

use super::keys::Keys;
use crate::Result;
use crate::hyper::{FeedForward, Hyperparameters, QkNorm, Recurrent};
use crate::rope::Rope;
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let taps = keys.number("shortconv.l_cache", 8)?;
    if taps < 2 {
        return Err(keys.refuse("shortconv.l_cache", taps, "2 to 8"));
    }
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let rope = Rope::read(keys, keys.rotated("", attention.head_size)?)?;
    let feed_forward = FeedForward::Gated { activation: Activation::Silu, fused: false };
    let mut hyper = keys.model(keys.rms_norm()?, &attention, feed_forward, rope)?;
    hyper.output_norm = "token_embd_norm";
    let convolved = keys.headless(hyper.layers.len())?;
    for (layer, convolved) in hyper.layers.iter_mut().zip(convolved) {
        layer.attention.qk_norm = Some(QkNorm::Head);
        layer.recurrent = convolved.then_some(Recurrent::ShortConv { taps });
    }
    Ok(hyper)
}
