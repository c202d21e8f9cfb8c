//! Exact sums of products of bytes: operands minus their zero points, and convolutions and matrix products of dequantised
//! tensors, which are computed on the integers and scaled afterwards.
//!
//! Sums are `f32`, which is exact up to 2^24. Known weights tell how large a sum can become; longer sums are split, and
//! their parts added as integers.

use nn::functions::{add, mul, sub};
use plan::DType;
use plan::graph::Tensor;

use super::matrix::product;
use crate::array::Elem;
use crate::error::NodeResult;
use crate::import::{Import, Value};

/// Largest sum up to which all integers are exact in `f32`.
const EXACT: f64 = 16_777_216.0;

/// Largest magnitude of a byte minus a zero point.
const BYTE: f64 = 255.0;

/// A tensor that `DequantizeLinear` computes: `(x - zero) * scale`.
#[derive(Clone)]
pub(crate) struct Dequantised {
    pub(crate) x: Value,
    pub(crate) zero: Option<Value>,
    pub(crate) scale: Value,
    /// Axis of the scales, if there are several.
    pub(crate) axis: usize,
}

/// Integers minus their zero points, in `F32`.
pub(super) struct Centred {
    pub(super) tensor: Tensor,
    /// Values known to the host.
    values: Option<Vec<f64>>,
}

/// A byte tensor minus its zero point: a scalar, or one value per entry of an axis that has `behind` axes after it.
/// Known tensors are computed once.
pub(super) fn centred(
    im: &mut Import,
    x: &Value,
    zero: Option<&Value>,
    behind: usize,
) -> NodeResult<Centred> {
    let shape = im.shape(x);
    let inner: usize = shape.iter().rev().take(behind).product();
    let zeroes = match zero {
        Some(Value::Known(zero)) => Some(zero.values.iter().copied().collect()),
        Some(Value::Device { .. }) => None,
        None => Some(vec![0.0]),
    };
    if let (Some(values), Some(zeroes)) = (im.integers(x), zeroes)
        && !zeroes.is_empty()
        && (zeroes.len() == 1 || zero.is_some_and(|zero| im.shape(zero).len() == 1))
    {
        let place = |i: usize| i / inner.max(1) % zeroes.len();
        let values: Vec<f64> =
            values.iter().enumerate().map(|(i, value)| value - zeroes[place(i)]).collect();
        let tensor = im.weight(Elem::F32, &shape, &values)?;
        return Ok(Centred { tensor, values: Some(values) });
    }
    let tensor = im.float(x)?;
    let Some(zero) = zero else { return Ok(Centred { tensor, values: None }) };
    let zero = im.float(zero)?;
    let own = im.g.shape(zero).to_vec();
    let count: usize = own.iter().product();
    let zero = match own.len() {
        // Matrices already have theirs as columns or rows.
        2.. if count > 1 => zero,
        _ => line(im, zero, behind)?,
    };
    Ok(Centred { tensor: sub(&mut im.g, tensor, zero)?, values: None })
}

impl Centred {
    /// Largest sum of magnitudes over the rows that `row` assigns elements to, times a byte.
    fn bound(&self, rows: usize, row: impl Fn(usize) -> usize) -> Option<f64> {
        let mut sums = vec![0.0; rows];
        for (i, value) in self.values.as_ref()?.iter().enumerate() {
            sums[row(i)] += value.abs();
        }
        Some(sums.into_iter().fold(0.0, f64::max) * BYTE)
    }

    /// Number of summands that are exact together, for weights `[O, summands..]`.
    pub(super) fn exact_rows(&self, outputs: usize, each: usize) -> usize {
        match self.bound(outputs, |i| i / each.max(1)) {
            Some(bound) if bound <= EXACT => each,
            _ => (EXACT / (BYTE * BYTE)) as usize,
        }
    }
}

/// The exact product of matrices of bytes minus zero points, in `F32` or `I32`.
pub(super) fn byte_product(im: &mut Import, a: &Centred, b: &Centred) -> NodeResult<Tensor> {
    let of_b = im.g.shape(b.tensor).to_vec();
    let columns = of_b.last().copied().unwrap_or(1).max(1);
    let most = match b.bound(columns, |i| i % columns) {
        Some(bound) if of_b.len() == 2 && bound <= EXACT => of_b[0],
        _ => (EXACT / (BYTE * BYTE)) as usize,
    };
    product_of_parts(im, [a.tensor, b.tensor], most)
}

