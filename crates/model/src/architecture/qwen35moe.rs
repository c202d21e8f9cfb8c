//! Hyperparameters of the architecture `qwen35moe`, read from GGUF metadata.
//!
//! The MoE models of Qwen 3.5 and 3.6, such as 35B-A3B. Layers are those of `qwen35`; the weights of the selected
//! experts are normalised to a sum of 1, and there is a gated shared expert.

use super::{keys::Keys, qwen35};
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    qwen35::with(keys, FeedForward::Experts(keys.experts(true, true)?))
}
