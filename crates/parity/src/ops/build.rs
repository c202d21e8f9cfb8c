//! Graphs of the suite's operations, under the names of `tests/data/ops/make.py`.

use nn::conv::{self, Windows};
use nn::{functions as f, layers, loss, norm, shape};
use plan::graph::{Graph, Result, Tensor};
use plan::{Activation, Binary, DType, Reduce, Unary, Window};

/// Arguments of an operation; the suite's cases contain those that each operation needs.
#[derive(Clone, Copy)]
struct Args<'a>(&'a [f64]);

impl Args<'_> {
    fn number(self, i: usize) -> f32 {
        self.0[i] as f32
    }

    fn whole(self, i: usize) -> usize {
        self.0[i] as usize
    }

    fn signed(self, i: usize) -> isize {
        self.0[i] as isize
    }

    fn listed(self, from: usize) -> Vec<usize> {
        self.0[from..].iter().map(|v| *v as usize).collect()
    }

    /// Axes whose bits are set in the first argument.
    fn axes(self, rank: usize) -> Vec<usize> {
        (0..rank).filter(|axis| self.whole(0) >> axis & 1 == 1).collect()
    }

    fn windows(self) -> Windows {
        Windows {
            stride: vec![self.whole(0)],
            padding: vec![self.whole(1)],
            dilation: vec![self.whole(2)],
            groups: self.whole(3),
        }
    }
}

/// Builds the result of an operation from its inputs.
pub(super) fn build(g: &mut Graph, op: &str, args: &[f64], x: &[Tensor]) -> Result {
    unary(g, op, Args(args), x)
}

/// Functions of one operand.
fn unary(g: &mut Graph, op: &str, a: Args<'_>, x: &[Tensor]) -> Result {
    match op {
        "neg" => f::neg(g, x[0]),
        "exp" => f::exp(g, x[0]),
        "ln" => f::ln(g, x[0]),
        "sqrt" => f::sqrt(g, x[0]),
        "rsqrt" => f::rsqrt(g, x[0]),
        "recip" => f::recip(g, x[0]),
        "square" => f::square(g, x[0]),
        "sin" => g.unary(Unary::Sin, x[0]),
        "cos" => g.unary(Unary::Cos, x[0]),
        "tan" => f::tan(g, x[0]),
        "abs" => f::abs(g, x[0]),
        "sign" => f::sign(g, x[0]),
        "floor" => f::floor(g, x[0]),
        "ceil" => f::ceil(g, x[0]),
        "trunc" => f::trunc(g, x[0]),
        "round" => f::round(g, x[0]),
        "erf" => f::erf(g, x[0]),
        "powi" => f::powi(g, x[0], a.0[0] as i32),
        "plus" => f::plus(g, x[0], a.number(0)),
        "times" => f::times(g, x[0], a.number(0)),
        "clamp" => f::clamp(g, x[0], a.number(0), a.number(1)),
        "sigmoid" => f::sigmoid(g, x[0]),
        "tanh" => f::tanh(g, x[0]),
        "relu" => f::relu(g, x[0]),
        "relu6" => f::relu6(g, x[0]),
        "leaky_relu" => f::leaky_relu(g, x[0], a.number(0)),
        "elu" => f::elu(g, x[0], a.number(0)),
        "softplus" => f::softplus(g, x[0]),
        "silu" => g.activate(Activation::Silu, x[0]),
        "mish" => f::mish(g, x[0]),
        "hardswish" => f::hardswish(g, x[0]),
        "gelu" => f::gelu(g, x[0]),
        "gelu_tanh" => g.activate(Activation::Gelu, x[0]),
        op => binary(g, op, a, x),
    }
}

