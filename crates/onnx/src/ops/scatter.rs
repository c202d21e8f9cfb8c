//! Scatter operators: rows of a tensor are replaced, or combined with others.

use nn::functions as f;
use plan::graph::{Graph, Tensor};
use plan::{Binary, DType};

use super::gather::{flat_indices, flat_rows};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator, axis};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("MaxUnpool", unpool),
    ("Scatter", scatter_elements),
    ("ScatterElements", scatter_elements),
    ("ScatterND", scatter_nd),
];

/// Most pairs of a row and an update, for which each row finds its last update.
const MOST_PAIRS: usize = 1 << 22;

/// Combines rows `flat_indices` of `x [rows, rest..]` with `values [M, rest..]`, by the attribute
/// `reduction`.
fn scatter(
    im: &mut Import,
    node: &Node<'_>,
    x: Tensor,
    flat_indices: Tensor,
    values: Tensor,
) -> NodeResult<Tensor> {
    let g = &mut im.g;
    let dtype = g.dtype(x);
    if g.shape(values).contains(&0) {
        return Ok(x);
    }
    let (x, values) = (g.cast(x, DType::F32)?, g.cast(values, DType::F32)?);
    let made = match &*node.text("reduction", "none")? {
        "add" => {
            let rows = g.shape(x)[0];
            let sums = g.scatter_add(&[rows], &[flat_indices], values)?;
            f::add(g, x, sums)?
        }
        "none" => replaced(g, x, flat_indices, values)?,
        "max" => combined(g, Way::Largest, x, flat_indices, values)?,
        "min" => {
            let (x, values) = (f::neg(g, x)?, f::neg(g, values)?);
            let made = combined(g, Way::Largest, x, flat_indices, values)?;
            f::neg(g, made)?
        }
        "mul" => combined(g, Way::Product, x, flat_indices, values)?,
        other => return Err(invalid(format!("reduction {other} is not supported"))),
    };
    Ok(g.cast(made, dtype)?)
}

/// Replaces rows. Of several values for a row, the last one counts.
fn replaced(g: &mut Graph, x: Tensor, at: Tensor, values: Tensor) -> NodeResult<Tensor> {
    let (rows, count) = (g.shape(x)[0], g.shape(values)[0]);
    if rows.saturating_mul(count) <= MOST_PAIRS {
        // Number of the last update of each row, or -1.
        let number = g.iota(count);
        let minus = g.constant(-1.0);
        let own = mask(g, rows, at, 0)?;
        let number = g.select(own, number, minus)?;
        let last = f::amax(g, number, &[1])?;
        let zero = g.constant(0.0);
        let open = f::less(g, last, zero)?;
        let held = f::maximum(g, last, zero)?;
        let held = g.cast(held, DType::I32)?;
        let held = g.reshape(held, &[rows])?;
        let taken = g.gather(values, &[held])?;
        let open = wide(g, open, &[rows], g.shape(x).len() - 1)?;
        return Ok(g.select(open, x, taken)?);
    }
    let sums = g.scatter_add(&[rows], &[at], values)?;
    let (one, shape) = (g.constant(1.0), g.shape(values).to_vec());
    let ones = g.expand(one, &shape)?;
    let counts = g.scatter_add(&[rows], &[at], ones)?;
    // The mean is exact if a row has one value, or equal ones.
    let shares = f::maximum(g, counts, one)?;
    let values = f::div(g, sums, shares)?;
    Ok(g.select(counts, values, x)?)
}

/// Appends `behind` axes of extent 1.
fn wide(g: &mut Graph, x: Tensor, shape: &[usize], behind: usize) -> NodeResult<Tensor> {
    Ok(g.reshape(x, &[shape, &vec![1; behind]].concat())?)
}

/// 1 where an update is one of the row: `[rows, M, 1..]`.
fn mask(g: &mut Graph, rows: usize, at: Tensor, behind: usize) -> NodeResult<Tensor> {
    let count = g.shape(at)[0];
    let row = g.iota(rows);
    let row = g.reshape(row, &[rows, 1])?;
    let at = g.cast(at, DType::F32)?;
    let own = f::equal(g, row, at)?;
    wide(g, own, &[rows, count], behind)
}

/// Combination of a row with its updates.
#[derive(Clone, Copy)]
enum Way {
    Largest,
    Product,
}

