//! Convolutions and pooling.

use nn::conv::{self, Windows, pad_with};
use nn::functions::{self as f, div, times};
use nn::shape::concat;
use plan::graph::Tensor;
use plan::{Binary, DType, Window};

use super::bytes::{Centred, added, biased, dequantised, integer_bias, scaled};
use super::matrix::{along, byte_operand};
use super::quantise::requantised;
use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("AveragePool", pool),
    ("CausalConvWithState", causal),
    ("Conv", convolution),
    ("ConvInteger", convolution_integer),
    ("ConvTranspose", transposed),
    ("GlobalAveragePool", global),
    ("GlobalMaxPool", global),
    ("QLinearConv", convolution_quantised),
    ("LpPool", pool),
    ("MaxPool", pool),
];

/// Geometry of the windows over the spatial axes.
struct Geometry {
    stride: Vec<usize>,
    dilation: Vec<usize>,
    /// Before and after each axis.
    pads: Vec<[usize; 2]>,
    /// Extra elements after the padding, so that a partial last window counts (`ceil_mode`).
    extra: Vec<usize>,
}

/// Largest extent of a window, stride, dilation or padding.
const LARGEST: usize = 1 << 16;

/// Converts an attribute's value.
fn extent(value: i64) -> Option<usize> {
    usize::try_from(value).ok().filter(|n| *n <= LARGEST)
}

fn counts(node: &Node<'_>, name: &str, axes: usize) -> NodeResult<Vec<usize>> {
    let Some(all) = node.integers(name) else { return Ok(vec![1; axes]) };
    let counts = all.iter().map(|&n| extent(n).filter(|n| *n > 0));
    let counts: Option<Vec<usize>> = counts.collect();
    counts.filter(|c| c.len() == axes).ok_or_else(|| {
        invalid(format!("{name} {all:?} does not fit {axes} axes, each 1 to {LARGEST}"))
    })
}

/// Explicit pads, two per axis.
fn named_pads(node: &Node<'_>, axes: usize) -> NodeResult<Vec<[usize; 2]>> {
    let Some(all) = node.integers("pads") else { return Ok(vec![[0, 0]; axes]) };
    let pads = all.iter().map(|&n| extent(n)).collect::<Option<Vec<_>>>();
    let pads = pads.filter(|p| p.len() == 2 * axes);
    let pads = pads.ok_or_else(|| {
        invalid(format!("pads {all:?} do not fit {axes} axes, each 0 to {LARGEST}"))
    })?;
    Ok((0..axes).map(|i| [pads[i], pads[axes + i]]).collect())
}

fn geometry(node: &Node<'_>, spatial: &[usize], sizes: &[usize]) -> NodeResult<Geometry> {
    let axes = spatial.len();
    if sizes.len() != axes {
        return Err(invalid(format!("windows {sizes:?} do not fit {axes} axes")));
    }
    let (stride, dilation) = (counts(node, "strides", axes)?, counts(node, "dilations", axes)?);
    let named = named_pads(node, axes)?;
    let mode = node.text("auto_pad", "NOTSET")?;
    let ceil = node.flag("ceil_mode");
    let mut pads = Vec::new();
    let mut extra = vec![0; axes];
    for i in 0..axes {
        let reach = (sizes[i] - 1) * dilation[i] + 1;
        let own = match &*mode {
            "" | "NOTSET" => named[i],
            "VALID" => [0, 0],
            "SAME_UPPER" | "SAME_LOWER" => {
                let count = spatial[i].div_ceil(stride[i]);
                let whole = ((count.max(1) - 1) * stride[i] + reach).saturating_sub(spatial[i]);
                let small = whole / 2;
                if mode == "SAME_UPPER" { [small, whole - small] } else { [whole - small, small] }
            }
            other => return Err(invalid(format!("auto_pad {other} is not supported"))),
        };
        let extent = spatial[i] + own[0] + own[1];
        if extent < reach {
            return Err(invalid(format!("window of {reach} elements over an axis of {extent}")));
        }
        if ceil {
            let mut count = (extent - reach).div_ceil(stride[i]) + 1;
            // A window may not start after the input.
            if (count - 1) * stride[i] >= spatial[i] + own[0] {
                count -= 1;
            }
            extra[i] = ((count - 1) * stride[i] + reach).saturating_sub(extent);
        }
        pads.push(own);
    }
    Ok(Geometry { stride, dilation, pads, extra })
}

