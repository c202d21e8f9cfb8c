//! `llama`: Llama 1 to 3, Mistral, Mixtral, SmolLM and whatever else has their layers. Biases, and experts, are where
//! the file has them.

use super::keys::Keys;
use crate::Result;
use crate::hyper::{FeedForward, Hyperparameters};
use crate::rope::Rope;
use plan::{Activation, RopeStyle};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    // GGUF stores the rows of queries and keys permuted so that pairs are neighbours.
    let mut attention = keys.attention(RopeStyle::Interleaved)?;
    attention.scores.window = keys.window()?;
    let rope = Rope::read(keys, keys.rotated("", attention.head_size)?)?;
    if keys.mixed()? {
        let experts = FeedForward::Experts(keys.experts(true, false)?);
        let mut hyper = keys.model(keys.rms_norm()?, &attention, experts, rope)?;
        keys.whole_experts(&mut hyper)?;
        return Ok(hyper);
    }
    let feed_forward = FeedForward::Gated { activation: Activation::Silu, fused: false };
    keys.model(keys.rms_norm()?, &attention, feed_forward, rope)
}
