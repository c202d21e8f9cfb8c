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
    };
    if node.flag("antialias") {
        return Err("antialias is not supported".into());
    }
    node.ignore(&["extrapolation_value"]);
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
    let mut x = im.float(x)?;
    let mut times = vec![1; have.len()];
    let mut whole = true;
    for ((&a, &size), &scale) in axes.iter().zip(&sizes).zip(&scales) {
        let repeats = interpolation.repeats(size, have[a], scale)?;
        whole &= repeats.is_some();
        times[a] = repeats.unwrap_or(1);
    }
    if whole {
        x = repeated(im, x, &times)?;
    } else {
        for ((&a, &size), &scale) in axes.iter().zip(&sizes).zip(&scales) {
            if size != have[a] || scale != 1.0 {
                x = along(im, x, a, size, scale, &interpolation)?;
            }
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
    fn repeats(&self, size: usize, have: usize, scale: f64) -> NodeResult<Option<usize>> {
        if size == have && scale == 1.0 {
            return Ok(Some(1));
        }
        if self.mode != "nearest" || have == 0 || !size.is_multiple_of(have) {
            return Ok(None);
        }
        let times = size / have;
        for i in 0..size {
            if self.parts(self.position(i, size, have, scale)?, have)? != [(i / times, 1.0)] {
                return Ok(None);
            }
        }
        Ok(Some(times))
    }

    /// Position in the input axis (extent `have`) of output element `i` (extent `size`).
    fn position(&self, i: usize, size: usize, have: usize, scale: f64) -> NodeResult<f64> {
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
            other => return Err(invalid(format!("{other} is not supported"))),
        })
    }

    /// Source elements and weights of a position.
    fn parts(&self, position: f64, have: usize) -> NodeResult<Vec<(usize, f64)>> {
        let last = have as f64 - 1.0;
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
                let near = |t: f64| ((self.cubic + 2.0) * t - (self.cubic + 3.0)) * t * t + 1.0;
                let far = |t: f64| {
                    ((self.cubic * t - 5.0 * self.cubic) * t + 8.0 * self.cubic) * t
                        - 4.0 * self.cubic
                };
                let mut shares = [far(part + 1.0), near(part), near(1.0 - part), far(2.0 - part)];
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

fn along(
    im: &mut Import,
    x: Tensor,
    a: usize,
    size: usize,
    scale: f64,
    interpolation: &Interpolation,
) -> NodeResult<Tensor> {
    let have = im.g.shape(x)[a];
    let mut all = Vec::new();
    for i in 0..size {
        all.push(interpolation.parts(interpolation.position(i, size, have, scale)?, have)?);
    }
    let mut line = vec![1; im.g.shape(x).len()];
    line[a] = size;
    let of = |values: Vec<f64>, elem: Elem, shape: &[usize]| {
        let known = Known::new(elem, shape, values);
        Value::Known(known.unwrap_or_else(|| unreachable!("one for each element")))
    };
    let mut sum = None;
    for part in 0..all.first().map_or(0, Vec::len) {
        let places = all.iter().map(|parts| parts[part].0 as f64).collect();
        let shares: Vec<f64> = all.iter().map(|parts| parts[part].1).collect();
        let places = im.tensor(&of(places, Elem::I64, &[size]))?;
        let mut taken = s::take(&mut im.g, x, a, places)?;
        if shares.iter().any(|share| *share != 1.0) {
            let shares = im.tensor(&of(shares, Elem::F32, &line))?;
            taken = mul(&mut im.g, taken, shares)?;
        }
        sum = Some(match sum {
            Some(sum) => add(&mut im.g, sum, taken)?,
            None => taken,
        });
    }
    sum.ok_or_else(|| "an axis without elements".into())
}
