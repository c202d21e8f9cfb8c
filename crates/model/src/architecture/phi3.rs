//! `phi3`: Phi 3, 3.5 and 4. The file has queries, keys and values in one matrix, gate and up in another, and
//! factors on the rotation for short and for long contexts.

use super::keys::Keys;
use crate::Result;
use crate::hyper::{FeedForward, Hyperparameters};
use crate::rope::Rope;
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut attention = keys.attention(RopeStyle::HalfSplit)?;
    attention.scores.window = keys.window()?;
    let rope = Rope::read(keys, keys.rotated("", attention.head_size)?)?;
    let feed_forward = FeedForward::Gated { activation: Activation::Silu, fused: true };
    keys.model(keys.rms_norm()?, &attention, feed_forward, rope)
}
