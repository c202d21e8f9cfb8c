//! Products and convolutions with their activation, and forms of GELU.

use nn::functions::{self as f, add, plus, times};
use nn::shape::transpose;
use plan::graph::Tensor;

use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};
use crate::ops::compose::Setting;
use crate::ops::{matrix, window};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("BiasAdd", bias_add),
    ("BiasGelu", gelu),
    ("BiasSoftmax", bias_softmax),
    ("BiasSplitGelu", split_gelu),
    ("FastGelu", gelu),
    ("FusedConv", convolution),
    ("FusedGemm", gemm),
    ("FusedMatMul", matmul),
    ("FusedMatMulActivation", matmul),
    ("Gelu", gelu),
    ("QuickGelu", quick_gelu),
    ("TransposeMatMul", matmul),
];

/// Applies the activation that attributes name.
fn activated(
    im: &mut Import,
    node: &Node<'_>,
    value: Value,
    [alpha, beta]: [Option<f32>; 2],
) -> NodeResult<Value> {
    let name = node.text("activation", "")?;
    let op = match &*name {
        "" => return Ok(value),
        "LeakyRelu" | "HardSigmoid" | "Elu" | "Relu" | "Sigmoid" | "Tanh" | "Clip"
        | "HardSwish" | "Selu" | "Softplus" | "Softsign" | "Gelu" | "ThresholdedRelu" => name,
        "QuickGelu" | "Swish" => "Swish".to_owned(),
        other => return Err(invalid(format!("activation {other} is not supported"))),
    };
    let settings: &[(&str, Option<f32>)] = match &*op {
        "Clip" => &[("min", alpha), ("max", beta)],
        _ => &[("alpha", alpha), ("beta", beta)],
    };
    let settings =
        settings.iter().filter_map(|(name, value)| Some((*name, Setting::Float((*value)?))));
    im.apply(&op, &[&value], &settings.collect::<Vec<_>>())
}

fn convolution(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let mut made = window::convolution(im, node)?;
    let Some(mut value) = made.pop() else { return Err("no output".into()) };
    if let Some(other) = node.optional(3) {
        value = im.apply("Add", &[&value, other], &[])?;
    }
    let params = node.floats("activation_params").unwrap_or_default();
    let params = [params.first().copied(), params.get(1).copied()];
    Ok(vec![activated(im, node, value, params)?])
}

fn gemm(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let mut made = matrix::gemm(im, node)?;
    let Some(value) = made.pop() else { return Err("no output".into()) };
    node.ignore(&["activation_gamma"]);
    let params = [node.float_if("activation_alpha"), node.float_if("activation_beta")];
    Ok(vec![activated(im, node, value, params)?])
}

/// Swaps the last two axes if a flag is set, or moves the first axis before the last two.
fn turned(im: &mut Import, x: Tensor, last: bool, batch: bool) -> NodeResult<Tensor> {
    let rank = im.g.shape(x).len();
    if rank < 2 {
        return Ok(x);
    }
    let mut x = x;
    if batch {
        // The matrix's first axis is before the batch axes.
        let mut order: Vec<usize> = (1..rank - 1).collect();
        order.extend([0, rank - 1]);
        x = im.g.permute(x, &order)?;
    }
    if last {
        x = transpose(&mut im.g, x, rank - 2, rank - 1)?;
    }
    Ok(x)
}

fn matmul(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (a, b) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let a = turned(im, a, node.flag("transA"), node.flag("transBatchA"))?;
    let b = turned(im, b, node.flag("transB"), node.flag("transBatchB"))?;
    let mut tensor = matrix::product(im, a, b)?;
    let alpha = node.float("alpha", 1.0);
    if alpha != 1.0 {
        tensor = times(&mut im.g, tensor, alpha)?;
    }
    let params = [node.float_if("activation_alpha"), node.float_if("activation_beta")];
    node.ignore(&["activation_gamma", "activation_axis"]);
    Ok(vec![activated(im, node, Value::Device { elem, tensor }, params)?])
}

/// Adds the bias, if there is one.
fn gelu(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let mut value = node.input(0)?.clone();
    if let Some(bias) = node.optional(1) {
        value = im.apply("Add", &[&value, bias], &[])?;
    }
    let way = if node.op() == "FastGelu" { "tanh" } else { "none" };
    Ok(vec![im.apply("Gelu", &[&value], &[("approximate", Setting::Text(way))])?])
}

fn quick_gelu(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let alpha = Setting::Float(node.float("alpha", 1.702));
    Ok(vec![im.apply("Swish", &[node.input(0)?], &[("alpha", alpha)])?])
}

/// The first half of the channels times the GELU of the second.
fn split_gelu(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let value = im.apply("Add", &[node.input(0)?, node.input(1)?], &[])?;
    let at = im.shape(&value).len().saturating_sub(1);
    let half = im.shape(&value).get(at).copied().unwrap_or(0) / 2;
    let (left, right) = (im.part(&value, at, 0, half)?, im.part(&value, at, half, half)?);
    let right = im.apply("Gelu", &[&right], &[])?;
    Ok(vec![im.apply("Mul", &[&left, &right], &[])?])
}

fn bias_add(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let value = im.apply("Add", &[node.input(0)?, node.input(1)?], &[])?;
    Ok(vec![im.apply("Add", &[&value, node.input(2)?], &[])?])
}

fn bias_softmax(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (value, bias) = (node.input(0)?, node.input(1)?);
    let (have, mut shape) = (im.shape(value), im.shape(bias));
    let at = crate::node::axis(node.integer("axis", 1), have.len())?;
    let inner = node.flag("is_inner_broadcast");
    if inner && shape.len() < have.len() {
        shape.splice(1..1, vec![1; have.len() - shape.len()]);
    }
    let bias = im.reshaped(bias, &shape)?;
    let (x, bias) = (im.float(value)?, im.float(&bias)?);
    let sum = add(&mut im.g, x, bias)?;
    let flat = [have[..at].iter().product(), have[at..].iter().product()];
    let sum = im.g.reshape(sum, &flat)?;
    let made = f::softmax(&mut im.g, sum, 1)?;
    let made = plus(&mut im.g, made, 0.0)?;
    Ok(device(value.elem(), im.g.reshape(made, &have)?))
}
