//! `qwen35moe`: the mixtures of Qwen 3.5 and 3.6, as 35B-A3B. Layers are those of `qwen35`; the weights of the chosen
//! experts add up to 1, and one expert, with a gate, takes every row.

use super::{keys::Keys, qwen35};
use crate::Result;
use crate::hyper::{FeedForward, Hyperparameters};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    qwen35::with(keys, FeedForward::Experts(keys.experts(true, true)?))
}
