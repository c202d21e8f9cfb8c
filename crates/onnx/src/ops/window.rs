//! Windows over spatial axes: convolutions and pooling.

use nn::conv::{self, Windows, pad_with};
use nn::functions::{self as f, div, times};
use nn::shape::concat;
use plan::graph::Tensor;
use plan::{Binary, Window};

use super::Operator;
use super::matrix::{along, from_zero};
use super::quantise::requantised;
use crate::array::Elem;
use crate::import::{Import, Value};
use crate::node::{Made, Node, why};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("AveragePool", pool),
    ("CausalConvWithState", causal),
    ("Conv", convolution),
    ("ConvInteger", convolution_of_bytes),
    ("ConvTranspose", transposed),
    ("GlobalAveragePool", global),
    ("GlobalMaxPool", global),
    ("QLinearConv", convolution_quantised),
    ("LpPool", pool),
    ("MaxPool", pool),
];

fn device(elem: Elem, tensor: Tensor) -> Vec<Value> {
    vec![Value::Device { elem, tensor }]
}

/// How windows lie over the spatial axes of an input.
struct Placed {
    stride: Vec<usize>,
    dilation: Vec<usize>,
    /// Before and after each axis.
    pads: Vec<[usize; 2]>,
    /// What is added behind the pads so that a last, partial window counts.
    extra: Vec<usize>,
}

fn counts(node: &Node<'_>, name: &str, axes: usize) -> Made<Vec<usize>> {
    let Some(all) = node.integers(name) else { return Ok(vec![1; axes]) };
    let counts = all.iter().map(|&n| usize::try_from(n).ok().filter(|n| *n > 0));
    let counts: Option<Vec<usize>> = counts.collect();
    counts.filter(|c| c.len() == axes).ok_or_else(|| why(format!("{name} {all:?} for {axes} axes")))
}

/// The pads that are named, two for each axis.
fn named_pads(node: &Node<'_>, axes: usize) -> Made<Vec<[usize; 2]>> {
    let Some(all) = node.integers("pads") else { return Ok(vec![[0, 0]; axes]) };
    let pads = all.iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>();
    let pads = pads.ok().filter(|p| p.len() == 2 * axes);
    let pads = pads.ok_or_else(|| why(format!("pads {all:?} for {axes} axes")))?;
    Ok((0..axes).map(|i| [pads[i], pads[axes + i]]).collect())
}

fn placed(node: &Node<'_>, spatial: &[usize], sizes: &[usize]) -> Made<Placed> {
    let axes = spatial.len();
    if sizes.len() != axes {
        return Err(why(format!("windows {sizes:?} over {axes} axes")));
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
            other => return Err(why(format!("auto_pad {other}"))),
        };
        let extent = spatial[i] + own[0] + own[1];
        if extent < reach {
            return Err(why(format!("a window of {reach} over an axis of {extent}")));
        }
        if ceil {
            let mut count = (extent - reach).div_ceil(stride[i]) + 1;
            // A window may not begin behind the input.
            if (count - 1) * stride[i] >= spatial[i] + own[0] {
                count -= 1;
            }
            extra[i] = ((count - 1) * stride[i] + reach).saturating_sub(extent);
        }
        pads.push(own);
    }
    Ok(Placed { stride, dilation, pads, extra })
}

impl Placed {
    fn windows(&self, groups: usize) -> Windows {
        Windows {
            stride: self.stride.clone(),
            padding: vec![0],
            dilation: self.dilation.clone(),
            groups,
        }
    }

    fn of_convolution(self, groups: usize) -> plan::Windows {
        let Self { stride, dilation, pads, .. } = self;
        plan::Windows { stride, pads, dilation, groups }
    }