impl Geometry {
    fn windows(&self, groups: usize) -> Windows {
        Windows {
            stride: self.stride.clone(),
            padding: vec![0],
            dilation: self.dilation.clone(),
            groups,
        }
    }

    fn convolution_windows(self, groups: usize) -> plan::Windows {
        let Self { stride, dilation, pads, .. } = self;
        plan::Windows { stride, pads, dilation, groups }
    }

    /// Pads the input with a value, and with `extra` after it if given.
    fn padded(
        &self,
        im: &mut Import,
        x: Tensor,
        value: f32,
        extra: Option<f32>,
    ) -> NodeResult<Tensor> {
        let mut x = x;
        for (i, by) in self.pads.iter().enumerate() {
            if *by != [0, 0] {
                x = pad_with(&mut im.g, x, 2 + i, *by, value)?;
            }
        }
        if let Some(value) = extra {
            for (i, &more) in self.extra.iter().enumerate() {
                if more > 0 {
                    x = pad_with(&mut im.g, x, 2 + i, [0, more], value)?;
                }
            }
        }
        Ok(x)
    }
}

fn groups(node: &Node<'_>) -> NodeResult<usize> {
    let groups = node.integer("group", 1);
    usize::try_from(groups)
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| invalid(format!("invalid group count {groups}")))
}

/// Extents of the spatial axes of `[N, C, ..]`.
fn spatial(shape: &[usize]) -> NodeResult<&[usize]> {
    shape
        .get(2..)
        .filter(|s| !s.is_empty() && !s.contains(&0))
        .ok_or_else(|| invalid(format!("{shape:?}: [N, C, ..] expected")))
}

pub(in crate::ops) fn convolution(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (of_x, of_w) = (im.shape(node.input(0)?), im.shape(node.input(1)?));
    let sizes = spatial(&of_w)?;
    node.ignore(&["kernel_shape"]);
    let geometry = geometry(node, spatial(&of_x)?, sizes)?;
    let behind = of_w.len() - 1;
    if let Some((x, weight, scale)) = dequantised(im, [node.input(0)?, node.input(1)?], 0, behind)?
    {
        let sums = byte_convolution(im, &x, &weight, geometry, groups(node)?)?;
        let (whole, rest) = match node.optional(2) {
            Some(bias) => match integer_bias(im, bias)? {
                None => (None, Some(im.float(bias)?)),
                whole => (whole, None),
            },
            None => (None, None),
        };
        let made = scaled(im, sums, whole, scale, behind - 1)?;
        return Ok(device(elem, biased(im, made, rest, behind - 1)?));
    }
    let (x, weight) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let bias = im.float_if(node.optional(2))?;
    let made = im.g.conv(x, weight, bias, &geometry.convolution_windows(groups(node)?))?;
    Ok(device(elem, made))
}

/// Causal depthwise convolution; the last input columns are its state.
fn causal(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (x, weight) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let bias = im.float_if(node.optional(2))?;
    let (&[_, channels, _], &[_, _, taps]) = (im.g.shape(x), im.g.shape(weight)) else {
        return Err("[batch, channels, length] and [channels, 1, taps] expected".into());
    };
    let before = taps.saturating_sub(1);
    let x = match node.optional(3) {
        Some(past) if before > 0 => {
            let past = im.float(past)?;
            concat(&mut im.g, &[past, x], 2)?
        }
        _ => im.g.pad(x, 2, before, 0)?,
    };
    let windows =
        plan::Windows { stride: vec![1], pads: vec![[0, 0]], dilation: vec![1], groups: channels };
    let mut made = im.g.conv(x, weight, bias, &windows)?;
    match &*node.text("activation", "none")? {
        "none" => {}
        "silu" | "swish" => made = im.g.activate(plan::Activation::Silu, made)?,
        other => return Err(invalid(format!("activation {other} is not supported"))),
    }
    let length = im.g.shape(x)[2];
    let state = im.g.slice(x, 2, length - before, before)?;
    Ok([made, state].map(|tensor| Value::Device { elem, tensor }).to_vec())
}

/// A byte tensor and a byte weight, both minus their zero points, and the window geometry.
fn byte_operands(
    im: &mut Import,
    node: &Node<'_>,
    weight: [usize; 2],
) -> NodeResult<(Centred, Centred, Geometry)> {
    let (of_x, of_w) = (im.shape(node.input(0)?), im.shape(node.input(weight[0])?));
    node.ignore(&["kernel_shape"]);
    let geometry = geometry(node, spatial(&of_x)?, spatial(&of_w)?)?;
    let behind = of_w.len() - 1;
    Ok((byte_operand(im, node, [0, 2], behind)?, byte_operand(im, node, weight, behind)?, geometry))
}

