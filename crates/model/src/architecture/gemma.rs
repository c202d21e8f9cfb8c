//! Hyperparameters of the architecture `gemma`, read from GGUF metadata.
//!
//! A scaled embedding and GeGLU. Converters have already added 1 to the weights of norms.

use super::keys::Keys;
use super::rope;
use crate::error::Result;
use crate::hyper::{Embedding, FeedForward, Hyperparameters};
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    with(keys, FeedForward::Gated { activation: Activation::Gelu, fused: false })
}

/// The family's layers with another feed-forward block.
pub(super) fn with(keys: &Keys<'_>, feed_forward: FeedForward) -> Result<Hyperparameters> {
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let rope = rope::read(keys, &attention)?;
    let hyper = keys.model(keys.rms_norm()?, &attention, feed_forward, rope)?;
    let scale = Some((hyper.width as f32).sqrt());
    Ok(Hyperparameters { embedding: Embedding { scale, ..hyper.embedding }, ..hyper })
}
