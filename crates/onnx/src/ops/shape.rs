//! Operators that reshape, reorder, join, cut, pad or fill tensors, and operators on shapes.

use nn::conv::pad_with;
use nn::shape as s;
use plan::DType;

use super::resize;
use super::shapes::{Cut, cuts, expanded, flattened, order, parts, reshaped, squeezed, unsqueezed};
use crate::array::{self, Elem, Known};
use crate::error::{NodeError, NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator, axis};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("BlackmanWindow", host_only),
    ("CenterCropPad", center_crop_pad),
    ("Concat", concat),
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("DepthToSpace", depth_to_space),
    ("Expand", expand),
    ("EyeLike", eye_like),
    ("Flatten", reshape),
    ("HammingWindow", host_only),
    ("HannWindow", host_only),
    ("MelWeightMatrix", host_only),
    ("NonZero", host_only),
    ("Pad", pad),
    ("Range", host_only),
    ("Reshape", reshape),
    ("Resize", resize::resize),
    ("Shape", shape),
    ("Size", size),
    ("Slice", slice),
    ("SpaceToDepth", space_to_depth),
    ("Split", split),
    ("Squeeze", reshape),
    ("Tile", tile),
    ("Transpose", transpose),
    ("Trilu", trilu),
    ("Unique", host_only),
    ("Unsqueeze", reshape),
    ("Upsample", resize::resize),
];

/// Operators that only the host can compute, because their output shape depends on data.
fn host_only(_: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let needs = (0..node.inputs.len()).collect();
    Err(NodeError { what: "its shape depends on data".into(), needs })
}

fn reshape(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let to = match node.op() {
        "Reshape" => {
            let to = node.integers_of(1, "shape")?.unwrap_or_default();
            reshaped(&have, &to, node.flag("allowzero"))?
        }
        "Squeeze" => squeezed(&have, node.integers_of(1, "axes")?)?,
        "Unsqueeze" => unsqueezed(&have, &node.integers_of(1, "axes")?.unwrap_or_default())?,
        _ => flattened(&have, node.integer("axis", 1))?.to_vec(),
    };
    let x = im.tensor(x)?;
    Ok(device(elem, im.g.reshape(x, &to)?))
}

fn transpose(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, order) = (x.elem(), order(node, im.shape(x).len())?);
    let x = im.tensor(x)?;
    Ok(device(elem, im.g.permute(x, &order)?))
}

fn expand(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let to = expanded(&im.shape(x), &node.known_integers(1, "the shape")?)?;
    let elem = x.elem();
    let x = im.tensor(x)?;
    Ok(device(elem, im.g.expand(x, &to)?))
}

fn concat(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let first = node.input(0)?;
    let elem = first.elem();
    let at = axis(node.integer("axis", 1), im.shape(first).len())?;
    let mut all = Vec::new();
    for place in 0..node.inputs.len() {
        let x = node.input(place)?;
        if !im.shape(x).contains(&0) {
            all.push(im.tensor(x)?);
        }
    }
    if all.is_empty() {
        return Ok(vec![first.clone()]);
    }
    Ok(device(elem, s::concat(&mut im.g, &all, at)?))
}

fn split(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, (at, sizes)) = (x.elem(), parts(node, &im.shape(x))?);
    let x = im.tensor(x)?;
    let mut begin = 0;
    let mut made = Vec::new();
    for size in sizes {
        let tensor = im.g.slice(x, at, begin, size)?;
        made.push(Value::Device { elem, tensor });
        begin += size;
    }
    Ok(made)
}

fn slice(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, cuts) = (x.elem(), cuts(node, &im.shape(x))?);
    let mut x = im.tensor(x)?;
    for cut in cuts {
        x = kept(im, x, &cut)?;
    }
    Ok(device(elem, x))
}

fn kept(im: &mut Import, x: plan::graph::Tensor, cut: &Cut) -> NodeResult<plan::graph::Tensor> {
    let Cut { axis, start, count, step } = *cut;
    if step == 1 || count <= 1 {
        return Ok(im.g.slice(x, axis, start, count)?);
    }
    let stride = step.unsigned_abs() as usize;
    if step > 0 {
        let span = im.g.slice(x, axis, start, (count - 1) * stride + 1)?;
        return Ok(s::every(&mut im.g, span, axis, stride)?);
    }
    let places: Vec<f64> = cut.places().map(|place| place as f64).collect();
    let places = Known::new(Elem::I64, &[count], places).map(Value::Known);
    let places = im.tensor(&places.unwrap_or_else(|| unreachable!("as many as counted")))?;
    Ok(s::take(&mut im.g, x, axis, places)?)
}

fn tile(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let times = array::shape(&node.known_integers(1, "repeats")?)?;
    let x = node.input(0)?;
    let elem = x.elem();
    let x = im.tensor(x)?;
    Ok(device(elem, s::repeat(&mut im.g, x, &times)?))
}

