//! `llama`: Llama 1 to 3, Mistral, SmolLM and whatever else has their layers. Biases are where the file has
//! them.

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
    keys.model(
        keys.rms_norm()?,
        &attention,
        FeedForward::Gated { activation: Activation::Silu, fused: false },
        rope,
    )
}
