//! Convolutions, pooling and resizing over the trailing axes.
//!
//! Tensors are `[N, C, spatial..]`, convolution weights `[O, C / groups, spatial..]`, as in
//! PyTorch.

use plan::graph::{Error, Graph, Result, Tensor};
use plan::{Reduce, Window};

use super::functions::{add, div, maximum, mul, sum, times};
use super::shape::{flip, spread, take, transpose};

/// Window geometry: one number per spatial axis, or one for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    pub stride: Vec<usize>,
    /// Zeroes on both sides.
    pub padding: Vec<usize>,
    pub dilation: Vec<usize>,
    /// Number of independent groups of channels.
    pub groups: usize,
}

impl Default for Windows {
    fn default() -> Self {
        Self { stride: vec![1], padding: vec![0], dilation: vec![1], groups: 1 }
    }
}

impl Windows {
    /// Windows with this stride.
    #[must_use]
    pub fn stride(stride: usize) -> Self {
        Self { stride: vec![stride], ..Self::default() }
    }

    #[must_use]
    pub fn padded(mut self, padding: usize) -> Self {
        self.padding = vec![padding];
        self
    }
}

fn refused(g: &Graph, op: &'static str, x: Tensor, w: Tensor, reason: &'static str) -> Error {
    Error::Shape { op, shapes: vec![g.shape(x).to_vec(), g.shape(w).to_vec()], reason }
}

/// Setting for an axis.
fn of(all: &[usize], axis: usize) -> usize {
    all.get(axis).or(all.last()).copied().unwrap_or(1)
}

/// Windows over each spatial axis: `[N, C, counts.., sizes..]`.
fn windows(g: &mut Graph, x: Tensor, sizes: &[usize], w: &Windows) -> Result {
    let mut x = x;
    for axis in 0..sizes.len() {
        let padding = of(&w.padding, axis);
        if padding > 0 {
            x = g.pad(x, 2 + axis, padding, padding)?;
        }
    }
    for (axis, &size) in sizes.iter().enumerate() {
        let (stride, dilation) = (of(&w.stride, axis), of(&w.dilation, axis));
        x = g.window(x, 2 + axis, Window { size, stride, dilation })?;
    }
    Ok(x)
}

/// Convolution, `[N, O, counts..]`, with a bias per output channel.
pub fn conv(g: &mut Graph, x: Tensor, weight: Tensor, bias: Option<Tensor>, w: &Windows) -> Result {
    let axes = g.shape(x).len().saturating_sub(2);
    let channels = g.shape(weight).first().copied().unwrap_or(0);
    let bias = bias.map(|bias| g.reshape(bias, &[channels])).transpose()?;
    let each = |all: &[usize]| (0..axes).map(|axis| of(all, axis)).collect::<Vec<_>>();
    let windows = plan::Windows {
        stride: each(&w.stride),
        pads: each(&w.padding).into_iter().map(|n| [n, n]).collect(),
        dilation: each(&w.dilation),
        groups: w.groups,
    };
    g.conv(x, weight, bias, &windows)
}

/// Transposed convolution: the gradient of a convolution with respect to its input. `weight [C, O /
/// groups, spatial..]`. `extra` elements are appended to each axis, whose length strides leave
/// ambiguous.
pub fn conv_transpose(
    g: &mut Graph,
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    w: &Windows,
    extra: usize,
) -> Result {
    let (of_x, of_w) = (g.shape(x).to_vec(), g.shape(weight).to_vec());
    let (axes, groups) = (of_x.len().saturating_sub(2), w.groups);
    let fits = axes > 0
        && of_w.len() == of_x.len()
        && groups > 0
        && of_x[1] == of_w[0]
        && of_x[1].is_multiple_of(groups);
    if !fits {
        let reason = "[N, C, spatial..] and [C, O / groups, spatial..] expected";
        return Err(refused(g, "conv_transpose", x, weight, reason));
    }
    let (inner, outer) = (of_w[0] / groups, of_w[1]);
    let (mut x, mut weight) = (x, weight);
    for axis in 0..axes {
        x = spread(g, x, 2 + axis, of(&w.stride, axis))?;
        let reach = of(&w.dilation, axis) * (of_w[2 + axis] - 1);
        let Some(around) = reach.checked_sub(of(&w.padding, axis)) else {
            return Err(refused(g, "conv_transpose", x, weight, "more padding than weights"));
        };
        x = g.pad(x, 2 + axis, around, around + extra)?;
        weight = flip(g, weight, 2 + axis)?;
    }
    // [G, C / G, O / G, ..] to [G O / G, C / G, ..].
    let weight = g.reshape(weight, &[&[groups, inner, outer], &of_w[2..]].concat())?;
    let weight = transpose(g, weight, 1, 2)?;
    let weight = g.reshape(weight, &[&[groups * outer, inner], &of_w[2..]].concat())?;
    let plain = Windows { dilation: w.dilation.clone(), groups, ..Windows::default() };
    conv(g, x, weight, bias, &plain)
}

