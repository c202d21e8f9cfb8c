//! Constant folding: nodes whose inputs are all known are computed while the graph is built.
//!
//! The reference device evaluates them, for every operator. The operators that shapes are computed
//! with have exact rules here, since 64-bit integers are not exact on devices.

use std::sync::Arc;

use device::reference::Reference;
use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, Slice, concatenate};
use nn::Session;

use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::{Node, Operator, axis};
use crate::ops::{cast, shapes};

/// Most elements of a result.
const MOST: usize = 1 << 16;

/// Reason why the device computes a result.
const TOO_LARGE: &str = "the result is too large for the host";

/// True if the host computes results of this shape.
fn is_small(shape: &[usize]) -> bool {
    let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    count.is_some_and(|count| count <= MOST)
}

/// Operators that stay on the device, where they are fused with what follows.
const KEPT: [&str; 3] = ["DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"];

/// Magnitude from which integers may have been rounded to `f32`.
const EXACT: f32 = 16_777_216.0;

/// Most elements of a step of the evaluation.
const MOST_EVALUATED: usize = 1 << 20;

/// Most elements of all steps of the evaluation, and most nodes of its graph.
const ALL_EVALUATED: usize = 1 << 22;
const MOST_NODES: usize = 1 << 14;

/// The outputs of a node: computed here if all its inputs are known and small, else built by its
/// operator.
pub(crate) fn fold(im: &mut Import, node: &Node<'_>, operator: Operator) -> NodeResult<Vec<Value>> {
    let mut all = Vec::new();
    for input in &node.inputs {
        match input {
            Some(Value::Known(known)) => all.push(known),
            Some(Value::Device { .. }) => return operator(im, node),
            None => {}
        }
    }
    let large = all.iter().map(|known| known.values.len()).sum::<usize>() > MOST;
    if all.is_empty() || (large && !matches!(node.op(), "NonZero" | "Unique")) {
        return operator(im, node);
    }
    match exact(node, &all) {
        Ok(Some(known)) => return Ok(known.into_iter().map(Value::Known).collect()),
        Err(error) if error.what == TOO_LARGE => return operator(im, node),
        Err(error) => return Err(error),
        Ok(None) => {}
    }
    match evaluated(node, operator) {
        Some(made) => Ok(made),
        None => operator(im, node),
    }
}

/// Outputs of an operator without an exact rule here: what the reference device computes. `None` if
/// it cannot, or if the values may be inexact.
fn evaluated(node: &Node<'_>, operator: Operator) -> Option<Vec<Value>> {
    if KEPT.contains(&node.op()) {
        return None;
    }
    let mut im = Import::limited(MOST_EVALUATED, MOST_NODES);
    let made = operator(&mut im, node).ok()?;
    if im.g.computed() > ALL_EVALUATED {
        return None;
    }
    let mut open = false;
    for (i, value) in made.iter().enumerate() {
        let shape = im.shape(value);
        if !is_small(&shape) {
            return None;
        }
        if matches!(value, Value::Device { .. }) && !shape.contains(&0) {
            open = true;
            let tensor = im.float(value).ok()?;
            let tensor = im.g.reshape(tensor, if shape.is_empty() { &[1] } else { &shape }).ok()?;
            im.g.output(i.to_string(), tensor);
        }
    }
    let session = match open {
        true => {
            let weights: Vec<_> =
                im.weights.iter().map(|w| (&*w.name, w.elements.data())).collect();
            let mut session = Session::open(&Reference, &weights, [], &[&im.g]).ok()?;
            session.run(0, 1).ok()?;
            Some(session)
        }
        false => None,
    };
    let mut known = Vec::new();
    for (i, value) in made.into_iter().enumerate() {
        let Value::Device { elem, .. } = value else {
            known.push(value);
            continue;
        };
        let shape = im.shape(&value);
        let values = match &session {
            Some(session) if !shape.contains(&0) => session.output(0, &i.to_string()).ok()?,
            _ => Vec::new(),
        };
        if elem.is_integer() && values.iter().any(|v| v.abs() >= EXACT) {
            return None;
        }
        let values = values.into_iter().map(f64::from).collect();
        known.push(Value::Known(Known::new(elem, &shape, values)?));
    }
    Some(known)
}

