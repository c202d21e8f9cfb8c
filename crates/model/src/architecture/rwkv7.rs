//! `rwkv7`: RWKV-7. No layer has attention: each keeps a matrix for each head, and the last row that either of its
//! parts saw.

use super::keys::{Keys, MAX_EXTENT};
use crate::Result;
use crate::hyper::{
    Attention, Embedding, FeedForward, Hyperparameters, Keys as KeysOf, Ranks, Recurrent,
};
use crate::rope::Rope;
use plan::{RopeStyle, Scores};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let width = keys.number("embedding_length", MAX_EXTENT)?;
    let head_size = keys.number("wkv.head_size", 1 << 10)?;
    if !width.is_multiple_of(head_size) {
        let expected = format!("a divisor of {width} (embedding_length)");
        return Err(keys.refuse("wkv.head_size", head_size, &expected));
    }
    let shifts = keys.number_opt("token_shift_count", MAX_EXTENT)?.unwrap_or(2);
    if shifts != 2 {
        return Err(keys.refuse("token_shift_count", shifts, "2"));
    }
    let rank = |of: &str| keys.number(&format!("attention.{of}_lora_rank"), MAX_EXTENT);
    let ranks = Ranks {
        decay: rank("decay")?,
        rate: rank("iclr")?,
        value: rank("value_residual_mix")?,
        gate: rank("gate")?,
    };
    let heads = width / head_size;
    let attention = Attention {
        heads,
        kv_heads: heads,
        head_size,
        style: RopeStyle::HalfSplit,
        rope: 0,
        qk_norm: None,
        gated: false,
        value_norm: false,
        keys: KeysOf::Own,
        scores: Scores::scaled(1.0),
        sinks: false,
    };
    let norm = keys.layer_norm()?;
    let mut hyper = keys.model(norm, &attention, FeedForward::ChannelMix, Rope::still(2))?;
    hyper.ropes.clear();
    for layer in &mut hyper.layers {
        layer.recurrent = Some(Recurrent::TimeMix { heads, head_size, ranks });
        layer.feed_forward_norm = "attn_norm_2";
    }
    // What the first layer would add to its values are its own values.
    keys.pass_over("blk.0.time_mix_v0.");
    keys.pass_over("blk.0.time_mix_v1.");
    keys.pass_over("blk.0.time_mix_v2.");
    hyper.embedding = Embedding { norm: true, ..hyper.embedding };
    Ok(hyper)
}
