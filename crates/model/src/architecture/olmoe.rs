//! Hyperparameters of the architecture `olmoe`, read from GGUF metadata.
//!
//! OLMoE. QK norm covers all heads together; the softmax over all experts is not normalised again.

use super::keys::Keys;
use super::rope;
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters, QkNorm};
use plan::RopeStyle;

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut attention = keys.attention(RopeStyle::HalfSplit)?;
    attention.qk_norm = Some(QkNorm::Row);
    let rope = rope::read(keys, &attention)?;
    let experts = FeedForward::Experts(keys.experts(false, false)?);
    let mut hyper = keys.model(keys.rms_norm()?, &attention, experts, rope)?;
    keys.whole_experts(&mut hyper)?;
    Ok(hyper)
}
