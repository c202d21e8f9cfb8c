//! Indexing operators: gather, cumulative sums and products, top-k, one-hot.

use nn::conv::pad_with;
use nn::functions::{self as f, mul, sub};
use nn::shape as s;
use plan::graph::{Graph, Tensor};
use plan::{Binary, DType, row_major};

use super::shapes::places;
use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator, axis};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("ArgMax", arg),
    ("ArgMin", arg),
    ("Compress", compress),
    ("CumProd", cumprod),
    ("CumSum", cumsum),
    ("Gather", gather),
    ("GatherElements", gather_elements),
    ("GatherND", gather_nd),
    ("OneHot", one_hot),
    ("ReverseSequence", reverse_sequence),
    ("TensorScatter", tensor_scatter),
    ("TopK", top_k),
];

/// Indices on the device as `I32`, counted from the front of an axis.
pub(super) fn indices(im: &mut Import, value: &Value, extent: usize) -> NodeResult<Tensor> {
    if let Value::Known(known) = value {
        let places = places(&known.integers(), extent)?;
        let places = places.into_iter().map(|place| place as f64).collect();
        let known = Known::new(Elem::I64, known.shape(), places);
        return im.tensor(&Value::Known(known.unwrap_or_else(|| unreachable!("one for each"))));
    }
    let at = im.tensor(value)?;
    let g = &mut im.g;
    let at = g.cast(at, DType::I32)?;
    let (last, size) = (g.constant(-1.0), g.constant(extent as f32));
    let below = f::less_equal(g, at, last)?;
    let turned = g.binary(Binary::Add, at, size)?;
    let at = g.select(below, turned, at)?;
    im.check_indices(at, extent)?;
    Ok(at)
}

fn gather(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let at = axis(node.integer("axis", 0), have.len())?;
    let of = node.input(1)?;
    let shape = [&have[..at], &im.shape(of)[..], &have[at + 1..]].concat();
    if let Value::Known(known) = of
        && let Some(&[place]) = places(&known.integers(), have[at]).ok().as_deref()
    {
        let x = im.tensor(x)?;
        let made = im.g.slice(x, at, place, 1)?;
        return Ok(device(elem, im.g.reshape(made, &shape)?));
    }
    let of = indices(im, of, have[at])?;
    let count = im.g.shape(of).iter().product();
    let of = im.g.reshape(of, &[count])?;
    let x = im.tensor(x)?;
    let made = s::take(&mut im.g, x, at, of)?;
    Ok(device(elem, im.g.reshape(made, &shape)?))
}

/// Coordinates along one axis of a shape, `I32`, times `stride`.
fn coordinate(im: &mut Import, shape: &[usize], at: usize, stride: usize) -> NodeResult<Tensor> {
    let g = &mut im.g;
    let line = g.iota(shape[at]);
    let line = f::times(g, line, stride as f32)?;
    let line = g.cast(line, DType::I32)?;
    let mut own = vec![1; shape.len()];
    own[at] = shape[at];
    let line = g.reshape(line, &own)?;
    Ok(g.expand(line, shape)?)
}

/// Flat indices into a tensor of shape `have`, one per element of `of`: its own coordinates, with
/// the one along axis `at` replaced by the index.
pub(super) fn flat_indices(
    im: &mut Import,
    have: &[usize],
    of: &Value,
    at: usize,
) -> NodeResult<Tensor> {
    let shape = im.shape(of);
    let strides = row_major(have);
    let places = indices(im, of, have[at])?;
    let stride = im.g.constant(strides[at] as f32);
    let mut sum = im.g.binary(Binary::Mul, places, stride)?;
    for (i, &stride) in strides.iter().enumerate().filter(|(i, _)| *i != at) {
        let own = coordinate(im, &shape, i, stride)?;
        sum = im.g.binary(Binary::Add, sum, own)?;
    }
    let count = shape.iter().product();
    Ok(im.g.reshape(sum, &[count])?)
}

fn gather_elements(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let at = axis(node.integer("axis", 0), have.len())?;
    let of = node.input(1)?;
    let shape = im.shape(of);
    let flat_indices = flat_indices(im, &have, of, at)?;
    let x = im.tensor(x)?;
    let flat = im.g.reshape(x, &[have.iter().product()])?;
    let made = im.g.gather(flat, &[flat_indices])?;
    Ok(device(elem, im.g.reshape(made, &shape)?))
}