fn convolution_integer(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (x, weight, geometry) = byte_operands(im, node, [1, 3])?;
    let made = byte_convolution(im, &x, &weight, geometry, groups(node)?)?;
    Ok(device(Elem::I32, im.g.cast(made, DType::I32)?))
}

/// The exact convolution of bytes minus zero points, in `F32` or `I32`.
fn byte_convolution(
    im: &mut Import,
    x: &Centred,
    weight: &Centred,
    geometry: Geometry,
    groups: usize,
) -> NodeResult<Tensor> {
    let of_w = im.g.shape(weight.tensor).to_vec();
    let (inner, taps) = (of_w[1], of_w[2..].iter().product::<usize>());
    let most = (weight.exact_rows(of_w[0], inner * taps) / taps.max(1)).max(1);
    let mut windows = geometry.convolution_windows(groups);
    let (x, mut weight) = (x.tensor, weight.tensor);
    if of_w[2..] == [3, 3] {
        // A column of zeroes, since fast algorithms for 3 x 3 windows round fractions.
        weight = im.g.pad(weight, 3, 0, 1)?;
        windows.pads[1][1] += windows.dilation[1];
    }
    if groups > 1 || inner <= most {
        return Ok(im.g.conv(x, weight, None, &windows)?);
    }
    let mut sum: Option<Tensor> = None;
    for start in (0..inner).step_by(most) {
        let count = most.min(inner - start);
        let (x, weight) = (im.g.slice(x, 1, start, count)?, im.g.slice(weight, 1, start, count)?);
        let part = im.g.conv(x, weight, None, &windows)?;
        sum = Some(added(im, sum, part)?);
    }
    Ok(sum.ok_or("a convolution over no channels")?)
}

/// The same for scaled bytes, with a requantised result.
pub(in crate::ops) fn convolution_quantised(
    im: &mut Import,
    node: &Node<'_>,
) -> NodeResult<Vec<Value>> {
    let (x, weight, geometry) = byte_operands(im, node, [3, 5])?;
    let made = byte_convolution(im, &x, &weight, geometry, groups(node)?)?;
    let channels = im.g.shape(made).len() - 2;
    let bias = node.optional(8).map(|bias| im.tensor(bias)).transpose()?;
    let made = biased(im, made, bias, channels)?;
    let made = im.g.cast(made, DType::F32)?;
    let scales = [along(im, node, 1, 0)?, along(im, node, 4, channels)?];
    requantised(im, node, made, scales)
}

fn transposed(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (of_x, of_w) = (im.shape(node.input(0)?), im.shape(node.input(1)?));
    let (spatial, sizes) = (spatial(&of_x)?.to_vec(), spatial(&of_w)?.to_vec());
    let axes = spatial.len();
    node.ignore(&["kernel_shape"]);
    let (stride, dilation) = (counts(node, "strides", axes)?, counts(node, "dilations", axes)?);
    let named = named_pads(node, axes)?;
    let more = node.integers("output_padding").unwrap_or_else(|| vec![0; axes]);
    let wanted = node.integers("output_shape");
    let mode = node.text("auto_pad", "NOTSET")?;
    let mut cuts = Vec::new();
    for i in 0..axes {
        let reach = (sizes[i] - 1) * dilation[i] + 1;
        let whole = ((spatial[i] - 1) * stride[i] + reach) as i64;
        let more = *more.get(i).unwrap_or(&0);
        let wanted = match (&wanted, &*mode) {
            (Some(wanted), _) => {
                let at = (wanted.len() + i).checked_sub(axes).and_then(|at| wanted.get(at));
                Some(*at.ok_or_else(|| {
                    invalid(format!("output_shape {wanted:?} does not fit {axes} axes"))
                })?)
            }
            (None, "SAME_UPPER" | "SAME_LOWER") => Some((spatial[i] * stride[i]) as i64),
            (None, _) => None,
        };
        let [begin, end] = match wanted {
            Some(wanted) => {
                let off = whole + more - wanted;
                // A larger output continues after the end.
                let small =
                    if off < 0 { if mode == "SAME_UPPER" { 0 } else { off } } else { off / 2 };
                if mode == "SAME_UPPER" { [small, off - small] } else { [off - small, small] }
            }
            None => named[i].map(|n| n as i64),
        };
        let length = whole + more - begin - end;
        cuts.push((begin, length, whole));
    }
    let (mut x, weight) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let windows = Windows { stride, padding: vec![0], dilation, groups: groups(node)? };
    x = conv::conv_transpose(&mut im.g, x, weight, None, &windows, 0)?;
    for (i, (begin, length, whole)) in cuts.into_iter().enumerate() {
        // Pads with zeroes before 0 and after the end.
        let before = (-begin).max(0) as usize;
        let after = (begin + length - whole).max(0) as usize;
        x = im.g.pad(x, 2 + i, before, after)?;
        let start = begin.max(0) as usize;
        let Ok(length) = usize::try_from(length) else {
            return Err("the pads exceed the output".into());
        };
        x = im.g.slice(x, 2 + i, start, length)?;
    }
    if let Some(bias) = node.optional(2) {
        let bias = im.float(bias)?;
        let channels = im.g.shape(bias).iter().product();
        let bias = im.g.reshape(bias, &[&[channels][..], &vec![1; axes]].concat())?;
        x = f::add(&mut im.g, x, bias)?;
    }
    Ok(device(elem, x))
}