fn combined(g: &mut Graph, way: Way, x: Tensor, at: Tensor, values: Tensor) -> NodeResult<Tensor> {
    let have = g.shape(x).to_vec();
    let own = mask(g, have[0], at, have.len() - 1)?;
    let shape = [&[1][..], g.shape(values)].concat();
    let values = g.reshape(values, &shape)?;
    let neutral = g.constant(match way {
        Way::Largest => f32::NEG_INFINITY,
        Way::Product => 1.0,
    });
    let all = g.select(own, values, neutral)?;
    let made = match way {
        Way::Largest => f::amax(g, all, &[1])?,
        Way::Product => super::reduce::product(g, all, 1)?,
    };
    let made = g.reshape(made, &have)?;
    Ok(match way {
        Way::Largest => g.binary(Binary::Max, x, made)?,
        Way::Product => f::mul(g, x, made)?,
    })
}

fn scatter_elements(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let at = axis(node.integer("axis", 0), have.len())?;
    let flat_indices = flat_indices(im, &have, node.input(1)?, at)?;
    let count = im.g.shape(flat_indices)[0];
    let (x, values) = (im.tensor(x)?, im.tensor(node.input(2)?)?);
    let x = im.g.reshape(x, &[have.iter().product()])?;
    let values = im.g.reshape(values, &[count])?;
    let made = scatter(im, node, x, flat_indices, values)?;
    Ok(device(elem, im.g.reshape(made, &have)?))
}

fn scatter_nd(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (x, of) = (node.input(0)?, node.input(1)?);
    let (elem, have, shape) = (x.elem(), im.shape(x), im.shape(of));
    let width = shape.last().copied().unwrap_or(0);
    let Some(rest) = have.get(width..).filter(|_| width > 0) else {
        return Err(invalid(format!("tuples of {width} indices do not fit {have:?}")));
    };
    let flat_indices = flat_rows(im, of, &have[..width])?;
    let count = im.g.shape(flat_indices)[0];
    let (x, values) = (im.tensor(x)?, im.tensor(node.input(2)?)?);
    let rows = have[..width].iter().product();
    let x = im.g.reshape(x, &[&[rows], rest].concat())?;
    let values = im.g.reshape(values, &[&[count], rest].concat())?;
    let made = scatter(im, node, x, flat_indices, values)?;
    Ok(device(elem, im.g.reshape(made, &have)?))
}

/// `MaxUnpool`: values at the indices that `MaxPool` returned, and zeroes elsewhere.
fn unpool(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (elem, have) = (node.input(0)?.elem(), im.shape(node.input(0)?));
    let axes = have.len().saturating_sub(2);
    let of = |name: &str, default: i64| -> NodeResult<Vec<i64>> {
        let all = node.integers(name).unwrap_or_else(|| vec![default; axes]);
        let fits = all.len() == axes && all.iter().all(|n| (1..1 << 16).contains(n));
        if fits {
            Ok(all)
        } else {
            Err(invalid(format!("{name} {all:?} does not fit {axes} axes")))
        }
    };
    let (sizes, strides) = (of("kernel_shape", 0)?, of("strides", 1)?);
    let pads = node.integers("pads").unwrap_or_else(|| vec![0; 2 * axes]);
    if pads.len() != 2 * axes || pads.iter().any(|n| !(0..1 << 16).contains(n)) {
        return Err(invalid(format!("pads {pads:?} do not fit {axes} axes")));
    }
    let extent =
        |i: usize| (have[2 + i] as i64 - 1) * strides[i] + sizes[i] - pads[i] - pads[axes + i];
    let inferred: Vec<i64> =
        have[..2].iter().map(|n| *n as i64).chain((0..axes).map(extent)).collect();
    let inferred = crate::array::shape(&inferred)?;
    let shape = match node.optional(2) {
        Some(_) => crate::array::shape(&node.known_integers(2, "the shape")?)?,
        None => inferred,
    };
    let (count, all) = (have.iter().product(), shape.iter().product());
    let (x, at) = (im.float(node.input(0)?)?, im.tensor(node.input(1)?)?);
    im.check_indices(at, all)?;
    let g = &mut im.g;
    let (x, at) = (g.reshape(x, &[count])?, g.reshape(at, &[count])?);
    let zero = g.constant(0.0);
    let zero = g.expand(zero, &[all])?;
    let made = replaced(g, zero, at, x)?;
    Ok(device(elem, g.reshape(made, &shape)?))
}