    /// The input with a value around it; `extra` where wanted.
    fn padded(&self, im: &mut Import, x: Tensor, value: f32, extra: Option<f32>) -> Made<Tensor> {
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

fn groups(node: &Node<'_>) -> Made<usize> {
    let groups = node.integer("group", 1);
    usize::try_from(groups).ok().filter(|n| *n > 0).ok_or_else(|| why(format!("{groups} groups")))
}

/// Extents of the spatial axes of `[N, C, ..]`.
fn spatial(shape: &[usize]) -> Made<&[usize]> {
    shape
        .get(2..)
        .filter(|s| !s.is_empty() && !s.contains(&0))
        .ok_or_else(|| why(format!("{shape:?}: [N, C, ..] expected")))
}

fn convolution(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (of_x, of_w) = (im.shape(node.input(0)?), im.shape(node.input(1)?));
    let sizes = spatial(&of_w)?;
    node.pass_over(&["kernel_shape"]);
    let placed = placed(node, spatial(&of_x)?, sizes)?;
    let (x, weight) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let bias = match node.optional(2) {
        Some(bias) => Some(im.float(bias)?),
        None => None,
    };
    let made = im.g.conv(x, weight, bias, &placed.of_convolution(groups(node)?))?;
    Ok(device(elem, made))
}

/// A convolution of each channel by itself over what came before, the last places of which go in and come out.
fn causal(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (x, weight) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let bias = match node.optional(2) {
        Some(bias) => Some(im.float(bias)?),
        None => None,
    };
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
        other => return Err(why(format!("activation {other} is not supported"))),
    }
    let length = im.g.shape(x)[2];
    let state = im.g.slice(x, 2, length - before, before)?;
    Ok([made, state].map(|tensor| Value::Device { elem, tensor }).to_vec())
}

/// A tensor of bytes and a weight from their zeroes on, whose inputs' numbers are these, and how windows lie.
fn of_bytes(
    im: &mut Import,
    node: &Node<'_>,
    weight: [usize; 2],
) -> Made<(Tensor, Tensor, Placed)> {
    let (of_x, of_w) = (im.shape(node.input(0)?), im.shape(node.input(weight[0])?));
    node.pass_over(&["kernel_shape"]);
    let placed = placed(node, spatial(&of_x)?, spatial(&of_w)?)?;
    let behind = of_w.len() - 1;
    Ok((from_zero(im, node, [0, 2], behind)?, from_zero(im, node, weight, behind)?, placed))
}

/// In sums that `f32` has exactly up to 2^24.
fn convolution_of_bytes(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let (x, weight, placed) = of_bytes(im, node, [1, 3])?;
    let made = im.g.conv(x, weight, None, &placed.of_convolution(groups(node)?))?;
    Ok(device(Elem::I32, im.g.cast(made, plan::DType::I32)?))
}

/// The same of scaled bytes, to scaled bytes.
fn convolution_quantised(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let (x, weight, placed) = of_bytes(im, node, [3, 5])?;
    let bias = match node.optional(8) {
        Some(bias) => Some(im.float(bias)?),
        None => None,
    };
    let made = im.g.conv(x, weight, bias, &placed.of_convolution(groups(node)?))?;
    let channels = im.g.shape(made).len() - 2;
    let scales = [along(im, node, 1, 0)?, along(im, node, 4, channels)?];
    requantised(im, node, made, scales)
}

fn transposed(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (of_x, of_w) = (im.shape(node.input(0)?), im.shape(node.input(1)?));
    let (spatial, sizes) = (spatial(&of_x)?.to_vec(), spatial(&of_w)?.to_vec());
    let axes = spatial.len();
    node.pass_over(&["kernel_shape"]);
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
                Some(*at.ok_or_else(|| why(format!("output_shape {wanted:?} for {axes} axes")))?)
            }
            (None, "SAME_UPPER" | "SAME_LOWER") => Some((spatial[i] * stride[i]) as i64),
            (None, _) => None,
        };
        let [begin, end] = match wanted {
            Some(wanted) => {
                let off = whole + more - wanted;
                let small = off.div_euclid(2);
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
        // Below 0 and behind the end there are zeroes.
        let before = (-begin).max(0) as usize;
        let after = (begin + length - whole).max(0) as usize;
        x = im.g.pad(x, 2 + i, before, after)?;
        let start = begin.max(0) as usize;
        let Ok(length) = usize::try_from(length) else {
            return Err("more pads than output".into());
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

fn pool(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
    let input = node.input(0)?;
    let (elem, have) = (input.elem(), im.shape(input));
    let spatial = spatial(&have)?.to_vec();
    let sizes = counts(node, "kernel_shape", spatial.len())?;
    let placed = placed(node, &spatial, &sizes)?;
    node.pass_over(&["storage_order"]);
    if node.op() == "MaxPool" && node.wants(1) {
        return Err("output Indices is not supported".into());
    }
    let x = im.float(input)?;
    let windows = placed.windows(1);
    let made = match node.op() {
        "MaxPool" => largest(im, x, &placed, &sizes)?,
        "LpPool" => {
            let p = node.integer("p", 2) as f32;
            let size = f::abs(&mut im.g, x)?;
            let raised = raised(im, size, p)?;
            let x = placed.padded(im, raised, 0.0, Some(0.0))?;
            let mean = conv::avg_pool(&mut im.g, x, &sizes, &windows, true)?;
            let sum = times(&mut im.g, mean, sizes.iter().product::<usize>() as f32)?;
            raised_root(im, sum, p)?
        }
        _ => average(im, node, x, &placed, &sizes)?,
    };
    let made = if elem.is_integer() { im.g.cast(made, plan::DType::I32)? } else { made };
    Ok(device(elem, made))
}

/// The largest of each window, along one axis after the other: of an axis as many views as a window has elements.
fn largest(im: &mut Import, x: Tensor, placed: &Placed, sizes: &[usize]) -> Made<Tensor> {
    let mut x = x;
    for (i, &size) in sizes.iter().enumerate() {
        let axis = 2 + i;
        let [before, after] = placed.pads[i];
        let by = [before, after + placed.extra[i]];
        if by != [0, 0] {
            // Beyond the edge is nothing that could be larger.
            x = pad_with(&mut im.g, x, axis, by, f32::NEG_INFINITY)?;
        }
        let window = Window { size, stride: placed.stride[i], dilation: placed.dilation[i] };
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
        x = found.ok_or_else(|| why("a window of no elements".to_owned()))?;
    }
    Ok(x)
}

fn average(
    im: &mut Import,
    node: &Node<'_>,
    x: Tensor,
    placed: &Placed,
    sizes: &[usize],
) -> Made<Tensor> {
    let counted = node.flag("count_include_pad");
    let shape = im.g.shape(x)[2..].to_vec();
    let windows = placed.windows(1);
    let padded = placed.padded(im, x, 0.0, Some(0.0))?;
    let mean = conv::avg_pool(&mut im.g, padded, sizes, &windows, true)?;
    let whole = placed.extra.iter().all(|n| *n == 0);
    if whole && (counted || placed.pads.iter().all(|by| *by == [0, 0])) {
        return Ok(mean);
    }
    // The share of each window that counts.
    let one = im.g.constant(1.0);
    let ones = im.g.expand(one, &[&[1, 1][..], &shape].concat())?;
    let ones = placed.padded(im, ones, if counted { 1.0 } else { 0.0 }, Some(0.0))?;
    let share = conv::avg_pool(&mut im.g, ones, sizes, &windows, true)?;
    Ok(div(&mut im.g, mean, share)?)
}

fn raised(im: &mut Import, x: Tensor, p: f32) -> Made<Tensor> {
    let g = &mut im.g;
    Ok(match p {
        1.0 => x,
        2.0 => f::square(g, x)?,
        p => f::powi(g, x, p as i32)?,
    })
}

fn raised_root(im: &mut Import, x: Tensor, p: f32) -> Made<Tensor> {
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

fn global(im: &mut Import, node: &Node<'_>) -> Made<Vec<Value>> {
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