/// The outputs of a node that has an exact rule here, for 64-bit integers too.
fn exact(node: &Node<'_>, all: &[&Known]) -> Folded {
    let first = all[0];
    if let Some(function) = unary(node.op()) {
        return same(first, first.values.mapv(function));
    }
    if node.op() == "Mod"
        && !node.flag("fmod")
        && let &[a, b] = all
    {
        return one(a.elem, together(&a.values, &b.values, |a, b| a - b * (a / b).floor())?);
    }
    if let Some((function, truth)) = binary(node.op(), first.elem)
        && let &[a, b] = all
    {
        let elem = if truth { Elem::Bool } else { a.elem };
        return one(elem, together(&a.values, &b.values, function)?);
    }
    match node.op() {
        "Cast" => {
            let elem = cast::cast_to(node)?;
            one(elem, first.values.mapv(|x| cast::cast_value(x, elem)))
        }
        "Identity" => same(first, Arc::clone(&first.values)),
        "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" => reshaped(node, first),
        "Transpose" => {
            let order = shapes::order(node, first.shape().len())?;
            same(first, first.values.view().permuted_axes(order).as_standard_layout().into_owned())
        }
        "Concat" => {
            let at = axis(node.integer("axis", 1), first.shape().len())?;
            if all.iter().map(|known| known.values.len()).sum::<usize>() > MOST {
                return Ok(None);
            }
            let views: Vec<ArrayViewD<'_, f64>> = all.iter().map(|k| k.values.view()).collect();
            same(first, concatenate(Axis(at), &views).map_err(|e| invalid(e.to_string()))?)
        }
        "Gather" => gather(node, first),
        "Slice" => {
            let mut values = ArrayD::clone(&first.values);
            for cut in shapes::cuts(node, first.shape())? {
                let places: Vec<usize> = cut.places().collect();
                values = values.select(Axis(cut.axis), &places);
            }
            same(first, values)
        }
        "Split" => split(node, first),
        "Expand" => {
            let shape = node.known_integers(1, "the shape")?;
            let shape = shapes::expanded(first.shape(), &shape)?;
            if !is_small(&shape) {
                return Ok(None);
            }
            same(first, wide(&first.values, &shape))
        }
        "Range" => range(all),
        "Where" => choose(all),
        "NonZero" => Ok(non_zero(first)),
        "Unique" => unique(node, first),
        "BlackmanWindow" | "HammingWindow" | "HannWindow" => taper(node, first).map(Some),
        "MelWeightMatrix" => mel_weights(node, all).map(Some),
        op if op.starts_with("Reduce") => reduced(node, first),
        _ => Ok(None),
    }
}

/// The outputs of a node, or `None` if the device computes them.
type Folded = NodeResult<Option<Vec<Known>>>;

/// A single output. Rounds to `f32`, in which devices compute all floating-point types.
fn one(elem: Elem, values: impl Into<Arc<ArrayD<f64>>>) -> Folded {
    let mut values = values.into();
    let rounded = |x: f64| f64::from(x as f32);
    if elem.is_float() && values.iter().any(|x| x.to_bits() != rounded(*x).to_bits()) {
        values = Arc::new(values.mapv(rounded));
    }
    Ok(Some(vec![Known { elem, values }]))
}

fn same(first: &Known, values: impl Into<Arc<ArrayD<f64>>>) -> Folded {
    one(first.elem, values)
}

fn reshaped(node: &Node<'_>, x: &Known) -> Folded {
    let shape = match node.op() {
        "Reshape" => {
            let to = node.integers_of(1, "shape")?.unwrap_or_default();
            shapes::reshaped(x.shape(), &to, node.flag("allowzero"))?
        }
        "Squeeze" => shapes::squeezed(x.shape(), node.integers_of(1, "axes")?)?,
        "Unsqueeze" => {
            shapes::unsqueezed(x.shape(), &node.integers_of(1, "axes")?.unwrap_or_default())?
        }
        _ => shapes::flattened(x.shape(), node.integer("axis", 1))?.to_vec(),
    };
    Ok(Some(vec![x.reshaped(&shape)?]))
}

