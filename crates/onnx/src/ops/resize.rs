//! `Resize` and `Upsample`. The source elements of an output element and their weights follow from
//! the shapes. The host computes them for each axis; the device gathers and adds.

use nn::functions::{add, mul};
use nn::shape as s;
use plan::graph::Tensor;

use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, axis};

/// Interpolation settings.
struct Interpolation {
    mode: String,
    coordinates: String,
    nearest: String,
    cubic: f64,
    exclude_outside: bool,
    antialias: bool,
    /// Value outside the region of `tf_crop_and_resize`.
    outside: f32,
}

/// Size, scale and region of an axis.
#[derive(Clone, Copy)]
struct Line {
    size: usize,
    have: usize,
    scale: f64,
    /// Start and end of the region as shares of the axis.
    region: [f64; 2],
}

pub(super) fn resize(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = node.input(0)?;
    let (elem, have) = (x.elem(), im.shape(x));
    // Upsample, and Resize of opset 10, have scales as the second input.
    let (at_scales, at_sizes) =
        if node.op() == "Upsample" || node.opset < 11 { (1, 9) } else { (2, 3) };
    let old = at_scales == 1;
    let interpolation = Interpolation {
        mode: node.text("mode", "nearest")?,
        coordinates: node.text(
            "coordinate_transformation_mode",
            if old { "asymmetric" } else { "half_pixel" },
        )?,
        nearest: node.text("nearest_mode", if old { "floor" } else { "round_prefer_floor" })?,
        cubic: f64::from(node.float("cubic_coeff_a", -0.75)),
        exclude_outside: node.flag("exclude_outside"),
        antialias: node.flag("antialias"),
        outside: node.float("extrapolation_value", 0.0),
    };
    let policy = node.text("keep_aspect_ratio_policy", "stretch")?;
    let axes = node.integers("axes").unwrap_or_else(|| (0..have.len() as i64).collect());
    let axes = axes.iter().map(|&a| axis(a, have.len())).collect::<NodeResult<Vec<usize>>>()?;
    let given = |place: usize| {
        node.optional(place).filter(|v| !matches!(v, Value::Known(k) if k.values.is_empty()))
    };
    let mut scales: Vec<f64> = match (given(at_scales), node.floats("scales")) {
        (Some(_), _) => node.known(at_scales, "scales")?.values.iter().copied().collect(),
        (None, Some(scales)) => scales.into_iter().map(f64::from).collect(),
        (None, None) => Vec::new(),
    };
    let sizes: Vec<usize> = if given(at_sizes).is_some() {
        let sizes = crate::array::shape(&node.known_integers(at_sizes, "sizes")?)?;
        scales = sizes.iter().zip(&axes).map(|(n, &a)| *n as f64 / have[a] as f64).collect();
        if policy == "stretch" {
            sizes
        } else {
            let least = scales.iter().copied().fold(f64::INFINITY, f64::min);
            let most = scales.iter().copied().fold(0.0, f64::max);
            let scale = if policy == "not_larger" { least } else { most };
            scales = vec![scale; axes.len()];
            axes.iter().map(|&a| (scale * have[a] as f64).round() as usize).collect()
        }
    } else {
        let of = |(scale, &a): (&f64, &usize)| (scale * have[a] as f64).floor() as usize;
        scales.iter().zip(&axes).map(of).collect()
    };
    if sizes.len() != axes.len() {
        return Err(invalid(format!(
            "{} scales or sizes do not fit {} axes",
            sizes.len(),
            axes.len()
        )));
    }
    crate::array::shape(&sizes.iter().map(|n| *n as i64).collect::<Vec<_>>())?;
    let crops = interpolation.coordinates == "tf_crop_and_resize";
    let region: Vec<f64> = match crops {
        true => node.known(1, "the region")?.values.iter().copied().collect(),
        false => Vec::new(),
    };
    if crops && region.len() != 2 * axes.len() {
        return Err(invalid(format!("a region of {} ends does not fit", region.len())));
    }
    let line = |i: usize| Line {
        size: sizes[i],
        have: have[axes[i]],
        scale: scales[i],
        region: if crops { [region[i], region[axes.len() + i]] } else { [0.0, 1.0] },
    };
    let mut x = im.float(x)?;
    let mut times = vec![1; have.len()];
    let mut whole = true;
    for (i, &a) in axes.iter().enumerate() {
        let repeats = interpolation.repeats(line(i))?;
        whole &= repeats.is_some();
        times[a] = repeats.unwrap_or(1);
    }
    if whole {
        x = repeated(im, x, &times)?;
    } else {
        for (i, &a) in axes.iter().enumerate() {
            let line = line(i);
            if line.size != line.have || line.scale != 1.0 || crops {
                x = along(im, x, a, line, &interpolation)?;
            }
        }
        if crops {
            let lines: Vec<_> = axes.iter().enumerate().map(|(i, a)| (*a, line(i))).collect();
            x = filled(im, x, &lines, &interpolation)?;
        }
    }
    if elem.is_integer() {
        x = im.g.cast(x, plan::DType::I32)?;
    }
    Ok(device(elem, x))
}

