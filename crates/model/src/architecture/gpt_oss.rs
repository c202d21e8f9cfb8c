//! Hyperparameters of the architecture `gpt-oss`, read from GGUF metadata.
//!
//! OpenAI's MoE models with 20 and 120 billion parameters. Attention has sinks and, in every other layer, a sliding
//! window. Experts have biases and a clamped gate.

use super::rope::{self, Ramp};
use super::{gemma2, keys::Keys};
use crate::error::Result;
use crate::hyper::{Experts, FeedForward, Hyperparameters};
use plan::{Gating, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut attention = keys.attention(RopeStyle::HalfSplit)?;
    attention.sinks = true;
    let rope = rope::read_with(keys, &attention, Ramp::Exact)?;
    // A softmax over the selected experts' logits equals the softmax over all logits, normalised.
    let experts = Experts { gating: Gating::ClampedSwiGlu, ..keys.experts(true, false)? };
    let mut hyper =
        keys.model(keys.rms_norm()?, &attention, FeedForward::Experts(experts), rope)?;
    gemma2::windows(keys, &mut hyper, 2, keys.required_window()?)?;
    hyper.layers.iter_mut().for_each(|layer| layer.feed_forward_norm = "post_attention_norm");
    Ok(hyper)
}