fn gather(node: &Node<'_>, x: &Known) -> Folded {
    let at = axis(node.integer("axis", 0), x.shape().len())?;
    let indices = node.known(1, "indices")?;
    let places = shapes::places(&indices.integers(), x.shape()[at])?;
    let shape = [&x.shape()[..at], indices.shape(), &x.shape()[at + 1..]].concat();
    if !is_small(&shape) {
        return Ok(None);
    }
    let taken = x.values.select(Axis(at), &places);
    let flat: Vec<f64> = taken.iter().copied().collect();
    Ok(Known::new(x.elem, &shape, flat).map(|known| vec![known]))
}

fn split(node: &Node<'_>, x: &Known) -> Folded {
    let (at, sizes) = shapes::parts(node, x.shape())?;
    let mut begin = 0;
    let mut parts = Vec::new();
    for size in sizes {
        let slice = Slice::from(begin..begin + size);
        let values = x.values.slice_axis(Axis(at), slice).to_owned();
        parts.push(Known { elem: x.elem, values: Arc::new(values) });
        begin += size;
    }
    Ok(Some(parts))
}

fn range(all: &[&Known]) -> Folded {
    let &[first, limit, step] = all else { return Ok(None) };
    let (Some(start), Some(limit), Some(step)) = (first.scalar(), limit.scalar(), step.scalar())
    else {
        return Err("three numbers expected".into());
    };
    let count = ((limit - start) / step).ceil().max(0.0);
    if count.is_nan() || count > MOST as f64 {
        return Err(invalid(format!(
            "invalid range of {count} numbers from {start} to {limit} by {step}"
        )));
    }
    let values = (0..count as usize).map(|i| start + i as f64 * step).collect();
    Ok(Known::new(first.elem, &[count as usize], values).map(|known| vec![known]))
}

fn choose(all: &[&Known]) -> Folded {
    let &[condition, a, b] = all else { return Ok(None) };
    let shape = shapes::broadcast(condition.shape(), a.shape())?;
    let shape = shapes::broadcast(&shape, b.shape())?;
    if !is_small(&shape) {
        return Ok(None);
    }
    let [condition, mut made, b] = [condition, a, b].map(|x| wide(&x.values, &shape));
    ndarray::Zip::from(&mut made).and(&condition).and(&b).for_each(|a, c, b| {
        if *c == 0.0 {
            *a = *b;
        }
    });
    one(a.elem, made)
}

/// Coordinates of the elements that are not 0, one row for each axis.
fn non_zero(x: &Known) -> Option<Vec<Known>> {
    let rank = x.shape().len();
    let places: Vec<Vec<usize>> = x
        .values
        .indexed_iter()
        .filter(|(_, value)| **value != 0.0)
        .map(|(at, _)| (0..rank).map(|i| at[i]).collect())
        .collect();
    let axes = rank.max(1);
    let values = (0..axes)
        .flat_map(|i| places.iter().map(move |at| at.get(i).copied().unwrap_or(0) as f64))
        .collect();
    Known::new(Elem::I64, &[axes, places.len()], values).map(|known| vec![known])
}

