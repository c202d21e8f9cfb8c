//! Norms of sums, embeddings with their norm, and group norms with channels last.

use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::{Node, Operator};
use crate::ops::compose::Setting;

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("EmbedLayerNormalization", embed),
    ("GroupNorm", group),
    ("SimplifiedLayerNormalization", super::super::norm::root_mean),
    ("SkipGroupNorm", group),
    ("SkipLayerNormalization", skip),
    ("SkipSimplifiedLayerNormalization", skip),
];

/// Layer norm, or RMS norm, of the sum of an input, a skip connection and a bias, which is the
/// fourth output.
fn skip(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let simple = node.op() == "SkipSimplifiedLayerNormalization";
    let mut sum = im.apply("Add", &[node.input(0)?, node.input(1)?], &[])?;
    if let Some(bias) = node.optional(if simple { 3 } else { 4 }) {
        sum = im.apply("Add", &[&sum, bias], &[])?;
    }
    let eps = Setting::Float(node.float("epsilon", 1e-12));
    let weight = node.optional(2).cloned();
    let mut made = if simple {
        let inputs = [Some(sum.clone()), weight];
        let made = im.outputs_of("RMSNormalization", &inputs, &[("epsilon", eps)], 1)?;
        vec![made[0].clone(), made[0].clone(), made[0].clone()]
    } else {
        let inputs = [Some(sum.clone()), weight, node.optional(3).cloned()];
        im.outputs_of("LayerNormalization", &inputs, &[("epsilon", eps)], 3)?
    };
    if simple && (node.has_output(1) || node.has_output(2)) {
        return Err("outputs 1 and 2 are not supported".into());
    }
    made.push(sum);
    Ok(made)
}

/// Sum of word, position and segment embeddings, and its layer norm.
fn embed(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["mask_index_type"]);
    let ids = node.input(0)?;
    let shape = im.shape(ids);
    let &[batch, length] = &shape[..] else { return Err("ids [batch, length] expected".into()) };
    let mut sum = im.apply("Gather", &[node.input(2)?, ids], &[])?;
    let positions = match node.optional(8) {
        Some(positions) => im.apply("Gather", &[node.input(3)?, positions], &[])?,
        None => im.part(node.input(3)?, 0, 0, length)?,
    };
    sum = im.apply("Add", &[&sum, &positions], &[])?;
    if let (Some(segments), Some(table)) = (node.optional(1), node.optional(4)) {
        let segments = im.apply("Gather", &[table, segments], &[])?;
        sum = im.apply("Add", &[&sum, &segments], &[])?;
    }
    let inputs = [sum.clone(), node.input(5)?.clone(), node.input(6)?.clone()].map(Some);
    let eps = Setting::Float(node.float("epsilon", 1e-12));
    let normed = im.outputs_of("LayerNormalization", &inputs, &[("epsilon", eps)], 1)?;
    let counts = match node.optional(7) {
        Some(mask) => {
            let axes = super::vector(Elem::I64, &[1.0])?;
            im.apply("ReduceSum", &[mask, &axes], &[("keepdims", Setting::Int(0))])?
        }
        None => super::vector(Elem::I32, &vec![0.0; batch])?,
    };
    let first = normed.into_iter().next().ok_or_else(|| invalid("no output".into()))?;
    Ok(vec![first, counts, sum])
}

/// Group norm over `[N, H, W, C]`, of the sum with a skip connection and a bias.
fn group(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let mut x = node.input(0)?.clone();
    for place in [3, 4] {
        if let Some(more) = node.optional(place) {
            let mut more = more.clone();
            let shape = im.shape(&more);
            if let &[batch, channels] = &shape[..] {
                more = im.reshaped(&more, &[batch, 1, 1, channels])?;
            }
            x = im.apply("Add", &[&x, &more], &[])?;
        }
    }
    let sum = x.clone();
    let last = node.integer("channels_last", 1) != 0;
    let order = |to: [i64; 4]| [("perm", Setting::Ints(to.to_vec()))];
    if last {
        x = im.apply("Transpose", &[&x], &order([0, 3, 1, 2]))?;
    }
    let settings = [
        ("num_groups", Setting::Int(node.integer("groups", 0))),
        ("epsilon", Setting::Float(node.float("epsilon", 1e-5))),
    ];
    x = im.apply("GroupNormalization", &[&x, node.input(1)?, node.input(2)?], &settings)?;
    if last {
        x = im.apply("Transpose", &[&x], &order([0, 2, 3, 1]))?;
    }
    if node.integer("activation", 0) == 1 {
        x = im.apply("Swish", &[&x], &[])?;
    }
    Ok(vec![x, sum])
}
