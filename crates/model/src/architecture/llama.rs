//! Hyperparameters of the architecture `llama`, read from GGUF metadata.
//!
//! Llama 1 to 3, Mistral, Mixtral, SmolLM and other models with the same layers. Biases and experts are optional.

use super::keys::Keys;
use super::rope;
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters};
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    // Converters permute the rows of queries and keys so that rotary pairs are adjacent.
    let mut attention = keys.attention(RopeStyle::Interleaved)?;
    attention.scores.window = keys.window()?;
    let rope = rope::read(keys, &attention)?;
    if keys.has_experts()? {
        let experts = FeedForward::Experts(keys.experts(true, false)?);
        let mut hyper = keys.model(keys.rms_norm()?, &attention, experts, rope)?;
        keys.whole_experts(&mut hyper)?;
        return Ok(hyper);
    }
    let feed_forward = FeedForward::Gated { activation: Activation::Silu, fused: false };
    keys.model(keys.rms_norm()?, &attention, feed_forward, rope)
}
