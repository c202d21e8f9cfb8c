//! Hyperparameters of the architecture `gpt2`, read from GGUF metadata.
//!
//! Learned positions, LayerNorm, biases everywhere, GELU.

use super::keys::Keys;
use super::rope;
use crate::error::Result;
use crate::hyper::{Embedding, FeedForward, Hyperparameters};
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let feed_forward = FeedForward::Plain { activation: Activation::Gelu };
    let rope = rope::identity(attention.head_size);
    let hyper = keys.model(keys.layer_norm()?, &attention, feed_forward, rope)?;
    Ok(Hyperparameters { embedding: Embedding { positions: true, ..hyper.embedding }, ..hyper })
}
