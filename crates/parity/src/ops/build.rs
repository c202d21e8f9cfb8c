//! The graph of each operation of the suite, by the script's names.

use nn::conv::{self, Windows};
use nn::{functions as f, layers, loss, norm, shape};
use plan::graph::{Graph, Result, Tensor};
use plan::{Activation, Binary, DType, Reduce, Unary, Window};

/// The operation's result from its inputs.
pub(super) fn build(g: &mut Graph, op: &str, args: &[f64], x: &[Tensor]) -> Result {
    // Arguments as they are needed: the script's cases have them.
    let number = |i: usize| args[i] as f32;
    let whole = |i: usize| args[i] as usize;
    let signed = |i: usize| args[i] as isize;
    let axes = |g: &Graph| -> Vec<usize> {
        (0..g.shape(x[0]).len()).filter(|axis| whole(0) >> axis & 1 == 1).collect()
    };
    let listed = |from: usize| -> Vec<usize> { args[from..].iter().map(|v| *v as usize).collect() };
    let windows = || Windows {
        stride: vec![whole(0)],
        padding: vec![whole(1)],
        dilation: vec![whole(2)],
        groups: whole(3),
    };
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
        "powi" => f::powi(g, x[0], args[0] as i32),
        "plus" => f::plus(g, x[0], number(0)),
        "times" => f::times(g, x[0], number(0)),
        "clamp" => f::clamp(g, x[0], number(0), number(1)),
        "sigmoid" => f::sigmoid(g, x[0]),
        "tanh" => f::tanh(g, x[0]),
        "relu" => f::relu(g, x[0]),
        "relu6" => f::relu6(g, x[0]),
        "leaky_relu" => f::leaky_relu(g, x[0], number(0)),
        "elu" => f::elu(g, x[0], number(0)),
        "softplus" => f::softplus(g, x[0]),
        "silu" => g.activate(Activation::Silu, x[0]),
        "mish" => f::mish(g, x[0]),
        "hardswish" => f::hardswish(g, x[0]),
        "gelu" => f::gelu(g, x[0]),
        "gelu_tanh" => g.activate(Activation::Gelu, x[0]),
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
            shape::masked_fill(g, x[1], positive, number(0))
        }
        "lerp" => shape::lerp(g, x[0], x[1], x[2]),
        "int_and" => g.binary(Binary::And, x[0], x[1]),
        "int_or" => g.binary(Binary::Or, x[0], x[1]),
        "int_xor" => g.binary(Binary::Xor, x[0], x[1]),
        "int_shl" => {
            let by = g.constant(number(0));
            g.binary(Binary::ShiftLeft, x[0], by)
        }
        "int_shr" => {
            let (by, thousand) = (g.constant(number(0)), g.constant(1000.0));
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
        "sum" => f::sum(g, x[0], &axes(g)),
        "mean" => f::mean(g, x[0], &axes(g)),
        "amax" => f::amax(g, x[0], &axes(g)),
        "amin" => f::amin(g, x[0], &axes(g)),
        "var" => f::variance(g, x[0], &axes(g), number(1)),
        "total" => f::total(g, x[0]),
        "average" => f::average(g, x[0]),
        "softmax" => f::softmax(g, x[0], whole(0)),
        "log_softmax" => f::log_softmax(g, x[0], whole(0)),
        "log_sum_exp" => f::log_sum_exp(g, x[0], whole(0)),
        "reshape" => g.reshape(x[0], &listed(0)),
        "flatten" => shape::flatten(g, x[0], whole(0)),
        "permute" => g.permute(x[0], &listed(0)),
        "transpose" => shape::transpose(g, x[0], whole(0), whole(1)),
        "unsqueeze" => shape::unsqueeze(g, x[0], whole(0)),
        "squeeze" => shape::squeeze(g, x[0], whole(0)),
        "expand" => g.expand(x[0], &listed(0)),
        "slice" => g.slice(x[0], whole(0), whole(1), whole(2)),
        "every" => shape::every(g, x[0], whole(0), whole(1)),
        "pad" => conv::pad_with(g, x[0], whole(0), [whole(1), whole(2)], number(3)),
        "flip" => shape::flip(g, x[0], whole(0)),
        "roll" => shape::roll(g, x[0], whole(0), signed(1)),
        "repeat" => shape::repeat(g, x[0], &listed(0)),
        "concat" => shape::concat(g, x, whole(0)),
        "stack" => shape::stack(g, x, whole(0)),
        "tril" => shape::tril(g, x[0], signed(0)),
        "triu" => shape::triu(g, x[0], signed(0)),
        "window" => g.window(x[0], whole(0), Window { stride: whole(2), ..Window::of(whole(1)) }),
        "arange" => shape::arange(g, number(0), number(1), whole(2)),
        "full" => {
            let value = g.constant(number(0));
            g.expand(value, &listed(1))
        }
        "lower_triangle" => shape::lower_triangle(g, whole(0), whole(1), signed(2)),
        "matmul" => f::matmul(g, x[0], x[1]),
        "linear" => {
            let weight = shape::transpose(g, x[1], 0, 1)?;
            let y = f::matmul(g, x[0], weight)?;
            f::add(g, y, x[2])
        }
        "attention" => layers::attention(g, x[0], x[1], x[2], whole(0) == 1),
        "conv" => conv::conv(g, x[0], x[1], None, &windows()),
        "conv_bias" => conv::conv(g, x[0], x[1], Some(x[2]), &windows()),
        "conv_transpose" => conv::conv_transpose(g, x[0], x[1], None, &windows(), whole(4)),
        "max_pool" | "avg_pool" => {
            let sizes = vec![whole(0); g.shape(x[0]).len() - 2];
            let w = Windows::stride(whole(1)).padded(whole(2));
            if op == "avg_pool" {
                return conv::avg_pool(g, x[0], &sizes, &w, whole(3) == 1);
            }
            conv::max_pool(g, x[0], &sizes, &Windows { dilation: vec![whole(3)], ..w })
        }
        "global_avg_pool" => conv::global_avg_pool(g, x[0]),
        "nearest" => conv::nearest(g, x[0], whole(0)),
        "linear_size" => {
            let mut y = x[0];
            for (axis, extent) in listed(1).into_iter().enumerate() {
                y = conv::linear(g, y, 2 + axis, extent, whole(0) == 1)?;
            }
            Ok(y)
        }
        "gather" | "embedding" => g.gather(x[0], &[x[1]]),
        "take" => shape::take(g, x[0], whole(0), x[1]),
        "gather_2" => g.gather(x[0], &[x[1], x[2]]),
        "scatter_add" => g.scatter_add(&[whole(0)], &[x[1]], x[0]),
        "one_hot" => shape::one_hot(g, x[0], whole(0)),
        "sort" => Ok(shape::sort(g, x[0], whole(0))?.1),
        "argsort" => Ok(shape::sort(g, x[0], whole(0))?.0),
        "top_k" => Ok(shape::top_k(g, x[0], whole(0), whole(1))?.1),
        "argmax" => shape::argmax(g, x[0], whole(0)),
        "cumsum" => shape::cumsum(g, x[0], whole(0)),
        "batch_norm" => Ok(norm::batch_norm(g, x[0], x[1], x[2], number(0))?[0]),
        "batch_norm_by" => {
            let variance = f::square(g, x[2])?;
            norm::batch_norm_by(g, x[0], [x[1], variance], x[3], x[4], number(0))
        }
        "group_norm" => norm::group_norm(g, x[0], whole(1), x[1], x[2], number(0)),
        "layer_norm" => norm::layer_norm(g, x[0], 1, Some([x[1], x[2]]), number(0)),
        "layer_norm_2" => norm::layer_norm(g, x[0], 2, Some([x[1], x[2]]), number(0)),
        "rms_norm" => g.rms_norm(x[0], x[1], number(0)),
        "mse" => loss::mse(g, x[0], x[1]),
        "l1" => loss::l1(g, x[0], x[1]),
        "huber" => loss::huber(g, x[0], x[1], number(0)),
        "cross_entropy" => loss::cross_entropy(g, x[0], x[1], number(0)),
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

/// 1 where `x > 0`, else 0.
fn positive(g: &mut Graph, x: Tensor) -> Result {
    let zero = g.constant(0.0);
    f::less(g, zero, x)
}