/// Repeats the elements of each axis.
fn repeated(im: &mut Import, x: Tensor, times: &[usize]) -> NodeResult<Tensor> {
    let have = im.g.shape(x).to_vec();
    if times.iter().all(|n| *n == 1) {
        return Ok(x);
    }
    let mut apart = Vec::new();
    let mut repeated = Vec::new();
    for (&n, &times) in have.iter().zip(times) {
        apart.push(n);
        repeated.push(n);
        if times > 1 {
            apart.push(1);
            repeated.push(times);
        }
    }
    let shape: Vec<usize> = have.iter().zip(times).map(|(n, times)| n * times).collect();
    let x = im.g.reshape(x, &apart)?;
    let x = im.g.expand(x, &repeated)?;
    Ok(im.g.reshape(x, &shape)?)
}

impl Interpolation {
    /// Number of repeats of each element, if the axis is only repeated.
    fn repeats(&self, line: Line) -> NodeResult<Option<usize>> {
        let Line { size, have, scale, .. } = line;
        if size == have && scale == 1.0 && self.coordinates != "tf_crop_and_resize" {
            return Ok(Some(1));
        }
        if self.mode != "nearest" || have == 0 || !size.is_multiple_of(have) {
            return Ok(None);
        }
        let times = size / have;
        for i in 0..size {
            if self.parts(self.position(i, line)?, line)? != [(i / times, 1.0)] {
                return Ok(None);
            }
        }
        Ok(Some(times))
    }

    /// Position in the input axis of output element `i`.
    fn position(&self, i: usize, line: Line) -> NodeResult<f64> {
        let Line { size, have, scale, region: [start, end] } = line;
        let (x, size, have) = (i as f64, size as f64, have as f64);
        Ok(match &*self.coordinates {
            "half_pixel" => (x + 0.5) / scale - 0.5,
            "half_pixel_symmetric" => {
                let adjustment = size / (scale * have);
                have / 2.0 * (1.0 - adjustment) + (x + 0.5) / scale - 0.5
            }
            "pytorch_half_pixel" if size > 1.0 => (x + 0.5) / scale - 0.5,
            "pytorch_half_pixel" => 0.0,
            // Uses the exact length, before rounding to an integer.
            "align_corners" if scale * have != 1.0 => x * (have - 1.0) / (scale * have - 1.0),
            "align_corners" => 0.0,
            "asymmetric" => x / scale,
            "tf_crop_and_resize" if size > 1.0 => {
                start * (have - 1.0) + x * (end - start) * (have - 1.0) / (size - 1.0)
            }
            "tf_crop_and_resize" => 0.5 * (start + end) * (have - 1.0),
            other => return Err(invalid(format!("{other} is not supported"))),
        })
    }

