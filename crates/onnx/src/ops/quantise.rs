//! Quantisation operators, with one scale per tensor, per axis or per block.

use nn::functions::{self as f, add, mul, quotient, sub};
use plan::graph::{Graph, Tensor};

use super::bytes::Dequantised;
use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator, axis};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("DequantizeLinear", dequantise),
    ("DynamicQuantizeLinear", dynamic),
    ("QuantizeLinear", quantise),
];

/// A scale or zero point, broadcast to an input of shape `have`.
fn parameter(im: &mut Import, node: &Node<'_>, place: usize, have: &[usize]) -> NodeResult<Tensor> {
    let of = im.float(node.input(place)?)?;
    let shape = im.g.shape(of).to_vec();
    let count: usize = shape.iter().product();
    let at = node.integer("axis", 1);
    let block = node.integer("block_size", 0);
    if count == 1 {
        return Ok(im.g.reshape(of, &[1])?);
    }
    let at = axis(at, have.len())?;
    if shape.len() == 1 {
        let mut line = vec![1; have.len()];
        line[at] = count;
        return Ok(im.g.reshape(of, &line)?);
    }
    let block = usize::try_from(block).ok().filter(|n| *n > 0);
    let block = block.ok_or_else(|| invalid("block_size is missing".into()))?;
    let mut apart = shape.clone();
    apart.insert(at + 1, 1);
    let of = im.g.reshape(of, &apart)?;
    apart[at + 1] = block;
    let of = im.g.expand(of, &apart)?;
    let mut whole = shape;
    whole[at] *= block;
    let of = im.g.reshape(of, &whole)?;
    Ok(im.g.slice(of, at, 0, have[at])?)
}

pub(in crate::ops) fn dequantise(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let have = im.shape(x);
    let elem = node.input(1)?.elem();
    node.ignore(&["output_dtype"]);
    let x = im.float(x)?;
    let scale = parameter(im, node, 1, &have)?;
    let moved = match node.optional(2) {
        Some(_) => {
            let zero = parameter(im, node, 2, &have)?;
            sub(&mut im.g, x, zero)?
        }
        None => x,
    };
    let made = mul(&mut im.g, moved, scale)?;
    let tensor = im.g.reshape(made, &have)?;
    if node.integer("block_size", 0) == 0 {
        let (x, zero) = (node.input(0)?.clone(), node.optional(2).cloned());
        let axis = axis(node.integer("axis", 1), have.len()).unwrap_or(0);
        im.remember(tensor, Dequantised { x, zero, scale: node.input(1)?.clone(), axis });
    }
    Ok(device(elem, tensor))
}

pub(in crate::ops) fn quantise(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let have = im.shape(node.input(0)?);
    node.ignore(&["saturate", "precision"]);
    let named = i32::try_from(node.integer("output_dtype", 0)).ok().and_then(Elem::of);
    let elem = node.optional(2).map(Value::elem).or(named).unwrap_or(Elem::U8);
    let Some((least, greatest)) = elem.range() else {
        return Err(invalid(format!("element type {} is not supported", elem.name())));
    };
    let x = im.float(node.input(0)?)?;
    let scale = parameter(im, node, 1, &have)?;
    let zero = match node.optional(2) {
        Some(_) => Some(parameter(im, node, 2, &have)?),
        None => None,
    };
    let made = quotient(&mut im.g, x, scale)?;
    let made = quantised(&mut im.g, made, zero, [least, greatest])?;
    Ok(device(elem, im.whole(made, &have)?))
}

/// Rounds quotients, adds the zero point, and clamps to the range.
fn quantised(
    g: &mut Graph,
    x: Tensor,
    zero: Option<Tensor>,
    range: [f64; 2],
) -> NodeResult<Tensor> {
    let made = f::round(g, x)?;
    // An integer has no negative zero.
    let zero = zero.unwrap_or_else(|| g.constant(0.0));
    let made = add(g, made, zero)?;
    let [least, greatest] = range.map(|end| end as f32);
    Ok(f::clamp(g, made, least, greatest)?)
}

/// Requantises sums of integer products: scales them, then quantises with the scale and zero point
/// of inputs 6 and 7.
pub(super) fn requantised(
    im: &mut Import,
    node: &Node<'_>,
    sums: Tensor,
    [a, b]: [Tensor; 2],
) -> NodeResult<Vec<Value>> {
    let elem = node.input(7)?.elem();
    let Some((least, greatest)) = elem.range() else {
        return Err(invalid(format!("element type {} is not supported", elem.name())));
    };
    let (scale, zero) = (im.float(node.input(6)?)?, im.float(node.input(7)?)?);
    let g = &mut im.g;
    let scales = mul(g, a, b)?;
    let factor = quotient(g, scales, scale)?;
    let made = mul(g, sums, factor)?;
    let made = quantised(g, made, Some(zero), [least, greatest])?;
    let shape = im.g.shape(made).to_vec();
    Ok(device(elem, im.whole(made, &shape)?))
}

/// Dynamic quantisation to unsigned bytes, over the range of the values and 0.
fn dynamic(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let have = im.shape(node.input(0)?);
    let x = im.float(node.input(0)?)?;
    let g = &mut im.g;
    let axes: Vec<usize> = (0..have.len()).collect();
    let zero = g.constant(0.0);
    let (low, high) = (f::amin(g, x, &axes)?, f::amax(g, x, &axes)?);
    let (low, high) = (f::minimum(g, low, zero)?, f::maximum(g, high, zero)?);
    let range = sub(g, high, low)?;
    let steps = g.constant(255.0);
    let scale = quotient(g, range, steps)?;
    let point = quotient(g, low, scale)?;
    let point = f::neg(g, point)?;
    let point = f::round(g, point)?;
    let point = f::clamp(g, point, 0.0, 255.0)?;
    let made = quotient(g, x, scale)?;
    let made = f::round(g, made)?;
    let made = add(g, made, point)?;
    let made = f::clamp(g, made, 0.0, 255.0)?;
    let scale = g.reshape(scale, &[])?;
    let (made, point) = (im.whole(made, &have)?, im.whole(point, &[])?);
    Ok(vec![
        Value::Device { elem: Elem::U8, tensor: made },
        Value::Device { elem: Elem::F32, tensor: scale },
        Value::Device { elem: Elem::U8, tensor: point },
    ])
}