/// Functions of several operands, and integer operations.
fn binary(g: &mut Graph, op: &str, a: Args<'_>, x: &[Tensor]) -> Result {
    match op {
        "add" | "int_add" => f::add(g, x[0], x[1]),
        "sub" | "int_sub" => f::sub(g, x[0], x[1]),
        "mul" | "int_mul" => f::mul(g, x[0], x[1]),
        "div" => f::div(g, x[0], x[1]),
        "maximum" | "int_max" => f::maximum(g, x[0], x[1]),
        "minimum" => f::minimum(g, x[0], x[1]),
        "remainder" => f::remainder(g, x[0], x[1]),
        "less" => f::less(g, x[0], x[1]),
        "less_equal" | "int_le" => f::less_equal(g, x[0], x[1]),
        "equal" => f::equal(g, x[0], x[1]),
        "where" => {
            let positive = positive(g, x[0])?;
            g.select(positive, x[1], x[2])
        }
        "masked_fill" => {
            let positive = positive(g, x[0])?;
            shape::masked_fill(g, x[1], positive, a.number(0))
        }
        "lerp" => shape::lerp(g, x[0], x[1], x[2]),
        "int_and" => g.binary(Binary::And, x[0], x[1]),
        "int_or" => g.binary(Binary::Or, x[0], x[1]),
        "int_xor" => g.binary(Binary::Xor, x[0], x[1]),
        "int_shl" => {
            let by = g.constant(a.number(0));
            g.binary(Binary::ShiftLeft, x[0], by)
        }
        "int_shr" => {
            let (by, thousand) = (g.constant(a.number(0)), g.constant(1000.0));
            let x = g.binary(Binary::Sub, x[0], thousand)?;
            g.binary(Binary::ShiftRight, x, by)
        }
        "int_sum" => g.reduce(Reduce::Sum, x[0], 0),
        "int_amax" => g.reduce(Reduce::Max, x[0], 0),
        "keep" => Ok(x[0]),
        "select" => g.select(x[0], x[1], x[2]),
        "cast_f16" => g.cast(x[0], DType::F16),
        "cast_bf16" => g.cast(x[0], DType::BF16),
        "cast_i32" => g.cast(x[0], DType::I32),
        op => reduction(g, op, a, x),
    }
}

/// Reductions over axes, and casts.
fn reduction(g: &mut Graph, op: &str, a: Args<'_>, x: &[Tensor]) -> Result {
    match op {
        "sum" => f::sum(g, x[0], &a.axes(g.shape(x[0]).len())),
        "mean" => f::mean(g, x[0], &a.axes(g.shape(x[0]).len())),
        "amax" => f::amax(g, x[0], &a.axes(g.shape(x[0]).len())),
        "amin" => f::amin(g, x[0], &a.axes(g.shape(x[0]).len())),
        "var" => f::variance(g, x[0], &a.axes(g.shape(x[0]).len()), a.number(1)),
        "total" => f::total(g, x[0]),
        "average" => f::average(g, x[0]),
        "softmax" => f::softmax(g, x[0], a.whole(0)),
        "log_softmax" => f::log_softmax(g, x[0], a.whole(0)),
        "log_sum_exp" => f::log_sum_exp(g, x[0], &[a.whole(0)]),
        op => movement(g, op, a, x),
    }
}

/// Changes of shape and order, and constants.
fn movement(g: &mut Graph, op: &str, a: Args<'_>, x: &[Tensor]) -> Result {
    match op {
        "reshape" => g.reshape(x[0], &a.listed(0)),
        "flatten" => shape::flatten(g, x[0], a.whole(0)),
        "permute" => g.permute(x[0], &a.listed(0)),
        "transpose" => shape::transpose(g, x[0], a.whole(0), a.whole(1)),
        "unsqueeze" => shape::unsqueeze(g, x[0], a.whole(0)),
        "squeeze" => shape::squeeze(g, x[0], a.whole(0)),
        "expand" => g.expand(x[0], &a.listed(0)),
        "slice" => g.slice(x[0], a.whole(0), a.whole(1), a.whole(2)),
        "every" => shape::every(g, x[0], a.whole(0), a.whole(1)),
        "pad" => conv::pad_with(g, x[0], a.whole(0), [a.whole(1), a.whole(2)], a.number(3)),
        "flip" => shape::flip(g, x[0], a.whole(0)),
        "roll" => shape::roll(g, x[0], a.whole(0), a.signed(1)),
        "repeat" => shape::repeat(g, x[0], &a.listed(0)),
        "concat" => shape::concat(g, x, a.whole(0)),
        "stack" => shape::stack(g, x, a.whole(0)),
        "tril" => shape::tril(g, x[0], a.signed(0)),
        "triu" => shape::triu(g, x[0], a.signed(0)),
        "window" => {
            g.window(x[0], a.whole(0), Window { stride: a.whole(2), ..Window::of(a.whole(1)) })
        }
        "arange" => shape::arange(g, a.number(0), a.number(1), a.whole(2)),
        "full" => {
            let value = g.constant(a.number(0));
            g.expand(value, &a.listed(1))
        }
        "lower_triangle" => shape::lower_triangle(g, a.whole(0), a.whole(1), a.signed(2)),
        op => layer(g, op, a, x),
    }
}

