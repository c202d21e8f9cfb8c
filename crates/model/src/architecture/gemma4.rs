//! Hyperparameters of the architecture `gemma4`, read from GGUF metadata.
//!
//! Gemma 4. Layers with and without a sliding window have heads of different sizes. In the small models the last layers
//! use the KV cache of earlier ones, and each layer has an embedding of the token (per-layer embeddings). In the MoE
//! models each layer has experts in addition to a dense block.

use super::rope;
use super::{gemma, keys::Keys};
use crate::error::{Error, Result};
use crate::hyper::{Attention, Experts, FeedForward, Hyperparameters, KvSource, Logits, QkNorm};
use plan::{Activation, Gating, Scores};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = gemma::with(keys, feed_forward(keys)?)?;
    let layers = hyper.layers.len();
    let attention = hyper.layers[0].attention.clone();
    let window = keys.required_window()?;
    let windowed = keys.windowed(layers, 1)?;
    let local_size = keys.head_size("_swa", None)?;
    let local = rope::unscaled(
        keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0),
        keys.rotated("_swa", local_size)?,
    );
    hyper.ropes.push(local);
    hyper.logits = Logits { scale: None, cap: keys.set("final_logit_softcapping")? };
    let number =
        |name: &str| Ok::<_, Error>(keys.gguf.metadata().u32_opt(&keys.key(name))?.unwrap_or(0));
    // 0 in the larger models, which have neither per-layer embeddings nor shared caches.
    if number("embedding_length_per_layer_input")? > 0 {
        hyper.embedding.per_layer = keys.number_opt("embedding_length_per_layer_input", 1 << 16)?;
    }
    let shared = number("attention.shared_kv_layers")?;
    let own = layers.saturating_sub(shared as usize);
    for i in 0..layers {
        let scores = Scores { window: windowed[i].then_some(window), ..Scores::scaled(1.0) };
        let source = || windowed[..own].iter().rposition(|&other| other == windowed[i]);
        let kv = if i < own {
            let matrix = format!("blk.{i}.attn_v.weight");
            let both = keys.gguf.tensor(&matrix).is_some()
                || keys.gguf.tensor(&format!("blk.{i}.attn_qkv.weight")).is_some();
            if both { KvSource::Own } else { KvSource::OneMatrix }
        } else {
            let expected = "layers of both kinds before those that share theirs";
            let missing = || keys.reject("attention.shared_kv_layers", shared, expected);
            KvSource::Layer(source().ok_or_else(missing)?)
        };
        let output_scale = output_scale(keys, i)?;
        let layer = &mut hyper.layers[i];
        layer.attention = Attention {
            kv_heads: layer.attention.kv_heads,
            head_size: if windowed[i] { local_size } else { attention.head_size },
            rope: usize::from(windowed[i]),
            qk_norm: Some(QkNorm::Head),
            value_norm: true,
            kv,
            scores,
            ..attention
        };
        layer.norm_after = true;
        layer.output_scale = output_scale;
    }
    Ok(hyper)
}

fn feed_forward(keys: &Keys<'_>) -> Result<FeedForward> {
    let activation = Activation::Gelu;
    if !keys.has_experts()? {
        return Ok(FeedForward::Gated { activation, fused: false });
    }
    let width = keys.number("expert_feed_forward_length", 1 << 24)?;
    let gating = Gating::Glu(activation);
    let experts = Experts { gating, scaled: true, ..keys.experts(true, false)? };
    Ok(FeedForward::DenseAndExperts { activation, experts, width })
}

fn output_scale(keys: &Keys<'_>, layer: usize) -> Result<Option<f32>> {
    let name = format!("blk.{layer}.layer_output_scale.weight");
    match keys.vector(&name, 1)?.as_deref() {
        Some(&[scale]) if scale.is_finite() => Ok(Some(scale)),
        Some(values) => Err(Error::hyperparameter(name, &values[0], "a number")),
        None => Ok(None),
    }
}
