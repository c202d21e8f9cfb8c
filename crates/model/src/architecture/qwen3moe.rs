//! Hyperparameters of the architecture `qwen3moe`, read from GGUF metadata.
//!
//! The MoE models of Qwen 3, and Qwen3-Coder. Attention is that of `qwen3`; the weights of the selected experts are
//! normalised to a sum of 1.

use super::{keys::Keys, qwen2};
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters, QkNorm};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = qwen2::with(keys, FeedForward::Experts(keys.experts(true, false)?))?;
    hyper.layers.iter_mut().for_each(|layer| layer.attention.qk_norm = Some(QkNorm::Head));
    Ok(hyper)
}