/// Products, attention, convolutions and pooling.
fn layer(g: &mut Graph, op: &str, a: Args<'_>, x: &[Tensor]) -> Result {
    match op {
        "matmul" => f::matmul(g, x[0], x[1]),
        "linear" => {
            let weight = shape::transpose(g, x[1], 0, 1)?;
            let y = f::matmul(g, x[0], weight)?;
            f::add(g, y, x[2])
        }
        "attention" => layers::attention(g, x[0], x[1], x[2], a.whole(0) == 1),
        "conv" => conv::conv(g, x[0], x[1], None, &a.windows()),
        "conv_bias" => conv::conv(g, x[0], x[1], Some(x[2]), &a.windows()),
        "conv_transpose" => conv::conv_transpose(g, x[0], x[1], None, &a.windows(), a.whole(4)),
        "max_pool" | "avg_pool" => {
            let sizes = vec![a.whole(0); g.shape(x[0]).len() - 2];
            let w = Windows::stride(a.whole(1)).padded(a.whole(2));
            if op == "avg_pool" {
                return conv::avg_pool(g, x[0], &sizes, &w, a.whole(3) == 1);
            }
            conv::max_pool(g, x[0], &sizes, &Windows { dilation: vec![a.whole(3)], ..w })
        }
        "global_avg_pool" => conv::global_avg_pool(g, x[0]),
        op => indexed(g, op, a, x),
    }
}

/// Resampling, gather, scatter and sorting.
fn indexed(g: &mut Graph, op: &str, a: Args<'_>, x: &[Tensor]) -> Result {
    match op {
        "nearest" => conv::nearest(g, x[0], a.whole(0)),
        "linear_size" => {
            let mut y = x[0];
            for (axis, extent) in a.listed(1).into_iter().enumerate() {
                y = conv::linear(g, y, 2 + axis, extent, a.whole(0) == 1)?;
            }
            Ok(y)
        }
        "gather" | "embedding" => g.gather(x[0], &[x[1]]),
        "take" => shape::take(g, x[0], a.whole(0), x[1]),
        "gather_2" => g.gather(x[0], &[x[1], x[2]]),
        "scatter_add" => g.scatter_add(&[a.whole(0)], &[x[1]], x[0]),
        "one_hot" => shape::one_hot(g, x[0], a.whole(0)),
        "sort" => Ok(shape::sort(g, x[0], a.whole(0))?.1),
        "argsort" => Ok(shape::sort(g, x[0], a.whole(0))?.0),
        "top_k" => Ok(shape::top_k(g, x[0], a.whole(0), a.whole(1))?.1),
        "argmax" => shape::argmax(g, x[0], a.whole(0)),
        "cumsum" => shape::cumsum(g, x[0], a.whole(0)),
        op => norm_or_loss(g, op, a, x),
    }
}

/// Normalisation and losses.
fn norm_or_loss(g: &mut Graph, op: &str, a: Args<'_>, x: &[Tensor]) -> Result {
    match op {
        "batch_norm" => Ok(norm::batch_norm(g, x[0], x[1], x[2], a.number(0))?[0]),
        "batch_norm_by" => {
            let variance = f::square(g, x[2])?;
            norm::batch_norm_by(g, x[0], [x[1], variance], x[3], x[4], a.number(0))
        }
        "group_norm" => norm::group_norm(g, x[0], a.whole(1), x[1], x[2], a.number(0)),
        "layer_norm" => norm::layer_norm(g, x[0], 1, Some([x[1], x[2]]), a.number(0)),
        "layer_norm_2" => norm::layer_norm(g, x[0], 2, Some([x[1], x[2]]), a.number(0)),
        "rms_norm" => g.rms_norm(x[0], x[1], a.number(0)),
        "mse" => loss::mse(g, x[0], x[1]),
        "l1" => loss::l1(g, x[0], x[1]),
        "huber" => loss::huber(g, x[0], x[1], a.number(0)),
        "cross_entropy" => loss::cross_entropy(g, x[0], x[1], a.number(0)),
        "nll" => {
            let logs = f::log_softmax(g, x[0], 1)?;
            loss::nll(g, logs, x[1])
        }
        "bce_with_logits" => {
            let target = f::sigmoid(g, x[1])?;
            loss::bce_with_logits(g, x[0], target)
        }
        "kl_div" => {
            let last = g.shape(x[0]).len() - 1;
            let (logs, target) = (f::log_softmax(g, x[0], last)?, f::softmax(g, x[1], last)?);
            loss::kl_div(g, logs, target)
        }
        op => unreachable!("the suite has no operation `{op}`"),
    }
}

/// Returns 1 where `x > 0`, else 0.
fn positive(g: &mut Graph, x: Tensor) -> Result {
    let zero = g.constant(0.0);
    f::less(g, zero, x)
}