/// The product of matrices of integers, `most` summands at a time.
pub(super) fn product_of_parts(
    im: &mut Import,
    [a, b]: [Tensor; 2],
    most: usize,
) -> NodeResult<Tensor> {
    let (of_a, of_b) = (im.g.shape(a).to_vec(), im.g.shape(b).to_vec());
    let (last, first) = (of_a.len().saturating_sub(1), of_b.len().saturating_sub(2));
    let depth = of_a.last().copied().unwrap_or(0);
    if depth <= most {
        return product(im, a, b);
    }
    let mut sum: Option<Tensor> = None;
    for start in (0..depth).step_by(most) {
        let count = most.min(depth - start);
        let left = im.g.slice(a, last, start, count)?;
        let right = im.g.slice(b, first, start, count)?;
        let part = product(im, left, right)?;
        sum = Some(added(im, sum, part)?);
    }
    Ok(sum.ok_or("a product over no columns")?)
}

/// Adds a part of a sum, as an integer.
pub(super) fn added(im: &mut Import, sum: Option<Tensor>, part: Tensor) -> NodeResult<Tensor> {
    let part = im.g.cast(part, DType::I32)?;
    match sum {
        Some(sum) => Ok(add(&mut im.g, sum, part)?),
        None => Ok(part),
    }
}

/// Both operands of a product, if they are dequantised bytes: `a` with one scale, and `b` with one or one per entry of
/// `axis`, which has `behind` axes after it. Also returns the product of the scales.
pub(super) fn dequantised(
    im: &mut Import,
    [a, b]: [&Value; 2],
    axis: usize,
    behind: usize,
) -> NodeResult<Option<(Centred, Centred, Tensor)>> {
    let (Some(a), Some(b)) = (im.dequantised(a), im.dequantised(b)) else { return Ok(None) };
    let is_byte = |value: &Value| matches!(value.elem(), Elem::I8 | Elem::U8);
    let count = |im: &Import, value: &Value| im.shape(value).iter().product::<usize>();
    let rank = im.shape(&b.x).len();
    let several = count(im, &b.scale) > 1;
    let fits = is_byte(&a.x)
        && is_byte(&b.x)
        && count(im, &a.scale) == 1
        && (!several || (im.shape(&b.scale).len() == 1 && b.axis == axis))
        && axis + behind + 1 == rank;
    if !fits {
        return Ok(None);
    }
    let left = centred(im, &a.x, a.zero.as_ref(), 0)?;
    let right = centred(im, &b.x, b.zero.as_ref(), behind)?;
    let (one, all) = (im.float(&a.scale)?, im.float(&b.scale)?);
    let one = im.g.reshape(one, &[1])?;
    let entries = count(im, &b.scale);
    // Broadcast from the back: channels of a result have the axes of `behind` without those of the sum.
    let all = im.g.reshape(all, &[entries])?;
    let scale = mul(&mut im.g, one, all)?;
    Ok(Some((left, right, scale)))
}

/// A bias in the units of the sums, if it is dequantised from integers.
pub(super) fn integer_bias(im: &mut Import, bias: &Value) -> NodeResult<Option<Tensor>> {
    let Some(of) = im.dequantised(bias) else { return Ok(None) };
    let plain = match &of.zero {
        None => true,
        Some(Value::Known(zero)) => zero.uniform() == Some(0.0),
        Some(Value::Device { .. }) => false,
    };
    if !plain || of.x.elem() != Elem::I32 {
        return Ok(None);
    }
    im.tensor(&of.x).map(Some)
}

/// `(sums + bias) * scale`, with bias and scale per entry of an axis that has `behind` axes after it.
pub(super) fn scaled(
    im: &mut Import,
    sums: Tensor,
    bias: Option<Tensor>,
    scale: Tensor,
    behind: usize,
) -> NodeResult<Tensor> {
    let made = biased(im, sums, bias, behind)?;
    let made = im.g.cast(made, DType::F32)?;
    let scale = line(im, scale, behind)?;
    Ok(mul(&mut im.g, made, scale)?)
}

/// `x + bias` in the type of `x`, with a bias as for [`scaled`].
pub(super) fn biased(
    im: &mut Import,
    x: Tensor,
    bias: Option<Tensor>,
    behind: usize,
) -> NodeResult<Tensor> {
    let Some(bias) = bias else { return Ok(x) };
    let bias = line(im, bias, behind)?;
    let bias = im.g.cast(bias, im.g.dtype(x))?;
    Ok(add(&mut im.g, x, bias)?)
}

/// One value, or one per entry of an axis with `behind` axes after it, reshaped to broadcast.
fn line(im: &mut Import, x: Tensor, behind: usize) -> NodeResult<Tensor> {
    let count: usize = im.g.shape(x).iter().product();
    let behind = if count == 1 { 0 } else { behind };
    Ok(im.g.reshape(x, &[&[count][..], &vec![1; behind]].concat())?)
}