/// Distinct elements or slices, where each is first, where each element of the input went, and how
/// many there are of each.
fn unique(node: &Node<'_>, x: &Known) -> Folded {
    let at = match node.integer("axis", i64::MIN) {
        i64::MIN => None,
        at => Some(axis(at, x.shape().len())?),
    };
    let flat;
    let (values, at) = match at {
        Some(at) => (&*x.values, at),
        None => {
            flat = x.reshaped(&[x.values.len()])?;
            (&*flat.values, 0)
        }
    };
    let slices: Vec<Vec<f64>> =
        values.axis_iter(Axis(at)).map(|slice| slice.iter().copied().collect()).collect();
    let order = |a: &[f64], b: &[f64]| {
        a.iter()
            .zip(b)
            .map(|(a, b)| a.partial_cmp(b).unwrap_or_else(|| a.total_cmp(b)))
            .find(|o| o.is_ne())
            .unwrap_or(a.len().cmp(&b.len()))
    };
    let mut sorted: Vec<usize> = (0..slices.len()).collect();
    sorted.sort_by(|a, b| order(&slices[*a], &slices[*b]));
    // First index and count of each distinct slice.
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    for i in sorted {
        match groups.last_mut() {
            Some((first, all)) if slices[*first] == slices[i] => all.push(i),
            _ => groups.push((i, vec![i])),
        }
    }
    if node.integer("sorted", 1) == 0 {
        groups.sort_by_key(|(first, _)| *first);
    }
    let firsts: Vec<usize> = groups.iter().map(|(first, _)| *first).collect();
    let mut inverse = vec![0.0; slices.len()];
    for (number, (_, all)) in groups.iter().enumerate() {
        all.iter().for_each(|i| inverse[*i] = number as f64);
    }
    let taken = values.select(Axis(at), &firsts);
    let numbers = |values: Vec<f64>| Known::new(Elem::I64, &[values.len()], values);
    let others = [
        numbers(firsts.iter().map(|i| *i as f64).collect()),
        numbers(inverse),
        numbers(groups.iter().map(|(_, all)| all.len() as f64).collect()),
    ];
    let first = Known { elem: x.elem, values: Arc::new(taken) };
    Ok(Some(std::iter::once(first).chain(others.into_iter().flatten()).collect()))
}

/// Mel filter bank: triangles over bands of equal width in mels, from one band's middle to the
/// next.
fn mel_weights(node: &Node<'_>, all: &[&Known]) -> NodeResult<Vec<Known>> {
    let numbers: Vec<f64> = all.iter().filter_map(|known| known.scalar()).collect();
    let &[bands, length, rate, low, high] = &numbers[..] else {
        return Err("five numbers expected".into());
    };
    let elem = output_datatype(node)?;
    let mels = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let width = (mels(high) - mels(low)) / (bands + 2.0);
    let (bins, bands) = ((length / 2.0).floor() + 1.0, bands as usize);
    if !(1.0..=MOST as f64).contains(&(bins * bands as f64)) {
        return Err(invalid(format!("invalid filter bank: {bins} frequencies, {bands} bands")));
    }
    let edge = |i: usize| {
        let hertz = 700.0 * (10.0_f64.powf((mels(low) + i as f64 * width) / 2595.0) - 1.0);
        ((length + 1.0) * hertz / rate).floor()
    };
    let weight = |bin: f64, band: usize| {
        let [left, middle, right] = [edge(band), edge(band + 1), edge(band + 2)];
        match bin {
            _ if bin >= middle && bin < right => (right - bin) / (right - middle),
            _ if bin == middle => 1.0,
            _ if bin >= left && bin < middle => (bin - left) / (middle - left),
            _ => 0.0,
        }
    };
    let rows = 0..bins as usize;
    let values = rows.flat_map(|bin| (0..bands).map(move |band| weight(bin as f64, band)));
    Ok(Known::new(elem, &[bins as usize, bands], values.collect()).into_iter().collect())
}

fn output_datatype(node: &Node<'_>) -> NodeResult<Elem> {
    let elem = i32::try_from(node.integer("output_datatype", 1)).ok().and_then(Elem::of);
    elem.ok_or_else(|| invalid("output_datatype is not a supported element type".into()))
}

/// A window function of `size` samples, as a sum of cosines.
fn taper(node: &Node<'_>, size: &Known) -> NodeResult<Vec<Known>> {
    let terms: &[f64] = match node.op() {
        "BlackmanWindow" => &[0.42, -0.5, 0.08],
        "HammingWindow" => &[25.0 / 46.0, -21.0 / 46.0],
        _ => &[0.5, -0.5],
    };
    let count = size.scalar().filter(|n| (0.0..=MOST as f64).contains(n));
    let count = count.ok_or_else(|| invalid(format!("invalid window size {:?}", size.values)))?;
    let elem = output_datatype(node)?;
    // A periodic window is that of one more sample, without the last.
    let length = if node.integer("periodic", 1) == 0 { count - 1.0 } else { count };
    let sample = |i: usize| {
        let turn = std::f64::consts::TAU * i as f64 / length;
        terms.iter().enumerate().map(|(k, a)| a * (k as f64 * turn).cos()).sum()
    };
    let values = (0..count as usize).map(sample).collect();
    Ok(Known::new(elem, &[count as usize], values).into_iter().collect())
}