/// Flat row indices `[M]` of index tuples `[.., K]` into axes with extents `have`.
pub(super) fn flat_rows(im: &mut Import, of: &Value, have: &[usize]) -> NodeResult<Tensor> {
    let shape = im.shape(of);
    let (&width, lead) =
        shape.split_last().ok_or_else(|| invalid("the indices have no axes".into()))?;
    let count: usize = lead.iter().product();
    let strides = row_major(have);
    let mut sum: Option<Tensor> = None;
    for i in 0..width {
        let part = match of {
            Value::Known(known) => {
                let all = known.integers();
                let own: Vec<f64> = all.chunks(width).map(|tuple| tuple[i] as f64).collect();
                let known = Known::new(Elem::I64, &[count], own);
                Value::Known(known.unwrap_or_else(|| unreachable!("one for each tuple")))
            }
            Value::Device { tensor, .. } => {
                let flat = im.g.reshape(*tensor, &[count, width])?;
                let own = im.g.slice(flat, 1, i, 1)?;
                let tensor = im.g.reshape(own, &[count])?;
                Value::Device { elem: Elem::I64, tensor }
            }
        };
        let place = indices(im, &part, have[i])?;
        let stride = im.g.constant(strides[i] as f32);
        let part = im.g.binary(Binary::Mul, place, stride)?;
        sum = Some(match sum {
            Some(sum) => im.g.binary(Binary::Add, sum, part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| "indices of no axis".into())
}

fn gather_nd(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let batch = usize::try_from(node.integer("batch_dims", 0));
    let batch = batch.map_err(|_| invalid("batch_dims is negative".into()))?;
    let (x, of) = (node.input(0)?, node.input(1)?);
    let (elem, have, shape) = (x.elem(), im.shape(x), im.shape(of));
    let Some((&width, lead)) = shape.split_last() else {
        return Err("the indices have no axes".into());
    };
    let Some(rest) = batch.checked_add(width).and_then(|begin| have.get(begin..)) else {
        return Err(invalid(format!("tuples of {width} indices do not fit {have:?}")));
    };
    let count: usize = lead.iter().product();
    let mut flat_indices = flat_rows(im, of, &have[batch..batch + width])?;
    let inner: usize = have[batch..batch + width].iter().product();
    if batch > 0 {
        let batches: usize = have[..batch].iter().product();
        let own = coordinate(im, &[batches, count / batches.max(1)], 0, inner)?;
        let own = im.g.reshape(own, &[count])?;
        flat_indices = im.g.binary(Binary::Add, flat_indices, own)?;
    }
    let x = im.tensor(x)?;
    let rows = have[..batch + width].iter().product();
    let flat = im.g.reshape(x, &[&[rows], rest].concat())?;
    let made = im.g.gather(flat, &[flat_indices])?;
    Ok(device(elem, im.g.reshape(made, &[lead, rest].concat())?))
}

fn arg(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let have = im.shape(node.input(0)?);
    let at = axis(node.integer("axis", 0), have.len())?;
    let (keep, last) = (node.integer("keepdims", 1) != 0, node.flag("select_last_index"));
    let mut x = im.float(node.input(0)?)?;
    let g = &mut im.g;
    if node.op() == "ArgMin" {
        x = f::neg(g, x)?;
    }
    if last {
        x = s::flip(g, x, at)?;
    }
    let mut made = s::argmax(g, x, at)?;
    if last {
        let (minus, end) = (g.constant(-1.0), g.constant(have[at] as f32 - 1.0));
        made = g.binary(Binary::Mul, made, minus)?;
        made = g.binary(Binary::Add, made, end)?;
    }
    if !keep {
        made = s::squeeze(g, made, at)?;
    }
    Ok(device(Elem::I64, made))
}

fn top_k(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let at = axis(node.integer("axis", -1), have.len())?;
    let count = match node.optional(1) {
        Some(_) => {
            let k = node.known_integers(1, "k")?;
            k.first().copied().ok_or_else(|| invalid("k is empty".into()))?
        }
        None => node.integer("k", 0),
    };
    node.ignore(&["sorted"]);
    let count = usize::try_from(count).ok().filter(|count| *count <= have[at]);
    let count = count
        .ok_or_else(|| invalid(format!("k exceeds the axis, which has {} elements", have[at])))?;
    let least = node.integer("largest", 1) == 0;
    let mut x = im.float(x)?;
    let g = &mut im.g;
    if least {
        x = f::neg(g, x)?;
    }
    let (places, mut values) = s::top_k(g, x, at, count)?;
    if least {
        values = f::neg(g, values)?;
    }
    if elem.is_integer() {
        values = g.cast(values, DType::I32)?;
    }
    Ok(vec![
        Value::Device { elem, tensor: values },
        Value::Device { elem: Elem::I64, tensor: places },
    ])
}

/// Input and axis of a cumulative operator, flipped if it runs in reverse.
fn cumulative_input(im: &mut Import, node: &Node<'_>) -> NodeResult<(Tensor, usize)> {
    let x = node.input(0)?;
    let at = node.known_integers(1, "the axis")?;
    let at = axis(at.first().copied().unwrap_or(0), im.shape(x).len())?;
    let x = im.float(x)?;
    Ok((if node.flag("reverse") { s::flip(&mut im.g, x, at)? } else { x }, at))
}

fn cumsum(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (elem, (own, at)) = (node.input(0)?.elem(), cumulative_input(im, node)?);
    let (exclusive, reverse) = (node.flag("exclusive"), node.flag("reverse"));
    let g = &mut im.g;
    let own = if elem.is_integer() { g.cast(own, DType::I32)? } else { own };
    let mut made = s::cumsum(g, own, at)?;
    if exclusive {
        let length = g.shape(made)[at];
        made = g.slice(made, at, 0, length - length.min(1))?;
        made = g.pad(made, at, length.min(1), 0)?;
    }
    if reverse {
        made = s::flip(g, made, at)?;
    }
    Ok(device(elem, made))
}

/// Cumulative product by doubling: each pass multiplies with the prefix twice as far back.
fn cumprod(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (elem, (mut made, at)) = (node.input(0)?.elem(), cumulative_input(im, node)?);
    let (exclusive, reverse) = (node.flag("exclusive"), node.flag("reverse"));
    let g = &mut im.g;
    let length = g.shape(made)[at];
    let later = |g: &mut Graph, x: Tensor, by: usize| -> NodeResult<Tensor> {
        let moved = pad_with(g, x, at, [by, 0], 1.0)?;
        Ok(g.slice(moved, at, 0, length)?)
    };
    if exclusive {
        made = later(g, made, 1)?;
    }
    let mut by = 1;
    while by < length {
        let before = later(g, made, by)?;
        made = mul(g, made, before)?;
        by *= 2;
    }
    if reverse {
        made = s::flip(g, made, at)?;
    }
    if elem.is_integer() {
        made = g.cast(made, DType::I32)?;
    }
    Ok(device(elem, made))
}

/// Writes rows to a cache, at a start index per batch entry.
fn tensor_scatter(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (elem, have) = (node.input(0)?.elem(), im.shape(node.input(0)?));
    let at = axis(node.integer("axis", -2), have.len())?;
    let new = im.shape(node.input(1)?).get(at).copied().unwrap_or(0);
    let (batch, room) = (have[0], have[at]);
    let circular = node.text("mode", "linear")? == "circular";
    // Rows of the cache, followed by the new rows.
    let mut order: Vec<usize> = (0..have.len()).filter(|i| *i != at).collect();
    order.insert(1, at);
    let (past, update) = (im.tensor(node.input(0)?)?, im.tensor(node.input(1)?)?);
    let from = match node.optional(2) {
        Some(from) => im.float(from)?,
        None => im.g.constant(0.0),
    };
    let g = &mut im.g;
    let (past, update) = (g.permute(past, &order)?, g.permute(update, &order)?);
    let shape = g.shape(past).to_vec();
    let both = s::concat(g, &[past, update], 1)?;
    let rows = [&[batch * (room + new)][..], &shape[2..]].concat();
    let both = g.reshape(both, &rows)?;
    let from = if g.shape(from).is_empty() { from } else { g.reshape(from, &[batch, 1])? };
    let place = g.iota(room);
    let mut number = sub(g, place, from)?;
    if circular {
        let room = g.constant(room as f32);
        number = f::remainder(g, number, room)?;
    }
    let (zero, last) = (g.constant(0.0), g.constant(new as f32 - 1.0));
    let (begun, open) = (f::less_equal(g, zero, number)?, f::less_equal(g, number, last)?);
    let scatter = mul(g, begun, open)?;
    let behind = f::plus(g, number, room as f32)?;
    let row = g.select(scatter, behind, place)?;
    let first = g.iota(batch);
    let first = f::times(g, first, (room + new) as f32)?;
    let first = g.reshape(first, &[batch, 1])?;
    let row = f::add(g, row, first)?;
    let row = g.cast(row, DType::I32)?;
    let row = g.reshape(row, &[batch * room])?;
    let made = g.gather(both, &[row])?;
    let made = g.reshape(made, &shape)?;
    let back: Vec<usize> =
        (0..have.len()).filter_map(|i| order.iter().position(|from| *from == i)).collect();
    Ok(device(elem, g.permute(made, &back)?))
}

fn one_hot(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let of = node.input(0)?;
    let shape = im.shape(of);
    let depth = node.known(1, "the depth")?.scalar().unwrap_or(-1.0);
    let depth = crate::array::shape(&[depth as i64])?[0];
    let at = axis(node.integer("axis", -1), shape.len() + 1)?;
    let values = node.input(2)?;
    let elem = values.elem();
    let of = im.float(of)?;
    let values = im.float(values)?;
    let g = &mut im.g;
    // A negative index counts from the end.
    let (zero, extent) = (g.constant(0.0), g.constant(depth as f32));
    let below = f::less(g, of, zero)?;
    let turned = f::add(g, of, extent)?;
    let of = g.select(below, turned, of)?;
    let of = s::unsqueeze(g, of, at)?;
    let mut line = vec![1; shape.len() + 1];
    line[at] = depth;
    let class = g.iota(depth);
    let class = g.reshape(class, &line)?;
    let hot = f::equal(g, of, class)?;
    let values = g.reshape(values, &[2])?;
    let off = g.slice(values, 0, 0, 1)?;
    let on = g.slice(values, 0, 1, 1)?;
    let apart = sub(g, on, off)?;
    let made = mul(g, hot, apart)?;
    let mut made = f::add(g, made, off)?;
    if elem.is_integer() {
        made = g.cast(made, DType::I32)?;
    }
    Ok(device(elem, made))
}

fn compress(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let chosen = node.known(1, "the condition")?;
    let places: Vec<f64> = (0..)
        .zip(chosen.values.iter())
        .filter(|(_, value)| **value != 0.0)
        .map(|(place, _)| f64::from(place))
        .collect();
    let flat = node.integers("axis").is_none() && node.integer("axis", i64::MIN) == i64::MIN;
    let (at, shape) = if flat {
        (0, vec![have.iter().product()])
    } else {
        (axis(node.integer("axis", 0), have.len())?, have)
    };
    let x = im.tensor(x)?;
    let x = im.g.reshape(x, &shape)?;
    let count = places.len();
    let places = Known::new(Elem::I64, &[count], places).map(Value::Known);
    let places = indices(im, &places.unwrap_or_else(|| unreachable!("one for each")), shape[at])?;
    Ok(device(elem, s::take(&mut im.g, x, at, places)?))
}

fn reverse_sequence(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let batch = axis(node.integer("batch_axis", 1), have.len())?;
    let time = axis(node.integer("time_axis", 0), have.len())?;
    let lengths = im.float(node.input(1)?)?;
    let x = im.tensor(x)?;
    let g = &mut im.g;
    let (batches, times) = (have[batch], have[time]);
    // Mirrored index before a sequence's end, the same index after it.
    let lengths = g.reshape(lengths, &[batches, 1])?;
    let at = g.iota(times);
    let turned = sub(g, lengths, at)?;
    let turned = f::plus(g, turned, -1.0)?;
    let inside = f::less(g, at, lengths)?;
    let shape = g.shape(inside).to_vec();
    let at = g.expand(at, &shape)?;
    let from = g.select(inside, turned, at)?;
    let own = g.iota(batches);
    let own = f::times(g, own, times as f32)?;
    let own = g.reshape(own, &[batches, 1])?;
    let flat_indices = f::add(g, from, own)?;
    let flat_indices = g.cast(flat_indices, DType::I32)?;
    let flat_indices = g.reshape(flat_indices, &[batches * times])?;
    // Moves batch and time to the front, and back.
    let rest: Vec<usize> = (0..have.len()).filter(|a| *a != batch && *a != time).collect();
    let order = [&[batch, time], &rest[..]].concat();
    let front = g.permute(x, &order)?;
    let shape = g.shape(front).to_vec();
    let flat = g.reshape(front, &[&[batches * times], &shape[2..]].concat())?;
    let made = g.gather(flat, &[flat_indices])?;
    let made = g.reshape(made, &shape)?;
    let mut back = vec![0; order.len()];
    for (i, &a) in order.iter().enumerate() {
        back[a] = i;
    }
    Ok(device(elem, g.permute(made, &back)?))
}
