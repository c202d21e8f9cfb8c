//! Hyperparameters of the architecture `smollm3`, read from GGUF metadata.
//!
//! Llama without rotation in every fourth layer (NoPE).

use super::rope;
use super::{keys::Keys, llama};
use crate::error::Result;
use crate::hyper::Hyperparameters;

const PERIOD: usize = 4;

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = llama::describe(keys)?;
    hyper.ropes.push(rope::identity(hyper.layers[0].attention.head_size));
    for layer in hyper.layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD) {
        layer.attention.rope = 1;
    }
    Ok(hyper)
}
