//! Normalisation to mean 0 and variance 1 over some axes, then scaling.

use plan::graph::{Error, Graph, Result, Tensor};

use super::functions::{add, mean, mul, plus, rsqrt, square, sub};

/// `x` normalised over `axes`, with the mean and the variance.
fn standard(g: &mut Graph, x: Tensor, axes: &[usize], eps: f32) -> Result<[Tensor; 3]> {
    let of = mean(g, x, axes)?;
    let apart = sub(g, x, of)?;
    let squares = square(g, apart)?;
    let variance = mean(g, squares, axes)?;
    let widened = plus(g, variance, eps)?;
    let scale = rsqrt(g, widened)?;
    Ok([mul(g, apart, scale)?, of, variance])
}

/// Reshapes one value per channel to broadcast over `[N, C, ..]`.
fn by_channel(g: &mut Graph, x: Tensor, rank: usize) -> Result {
    let channels = g.shape(x).iter().product();
    let mut shape = vec![1; rank - 1];
    shape[0] = channels;
    g.reshape(x, &shape)
}

/// `x * weight + bias`, both per channel.
fn affine(g: &mut Graph, x: Tensor, weight: Tensor, bias: Tensor) -> Result {
    let rank = g.shape(x).len();
    let (weight, bias) = (by_channel(g, weight, rank)?, by_channel(g, bias, rank)?);
    let x = mul(g, x, weight)?;
    add(g, x, bias)
}

/// Batch norm: each channel over the batch and all spatial axes of `[N, C, ..]`. Returns the
/// result, and each channel's mean and variance, `[C]`.
pub fn batch_norm(
    g: &mut Graph,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: f32,
) -> Result<[Tensor; 3]> {
    let channels = channels(g, "batch_norm", x)?;
    let axes: Vec<usize> = (0..g.shape(x).len()).filter(|axis| *axis != 1).collect();
    let [x, mean, variance] = standard(g, x, &axes, eps)?;
    let (mean, variance) = (g.reshape(mean, &[channels])?, g.reshape(variance, &[channels])?);
    Ok([affine(g, x, weight, bias)?, mean, variance])
}

/// Batch norm with given mean and variance, `[C]`.
pub fn batch_norm_by(
    g: &mut Graph,
    x: Tensor,
    [mean, variance]: [Tensor; 2],
    weight: Tensor,
    bias: Tensor,
    eps: f32,
) -> Result {
    channels(g, "batch_norm", x)?;
    let rank = g.shape(x).len();
    let mean = by_channel(g, mean, rank)?;
    let apart = sub(g, x, mean)?;
    let variance = plus(g, variance, eps)?;
    let scale = rsqrt(g, variance)?;
    let scale = by_channel(g, scale, rank)?;
    let x = mul(g, apart, scale)?;
    affine(g, x, weight, bias)
}

/// Group norm: over the spatial axes of `[N, C, ..]` and the channels of each of `groups` groups.
pub fn group_norm(
    g: &mut Graph,
    x: Tensor,
    groups: usize,
    weight: Tensor,
    bias: Tensor,
    eps: f32,
) -> Result {
    let (shape, channels) = (g.shape(x).to_vec(), channels(g, "group_norm", x)?);
    if groups == 0 || !channels.is_multiple_of(groups) {
        let reason = "the channels must be a multiple of the groups";
        return Err(Error::Shape { op: "group_norm", shapes: vec![shape], reason });
    }
    let inner = shape[1..].iter().product::<usize>() / groups;
    let apart = g.reshape(x, &[shape[0], groups, inner])?;
    let [x, ..] = standard(g, apart, &[2], eps)?;
    let x = g.reshape(x, &shape)?;
    affine(g, x, weight, bias)
}

/// Layer norm over the last `axes` axes; `weight` and `bias` have their shape.
pub fn layer_norm(
    g: &mut Graph,
    x: Tensor,
    axes: usize,
    affine: Option<[Tensor; 2]>,
    eps: f32,
) -> Result {
    let (shape, rank) = (g.shape(x).to_vec(), g.shape(x).len());
    if axes > rank {
        return Err(Error::Shape { op: "layer_norm", shapes: vec![shape], reason: "too few axes" });
    }
    let inner = shape[rank - axes..].iter().product();
    let flat = g.reshape(x, &[&shape[..rank - axes], &[inner]].concat())?;
    let [x, ..] = standard(g, flat, &[rank - axes], eps)?;
    let x = g.reshape(x, &shape)?;
    let Some([weight, bias]) = affine else { return Ok(x) };
    let x = mul(g, x, weight)?;
    add(g, x, bias)
}

fn channels(g: &Graph, op: &'static str, x: Tensor) -> Result<usize> {
    g.shape(x).get(1).copied().ok_or_else(|| Error::Shape {
        op,
        shapes: vec![g.shape(x).to_vec()],
        reason: "[N, C, ..] expected",
    })
}
