//! Operators of classical machine learning, domain `ai.onnx.ml`.
//!
//! Labels are integers: text is refused by name. `ZipMap` returns the probabilities as a tensor, one
//! column for each label.

mod linear;
mod prepare;
mod tree;

use nn::functions as f;
use plan::graph::Tensor;

use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::{Node, Operator};

pub(super) const FAMILIES: &[&[(&str, Operator)]] =
    &[linear::OPERATORS, prepare::OPERATORS, tree::OPERATORS];

/// Known floats in a row.
fn vector(im: &mut Import, values: &[f32]) -> NodeResult<Tensor> {
    matrix(im, &[values.len()], values)
}

fn matrix(im: &mut Import, shape: &[usize], values: &[f32]) -> NodeResult<Tensor> {
    let values = values.iter().map(|value| f64::from(*value)).collect();
    let known = Known::new(Elem::F32, shape, values);
    let known = known.ok_or_else(|| invalid(format!("values do not fill {shape:?}")))?;
    im.tensor(&Value::Known(known))
}

/// An input as `[rows, columns]`.
fn table(im: &mut Import, node: &Node<'_>) -> NodeResult<(Tensor, [usize; 2])> {
    let x = im.float(node.input(0)?)?;
    let shape = im.g.shape(x).to_vec();
    let (rows, columns) = match shape.split_last() {
        Some((last, lead)) if !lead.is_empty() => (lead.iter().product(), *last),
        Some((last, _)) => (1, *last),
        None => (1, 1),
    };
    Ok((im.g.reshape(x, &[rows, columns])?, [rows, columns]))
}

/// Scores after the transform that an attribute names.
fn transformed(im: &mut Import, node: &Node<'_>, scores: Tensor) -> NodeResult<Tensor> {
    let g = &mut im.g;
    Ok(match &*node.text("post_transform", "NONE")? {
        "NONE" => scores,
        "LOGISTIC" => f::sigmoid(g, scores)?,
        "SOFTMAX" => f::softmax(g, scores, 1)?,
        "SOFTMAX_ZERO" => {
            // Zeroes stay zeroes.
            let most = f::amax(g, scores, &[1])?;
            let moved = f::sub(g, scores, most)?;
            let powers = f::exp(g, moved)?;
            let zero = g.constant(0.0);
            let nothing = f::equal(g, scores, zero)?;
            let powers = g.select(nothing, zero, powers)?;
            let sum = f::sum(g, powers, &[1])?;
            f::div(g, powers, sum)?
        }
        other => return Err(invalid(format!("post_transform {other} is not supported"))),
    })
}

/// The labels of a classifier.
fn labels(node: &Node<'_>, numbers: &str, texts: &str) -> NodeResult<Vec<i64>> {
    if node.texts(texts)?.is_some_and(|all| !all.is_empty()) {
        return Err(invalid(format!("text as labels ({texts}) is not supported")));
    }
    Ok(node.integers(numbers).unwrap_or_default())
}

/// The label of each row's greatest score.
fn best(im: &mut Import, scores: Tensor, labels: &[i64]) -> NodeResult<Value> {
    let rows = im.g.shape(scores)[0];
    let at = nn::shape::argmax(&mut im.g, scores, 1)?;
    let at = im.g.reshape(at, &[rows])?;
    named(im, at, labels)
}

/// Labels by their numbers `[rows]`.
fn named(im: &mut Import, at: Tensor, labels: &[i64]) -> NodeResult<Value> {
    let tensor = if labels.iter().enumerate().all(|(i, label)| *label == i as i64) {
        at
    } else {
        let values = labels.iter().map(|label| *label as f64).collect();
        let known = Known::new(Elem::I64, &[labels.len()], values);
        let known = known.ok_or_else(|| invalid("labels".into()))?;
        let all = im.tensor(&Value::Known(known))?;
        im.g.gather(all, &[at])?
    };
    Ok(Value::Device { elem: Elem::I64, tensor })
}
