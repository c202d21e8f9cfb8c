//! Builds the graph of one step of a decoder-only model: embedding, layers, outputs. The weights that the graph
//! requests are the model's weights; there is no other list.
//!
//! - `builder`: the graph under construction, and how weights, states and mailboxes become its tensors.
//! - `products`: matrix products with their biases and LoRA adapters; norms.
//! - `attention`, `recurrent`, `rwkv`, `experts`: the parts of a layer.
//! - `layer`: one layer from those parts.
//! - `inputs`, `outputs`: token embedding and rotary tables; logits, sampling and the nextn (MTP) layer.

mod attention;
mod builder;
mod experts;
mod inputs;
mod layer;
mod outputs;
mod products;
mod recurrent;
mod rwkv;

use crate::adapter::Adapters;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::hyper::{Hyperparameters, Layer};
use crate::weights::Weights;
use builder::Builder;
pub(crate) use builder::Step;
use plan::Outputs;
use plan::graph::Graph;

/// The graph of a step, with or without adapters. Weights that are not in `weights` yet are looked up in the file and
/// appended.
pub(crate) fn graph(
    gguf: &Gguf,
    hyper: &Hyperparameters,
    adapters: Option<&Adapters>,
    weights: &mut Weights,
    step: Step,
) -> Result<Graph> {
    let mut builder = Builder::new(gguf, hyper, adapters, weights, step);
    let inputs = builder.inputs()?;
    let outputs = step.bucket.outputs;
    if outputs == Outputs::Resumed {
        let tables = builder.rope_tables(inputs.rows.positions)?;
        let x = builder.deferred()?;
        builder.outputs(x, inputs, &tables)?;
        return Ok(builder.g);
    }
    let mut x = builder.embedding(inputs)?;
    let per_layer = builder.per_layer_inputs(inputs, x)?;
    let tables = builder.rope_tables(inputs.rows.positions)?;
    for (i, layer) in hyper.layers.iter().enumerate() {
        // The nextn layer reads every row.
        let last = i + 1 == hyper.layers.len() && hyper.nextn.is_none();
        let selected = if last { inputs.logit_rows } else { None };
        let table = tables.get(layer.attention.rope).copied();
        x = builder.layer(i, layer, x, per_layer, table, inputs.rows, selected)?;
    }
    if outputs == Outputs::Deferred {
        let rows = builder.deferred()?;
        builder.g.assign(rows, x)?;
    } else {
        builder.outputs(x, inputs, &tables)?;
    }
    Ok(builder.g)
}

/// The graph of a draft by the nextn layer: one token of one sequence, without adapters.
pub(crate) fn draft_graph(
    gguf: &Gguf,
    hyper: &Hyperparameters,
    layer: &Layer,
    weights: &mut Weights,
    step: Step,
) -> Result<Graph> {
    let mut builder = Builder::new(gguf, hyper, None, weights, step);
    builder.draft(layer)?;
    Ok(builder.g)
}