/// Maximum of each window.
pub fn max_pool(g: &mut Graph, x: Tensor, sizes: &[usize], w: &Windows) -> Result {
    let mut x = x;
    // Padding with minus infinity never wins.
    for axis in 0..sizes.len() {
        let padding = of(&w.padding, axis);
        if padding > 0 {
            x = pad_with(g, x, 2 + axis, [padding, padding], f32::NEG_INFINITY)?;
        }
    }
    let w = Windows { padding: vec![0], ..w.clone() };
    let seen = windows(g, x, sizes, &w)?;
    reduced(g, seen, sizes.len(), Reduce::Max)
}

/// Mean of each window; `count_padding` includes the padding in the count.
pub fn avg_pool(
    g: &mut Graph,
    x: Tensor,
    sizes: &[usize],
    w: &Windows,
    count_padding: bool,
) -> Result {
    let seen = windows(g, x, sizes, w)?;
    let sums = reduced(g, seen, sizes.len(), Reduce::Sum)?;
    if count_padding || w.padding.iter().all(|padding| *padding == 0) {
        return times(g, sums, 1.0 / sizes.iter().product::<usize>() as f32);
    }
    let shape = [&[1, 1], &g.shape(x)[2..]].concat();
    let one = g.constant(1.0);
    let ones = g.expand(one, &shape)?;
    let seen = windows(g, ones, sizes, w)?;
    let counts = reduced(g, seen, sizes.len(), Reduce::Sum)?;
    div(g, sums, counts)
}

/// Reduces the last `axes` axes and drops them.
fn reduced(g: &mut Graph, seen: Tensor, axes: usize, op: Reduce) -> Result {
    let shape = g.shape(seen).to_vec();
    let kept = shape.len() - axes;
    let size = shape[kept..].iter().product();
    let flat = g.reshape(seen, &[&shape[..kept], &[size]].concat())?;
    let reduced = g.reduce(op, flat, kept)?;
    g.reshape(reduced, &shape[..kept])
}

/// Pads an axis with a value, before and after.
pub fn pad_with(g: &mut Graph, x: Tensor, axis: usize, by: [usize; 2], value: f32) -> Result {
    let padded = g.pad(x, axis, by[0], by[1])?;
    if value == 0.0 {
        return Ok(padded);
    }
    let shape = g.shape(padded).to_vec();
    let (one, value) = (g.constant(1.0), g.constant(value));
    let mut line = vec![1; shape.len()];
    line[axis] = shape[axis] - by[0] - by[1];
    let inside = g.expand(one, &line)?;
    let inside = g.pad(inside, axis, by[0], by[1])?;
    g.select(inside, padded, value)
}

/// Nearest-neighbour upsampling of every spatial axis by `factor`.
pub fn nearest(g: &mut Graph, x: Tensor, factor: usize) -> Result {
    let times: Vec<usize> = g
        .shape(x)
        .iter()
        .enumerate()
        .flat_map(|(i, _)| [1, if i < 2 { 1 } else { factor }])
        .collect();
    let shape = g.shape(x).to_vec();
    let apart: Vec<usize> = shape.iter().flat_map(|&n| [n, 1]).collect();
    let wide: Vec<usize> = apart.iter().zip(&times).map(|(n, t)| n * t).collect();
    let whole: Vec<usize> = wide.chunks(2).map(|pair| pair[0] * pair[1]).collect();
    let x = g.reshape(x, &apart)?;
    let x = g.expand(x, &wide)?;
    g.reshape(x, &whole)
}

/// Linear interpolation of an axis to `extent` elements. `corners` is PyTorch's `align_corners`: it
/// aligns the centres of the corner elements instead of their outer edges.
pub fn linear(g: &mut Graph, x: Tensor, axis: usize, extent: usize, corners: bool) -> Result {
    let Some(have) = g.shape(x).get(axis).copied().filter(|n| *n > 0) else {
        return Err(refused(g, "linear", x, x, "an axis with entries expected"));
    };
    let at = g.iota(extent);
    let at = if corners {
        times(g, at, (have as f32 - 1.0) / (extent as f32 - 1.0).max(1.0))?
    } else {
        let scale = have as f32 / extent as f32;
        let at = times(g, at, scale)?;
        let at = super::functions::plus(g, at, scale / 2.0 - 0.5)?;
        let zero = g.constant(0.0);
        maximum(g, at, zero)?
    };
    let low = super::functions::floor(g, at)?;
    let weight = super::functions::sub(g, at, low)?;
    let last = g.constant(have as f32 - 1.0);
    let next = super::functions::plus(g, low, 1.0)?;
    let next = super::functions::minimum(g, next, last)?;
    let side = |g: &mut Graph, at: Tensor| {
        let at = g.cast(at, plan::DType::I32)?;
        take(g, x, axis, at)
    };
    let (low, high) = (side(g, low)?, side(g, next)?);
    let mut line = vec![1; g.shape(x).len()];
    line[axis] = extent;
    let weight = g.reshape(weight, &line)?;
    let apart = super::functions::sub(g, high, low)?;
    let apart = mul(g, apart, weight)?;
    add(g, low, apart)
}

/// Mean over all spatial axes, which stay with extent 1.
pub fn global_avg_pool(g: &mut Graph, x: Tensor) -> Result {
    let axes: Vec<usize> = (2..g.shape(x).len()).collect();
    let count: usize = g.shape(x)[2..].iter().product();
    let sums = sum(g, x, &axes)?;
    times(g, sums, 1.0 / count as f32)
}
