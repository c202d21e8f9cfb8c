//! `qwen2`: Qwen 2 and 2.5, the distillates of R1 made from them. Queries, keys and values have biases.

use super::keys::Keys;
use crate::Result;
use crate::hyper::{FeedForward, Hyperparameters};
use crate::rope::Rope;
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    with(keys, FeedForward::Gated { activation: Activation::Silu, fused: false })
}

/// The family's layers with another feed-forward part.
pub(super) fn with(keys: &Keys<'_>, feed_forward: FeedForward) -> Result<Hyperparameters> {
    let attention = keys.attention(RopeStyle::HalfSplit)?;
    let rope = Rope::read(keys, keys.rotated("", attention.head_size)?)?;
    keys.model(keys.rms_norm()?, &attention, feed_forward, rope)
}