fn unary(op: &str) -> Option<fn(f64) -> f64> {
    Some(match op {
        "Neg" => |x| -x,
        "Abs" => f64::abs,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Sqrt" => f64::sqrt,
        "Not" => |x| f64::from(u8::from(x == 0.0)),
        _ => return None,
    })
}

/// A function of two elements.
type Function = fn(f64, f64) -> f64;

/// The function of two elements, and whether it returns a boolean.
fn binary(op: &str, elem: Elem) -> Option<(Function, bool)> {
    let truth: Option<Function> = match op {
        "Equal" => Some(|a, b| f64::from(u8::from(a == b))),
        "Less" => Some(|a, b| f64::from(u8::from(a < b))),
        "LessOrEqual" => Some(|a, b| f64::from(u8::from(a <= b))),
        "Greater" => Some(|a, b| f64::from(u8::from(a > b))),
        "GreaterOrEqual" => Some(|a, b| f64::from(u8::from(a >= b))),
        "And" => Some(|a, b| f64::from(u8::from(a != 0.0 && b != 0.0))),
        "Or" => Some(|a, b| f64::from(u8::from(a != 0.0 || b != 0.0))),
        _ => None,
    };
    if let Some(function) = truth {
        return Some((function, true));
    }
    let number: Function = match op {
        "Add" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" if elem.is_float() => |a, b| a / b,
        "Div" => |a, b| (a / b).trunc(),
        "Min" => f64::min,
        "Max" => f64::max,
        _ => return None,
    };
    Some((number, false))
}

/// Applies a function to two arrays, broadcast against each other.
fn together(
    a: &ArrayD<f64>,
    b: &ArrayD<f64>,
    function: impl Fn(f64, f64) -> f64,
) -> NodeResult<ArrayD<f64>> {
    let shape = shapes::broadcast(a.shape(), b.shape())?;
    if !is_small(&shape) {
        return Err(TOO_LARGE.into());
    }
    let (mut a, b) = (wide(a, &shape), wide(b, &shape));
    a.zip_mut_with(&b, |a, b| *a = function(*a, *b));
    Ok(a)
}

/// Broadcasts an array to a compatible shape.
fn wide(x: &ArrayD<f64>, shape: &[usize]) -> ArrayD<f64> {
    let view = x.broadcast(IxDyn(shape));
    view.unwrap_or_else(|| unreachable!("{:?} to {shape:?}: broadcast before", x.shape()))
        .to_owned()
}

fn reduced(node: &Node<'_>, first: &Known) -> Folded {
    let step: (f64, Function) = match node.op() {
        "ReduceSum" => (0.0, |a, b| a + b),
        "ReduceProd" => (1.0, |a, b| a * b),
        "ReduceMax" if first.elem == Elem::Bool => (0.0, f64::max),
        "ReduceMin" if first.elem == Elem::Bool => (1.0, f64::min),
        "ReduceMax" => (f64::NEG_INFINITY, f64::max),
        "ReduceMin" => (f64::INFINITY, f64::min),
        _ => return Ok(None),
    };
    let Some(shapes::Reduced { axes, keep }) = shapes::reduction(node, first.shape().len())? else {
        return Ok(Some(vec![first.clone()]));
    };
    let mut values = ArrayD::clone(&first.values);
    for &at in &axes {
        values = values.fold_axis(Axis(at), step.0, |a, b| (step.1)(*a, *b)).insert_axis(Axis(at));
    }
    if !keep {
        for &at in axes.iter().rev() {
            values = values.index_axis_move(Axis(at), 0);
        }
    }
    Ok(Some(vec![Known { elem: first.elem, values: Arc::new(values) }]))
}
