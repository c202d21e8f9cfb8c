//! Classification losses, which models exported from training contain.

use nn::functions::{self as f, div, mul};
use plan::graph::Tensor;

use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] =
    &[("NegativeLogLikelihoodLoss", loss), ("SoftmaxCrossEntropyLoss", loss)];

/// Negative log-likelihood of the target classes: logarithms `[N, C, ..]` to losses `[N, ..]`,
/// weighted by class.
fn loss(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let x = im.float(node.input(0)?)?;
    let target = im.float(node.input(1)?)?;
    let &[_, classes, ..] = im.g.shape(x) else { return Err("[N, C, ..] expected".into()) };
    let weights = im.float_if(node.optional(2))?;
    let ignored = node.integer("ignore_index", i64::MIN);
    let reduction = node.text("reduction", "mean")?;
    let g = &mut im.g;
    let logs = if node.op() == "SoftmaxCrossEntropyLoss" { f::log_softmax(g, x, 1)? } else { x };
    let rank = g.shape(logs).len();
    let target = nn::shape::unsqueeze(g, target, 1)?;
    let mut line = vec![1; rank];
    line[1] = classes;
    let class = g.iota(classes);
    let class = g.reshape(class, &line)?;
    let hot = f::equal(g, target, class)?;
    let weights = match weights {
        Some(weights) => {
            let own = g.reshape(weights, &line)?;
            let own = mul(g, hot, own)?;
            f::sum(g, own, &[1])?
        }
        None => {
            let (one, shape) = (g.constant(1.0), g.shape(target).to_vec());
            g.expand(one, &shape)?
        }
    };
    let weights = if ignored == i64::MIN {
        weights
    } else {
        let ignored = g.constant(ignored as f32);
        let out = f::equal(g, target, ignored)?;
        let counted = f::not_of(g, out)?;
        mul(g, weights, counted)?
    };
    let picked = mul(g, logs, hot)?;
    let picked = f::sum(g, picked, &[1])?;
    let lost = mul(g, picked, weights)?;
    let lost = f::neg(g, lost)?;
    let scalar = |g: &mut plan::graph::Graph, x: Tensor| -> NodeResult<Tensor> {
        let total = f::total(g, x)?;
        Ok(g.reshape(total, &[])?)
    };
    let made = match &*reduction {
        "none" => nn::shape::squeeze(g, lost, 1)?,
        "sum" => scalar(g, lost)?,
        "mean" => {
            let (sum, whole) = (scalar(g, lost)?, scalar(g, weights)?);
            div(g, sum, whole)?
        }
        other => return Err(invalid(format!("reduction {other} is not supported"))),
    };
    Ok([made, logs].map(|tensor| Value::Device { elem, tensor }).into())
}
