//! `olmoe`: OLMoE. Norms over the queries and the keys of all heads; the weights of experts are as softmax over all of
//! them gives them.

use super::keys::Keys;
use crate::Result;
use crate::hyper::{FeedForward, Hyperparameters, QkNorm};
use crate::rope::Rope;
use plan::RopeStyle;

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut attention = keys.attention(RopeStyle::HalfSplit)?;
    attention.qk_norm = Some(QkNorm::Row);
    let rope = Rope::read(keys, keys.rotated("", attention.head_size)?)?;
    let experts = FeedForward::Experts(keys.experts(false, false)?);
    let mut hyper = keys.model(keys.rms_norm()?, &attention, experts, rope)?;
    keys.whole_experts(&mut hyper)?;
    Ok(hyper)
}
