//! Elementwise functions, reductions, softmax and matrix products.

use std::f32::consts::FRAC_2_SQRT_PI;

use plan::graph::{Graph, Result, Tensor};
use plan::{Binary, Reduce, Unary};

pub fn add(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    g.binary(Binary::Add, a, b)
}

pub fn sub(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    g.binary(Binary::Sub, a, b)
}

pub fn mul(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    g.binary(Binary::Mul, a, b)
}

/// `a / b`, as `a * (1 / b)`; [`quotient`] is correctly rounded.
pub fn div(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    let inverse = g.unary(Unary::Recip, b)?;
    mul(g, a, inverse)
}

/// `a / b`, correctly rounded.
pub fn quotient(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    g.binary(Binary::Div, a, b)
}

/// `x + value`
pub fn plus(g: &mut Graph, x: Tensor, value: f32) -> Result {
    let value = g.constant(value);
    add(g, x, value)
}

/// `x * value`
pub fn times(g: &mut Graph, x: Tensor, value: f32) -> Result {
    let value = g.constant(value);
    mul(g, x, value)
}

pub fn neg(g: &mut Graph, x: Tensor) -> Result {
    g.unary(Unary::Neg, x)
}

pub fn exp(g: &mut Graph, x: Tensor) -> Result {
    g.unary(Unary::Exp, x)
}

/// Natural logarithm.
pub fn ln(g: &mut Graph, x: Tensor) -> Result {
    g.unary(Unary::Ln, x)
}

pub fn sqrt(g: &mut Graph, x: Tensor) -> Result {
    g.unary(Unary::Sqrt, x)
}

pub fn recip(g: &mut Graph, x: Tensor) -> Result {
    g.unary(Unary::Recip, x)
}

/// `1 / sqrt(x)`
pub fn rsqrt(g: &mut Graph, x: Tensor) -> Result {
    let root = sqrt(g, x)?;
    recip(g, root)
}

pub fn square(g: &mut Graph, x: Tensor) -> Result {
    mul(g, x, x)
}

/// `x` to an integer power, by squaring.
pub fn powi(g: &mut Graph, x: Tensor, power: i32) -> Result {
    let (mut square, mut left) = (x, power.unsigned_abs());
    let mut product = None;
    while left > 0 {
        if left & 1 == 1 {
            product = Some(match product {
                Some(product) => mul(g, product, square)?,
                None => square,
            });
        }
        left >>= 1;
        if left > 0 {
            square = mul(g, square, square)?;
        }
    }
    match product {
        Some(product) if power < 0 => recip(g, product),
        Some(product) => Ok(product),
        None => {
            let one = g.constant(1.0);
            let shape = g.shape(x).to_vec();
            g.expand(one, &shape)
        }
    }
}

pub fn maximum(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    g.binary(Binary::Max, a, b)
}

/// `min(a, b)`
pub fn minimum(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    let (a, b) = (neg(g, a)?, neg(g, b)?);
    let largest = maximum(g, a, b)?;
    neg(g, largest)
}

/// Clamps `x` to a range.
pub fn clamp(g: &mut Graph, x: Tensor, low: f32, high: f32) -> Result {
    let (low, high) = (g.constant(low), g.constant(high));
    let x = maximum(g, x, low)?;
    minimum(g, x, high)
}

/// 1 where `a <= b`, else 0.
pub fn less_equal(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    g.binary(Binary::LessEqual, a, b)
}

/// 1 where `a < b`, else 0.
pub fn less(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    g.binary(Binary::Less, a, b)
}

/// 1 where `a == b`, else 0.
pub fn equal(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    g.binary(Binary::Equal, a, b)
}

/// 1 where a mask is 0, 0 where it is 1.
pub fn not_of(g: &mut Graph, mask: Tensor) -> Result {
    let one = g.constant(1.0);
    sub(g, one, mask)
}

/// -1 or 1; zeroes and NaN stay.
pub fn sign(g: &mut Graph, x: Tensor) -> Result {
    let (zero, one, minus) = (g.constant(0.0), g.constant(1.0), g.constant(-1.0));
    let (above, below) = (less(g, zero, x)?, less(g, x, zero)?);
    let rest = g.select(above, one, x)?;
    g.select(below, minus, rest)
}

