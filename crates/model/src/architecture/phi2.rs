//! `phi2`: LayerNorm, biases everywhere, a part of each head rotated, attention and feed-forward beside each
//! other.

use super::keys::Keys;
use crate::Result;
use crate::hyper::{FeedForward, Hyperparameters};
use crate::rope::Rope;
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let rope = Rope::read(keys, keys.rotated("", attention.head_size)?)?;
    let feed_forward = FeedForward::Plain { activation: Activation::Gelu };
    let mut hyper = keys.model(keys.layer_norm()?, &attention, feed_forward, rope)?;
    hyper.layers.iter_mut().for_each(|layer| layer.parallel = true);
    Ok(hyper)
}
