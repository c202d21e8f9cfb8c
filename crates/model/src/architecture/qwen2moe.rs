//! Hyperparameters of the architecture `qwen2moe`, read from GGUF metadata.
//!
//! The MoE models of Qwen 1.5 and 2, with a gated shared expert. The softmax over all experts is not normalised again.

use super::{keys::Keys, qwen2};
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    qwen2::with(keys, FeedForward::Experts(keys.experts(false, true)?))
}
