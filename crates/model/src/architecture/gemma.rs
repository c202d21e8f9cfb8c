//! `gemma`: a scaled embedding and GeGLU. The file has 1 added to the weights of its norms.

use super::keys::Keys;
use crate::Result;
use crate::hyper::{Embedding, FeedForward, Hyperparameters};
use crate::rope::Rope;
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    with(keys, FeedForward::Gated { activation: Activation::Gelu, fused: false })
}

/// The family's layers with another feed-forward part.
pub(super) fn with(keys: &Keys<'_>, feed_forward: FeedForward) -> Result<Hyperparameters> {
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let rope = Rope::read(keys, keys.rotated("", attention.head_size)?)?;
    let hyper = keys.model(keys.rms_norm()?, &attention, feed_forward, rope)?;
    let scale = Some((hyper.width as f32).sqrt());
    Ok(Hyperparameters { embedding: Embedding { scale, ..hyper.embedding }, ..hyper })
}