fn pool(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let input = node.input(0)?;
    let (elem, have) = (input.elem(), im.shape(input));
    let spatial = spatial(&have)?.to_vec();
    let sizes = counts(node, "kernel_shape", spatial.len())?;
    let geometry = geometry(node, &spatial, &sizes)?;
    let columns = node.flag("storage_order");
    let x = im.float(input)?;
    if node.op() == "MaxPool" && node.has_output(1) {
        let [values, indices] = indexed(im, x, &geometry, &sizes, columns)?;
        let values = if elem.is_integer() { im.g.cast(values, DType::I32)? } else { values };
        let values = Value::Device { elem, tensor: values };
        return Ok(vec![values, Value::Device { elem: Elem::I64, tensor: indices }]);
    }
    let windows = geometry.windows(1);
    let made = match node.op() {
        "MaxPool" => largest(im, x, &geometry, &sizes)?,
        "LpPool" => {
            let p = node.integer("p", 2) as f32;
            let size = f::abs(&mut im.g, x)?;
            let raised = raised(im, size, p)?;
            let x = geometry.padded(im, raised, 0.0, Some(0.0))?;
            let mean = conv::avg_pool(&mut im.g, x, &sizes, &windows, true)?;
            let sum = times(&mut im.g, mean, sizes.iter().product::<usize>() as f32)?;
            raised_root(im, sum, p)?
        }
        _ => average(im, node, x, &geometry, &sizes)?,
    };
    let made = if elem.is_integer() { im.g.cast(made, DType::I32)? } else { made };
    Ok(device(elem, made))
}

/// Max pooling, one axis at a time, as a maximum over one view per window element.
fn largest(im: &mut Import, x: Tensor, geometry: &Geometry, sizes: &[usize]) -> NodeResult<Tensor> {
    let mut x = x;
    for (i, &size) in sizes.iter().enumerate() {
        let axis = 2 + i;
        let [before, after] = geometry.pads[i];
        let by = [before, after + geometry.extra[i]];
        if by != [0, 0] {
            // Padding with minus infinity never wins.
            x = pad_with(&mut im.g, x, axis, by, f32::NEG_INFINITY)?;
        }
        let window = Window { size, stride: geometry.stride[i], dilation: geometry.dilation[i] };
        let seen = im.g.window(x, axis, window)?;
        let shape = im.g.shape(seen).to_vec();
        let (last, whole) = (shape.len() - 1, &shape[..shape.len() - 1]);
        let mut found: Option<Tensor> = None;
        for at in 0..size {
            let one = im.g.slice(seen, last, at, 1)?;
            let one = im.g.reshape(one, whole)?;
            found = Some(match found {
                Some(found) => im.g.binary(Binary::Max, found, one)?,
                None => one,
            });
        }
        x = found.ok_or_else(|| invalid("the window has no elements".to_owned()))?;
    }
    Ok(x)
}