fn shape(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let have = im.shape(node.input(0)?);
    let rank = have.len() as i64;
    let from_front = |at: i64| (if at < 0 { at + rank } else { at }).clamp(0, rank) as usize;
    let start = from_front(node.integer("start", 0));
    let end = from_front(node.integer("end", rank)).max(start);
    let values: Vec<f64> = have[start..end].iter().map(|n| *n as f64).collect();
    known(&[end - start], values, Elem::I64)
}

fn size(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let count: usize = im.shape(node.input(0)?).iter().product();
    known(&[], vec![count as f64], Elem::I64)
}

fn known(shape: &[usize], values: Vec<f64>, elem: Elem) -> NodeResult<Vec<Value>> {
    let known = Known::new(elem, shape, values);
    known.map(|known| vec![Value::Known(known)]).ok_or_else(|| "more values than its shape".into())
}

fn constant(_: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    if let Some(value) = node.tensor("value")? {
        return Ok(vec![Value::Known(value)]);
    }
    if let Some(value) = node.float_if("value_float") {
        return known(&[], vec![f64::from(value)], Elem::F32);
    }
    if let Some(values) = node.floats("value_floats") {
        return known(&[values.len()], values.into_iter().map(f64::from).collect(), Elem::F32);
    }
    if let Some(values) = node.integers("value_ints") {
        return known(&[values.len()], values.into_iter().map(|v| v as f64).collect(), Elem::I64);
    }
    let value = node.integer("value_int", i64::MIN);
    if value == i64::MIN {
        return Err("the kind of its value is not supported".into());
    }
    known(&[], vec![value as f64], Elem::I64)
}

fn constant_of_shape(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let shape = array::shape(&node.known_integers(0, "the shape")?)?;
    let value = node.tensor("value")?;
    let (elem, value) = match &value {
        Some(known) => {
            (known.elem, known.scalar().ok_or_else(|| invalid("the value is not a scalar".into()))?)
        }
        None => (Elem::F32, 0.0),
    };
    let count = shape.iter().product::<usize>();
    // Small tensors are computed on the host; a large one is a constant, expanded on the device.
    if count <= 4096 {
        return known(&shape, vec![value; count], elem);
    }
    let constant = im.g.constant(value as f32);
    let mut tensor = im.g.expand(constant, &shape)?;
    if elem.is_integer() {
        tensor = im.g.cast(tensor, DType::I32)?;
    }
    Ok(device(elem, tensor))
}

fn eye_like(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let [rows, columns] = im.shape(x)[..] else { return Err("two axes expected".into()) };
    let to = node.integer("dtype", 0);
    let elem = i32::try_from(to).ok().and_then(Elem::of).unwrap_or(x.elem());
    let k = node.integer("k", 0) as isize;
    let upper = s::lower_triangle(&mut im.g, rows, columns, k)?;
    let lower = s::lower_triangle(&mut im.g, rows, columns, k - 1)?;
    let mut tensor = nn::functions::sub(&mut im.g, upper, lower)?;
    if elem.is_integer() {
        tensor = im.g.cast(tensor, DType::I32)?;
    }
    Ok(device(elem, tensor))
}

fn trilu(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let k = match node.optional(1) {
        Some(_) => node.known_integers(1, "k")?.first().copied().unwrap_or(0),
        None => 0,
    };
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let &[.., rows, columns] = &have[..] else { return Err("two axes expected".into()) };
    let k = k.clamp(-(rows as i64) - 1, columns as i64 + 1) as isize;
    let x = im.tensor(x)?;
    let g = &mut im.g;
    let zero = g.constant(0.0);
    let mut zero = g.expand(zero, &have)?;
    zero = g.cast(zero, g.dtype(x))?;
    let upper = node.integer("upper", 1) != 0;
    let mask = s::lower_triangle(g, rows, columns, if upper { k - 1 } else { k })?;
    let made = if upper { g.select(mask, zero, x)? } else { g.select(mask, x, zero)? };
    Ok(device(elem, made))
}

fn pad(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    let by = node.integers_of(1, "pads")?.ok_or_else(|| invalid("pads are missing".into()))?;
    let axes = match node.optional(3) {
        Some(_) => node.known_integers(3, "axes")?,
        None => (0..have.len() as i64).collect(),
    };
    // Larger than any axis. The limit prevents overflow of the sums below.
    if let Some(wide) = by.iter().find(|n| n.unsigned_abs() >= 1 << 31) {
        return Err(invalid(format!("pad {wide} is out of range")));
    }
    if by.len() != 2 * axes.len() {
        return Err(invalid(format!("{} pads do not fit {} axes", by.len(), axes.len())));
    }
    let value = match node.optional(2) {
        Some(_) => {
            let value = node.known(2, "the value")?.scalar();
            value.ok_or_else(|| invalid("the value is not a scalar".into()))? as f32
        }
        None => node.float("value", 0.0),
    };
    let mode = node.text("mode", "constant")?;
    let mut x = im.tensor(x)?;
    for (i, &a) in axes.iter().enumerate() {
        let at = axis(a, have.len())?;
        let (before, after) = (by[i], by[axes.len() + i]);
        // Negative pads crop.
        let cut = [before, after].map(|n| n.min(0).unsigned_abs() as usize);
        let [before, after] = [before, after].map(|n| n.max(0) as usize);
        let extent = im.g.shape(x)[at];
        let Some(kept) = extent.checked_sub(cut[0] + cut[1]) else {
            return Err(invalid(format!("negative pads {cut:?} exceed an axis of {extent}")));
        };
        if cut != [0, 0] {
            x = im.g.slice(x, at, cut[0], kept)?;
        }
        if before == 0 && after == 0 {
            continue;
        }
        x = if mode == "constant" {
            if elem.is_integer() && value != 0.0 {
                return Err("integers can only be padded with 0".into());
            }
            pad_with(&mut im.g, x, at, [before, after], value)?
        } else {
            extend(im, x, at, [before, after], &mode)?
        };
    }
    Ok(device(elem, x))
}

