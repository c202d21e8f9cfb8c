//! `qwen2moe`: the mixtures of Qwen 1.5 and 2. Weights of experts are as softmax over all of them gives them; one
//! expert, with a gate, takes every row.

use super::{keys::Keys, qwen2};
use crate::Result;
use crate::hyper::{FeedForward, Hyperparameters};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    qwen2::with(keys, FeedForward::Experts(keys.experts(false, true)?))
}
