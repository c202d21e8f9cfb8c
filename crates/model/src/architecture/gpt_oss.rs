//! `gpt-oss`: OpenAI's mixtures of 20 and 120 billion parameters. Heads have sinks, every other layer has a window,
//! experts have biases and a clamped gate.

use super::{gemma2, keys::Keys};
use crate::Result;
use crate::hyper::{Experts, FeedForward, Hyperparameters};
use crate::rope::{Ramp, Rope};
use plan::{Gating, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut attention = keys.attention(RopeStyle::HalfSplit)?;
    attention.sinks = true;
    let rotated = keys.rotated("", attention.head_size)?;
    let rope = Rope::with(keys, rotated, Ramp::Exact)?;
    // The weights of the chosen are a softmax over their logits alone: the one over all of them, normalised.
    let experts = Experts { gating: Gating::ClampedSwiGlu, ..keys.experts(true, false)? };
    let mut hyper =
        keys.model(keys.rms_norm()?, &attention, FeedForward::Experts(experts), rope)?;
    let window = keys
        .window()?
        .ok_or_else(|| keys.refuse("attention.sliding_window", "missing", "a number"))?;
    gemma2::windows(keys, &mut hyper, 2, window)?;
    hyper.layers.iter_mut().for_each(|layer| layer.feed_forward_norm = "post_attention_norm");
    Ok(hyper)
}
