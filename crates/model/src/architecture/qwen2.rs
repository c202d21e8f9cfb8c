//! Hyperparameters of the architecture `qwen2`, read from GGUF metadata.
//!
//! Qwen 2, Qwen 2.5, and the DeepSeek-R1 distillations of them. Queries, keys and values have biases.

use super::keys::Keys;
use super::rope;
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters};
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    with(keys, FeedForward::Gated { activation: Activation::Silu, fused: false })
}

/// The family's layers with another feed-forward block.
pub(super) fn with(keys: &Keys<'_>, feed_forward: FeedForward) -> Result<Hyperparameters> {
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let rope = rope::read(keys, &attention)?;
    keys.model(keys.rms_norm()?, &attention, feed_forward, rope)
}