    /// Share of an element at a distance, for cubic interpolation.
    fn kernel(&self, t: f64) -> f64 {
        let (a, t) = (self.cubic, t.abs());
        match t {
            _ if t < 1.0 => ((a + 2.0) * t - (a + 3.0)) * t * t + 1.0,
            _ if t < 2.0 => ((a * t - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a,
            _ => 0.0,
        }
    }

    /// Source elements and weights of a position, over as many elements as become one.
    fn smoothed(&self, position: f64, line: Line) -> Vec<(usize, f64)> {
        let (scale, last) = (line.scale, line.have as f64 - 1.0);
        let cubic = self.mode == "cubic";
        let reach = (if cubic { 2.0 } else { 1.0 }) / scale;
        let share = |at: f64| {
            let t = (at - position) * scale;
            if cubic { self.kernel(t) } else { (1.0 - t.abs()).max(0.0) }
        };
        let (first, end) = ((position - reach).floor() as i64, (position + reach).ceil() as i64);
        let mut parts: Vec<(usize, f64)> = Vec::new();
        for at in first..=end {
            let at = at as f64;
            if self.exclude_outside && !(0.0..=last).contains(&at) {
                continue;
            }
            parts.push((at.clamp(0.0, last) as usize, share(at)));
        }
        let sum: f64 = parts.iter().map(|(_, share)| share).sum();
        parts.iter_mut().for_each(|(_, share)| *share /= sum);
        parts
    }

    /// Source elements and weights of a position.
    fn parts(&self, position: f64, line: Line) -> NodeResult<Vec<(usize, f64)>> {
        if self.antialias && line.scale < 1.0 && self.mode != "nearest" {
            return Ok(self.smoothed(position, line));
        }
        let last = line.have as f64 - 1.0;
        let clamp = |position: f64| position.clamp(0.0, last) as usize;
        let low = position.floor();
        let part = position - low;
        Ok(match &*self.mode {
            "nearest" => {
                let at = match &*self.nearest {
                    "round_prefer_floor" => (position - 0.5).ceil(),
                    "round_prefer_ceil" => (position + 0.5).floor(),
                    "floor" => low,
                    "ceil" => position.ceil(),
                    other => return Err(invalid(format!("{other} is not supported"))),
                };
                vec![(clamp(at), 1.0)]
            }
            "linear" | "bilinear" => vec![(clamp(low), 1.0 - part), (clamp(low + 1.0), part)],
            "cubic" => {
                let mut shares = [part + 1.0, part, 1.0 - part, 2.0 - part].map(|t| self.kernel(t));
                if self.exclude_outside {
                    for (i, share) in (-1i32..).zip(&mut shares) {
                        if !(0.0..=last).contains(&(low + f64::from(i))) {
                            *share = 0.0;
                        }
                    }
                    let sum: f64 = shares.iter().sum();
                    shares = shares.map(|share| share / sum);
                }
                (-1i32..).zip(shares).map(|(i, share)| (clamp(low + f64::from(i)), share)).collect()
            }
            other => return Err(invalid(format!("mode {other} is not supported"))),
        })
    }
}

/// Replaces the elements whose position is outside the image.
fn filled(
    im: &mut Import,
    x: Tensor,
    lines: &[(usize, Line)],
    interpolation: &Interpolation,
) -> NodeResult<Tensor> {
    let mut x = x;
    for &(a, line) in lines {
        let mut inside = Vec::new();
        for i in 0..line.size {
            let position = interpolation.position(i, line)?;
            let within = (0.0..=line.have as f64 - 1.0).contains(&position);
            inside.push(f64::from(u8::from(within)));
        }
        if inside.iter().all(|one| *one == 1.0) {
            continue;
        }
        let mut shape = vec![1; im.g.shape(x).len()];
        shape[a] = line.size;
        let inside = Known::new(Elem::F32, &shape, inside).map(Value::Known);
        let inside = im.tensor(&inside.unwrap_or_else(|| unreachable!("one for each")))?;
        let outside = im.g.constant(interpolation.outside);
        x = im.g.select(inside, x, outside)?;
    }
    Ok(x)
}

/// Most source elements of an output element that are gathered one by one.
const MOST_PARTS: usize = 4;

fn along(
    im: &mut Import,
    x: Tensor,
    a: usize,
    line: Line,
    interpolation: &Interpolation,
) -> NodeResult<Tensor> {
    let Line { size, have, .. } = line;
    let mut all = Vec::new();
    for i in 0..size {
        all.push(interpolation.parts(interpolation.position(i, line)?, line)?);
    }
    let of = |values: Vec<f64>, elem: Elem, shape: &[usize]| {
        let known = Known::new(elem, shape, values);
        Value::Known(known.unwrap_or_else(|| unreachable!("one for each element")))
    };
    let count = all.iter().map(Vec::len).max().unwrap_or(0);
    if count > MOST_PARTS || all.iter().any(|parts| parts.len() != count) {
        // A product with the matrix of all weights.
        let cells = size.checked_mul(have).filter(|cells| *cells <= 1 << 26);
        let cells = cells.ok_or_else(|| invalid(format!("{have} to {size} elements")))?;
        let mut matrix = vec![0.0; cells];
        for (i, parts) in all.iter().enumerate() {
            for (at, share) in parts {
                matrix[i * have + at] += share;
            }
        }
        let matrix = im.tensor(&of(matrix, Elem::F32, &[size, have]))?;
        let g = &mut im.g;
        let last = g.shape(x).len() - 1;
        let moved = s::transpose(g, x, a, last)?;
        let shape = g.shape(moved).to_vec();
        let rows = g.reshape(moved, &[shape[..last].iter().product(), have])?;
        let made = g.matmul(rows, matrix)?;
        let made = g.reshape(made, &[&shape[..last], &[size]].concat())?;
        return Ok(s::transpose(g, made, a, last)?);
    }
    let mut shape = vec![1; im.g.shape(x).len()];
    shape[a] = size;
    let mut sum = None;
    for part in 0..count {
        let places = all.iter().map(|parts| parts[part].0 as f64).collect();
        let shares: Vec<f64> = all.iter().map(|parts| parts[part].1).collect();
        let places = im.tensor(&of(places, Elem::I64, &[size]))?;
        let mut taken = s::take(&mut im.g, x, a, places)?;
        if shares.iter().any(|share| *share != 1.0) {
            let shares = im.tensor(&of(shares, Elem::F32, &shape))?;
            taken = mul(&mut im.g, taken, shares)?;
        }
        sum = Some(match sum {
            Some(sum) => add(&mut im.g, sum, taken)?,
            None => taken,
        });
    }
    sum.ok_or_else(|| "an axis without elements".into())
}
