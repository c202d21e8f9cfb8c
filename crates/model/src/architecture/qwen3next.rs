//! Hyperparameters of the architecture `qwen3next`, read from GGUF metadata.
//!
//! Qwen3-Next. Layers are those of `qwen35moe`, but adjacent value heads share a key head.

use super::{keys::Keys, qwen35moe};
use crate::error::Result;
use crate::hyper::{Hyperparameters, Recurrent};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = qwen35moe::describe(keys)?;
    for layer in &mut hyper.layers {
        if let Some(Recurrent::GatedDelta { heads, .. }) = &mut layer.recurrent {
            heads.grouped = true;
        }
    }
    Ok(hyper)
}
