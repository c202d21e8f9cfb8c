//! Hyperparameters of the architecture `phi2`, read from GGUF metadata.
//!
//! LayerNorm, biases everywhere, partial rotation, attention and feed-forward block in parallel.

use super::keys::Keys;
use super::rope;
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters};
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let rope = rope::read(keys, &attention)?;
    let feed_forward = FeedForward::Plain { activation: Activation::Gelu };
    let mut hyper = keys.model(keys.layer_norm()?, &attention, feed_forward, rope)?;
    hyper.layers.iter_mut().for_each(|layer| layer.parallel = true);
    Ok(hyper)
}
