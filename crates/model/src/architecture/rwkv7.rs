//! Hyperparameters of the architecture `rwkv7`, read from GGUF metadata.
//!
//! RWKV-7, without attention. The state of a layer is a matrix for each head, and the previous row of time mixing and
//! of channel mixing.

use super::keys::{Keys, MAX_EXTENT};
use super::rope;
use crate::error::Result;
use crate::hyper::{Attention, Embedding, FeedForward, Hyperparameters, Ranks, Recurrent};
use plan::RopeStyle;

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let width = keys.number("embedding_length", MAX_EXTENT)?;
    let head_size = keys.number("wkv.head_size", 1 << 10)?;
    if !width.is_multiple_of(head_size) {
        let expected = format!("a divisor of {width} (embedding_length)");
        return Err(keys.reject("wkv.head_size", head_size, &expected));
    }
    let shifts = keys.number_opt("token_shift_count", MAX_EXTENT)?.unwrap_or(2);
    if shifts != 2 {
        return Err(keys.reject("token_shift_count", shifts, "2"));
    }
    let rank = |name: &str| keys.number(&format!("attention.{name}_lora_rank"), MAX_EXTENT);
    let ranks = Ranks {
        decay: rank("decay")?,
        rate: rank("iclr")?,
        value: rank("value_residual_mix")?,
        gate: rank("gate")?,
    };
    let heads = width / head_size;
    let attention = Attention::new([heads; 2], head_size, RopeStyle::HalfSplit, 1.0);
    let norm = keys.layer_norm()?;
    let mut hyper = keys.model(norm, &attention, FeedForward::ChannelMix, rope::identity(2))?;
    hyper.ropes.clear();
    for layer in &mut hyper.layers {
        layer.recurrent = Some(Recurrent::TimeMix { heads, head_size, ranks });
        layer.feed_forward_norm = "attn_norm_2";
    }
    // The first layer would blend its values with themselves.
    keys.ignore("blk.0.time_mix_v0.");
    keys.ignore("blk.0.time_mix_v1.");
    keys.ignore("blk.0.time_mix_v2.");
    hyper.embedding = Embedding { norm: true, ..hyper.embedding };
    Ok(hyper)
}
