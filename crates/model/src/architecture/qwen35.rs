//! Hyperparameters of the architecture `qwen35`, read from GGUF metadata.
//!
//! The dense models of Qwen 3.5 and 3.6. Three layers of Gated DeltaNet follow each other, then one with gated
//! attention and partial rotation. The file may end with a nextn layer for multi-token prediction (`mtp` in Qwen's
//! checkpoints): a layer with attention, and tensors `nextn.*` for its input and output.

use super::keys::Keys;
use super::qwen2;
use crate::error::Result;
use crate::hyper::{FeedForward, Hyperparameters, Layer, QkNorm, Recurrent};
use plan::{Activation, DeltaHeads};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    with(keys, FeedForward::Gated { activation: Activation::Silu, fused: false })
}

/// The family's layers with another feed-forward block.
pub(super) fn with(keys: &Keys<'_>, feed_forward: FeedForward) -> Result<Hyperparameters> {
    let mut hyper = qwen2::with(keys, feed_forward)?;
    let all = hyper.layers.len();
    let count = keys.count("nextn_predict_layers", all - 1)?;
    let layers = hyper.layers.split_off(all - count);
    (all - count..all).for_each(|layer| keys.ignore(&format!("blk.{layer}.")));
    let mixer = gated_delta(keys)?;
    let lists = ["attention.recurrent_layers", "full_attention_interval"];
    let recurrent = keys.layer_flags(lists, hyper.layers.len(), 4)?;
    for (layer, recurrent) in hyper.layers.iter_mut().zip(recurrent) {
        layer.recurrent = recurrent.then_some(mixer);
    }
    hyper.nextn = nextn(keys, &hyper, layers);
    for layer in hyper.layers.iter_mut().chain(&mut hyper.nextn) {
        layer.feed_forward_norm = "post_attention_norm";
        layer.attention.qk_norm = Some(QkNorm::Head);
        layer.attention.gated = true;
    }
    Ok(hyper)
}

/// The nextn layer, if it is the only one of `layers`, the file has its tensors, and each half of its projection's
/// rows consists of whole blocks.
fn nextn(keys: &Keys<'_>, hyper: &Hyperparameters, layers: Vec<Layer>) -> Option<Layer> {
    let projection = format!("blk.{}.nextn.eh_proj.weight", hyper.layers.len());
    let dtype = keys.gguf.tensor(&projection)?.dtype;
    let [layer] = <[Layer; 1]>::try_from(layers).ok()?;
    hyper.width.is_multiple_of(dtype.block_len()).then_some(layer)
}

fn gated_delta(keys: &Keys<'_>) -> Result<Recurrent> {
    const LIMIT: usize = 1 << 16;
    let size = keys.number("ssm.state_size", 1 << 10)?;
    let values = keys.number("ssm.time_step_rank", LIMIT)?;
    let of_keys = keys.number("ssm.group_count", LIMIT)?;
    let inner = keys.number("ssm.inner_size", 1 << 24)?;
    if !values.is_multiple_of(of_keys) {
        let expected = format!("a divisor of {values} (ssm.time_step_rank)");
        return Err(keys.reject("ssm.group_count", of_keys, &expected));
    }
    if inner != values * size {
        let expected = format!("{values} heads of {size}, {},", values * size);
        return Err(keys.reject("ssm.inner_size", inner, &expected));
    }
    let heads =
        DeltaHeads { keys: of_keys, values, key_size: size, value_size: size, grouped: false };
    let taps = keys.number("ssm.conv_kernel", 8)?;
    if taps < 2 {
        return Err(keys.reject("ssm.conv_kernel", taps, "2 to 8"));
    }
    Ok(Recurrent::GatedDelta { heads, taps })
}
