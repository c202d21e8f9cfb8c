//! Normalisation operators.

use nn::functions::{self as f, add, div, mul, plus, sub, times};
use nn::norm as n;
use plan::graph::Tensor;

use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator, axis};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("BatchNormalization", batch),
    ("GroupNormalization", group),
    ("InstanceNormalization", instance),
    ("LRN", local_response),
    ("LayerNormalization", layer),
    ("LpNormalization", lp_norm),
    ("MeanVarianceNormalization", mean_variance),
    ("RMSNormalization", root_mean),
    // onnxruntime's operator, in ONNX's domain.
    ("SimplifiedLayerNormalization", root_mean),
];

fn batch(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["momentum", "spatial"]);
    if node.flag("training_mode") || node.has_output(1) {
        return Err("training is not supported".into());
    }
    let elem = node.input(0)?.elem();
    let mut all = Vec::new();
    for place in 0..5 {
        all.push(im.float(node.input(place)?)?);
    }
    let eps = node.float("epsilon", 1e-5);
    let [x, weight, bias, mean, variance] = all[..] else { unreachable!("five were taken") };
    Ok(device(elem, n::batch_norm_by(&mut im.g, x, [mean, variance], weight, bias, eps)?))
}

fn group(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["stash_type"]);
    let elem = node.input(0)?.elem();
    let have = im.shape(node.input(0)?);
    let groups = usize::try_from(node.integer("num_groups", 0)).ok().filter(|n| *n > 0);
    let groups = groups.ok_or_else(|| invalid("num_groups must be at least 1".into()))?;
    let x = im.float(node.input(0)?)?;
    let (mut weight, mut bias) = (im.float(node.input(1)?)?, im.float(node.input(2)?)?);
    let channels = have.get(1).copied().unwrap_or(0);
    let g = &mut im.g;
    // Before opset 21, weights are per group.
    for each in [&mut weight, &mut bias] {
        if g.shape(*each) == [groups] && groups != channels {
            let own = g.reshape(*each, &[groups, 1])?;
            let own = g.expand(own, &[groups, channels / groups])?;
            *each = g.reshape(own, &[channels])?;
        }
    }
    let eps = node.float("epsilon", 1e-5);
    Ok(device(elem, n::group_norm(g, x, groups, weight, bias, eps)?))
}

fn instance(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let channels = im.shape(node.input(0)?).get(1).copied().unwrap_or(0);
    let x = im.float(node.input(0)?)?;
    let (weight, bias) = (im.float(node.input(1)?)?, im.float(node.input(2)?)?);
    let eps = node.float("epsilon", 1e-5);
    Ok(device(elem, n::group_norm(&mut im.g, x, channels, weight, bias, eps)?))
}

/// `x`, minus its mean if `centre`, the mean, and the inverse root of the mean square plus `eps`,
/// over the axes from `at` on.
fn standard(
    im: &mut Import,
    x: Tensor,
    at: usize,
    eps: f32,
    centre: bool,
) -> NodeResult<[Tensor; 3]> {
    let g = &mut im.g;
    let axes: Vec<usize> = (at..g.shape(x).len()).collect();
    let mean = f::mean(g, x, &axes)?;
    let centred = if centre { sub(g, x, mean)? } else { x };
    let squares = f::square(g, centred)?;
    let variance = f::mean(g, squares, &axes)?;
    let wide = plus(g, variance, eps)?;
    let scale = f::rsqrt(g, wide)?;
    Ok([centred, mean, scale])
}

fn layer(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["stash_type"]);
    let elem = node.input(0)?.elem();
    let have = im.shape(node.input(0)?);
    let at = axis(node.integer("axis", -1), have.len())?;
    let eps = node.float("epsilon", 1e-5);
    let x = im.float(node.input(0)?)?;
    let [centred, mean, scale] = standard(im, x, at, eps, true)?;
    let mut made = mul(&mut im.g, centred, scale)?;
    let weight = im.float(node.input(1)?)?;
    made = mul(&mut im.g, made, weight)?;
    if let Some(bias) = node.optional(2) {
        let bias = im.float(bias)?;
        made = add(&mut im.g, made, bias)?;
    }
    Ok([made, mean, scale].map(|tensor| Value::Device { elem, tensor }).into())
}

pub(in crate::ops) fn root_mean(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["stash_type"]);
    let elem = node.input(0)?.elem();
    let have = im.shape(node.input(0)?);
    let at = axis(node.integer("axis", -1), have.len())?;
    let x = im.float(node.input(0)?)?;
    let [x, _, scale] = standard(im, x, at, node.float("epsilon", 1e-5), false)?;
    let weight = im.float(node.input(1)?)?;
    let made = mul(&mut im.g, x, scale)?;
    Ok(device(elem, mul(&mut im.g, made, weight)?))
}

fn mean_variance(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let have = im.shape(node.input(0)?);
    let axes = node.integers("axes").unwrap_or_else(|| vec![0, 2, 3]);
    let axes = axes.iter().map(|&a| axis(a, have.len())).collect::<NodeResult<Vec<usize>>>()?;
    let x = im.float(node.input(0)?)?;
    let g = &mut im.g;
    let mean = f::mean(g, x, &axes)?;
    let centred = sub(g, x, mean)?;
    let squares = f::square(g, centred)?;
    let variance = f::mean(g, squares, &axes)?;
    let deviation = f::sqrt(g, variance)?;
    let below = plus(g, deviation, 1e-9)?;
    Ok(device(elem, div(g, centred, below)?))
}

fn lp_norm(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let have = im.shape(node.input(0)?);
    let at = axis(node.integer("axis", -1), have.len())?;
    let p = node.integer("p", 2);
    let x = im.float(node.input(0)?)?;
    let g = &mut im.g;
    let length = if p == 1 {
        let size = f::abs(g, x)?;
        f::sum(g, size, &[at])?
    } else {
        let squares = f::square(g, x)?;
        let sum = f::sum(g, squares, &[at])?;
        f::sqrt(g, sum)?
    };
    // Vectors of length zero stay unchanged.
    let (zero, one) = (g.constant(0.0), g.constant(1.0));
    let nothing = f::equal(g, length, zero)?;
    let shape = g.shape(length).to_vec();
    let one = g.expand(one, &shape)?;
    let length = g.select(nothing, one, length)?;
    Ok(device(elem, div(g, x, length)?))
}

/// `x / (bias + alpha / size * sum of squares over neighbouring channels)^beta`
fn local_response(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let have = im.shape(node.input(0)?);
    let size = usize::try_from(node.integer("size", 0)).ok().filter(|n| *n > 0);
    let size = size.ok_or_else(|| invalid("size must be at least 1".into()))?;
    let (alpha, beta, bias) =
        (node.float("alpha", 1e-4), node.float("beta", 0.75), node.float("bias", 1.0));
    if have.len() < 2 {
        return Err("[N, C, ..] expected".into());
    }
    let x = im.float(node.input(0)?)?;
    let g = &mut im.g;
    let squares = f::square(g, x)?;
    let before = (size - 1) / 2;
    let wide = g.pad(squares, 1, before, size - 1 - before)?;
    let mut sum = g.slice(wide, 1, 0, have[1])?;
    for i in 1..size {
        let part = g.slice(wide, 1, i, have[1])?;
        sum = add(g, sum, part)?;
    }
    let scaled = times(g, sum, alpha / size as f32)?;
    let below = plus(g, scaled, bias)?;
    let ln = f::ln(g, below)?;
    let angle = times(g, ln, -beta)?;
    let factor = f::exp(g, angle)?;
    Ok(device(elem, mul(g, x, factor)?))
}
