//! Reductions over axes, and softmax operators.

use nn::functions::{self as f, mul};
use plan::DType;
use plan::graph::{Graph, Tensor};

use super::elementwise::reversed;
use super::shapes::{Reduced, flattened, reduction};
use crate::array::Elem;
use crate::error::NodeResult;
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator, axis};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("Hardmax", along),
    ("LogSoftmax", along),
    ("ReduceL1", reduce),
    ("ReduceL2", reduce),
    ("ReduceLogSum", reduce),
    ("ReduceLogSumExp", reduce),
    ("ReduceMax", reduce),
    ("ReduceMean", reduce),
    ("ReduceMin", reduce),
    ("ReduceProd", reduce),
    ("ReduceSum", reduce),
    ("ReduceSumSquare", reduce),
    ("Softmax", along),
];

fn reduce(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let input = node.input(0)?;
    let (elem, have) = (input.elem(), im.shape(input));
    let Some(Reduced { axes, keep }) = reduction(node, have.len())? else {
        return Ok(vec![input.clone()]);
    };
    // An empty reduction yields its initial value.
    let empty = axes.iter().any(|axis| have[*axis] == 0);
    let shape: Vec<usize> =
        (0..have.len()).map(|i| if axes.contains(&i) { 1 } else { have[i] }).collect();
    let kept: Vec<usize> =
        (0..have.len()).filter(|i| keep || !axes.contains(i)).map(|i| shape[i]).collect();
    let whole =
        elem.is_integer() && !matches!(node.op(), "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp");
    let x = match (empty, whole) {
        (true, _) => None,
        (false, true) => Some(im.tensor(input)?),
        (false, false) => Some(im.float(input)?),
    };
    let g = &mut im.g;
    let made = match x {
        None => {
            let value = match node.op() {
                "ReduceProd" => 1.0,
                "ReduceMax" if elem == Elem::Bool => 0.0,
                "ReduceMin" if elem == Elem::Bool => 1.0,
                "ReduceMax" => f32::NEG_INFINITY,
                "ReduceMin" => f32::INFINITY,
                "ReduceLogSum" | "ReduceLogSumExp" => f32::NEG_INFINITY,
                "ReduceMean" => f32::NAN,
                _ => 0.0,
            };
            let value = g.constant(value);
            g.expand(value, &shape)?
        }
        Some(x) if whole => reduced_integers(g, node.op(), x, &axes)?,
        Some(x) => reduced(g, node.op(), x, &axes)?,
    };
    let mut made = g.reshape(made, &kept)?;
    if elem.is_integer() {
        made = g.cast(made, DType::I32)?;
    }
    Ok(device(elem, made))
}

fn reduced(g: &mut Graph, op: &str, x: Tensor, axes: &[usize]) -> NodeResult<Tensor> {
    Ok(match op {
        "ReduceL1" => {
            let size = f::abs(g, x)?;
            f::sum(g, size, axes)?
        }
        "ReduceL2" => {
            // Squares of values near 1 neither overflow nor vanish.
            let size = f::abs(g, x)?;
            let largest = f::amax(g, size, axes)?;
            let largest = f::clamp(g, largest, f32::MIN_POSITIVE, f32::MAX)?;
            let scaled = f::quotient(g, x, largest)?;
            let squares = f::square(g, scaled)?;
            let sum = f::sum(g, squares, axes)?;
            let root = f::sqrt(g, sum)?;
            mul(g, root, largest)?
        }
        "ReduceSumSquare" => {
            let squares = f::square(g, x)?;
            f::sum(g, squares, axes)?
        }
        "ReduceLogSum" => {
            let sum = f::sum(g, x, axes)?;
            f::ln(g, sum)?
        }
        "ReduceLogSumExp" => f::log_sum_exp(g, x, axes)?,
        "ReduceMax" => f::amax(g, x, axes)?,
        "ReduceMean" => f::mean(g, x, axes)?,
        "ReduceMin" => f::amin(g, x, axes)?,
        "ReduceProd" => axes.iter().try_fold(x, |x, &axis| product(g, x, axis))?,
        "ReduceSum" => f::sum(g, x, axes)?,
        op => unreachable!("{op} is in the table of reductions"),
    })
}

/// The same for integers, without rounding.
fn reduced_integers(g: &mut Graph, op: &str, x: Tensor, axes: &[usize]) -> NodeResult<Tensor> {
    Ok(match op {
        "ReduceL1" => {
            let opposite = f::times(g, x, -1.0)?;
            let size = f::maximum(g, x, opposite)?;
            f::sum(g, size, axes)?
        }
        "ReduceMean" => {
            let count: usize = axes.iter().map(|axis| g.shape(x)[*axis]).product();
            let (sum, count) = (f::sum(g, x, axes)?, g.constant(count as f32));
            f::quotient(g, sum, count)?
        }
        "ReduceMin" => {
            let x = reversed(g, x)?;
            let largest = f::amax(g, x, axes)?;
            reversed(g, largest)?
        }
        "ReduceSumSquare" => {
            let squares = f::square(g, x)?;
            f::sum(g, squares, axes)?
        }
        op => reduced(g, op, x, axes)?,
    })
}

/// Product over an axis, which stays with extent 1, by multiplying halves.
pub(super) fn product(g: &mut Graph, x: Tensor, axis: usize) -> NodeResult<Tensor> {
    let (mut x, mut odd) = (x, None);
    loop {
        let extent = g.shape(x)[axis];
        if extent == 1 {
            return Ok(match odd {
                Some(odd) => mul(g, x, odd)?,
                None => x,
            });
        }
        let half = extent / 2;
        if extent % 2 == 1 {
            let last = g.slice(x, axis, extent - 1, 1)?;
            odd = Some(match odd {
                Some(odd) => mul(g, odd, last)?,
                None => last,
            });
        }
        let (a, b) = (g.slice(x, axis, 0, half)?, g.slice(x, axis, half, half)?);
        x = mul(g, a, b)?;
    }
}

fn along(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let input = node.input(0)?;
    let have = im.shape(input);
    let x = im.float(input)?;
    let elem = input.elem();
    let g = &mut im.g;
    // Before opset 13, the given axis and all later ones are flattened.
    let (x, at) = if node.opset < 13 {
        let flat = flattened(&have, node.integer("axis", 1))?;
        (g.reshape(x, &flat)?, 1)
    } else {
        (x, axis(node.integer("axis", -1), have.len())?)
    };
    let made = match node.op() {
        "Softmax" => f::softmax(g, x, at)?,
        "LogSoftmax" => f::log_softmax(g, x, at)?,
        _ => {
            let extent = g.shape(x)[at];
            let best = nn::shape::argmax(g, x, at)?;
            let best = g.cast(best, DType::F32)?;
            let mut line = vec![1; g.shape(x).len()];
            line[at] = extent;
            let place = g.iota(extent);
            let place = g.reshape(place, &line)?;
            f::equal(g, best, place)?
        }
    };
    let made = g.reshape(made, &have)?;
    Ok(device(elem, made))
}
