//! Loss functions, averaged over the batch, of shape `[1]`.

use plan::graph::{Graph, Result, Tensor};

use super::functions::{
    abs, add, average, less_equal, log_softmax, mul, neg, plus, relu, square, sub, sum, times,
    total,
};
use super::shape::one_hot;

/// Mean squared error.
pub fn mse(g: &mut Graph, x: Tensor, target: Tensor) -> Result {
    let apart = sub(g, x, target)?;
    let squares = square(g, apart)?;
    average(g, squares)
}

/// Mean absolute error.
pub fn l1(g: &mut Graph, x: Tensor, target: Tensor) -> Result {
    let apart = sub(g, x, target)?;
    let sizes = abs(g, apart)?;
    average(g, sizes)
}

/// Huber loss: half the squared error up to `delta`, linear beyond.
pub fn huber(g: &mut Graph, x: Tensor, target: Tensor, delta: f32) -> Result {
    let apart = sub(g, x, target)?;
    let size = abs(g, apart)?;
    let squares = square(g, apart)?;
    let curve = times(g, squares, 0.5)?;
    let line = plus(g, size, -delta / 2.0)?;
    let line = times(g, line, delta)?;
    let limit = g.constant(delta);
    let near = less_equal(g, size, limit)?;
    let both = g.select(near, curve, line)?;
    average(g, both)
}

/// Cross entropy of logits `[N, C]` and classes `I32 [N]`; `smoothing` is the weight spread over
/// all classes.
pub fn cross_entropy(g: &mut Graph, logits: Tensor, classes: Tensor, smoothing: f32) -> Result {
    let logs = log_softmax(g, logits, 1)?;
    let &[rows, count] = g.shape(logits) else { unreachable!("`log_softmax` took two axes") };
    let chosen = one_hot(g, classes, count)?;
    let chosen = times(g, chosen, 1.0 - smoothing)?;
    let weights = plus(g, chosen, smoothing / count as f32)?;
    let all = mul(g, logs, weights)?;
    let sum = total(g, all)?;
    times(g, sum, -1.0 / rows as f32)
}

/// Negative log-likelihood of log-probabilities `[N, C]` and classes `I32 [N]`.
pub fn nll(g: &mut Graph, logs: Tensor, classes: Tensor) -> Result {
    let (rows, count) = (g.shape(logs)[0], g.shape(logs).last().copied().unwrap_or(0));
    let chosen = one_hot(g, classes, count)?;
    let all = mul(g, logs, chosen)?;
    let sum = total(g, all)?;
    times(g, sum, -1.0 / rows as f32)
}

/// Binary cross entropy of logits, with targets from 0 to 1: `max(x, 0) - x t + ln(1 + exp(-|x|))`.
pub fn bce_with_logits(g: &mut Graph, x: Tensor, target: Tensor) -> Result {
    let size = abs(g, x)?;
    let size = neg(g, size)?;
    let rest = super::functions::exp(g, size)?;
    let rest = plus(g, rest, 1.0)?;
    let rest = super::functions::ln(g, rest)?;
    let positive = relu(g, x)?;
    let product = mul(g, x, target)?;
    let first = sub(g, positive, product)?;
    let all = add(g, first, rest)?;
    average(g, all)
}

/// Kullback-Leibler divergence of log-probabilities from target probabilities (above 0), summed
/// over the last axis: `t (ln t - x)`.
pub fn kl_div(g: &mut Graph, logs: Tensor, target: Tensor) -> Result {
    let of_target = super::functions::ln(g, target)?;
    let apart = sub(g, of_target, logs)?;
    let all = mul(g, target, apart)?;
    let last = g.shape(all).len() - 1;
    let rows = sum(g, all, &[last])?;
    average(g, rows)
}