/// Absolute value.
pub fn abs(g: &mut Graph, x: Tensor) -> Result {
    let negative = neg(g, x)?;
    maximum(g, x, negative)
}

pub fn floor(g: &mut Graph, x: Tensor) -> Result {
    g.unary(Unary::Floor, x)
}

pub fn ceil(g: &mut Graph, x: Tensor) -> Result {
    let negative = neg(g, x)?;
    let floor = floor(g, negative)?;
    neg(g, floor)
}

/// Rounds towards 0.
pub fn trunc(g: &mut Graph, x: Tensor) -> Result {
    let zero = g.constant(0.0);
    let (negative, up, down) = (less(g, x, zero)?, ceil(g, x)?, floor(g, x)?);
    g.select(negative, up, down)
}

/// Nearest integer, ties to even.
pub fn round(g: &mut Graph, x: Tensor) -> Result {
    g.unary(Unary::Round, x)
}

/// Remainder of floored division; it has the sign of `b`.
pub fn remainder(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    let quotient = div(g, a, b)?;
    let whole = floor(g, quotient)?;
    let taken = mul(g, whole, b)?;
    sub(g, a, taken)
}

/// `sin(x) / cos(x)`
pub fn tan(g: &mut Graph, x: Tensor) -> Result {
    let (sine, cosine) = (g.unary(Unary::Sin, x)?, g.unary(Unary::Cos, x)?);
    quotient(g, sine, cosine)
}

/// `1 / (1 + exp(-x))`
pub fn sigmoid(g: &mut Graph, x: Tensor) -> Result {
    let negative = neg(g, x)?;
    let exp = exp(g, negative)?;
    let sum = plus(g, exp, 1.0)?;
    recip(g, sum)
}

/// Hyperbolic tangent.
pub fn tanh(g: &mut Graph, x: Tensor) -> Result {
    g.unary(Unary::Tanh, x)
}

/// `ln(1 + x)`, accurate near 0: the logarithm of the rounded sum, times what rounding took from it.
/// Kahan, "Interval arithmetic options in the proposed IEEE standard", 1980.
pub fn ln_1p(g: &mut Graph, x: Tensor) -> Result {
    let one = g.constant(1.0);
    let sum = add(g, x, one)?;
    let (nothing, whole) = (equal(g, sum, one)?, equal(g, sum, x)?);
    let added = sub(g, sum, one)?;
    // Unused branches stay finite: their gradients are multiplied by 0.
    let unused = maximum(g, nothing, whole)?;
    let added = g.select(unused, one, added)?;
    let (ratio, ln) = (quotient(g, x, added)?, ln(g, sum)?);
    let near = mul(g, ln, ratio)?;
    let far = g.select(whole, ln, near)?;
    g.select(nothing, x, far)
}

/// The error function, accurate to 1.5e-7, and near 0 to a few units in the last place: a Taylor
/// polynomial, and Abramowitz and Stegun, formula 7.1.26.
pub fn erf(g: &mut Graph, x: Tensor) -> Result {
    const SERIES: [f32; 6] = [
        -8.548_327e-4,
        5.223_977_5e-3,
        -2.686_617e-2,
        1.128_379_2e-1,
        -3.761_264e-1,
        FRAC_2_SQRT_PI,
    ];
    let far = erf_far(g, x)?;
    let (size, square) = (abs(g, x)?, square(g, x)?);
    let mut p = times(g, square, SERIES[0])?;
    for k in &SERIES[1..5] {
        p = plus(g, p, *k)?;
        p = mul(g, p, square)?;
    }
    let p = plus(g, p, SERIES[5])?;
    let (near, bound) = (mul(g, x, p)?, g.constant(0.5));
    let small = less(g, size, bound)?;
    g.select(small, near, far)
}