/// Pads an axis with its own elements, by `mode`.
fn extend(
    im: &mut Import,
    x: plan::graph::Tensor,
    at: usize,
    by: [usize; 2],
    mode: &str,
) -> NodeResult<plan::graph::Tensor> {
    let extent = im.g.shape(x)[at] as i64;
    if extent == 0 {
        return Err("an empty axis cannot be extended".into());
    }
    let place = |i: i64| match mode {
        "edge" => Ok(i.clamp(0, extent - 1)),
        "wrap" => Ok(i.rem_euclid(extent)),
        "reflect" => {
            let period = (2 * (extent - 1)).max(1);
            let i = i.rem_euclid(period);
            Ok(i.min(period - i).min(extent - 1))
        }
        other => Err(invalid(format!("mode {other} is not supported"))),
    };
    let from = -(by[0] as i64);
    let to = extent + by[1] as i64;
    let places =
        (from..to).map(|i| place(i).map(|i| i as f64)).collect::<NodeResult<Vec<f64>>>()?;
    let places = Known::new(Elem::I64, &[places.len()], places).map(Value::Known);
    let places = im.tensor(&places.unwrap_or_else(|| unreachable!("as many as counted")))?;
    Ok(s::take(&mut im.g, x, at, places)?)
}

fn depth_to_space(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (elem, [n, c, h, w], b) = blocks(im, node)?;
    let x = im.tensor(node.input(0)?)?;
    if !c.is_multiple_of(b * b) {
        return Err(invalid(format!(
            "{c} channels are not divisible by the square of blocksize {b}"
        )));
    }
    let (apart, order) = if node.text("mode", "DCR")? == "CRD" {
        ([n, c / (b * b), b, b, h, w], [0, 1, 4, 2, 5, 3])
    } else {
        ([n, b, b, c / (b * b), h, w], [0, 3, 4, 1, 5, 2])
    };
    let x = im.g.reshape(x, &apart)?;
    let x = im.g.permute(x, &order)?;
    Ok(device(elem, im.g.reshape(x, &[n, c / (b * b), h * b, w * b])?))
}

fn space_to_depth(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (elem, [n, c, h, w], b) = blocks(im, node)?;
    let x = im.tensor(node.input(0)?)?;
    if !h.is_multiple_of(b) || !w.is_multiple_of(b) {
        return Err(invalid(format!("{h} x {w} is not divisible by blocksize {b}")));
    }
    let x = im.g.reshape(x, &[n, c, h / b, b, w / b, b])?;
    let order =
        if node.text("mode", "DCR")? == "CRD" { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
    let x = im.g.permute(x, &order)?;
    Ok(device(elem, im.g.reshape(x, &[n, c * b * b, h / b, w / b])?))
}

/// Crops axes around their centre, or pads them with zeroes.
fn center_crop_pad(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let of = node.input(0)?;
    let (elem, have) = (of.elem(), im.shape(of));
    let to = array::shape(&node.known_integers(1, "the shape")?).map_err(invalid)?;
    let axes = node.integers("axes").unwrap_or_else(|| (0..have.len() as i64).collect());
    if axes.len() != to.len() {
        return Err(invalid(format!("{} extents do not fit {} axes", to.len(), axes.len())));
    }
    let mut x = im.tensor(of)?;
    for (at, to) in axes.into_iter().zip(to) {
        let at = axis(at, have.len())?;
        let (before, more) = (have[at].abs_diff(to) / 2, to.saturating_sub(have[at]));
        x = if more > 0 {
            im.g.pad(x, at, before, more - before)?
        } else {
            im.g.slice(x, at, before, to)?
        };
    }
    Ok(device(elem, x))
}

fn blocks(im: &Import, node: &Node<'_>) -> NodeResult<(Elem, [usize; 4], usize)> {
    let x = node.input(0)?;
    let shape: [usize; 4] =
        im.shape(x).try_into().map_err(|s| invalid(format!("{s:?}: [N, C, H, W] expected")))?;
    let block = usize::try_from(node.integer("blocksize", 0)).ok().filter(|n| *n > 0);
    Ok((x.elem(), shape, block.ok_or_else(|| invalid("blocksize must be at least 1".into()))?))
}