/// Maxima, and the index of each in the flattened input, counted by columns first if `columns`.
fn indexed(
    im: &mut Import,
    x: Tensor,
    geometry: &Geometry,
    sizes: &[usize],
    columns: bool,
) -> NodeResult<[Tensor; 2]> {
    let have = im.g.shape(x).to_vec();
    let (axes, inner) = (sizes.len(), have[2..].iter().product::<usize>());
    let g = &mut im.g;
    let mut index = g.iota(have[0] * have[1]);
    index = times(g, index, inner as f32)?;
    index = g.reshape(index, &[&have[..2], &vec![1; axes]].concat())?;
    for i in 0..axes {
        let stride: usize =
            if columns { have[2..2 + i].iter().product() } else { have[3 + i..].iter().product() };
        let line = g.iota(have[2 + i]);
        let line = times(g, line, stride as f32)?;
        let mut shape = vec![1; have.len()];
        shape[2 + i] = have[2 + i];
        let line = g.reshape(line, &shape)?;
        index = f::add(g, index, line)?;
    }
    let mut counts = Vec::new();
    let (mut x, mut index) = (x, g.expand(index, &have)?);
    for (i, by) in geometry.pads.iter().enumerate() {
        let by = [by[0], by[1] + geometry.extra[i]];
        if by != [0, 0] {
            x = pad_with(g, x, 2 + i, by, f32::NEG_INFINITY)?;
            index = pad_with(g, index, 2 + i, by, 0.0)?;
        }
        let reach = (sizes[i] - 1) * geometry.dilation[i] + 1;
        counts.push((g.shape(x)[2 + i] - reach) / geometry.stride[i] + 1);
    }
    let mut best: Option<[Tensor; 2]> = None;
    for place in 0..sizes.iter().product::<usize>() {
        let (mut part, mut own, mut rest) = (x, index, place);
        for i in (0..axes).rev() {
            let start = rest % sizes[i] * geometry.dilation[i];
            rest /= sizes[i];
            let span = (counts[i] - 1) * geometry.stride[i] + 1;
            for each in [&mut part, &mut own] {
                let cut = g.slice(*each, 2 + i, start, span)?;
                *each = nn::shape::every(g, cut, 2 + i, geometry.stride[i])?;
            }
        }
        best = Some(match best {
            Some([value, at]) => {
                let more = f::less(g, value, part)?;
                [g.select(more, part, value)?, g.select(more, own, at)?]
            }
            None => [part, own],
        });
    }
    let [value, at] = best.ok_or_else(|| invalid("the window has no elements".to_owned()))?;
    Ok([value, g.cast(at, DType::I32)?])
}

fn average(
    im: &mut Import,
    node: &Node<'_>,
    x: Tensor,
    geometry: &Geometry,
    sizes: &[usize],
) -> NodeResult<Tensor> {
    let counted = node.flag("count_include_pad");
    let shape = im.g.shape(x)[2..].to_vec();
    let windows = geometry.windows(1);
    let padded = geometry.padded(im, x, 0.0, Some(0.0))?;
    let mean = conv::avg_pool(&mut im.g, padded, sizes, &windows, true)?;
    let whole = geometry.extra.iter().all(|n| *n == 0);
    if whole && (counted || geometry.pads.iter().all(|by| *by == [0, 0])) {
        return Ok(mean);
    }
    // Fraction of each window that counts.
    let one = im.g.constant(1.0);
    let ones = im.g.expand(one, &[&[1, 1][..], &shape].concat())?;
    let ones = geometry.padded(im, ones, if counted { 1.0 } else { 0.0 }, Some(0.0))?;
    let share = conv::avg_pool(&mut im.g, ones, sizes, &windows, true)?;
    Ok(div(&mut im.g, mean, share)?)
}

fn raised(im: &mut Import, x: Tensor, p: f32) -> NodeResult<Tensor> {
    let g = &mut im.g;
    Ok(match p {
        1.0 => x,
        2.0 => f::square(g, x)?,
        p => f::powi(g, x, p as i32)?,
    })
}

fn raised_root(im: &mut Import, x: Tensor, p: f32) -> NodeResult<Tensor> {
    let g = &mut im.g;
    if p == 1.0 {
        return Ok(x);
    }
    if p == 2.0 {
        return Ok(f::sqrt(g, x)?);
    }
    let ln = f::ln(g, x)?;
    let part = times(g, ln, 1.0 / p)?;
    Ok(f::exp(g, part)?)
}

fn global(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let input = node.input(0)?;
    let (elem, have) = (input.elem(), im.shape(input));
    let axes: Vec<usize> = (2..have.len()).collect();
    let x = im.float(input)?;
    let g = &mut im.g;
    let made = if node.op() == "GlobalMaxPool" {
        f::amax(g, x, &axes)?
    } else {
        conv::global_avg_pool(g, x)?
    };
    Ok(device(elem, made))
}
