//! Hyperparameters of the architecture `phi3`, read from GGUF metadata.
//!
//! Phi 3, 3.5 and 4. Queries, keys and values are one matrix, gate and up another; LongRoPE has divisors for short and
//! for long contexts.

use super::keys::Keys;
use super::rope;
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters};
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut attention = keys.attention(RopeStyle::HalfSplit)?;
    attention.scores.window = keys.window()?;
    let rope = rope::read(keys, &attention)?;
    let feed_forward = FeedForward::Gated { activation: Activation::Silu, fused: true };
    keys.model(keys.rms_norm()?, &attention, feed_forward, rope)
}