/// [`erf`] with an absolute error of 1.5e-7 everywhere.
fn erf_far(g: &mut Graph, x: Tensor) -> Result {
    const COEFFICIENTS: [f32; 5] =
        [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
    let (sign, size) = (sign(g, x)?, abs(g, x)?);
    let t = times(g, size, 0.327_591_1)?;
    let t = plus(g, t, 1.0)?;
    let t = recip(g, t)?;
    let mut p = times(g, t, COEFFICIENTS[0])?;
    for k in &COEFFICIENTS[1..] {
        p = plus(g, p, *k)?;
        p = mul(g, p, t)?;
    }
    let square = square(g, x)?;
    let square = neg(g, square)?;
    let bell = exp(g, square)?;
    let rest = mul(g, p, bell)?;
    let inside = not_of(g, rest)?;
    mul(g, inside, sign)
}

/// `max(x, 0)`, with the gradient 0 at 0.
pub fn relu(g: &mut Graph, x: Tensor) -> Result {
    let zero = g.constant(0.0);
    let below = less_equal(g, x, zero)?;
    g.select(below, zero, x)
}

/// `x` if positive, else `slope * x`.
pub fn leaky_relu(g: &mut Graph, x: Tensor, slope: f32) -> Result {
    let zero = g.constant(0.0);
    let (below, small) = (less_equal(g, x, zero)?, times(g, x, slope)?);
    g.select(below, small, x)
}

/// `x` clamped to 0..6.
pub fn relu6(g: &mut Graph, x: Tensor) -> Result {
    let (low, six) = (relu(g, x)?, g.constant(6.0));
    minimum(g, low, six)
}

/// `x` if positive, else `alpha * (exp(x) - 1)`.
pub fn elu(g: &mut Graph, x: Tensor, alpha: f32) -> Result {
    let zero = g.constant(0.0);
    let below = less_equal(g, x, zero)?;
    // Clamps positive inputs: an infinite unused branch would make the gradient NaN.
    let small = minimum(g, x, zero)?;
    let small = exp(g, small)?;
    let small = plus(g, small, -1.0)?;
    let small = times(g, small, alpha)?;
    g.select(below, small, x)
}

/// `ln(1 + exp(x))`, as `max(x, 0) + ln(1 + exp(-|x|))`.
pub fn softplus(g: &mut Graph, x: Tensor) -> Result {
    let size = abs(g, x)?;
    let size = neg(g, size)?;
    let rest = exp(g, size)?;
    let rest = ln_1p(g, rest)?;
    let positive = relu(g, x)?;
    add(g, positive, rest)
}

/// `x * sigmoid(x)`
pub fn silu(g: &mut Graph, x: Tensor) -> Result {
    let open = sigmoid(g, x)?;
    mul(g, x, open)
}

/// `x * tanh(softplus(x))`
pub fn mish(g: &mut Graph, x: Tensor) -> Result {
    let soft = softplus(g, x)?;
    let soft = tanh(g, soft)?;
    mul(g, x, soft)
}

/// `x * relu6(x + 3) / 6`
pub fn hardswish(g: &mut Graph, x: Tensor) -> Result {
    let shifted = plus(g, x, 3.0)?;
    let open = relu6(g, shifted)?;
    let open = times(g, open, 1.0 / 6.0)?;
    mul(g, x, open)
}

/// GELU by the error function: `x / 2 * (1 + erf(x / sqrt(2)))`.
pub fn gelu(g: &mut Graph, x: Tensor) -> Result {
    let scaled = times(g, x, std::f32::consts::FRAC_1_SQRT_2)?;
    let erf = erf_far(g, scaled)?;
    let open = plus(g, erf, 1.0)?;
    let half = times(g, x, 0.5)?;
    mul(g, half, open)
}

/// Sum over `axes`, which stay with extent 1.
pub fn sum(g: &mut Graph, x: Tensor, axes: &[usize]) -> Result {
    axes.iter().try_fold(x, |x, &axis| g.reduce(Reduce::Sum, x, axis))
}

/// Largest over `axes`, which stay with extent 1.
pub fn amax(g: &mut Graph, x: Tensor, axes: &[usize]) -> Result {
    axes.iter().try_fold(x, |x, &axis| g.reduce(Reduce::Max, x, axis))
}

/// Smallest over `axes`, which stay with extent 1.
pub fn amin(g: &mut Graph, x: Tensor, axes: &[usize]) -> Result {
    let negative = neg(g, x)?;
    let largest = amax(g, negative, axes)?;
    neg(g, largest)
}

/// Number of elements along `axes`.
fn extent(g: &Graph, x: Tensor, axes: &[usize]) -> f32 {
    axes.iter().filter_map(|axis| g.shape(x).get(*axis)).product::<usize>() as f32
}

/// Mean over `axes`, which stay with extent 1.
pub fn mean(g: &mut Graph, x: Tensor, axes: &[usize]) -> Result {
    let count = extent(g, x, axes);
    let sum = sum(g, x, axes)?;
    times(g, sum, 1.0 / count)
}

/// Variance over `axes`: the sum of squared deviations over `count - correction`.
pub fn variance(g: &mut Graph, x: Tensor, axes: &[usize], correction: f32) -> Result {
    let count = extent(g, x, axes) - correction;
    let mean = mean(g, x, axes)?;
    let apart = sub(g, x, mean)?;
    let squares = square(g, apart)?;
    let sum = sum(g, squares, axes)?;
    times(g, sum, 1.0 / count)
}

/// Sum of all elements, of shape `[1]`.
pub fn total(g: &mut Graph, x: Tensor) -> Result {
    let count = g.shape(x).iter().product();
    let flat = g.reshape(x, &[count])?;
    sum(g, flat, &[0])
}

/// Mean of all elements, of shape `[1]`.
pub fn average(g: &mut Graph, x: Tensor) -> Result {
    let count = g.shape(x).iter().product::<usize>();
    let total = total(g, x)?;
    times(g, total, 1.0 / count as f32)
}

/// `exp(x) / sum(exp(x))` along an axis.
pub fn softmax(g: &mut Graph, x: Tensor, axis: usize) -> Result {
    let largest = amax(g, x, &[axis])?;
    let shifted = sub(g, x, largest)?;
    let weights = exp(g, shifted)?;
    let sum = sum(g, weights, &[axis])?;
    div(g, weights, sum)
}

/// Logarithm of [`softmax`].
pub fn log_softmax(g: &mut Graph, x: Tensor, axis: usize) -> Result {
    let largest = amax(g, x, &[axis])?;
    let shifted = sub(g, x, largest)?;
    let weights = exp(g, shifted)?;
    let sum = sum(g, weights, &[axis])?;
    let sum = ln(g, sum)?;
    sub(g, shifted, sum)
}

/// `ln(sum(exp(x)))` over `axes`, which stay with extent 1; minus infinity if all elements are.
pub fn log_sum_exp(g: &mut Graph, x: Tensor, axes: &[usize]) -> Result {
    let largest = amax(g, x, axes)?;
    // An infinity minus itself would be NaN.
    let largest = clamp(g, largest, f32::MIN, f32::MAX)?;
    let shifted = sub(g, x, largest)?;
    let weights = exp(g, shifted)?;
    let sum = sum(g, weights, axes)?;
    let sum = ln(g, sum)?;
    add(g, sum, largest)
}

/// `a [.., M, K]` times `b [.., K, N]`: `[.., M, N]`; leading axes are broadcast.
pub fn matmul(g: &mut Graph, a: Tensor, b: Tensor) -> Result {
    let rank = g.shape(a).len().max(g.shape(b).len()).max(2);
    let heads = |shape: &[usize], axis: usize| {
        (axis + shape.len()).checked_sub(rank).map_or(1, |i| shape[i])
    };
    let lead: Vec<usize> =
        (0..rank - 2).map(|i| heads(g.shape(a), i).max(heads(g.shape(b), i))).collect();
    let mut wide = |x: Tensor| {
        let own = g.shape(x).to_vec();
        let tail = &own[own.len().saturating_sub(2)..];
        g.expand(x, &[&lead[..], tail].concat())
    };
    let (a, b) = (wide(a)?, wide(b)?);
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    let columns = g.permute(b, &axes)?;
    g.matmul(a, columns)
}
