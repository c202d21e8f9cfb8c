//! Elementwise operators: arithmetic, comparisons, activations.

use nn::functions::{self as f, add, mul, plus, quotient, sub, times};
use plan::graph::{Graph, Tensor};
use plan::{Binary, DType};

use super::cast::wrapped;
use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("Abs", magnitude),
    ("Acos", unary),
    ("Acosh", unary),
    ("Add", binary),
    ("And", logic),
    ("Asin", unary),
    ("Asinh", unary),
    ("Atan", unary),
    ("Atanh", unary),
    ("BitShift", bits),
    ("BitwiseAnd", bits),
    ("BitwiseNot", bits),
    ("BitwiseOr", bits),
    ("BitwiseXor", bits),
    ("Ceil", unary),
    ("Celu", unary),
    ("Clip", clip),
    ("Cos", unary),
    ("Cosh", unary),
    ("Div", binary),
    ("Dropout", dropout),
    ("Elu", unary),
    ("Equal", compare),
    ("Erf", unary),
    ("Exp", unary),
    ("Floor", unary),
    ("Gelu", unary),
    ("Greater", compare),
    ("GreaterOrEqual", compare),
    ("HardSigmoid", unary),
    ("HardSwish", unary),
    ("Identity", identity),
    ("IsInf", unary_truth),
    ("IsNaN", unary_truth),
    ("LeakyRelu", unary),
    ("Less", compare),
    ("LessOrEqual", compare),
    ("Log", unary),
    ("Max", many),
    ("Mean", many),
    ("Min", many),
    ("Mish", unary),
    ("Mod", remainder),
    ("Mul", binary),
    ("Neg", negative),
    ("Not", logic),
    ("Or", logic),
    ("PRelu", prelu),
    ("Pow", power),
    ("Reciprocal", unary),
    ("Relu", relu),
    ("Round", unary),
    ("Selu", unary),
    ("Shrink", unary),
    ("Sigmoid", unary),
    ("Sign", sign),
    ("Sin", unary),
    ("Sinh", unary),
    ("Softplus", unary),
    ("Softsign", unary),
    ("Sqrt", unary),
    ("Sub", binary),
    ("Sum", many),
    ("SwiGLU", gated),
    ("Swish", unary),
    ("Tan", unary),
    ("Tanh", unary),
    ("ThresholdedRelu", unary),
    ("Where", choose),
    ("Xor", logic),
];

/// Element type of a node's first input.
fn elem(node: &Node<'_>) -> NodeResult<Elem> {
    Ok(node.input(0)?.elem())
}

fn unary(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let x = im.float(node.input(0)?)?;
    let made = function(&mut im.g, node, x)?;
    Ok(device(elem, made))
}

fn function(g: &mut Graph, node: &Node<'_>, x: Tensor) -> NodeResult<Tensor> {
    let of = |name: &str, default: f32| node.float(name, default);
    Ok(match node.op() {
        "Acos" => {
            let asin = arcsine(g, x)?;
            let negative = f::neg(g, asin)?;
            plus(g, negative, std::f32::consts::FRAC_PI_2)?
        }
        "Acosh" => {
            let above = plus(g, x, -1.0)?;
            let twice = plus(g, x, 1.0)?;
            let square = mul(g, above, twice)?;
            let root = f::sqrt(g, square)?;
            let near = add(g, above, root)?;
            let made = area(g, x, near)?;
            let (one, nan) = (g.constant(1.0), g.constant(f32::NAN));
            let below = f::less(g, x, one)?;
            g.select(below, nan, made)?
        }
        "Asin" => arcsine(g, x)?,
        "Asinh" => {
            // |x| + x^2 / (1 + sqrt(x^2 + 1)), without cancellation.
            let (size, sign, square) = (f::abs(g, x)?, f::sign(g, x)?, f::square(g, x)?);
            let inner = plus(g, square, 1.0)?;
            let root = f::sqrt(g, inner)?;
            let below = plus(g, root, 1.0)?;
            let rest = quotient(g, square, below)?;
            let near = add(g, size, rest)?;
            let made = area(g, size, near)?;
            mul(g, made, sign)?
        }
        "Atan" => arctangent(g, x)?,
        "Atanh" => {
            let (twice, negative) = (times(g, x, 2.0)?, f::neg(g, x)?);
            let below = plus(g, negative, 1.0)?;
            let ratio = quotient(g, twice, below)?;
            let ln = f::ln_1p(g, ratio)?;
            times(g, ln, 0.5)?
        }
        "Ceil" => f::ceil(g, x)?,
        "Celu" => {
            let alpha = of("alpha", 1.0);
            let scaled = times(g, x, 1.0 / alpha)?;
            let made = f::elu(g, scaled, 1.0)?;
            times(g, made, alpha)?
        }
        "Cos" => g.unary(plan::Unary::Cos, x)?,
        "Cosh" => hyperbolic(g, x, false)?,
        "Elu" => f::elu(g, x, of("alpha", 1.0))?,
        "Erf" => f::erf(g, x)?,
        "Exp" => f::exp(g, x)?,
        "Floor" => f::floor(g, x)?,
        "Gelu" if node.text("approximate", "none")? == "tanh" => {
            // x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
            let squared = f::square(g, x)?;
            let inner = times(g, squared, 0.071_354_814)?;
            let inner = plus(g, inner, 1.595_769)?;
            let angle = mul(g, inner, x)?;
            let open = f::sigmoid(g, angle)?;
            mul(g, x, open)?
        }
        "Gelu" => f::gelu(g, x)?,
        "HardSigmoid" => {
            let scaled = times(g, x, of("alpha", 0.2))?;
            let moved = plus(g, scaled, of("beta", 0.5))?;
            f::clamp(g, moved, 0.0, 1.0)?
        }
        "HardSwish" => f::hardswish(g, x)?,
        "LeakyRelu" => f::leaky_relu(g, x, of("alpha", 0.01))?,
        "Log" => f::ln(g, x)?,
        "Mish" => f::mish(g, x)?,
        "Reciprocal" => f::recip(g, x)?,
        "Round" => f::round(g, x)?,
        "Selu" => {
            let (alpha, gamma) = (of("alpha", 1.673_263_2), of("gamma", 1.050_701));
            let made = f::elu(g, x, alpha)?;
            times(g, made, gamma)?
        }
        "Shrink" => {
            let (bias, bound) = (of("bias", 0.0), of("lambd", 0.5));
            let (low, high, zero) = (g.constant(-bound), g.constant(bound), g.constant(0.0));
            let (below, above) = (f::less(g, x, low)?, f::less(g, high, x)?);
            let (up, down) = (plus(g, x, bias)?, plus(g, x, -bias)?);
            let rest = g.select(above, down, zero)?;
            g.select(below, up, rest)?
        }
        "Sigmoid" => f::sigmoid(g, x)?,
        "Sin" => g.unary(plan::Unary::Sin, x)?,
        "Sinh" => hyperbolic(g, x, true)?,
        "Softplus" => f::softplus(g, x)?,
        "Softsign" => {
            let size = f::abs(g, x)?;
            let below = plus(g, size, 1.0)?;
            quotient(g, x, below)?
        }
        "Sqrt" => f::sqrt(g, x)?,
        "Swish" => {
            let scaled = times(g, x, of("alpha", 1.0))?;
            let open = f::sigmoid(g, scaled)?;
            mul(g, x, open)?
        }
        "Tan" => f::tan(g, x)?,
        "Tanh" => f::tanh(g, x)?,
        "ThresholdedRelu" => {
            let (bound, zero) = (g.constant(of("alpha", 1.0)), g.constant(0.0));
            let open = f::less(g, bound, x)?;
            g.select(open, x, zero)?
        }
        op => unreachable!("{op} is in the table of functions of one operand"),
    })
}

/// Gated linear unit (`SwiGLU`).
fn gated(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let (gate, x) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let g = &mut im.g;
    let scaled = times(g, gate, node.float("alpha", 1.0))?;
    let open = f::sigmoid(g, scaled)?;
    let gate = mul(g, gate, open)?;
    Ok(device(elem, mul(g, gate, x)?))
}

/// `ln(1 + near)`, and for large `x`, whose square may overflow, `ln(x) + ln 2`.
fn area(g: &mut Graph, x: Tensor, near: Tensor) -> NodeResult<Tensor> {
    let near = f::ln_1p(g, near)?;
    let far = f::ln(g, x)?;
    let far = plus(g, far, std::f32::consts::LN_2)?;
    let bound = g.constant(1e4);
    let large = f::less(g, bound, x)?;
    Ok(g.select(large, far, near)?)
}

/// `(e^x - e^-x) / 2` if `odd`, else `(e^x + e^-x) / 2`. Squares of `e^(x/2)` overflow no earlier
/// than the result; near 0, the odd function is a Taylor polynomial.
fn hyperbolic(g: &mut Graph, x: Tensor, odd: bool) -> NodeResult<Tensor> {
    let half = |g: &mut Graph, by: f32| -> NodeResult<Tensor> {
        let angle = times(g, x, by)?;
        let root = f::exp(g, angle)?;
        let halved = times(g, root, 0.5)?;
        Ok(mul(g, halved, root)?)
    };
    let (up, down) = (half(g, 0.5)?, half(g, -0.5)?);
    if !odd {
        return Ok(add(g, up, down)?);
    }
    let far = sub(g, up, down)?;
    let square = f::square(g, x)?;
    let mut series = g.constant(1.0);
    for k in [72.0, 42.0, 20.0, 6.0] {
        let scaled = times(g, square, 1.0 / k)?;
        series = mul(g, series, scaled)?;
        series = plus(g, series, 1.0)?;
    }
    let (near, size, bound) = (mul(g, x, series)?, f::abs(g, x)?, g.constant(1.0));
    let small = f::less(g, size, bound)?;
    Ok(g.select(small, near, far)?)
}

/// `atan(x / sqrt((1 - x) (1 + x)))`
fn arcsine(g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
    let (negative, above) = (f::neg(g, x)?, plus(g, x, 1.0)?);
    let below = plus(g, negative, 1.0)?;
    let inner = mul(g, below, above)?;
    let root = f::sqrt(g, inner)?;
    let ratio = quotient(g, x, root)?;
    arctangent(g, ratio)
}

/// For magnitudes above 1, a quarter turn minus the angle of the inverse; below, a polynomial of
/// degree 17 (Abramowitz and Stegun 4.4.49, error 2e-8).
fn arctangent(g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
    const SERIES: [f32; 8] = [
        0.002_866_225_7,
        -0.016_165_737,
        0.042_909_614,
        -0.075_289_64,
        0.106_562_64,
        -0.142_089,
        0.199_935_51,
        -0.333_331_45,
    ];
    let (size, sign) = (f::abs(g, x)?, f::sign(g, x)?);
    let one = g.constant(1.0);
    let wide = f::less(g, one, size)?;
    let inverse = f::recip(g, size)?;
    let small = g.select(wide, inverse, size)?;
    let squared = f::square(g, small)?;
    let mut series = times(g, squared, SERIES[0])?;
    for factor in &SERIES[1..] {
        series = plus(g, series, *factor)?;
        series = mul(g, series, squared)?;
    }
    let series = plus(g, series, 1.0)?;
    let angle = mul(g, series, small)?;
    let negative = f::neg(g, angle)?;
    let rest = plus(g, negative, std::f32::consts::FRAC_PI_2)?;
    let angle = g.select(wide, rest, angle)?;
    Ok(mul(g, angle, sign)?)
}

fn unary_truth(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = im.float(node.input(0)?)?;
    let g = &mut im.g;
    let made = if node.op() == "IsNaN" {
        // A NaN does not equal itself.
        let own = f::equal(g, x, x)?;
        f::not_of(g, own)?
    } else {
        let mut made = g.constant(0.0);
        for (name, end) in
            [("detect_positive", f32::INFINITY), ("detect_negative", f32::NEG_INFINITY)]
        {
            let end = g.constant(if node.integer(name, 1) != 0 { end } else { f32::NAN });
            let found = f::equal(g, x, end)?;
            made = f::maximum(g, found, made)?;
        }
        made
    };
    Ok(device(Elem::Bool, made))
}

fn identity(_: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    Ok(vec![node.input(0)?.clone()])
}

/// Inference mode: returns the input, and a mask of ones.
fn dropout(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    node.ignore(&["ratio", "seed", "is_test"]);
    if let Some(training) = node.optional(2)
        && !matches!(training, Value::Known(known) if known.scalar() == Some(0.0))
    {
        return Err("training is not supported".into());
    }
    let x = node.input(0)?.clone();
    let shape = im.shape(&x);
    let one = im.g.constant(1.0);
    let mask = im.g.expand(one, &shape)?;
    Ok(vec![x, Value::Device { elem: Elem::Bool, tensor: mask }])
}

/// Loads both operands to the device; a known scalar stays a constant.
fn operands(im: &mut Import, node: &Node<'_>) -> NodeResult<[Tensor; 2]> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let first = im.tensor(a)?;
    // Integers may have a constant as the second operand only.
    let second = match b {
        Value::Known(known) if known.elem.is_integer() => match known.scalar() {
            Some(value) if known.shape().len() <= im.g.shape(first).len() && is_exact(value) => {
                im.g.constant(value as f32)
            }
            _ => im.tensor(b)?,
        },
        _ => im.tensor(b)?,
    };
    Ok([first, second])
}

/// True if `f32` represents the integer.
fn is_exact(value: f64) -> bool {
    f64::from(value as f32) == value && value.abs() <= 2_147_483_520.0
}

fn binary(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    if node.opset < 7 {
        return Err("opsets before 7 are not supported: they broadcast differently".into());
    }
    let elem = elem(node)?;
    let [a, b] = operands(im, node)?;
    let made = arithmetic(&mut im.g, node.op(), a, b)?;
    let made = wrapped(&mut im.g, elem, made)?;
    Ok(device(elem, made))
}

fn arithmetic(g: &mut Graph, op: &str, a: Tensor, b: Tensor) -> NodeResult<Tensor> {
    Ok(match op {
        "Add" => g.binary(Binary::Add, a, b)?,
        "Sub" => g.binary(Binary::Sub, a, b)?,
        "Mul" => g.binary(Binary::Mul, a, b)?,
        "Div" => quotient(g, a, b)?,
        op => unreachable!("{op} is in the table of functions of two operands"),
    })
}

fn many(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let mut all = Vec::new();
    for place in 0..node.inputs.len() {
        all.push(im.tensor(node.input(place)?)?);
    }
    let count = all.len() as f32;
    let mut all = all.into_iter();
    let Some(mut made) = all.next() else { return Err("no inputs".into()) };
    let g = &mut im.g;
    for x in all {
        made = match node.op() {
            "Max" => g.binary(Binary::Max, made, x)?,
            "Min" => smaller(g, made, x)?,
            _ => add(g, made, x)?,
        };
    }
    if node.op() == "Mean" {
        made = times(g, made, 1.0 / count)?;
    }
    Ok(device(elem, made))
}

/// `min(a, b)`, also for integers.
pub(super) fn smaller(g: &mut Graph, a: Tensor, b: Tensor) -> NodeResult<Tensor> {
    let (a, b) = (reversed(g, a)?, reversed(g, b)?);
    let largest = g.binary(Binary::Max, a, b)?;
    reversed(g, largest)
}

/// Numbers in reverse order: `-x`, or for integers `-1 - x`, which does not overflow.
pub(super) fn reversed(g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
    if g.dtype(x) == DType::F32 {
        return Ok(f::neg(g, x)?);
    }
    let all = g.constant(-1.0);
    Ok(g.binary(Binary::Xor, x, all)?)
}

/// `-x`, also for integers.
fn opposite(g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
    if g.dtype(x) == DType::F32 {
        return Ok(f::neg(g, x)?);
    }
    let minus = g.constant(-1.0);
    Ok(g.binary(Binary::Mul, x, minus)?)
}

fn negative(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let x = im.tensor(node.input(0)?)?;
    let made = opposite(&mut im.g, x)?;
    Ok(device(elem, made))
}

fn magnitude(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let x = im.tensor(node.input(0)?)?;
    let other = opposite(&mut im.g, x)?;
    let made = im.g.binary(Binary::Max, x, other)?;
    Ok(device(elem, made))
}

fn sign(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let x = im.float(node.input(0)?)?;
    let mut made = f::sign(&mut im.g, x)?;
    if elem.is_integer() {
        made = im.g.cast(made, DType::I32)?;
    }
    Ok(device(elem, made))
}

fn relu(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let x = im.tensor(node.input(0)?)?;
    let zero = im.g.constant(0.0);
    let made = im.g.binary(Binary::Max, x, zero)?;
    Ok(device(elem, made))
}

fn prelu(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let (x, slope) = (im.tensor(node.input(0)?)?, im.tensor(node.input(1)?)?);
    let g = &mut im.g;
    let zero = g.constant(0.0);
    let below = f::less(g, x, zero)?;
    let scaled = mul(g, x, slope)?;
    let made = g.select(below, scaled, x)?;
    let made = wrapped(g, elem, made)?;
    Ok(device(elem, made))
}

fn clip(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let mut x = im.tensor(node.input(0)?)?;
    let of = |im: &mut Import, place: usize, name: &str| -> NodeResult<Option<Tensor>> {
        // A bound that is NaN, or that no 32-bit integer reaches, has no effect.
        let reached = |value: &&Value| match value {
            Value::Known(known) => known.scalar().is_none_or(|bound| match elem.is_integer() {
                true if place == 1 => bound > f64::from(i32::MIN),
                true => bound < f64::from(i32::MAX),
                false => !bound.is_nan(),
            }),
            Value::Device { .. } => true,
        };
        match (node.optional(place).filter(reached), node.float_if(name)) {
            (Some(value), _) => im.tensor(value).map(Some),
            (None, Some(value)) => Ok(Some(im.g.constant(value))),
            (None, None) => Ok(None),
        }
    };
    if let Some(low) = of(im, 1, "min")? {
        x = im.g.binary(Binary::Max, x, low)?;
    }
    if let Some(high) = of(im, 2, "max")? {
        x = smaller(&mut im.g, x, high)?;
    }
    Ok(device(elem, x))
}

fn remainder(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let like_c = node.flag("fmod");
    let [a, b] = operands(im, node)?;
    let g = &mut im.g;
    let left = g.binary(Binary::Rem, a, b)?;
    if like_c {
        return Ok(device(elem, left));
    }
    // Adds the divisor if the remainder is not zero and has the other sign.
    let zero = g.constant(0.0);
    let (below, above) = (f::less(g, left, zero)?, f::less_equal(g, left, zero)?);
    let above = f::not_of(g, above)?;
    let moved = g.binary(Binary::Add, left, b)?;
    let shape = g.shape(left).to_vec();
    let b = g.expand(b, &shape)?;
    let (low, high) = (f::less_equal(g, b, zero)?, f::less(g, b, zero)?);
    let low = f::not_of(g, low)?;
    let (up, down) = (mul(g, below, low)?, mul(g, above, high)?);
    let moves = f::maximum(g, up, down)?;
    Ok(device(elem, g.select(moves, moved, left)?))
}

fn power(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let (base, exponent) = (node.input(0)?, node.input(1)?);
    let uniform = match exponent {
        Value::Known(known) => {
            known.uniform().filter(|_| known.shape().len() <= im.shape(base).len())
        }
        Value::Device { .. } => None,
    };
    let whole = uniform.filter(|power| *power == power.trunc() && power.abs() <= 64.0);
    if elem.is_integer() {
        let x = im.tensor(base)?;
        let made = match whole {
            Some(power) if power > 0.0 => f::powi(&mut im.g, x, power as i32)?,
            _ if exponent.elem().is_integer() => {
                let exponent = im.tensor(exponent)?;
                integer_power(&mut im.g, x, exponent)?
            }
            _ => {
                let (x, exponent) = (im.float(base)?, im.float(exponent)?);
                let made = general_power(&mut im.g, x, exponent)?;
                // Powers of integers are at least as large as a logarithm's error lets them seem.
                let made = times(&mut im.g, made, 1.0 + 1e-6)?;
                im.g.cast(made, DType::I32)?
            }
        };
        let made = wrapped(&mut im.g, elem, made)?;
        return Ok(device(elem, made));
    }
    let x = im.float(base)?;
    let made = match (whole, uniform) {
        (Some(power), _) => f::powi(&mut im.g, x, power as i32)?,
        (None, Some(0.5)) => f::sqrt(&mut im.g, x)?,
        _ => {
            let exponent = im.float(exponent)?;
            general_power(&mut im.g, x, exponent)?
        }
    };
    Ok(device(elem, made))
}

/// `x^y` of integers, exact as far as 32 bits represent it: squares for the bits of the exponent.
/// Powers below 1 are 0.
fn integer_power(g: &mut Graph, x: Tensor, y: Tensor) -> NodeResult<Tensor> {
    let (zero, one, minus) = (g.constant(0.0), g.constant(1.0), g.constant(-1.0));
    let shape = {
        let sum = g.binary(Binary::Add, x, y)?;
        g.shape(sum).to_vec()
    };
    let (x, y) = (g.expand(x, &shape)?, g.expand(y, &shape)?);
    let ones = g.expand(one, &shape)?;
    let ones = g.cast(ones, DType::I32)?;
    let (mut made, mut square) = (ones, x);
    for bit in 0..5u8 {
        let place = g.constant(f32::from(bit));
        let moved = g.binary(Binary::ShiftRight, y, place)?;
        let set = g.binary(Binary::And, moved, one)?;
        let set = g.cast(set, DType::F32)?;
        let product = mul(g, made, square)?;
        made = g.select(set, product, made)?;
        square = mul(g, square, square)?;
    }
    // From the 32nd power on, and below the first, only 1 and -1 remain within 32 bits.
    let (odd, past) = (g.binary(Binary::And, y, one)?, g.constant(31.0));
    let odd = g.cast(odd, DType::F32)?;
    let (below, small) = (f::less(g, y, zero)?, f::less_equal(g, y, past)?);
    let large = f::not_of(g, small)?;
    let outside = f::maximum(g, below, large)?;
    let (is_one, is_minus) = (f::equal(g, x, one)?, f::equal(g, x, minus)?);
    let nothing = g.binary(Binary::Sub, ones, ones)?;
    let opposite = g.binary(Binary::Mul, ones, minus)?;
    let turned = g.select(odd, opposite, ones)?;
    let rest = g.select(is_minus, turned, nothing)?;
    let rest = g.select(is_one, ones, rest)?;
    Ok(g.select(outside, rest, made)?)
}

/// `x^y` as C's `pow` has it: 1 for `y = 0`, negative for a negative `x` and an odd `y`, NaN for a
/// negative `x` and a fraction.
fn general_power(g: &mut Graph, x: Tensor, y: Tensor) -> NodeResult<Tensor> {
    let (zero, one, two) = (g.constant(0.0), g.constant(1.0), g.constant(2.0));
    let size = f::abs(g, x)?;
    let ln = f::ln(g, size)?;
    // The square of half a power overflows no earlier than the power.
    let angle = mul(g, ln, y)?;
    let half = times(g, angle, 0.5)?;
    let root = f::exp(g, half)?;
    let power = f::square(g, root)?;
    let (unit, nothing) = (f::equal(g, size, one)?, f::equal(g, y, zero)?);
    let power = g.select(unit, one, power)?;
    // The inverse of -0 is below 0.
    let inverse = f::recip(g, x)?;
    let (below, behind) = (f::less(g, x, zero)?, f::less(g, inverse, zero)?);
    let negative = f::maximum(g, below, behind)?;
    let (left, floor) = (f::abs(g, y)?, f::floor(g, y)?);
    let left = g.binary(Binary::Rem, left, two)?;
    let (odd, whole) = (f::equal(g, left, one)?, f::equal(g, y, floor)?);
    let turns = mul(g, negative, odd)?;
    let opposite = f::neg(g, power)?;
    let power = g.select(turns, opposite, power)?;
    let (infinite, nan) = (g.constant(f32::NEG_INFINITY), g.constant(f32::NAN));
    let (finite, fraction) = (f::less(g, infinite, x)?, f::not_of(g, whole)?);
    let bad = mul(g, below, finite)?;
    let bad = mul(g, bad, fraction)?;
    let power = g.select(bad, nan, power)?;
    // 1 to any power is 1, also to that of NaN.
    let first = f::equal(g, x, one)?;
    let certain = f::maximum(g, first, nothing)?;
    Ok(g.select(certain, one, power)?)
}

fn compare(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (a, b) = (im.tensor(node.input(0)?)?, im.tensor(node.input(1)?)?);
    let g = &mut im.g;
    let made = match node.op() {
        "Equal" => f::equal(g, a, b)?,
        "Less" => f::less(g, a, b)?,
        "LessOrEqual" => f::less_equal(g, a, b)?,
        "Greater" => f::less(g, b, a)?,
        _ => f::less_equal(g, b, a)?,
    };
    Ok(device(Elem::Bool, made))
}

fn logic(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let a = im.float(node.input(0)?)?;
    if node.op() == "Not" {
        let made = f::not_of(&mut im.g, a)?;
        return Ok(device(Elem::Bool, made));
    }
    let b = im.float(node.input(1)?)?;
    let g = &mut im.g;
    let made = match node.op() {
        "And" => mul(g, a, b)?,
        "Or" => f::maximum(g, a, b)?,
        _ => {
            let same = f::equal(g, a, b)?;
            f::not_of(g, same)?
        }
    };
    Ok(device(Elem::Bool, made))
}

fn bits(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let a = im.tensor(node.input(0)?)?;
    let made = if node.op() == "BitwiseNot" {
        let all = im.g.constant(-1.0);
        im.g.binary(Binary::Xor, a, all)?
    } else {
        let b = im.tensor(node.input(1)?)?;
        match (node.op(), &*node.text("direction", "")?) {
            ("BitwiseAnd", _) => im.g.binary(Binary::And, a, b)?,
            ("BitwiseOr", _) => im.g.binary(Binary::Or, a, b)?,
            ("BitwiseXor", _) => im.g.binary(Binary::Xor, a, b)?,
            (_, "LEFT") => shifted(&mut im.g, Binary::ShiftLeft, a, b)?,
            (_, "RIGHT") => shifted(&mut im.g, Binary::ShiftRight, a, b)?,
            (_, other) => return Err(invalid(format!("direction {other} is not supported"))),
        }
    };
    let made = wrapped(&mut im.g, elem, made)?;
    Ok(device(elem, made))
}

/// Shift by any count; counts below 0 or above 31 shift out all bits.
fn shifted(g: &mut Graph, op: Binary, a: Tensor, b: Tensor) -> NodeResult<Tensor> {
    let count = g.cast(b, DType::F32)?;
    let (zero, most) = (g.constant(0.0), g.constant(31.0));
    let (above, below) = (f::less(g, most, count)?, f::less(g, count, zero)?);
    let out = f::maximum(g, above, below)?;
    let shape = g.shape(out).to_vec();
    let most = g.expand(most, &shape)?;
    let most = g.cast(most, DType::I32)?;
    let count = g.select(out, most, b)?;
    let moved = g.binary(op, a, count)?;
    if op == Binary::ShiftRight {
        return Ok(moved);
    }
    let shape = g.shape(moved).to_vec();
    let nothing = g.expand(zero, &shape)?;
    let nothing = g.cast(nothing, DType::I32)?;
    Ok(g.select(out, nothing, moved)?)
}

fn choose(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(1)?.elem();
    let condition = im.float(node.input(0)?)?;
    let (a, b) = (chosen(im, node.input(1)?)?, chosen(im, node.input(2)?)?);
    let made = im.g.select(condition, a, b)?;
    Ok(device(elem, made))
}

/// A value of `Where`. Networks mask with the ends of the 64-bit range, which stand for the ends of
/// the device's integers.
fn chosen(im: &mut Import, value: &Value) -> NodeResult<Tensor> {
    if let Value::Known(known) = value
        && matches!(known.elem, Elem::I64 | Elem::U64)
        && let Some((least, greatest)) = known.elem.range()
        && let Some(end) = known.uniform().filter(|end| *end == least || *end == greatest)
    {
        let end = end.clamp(f64::from(i32::MIN), f64::from(i32::MAX));
        let values = vec![end; known.values.len()];
        if let Some(known) = Known::new(Elem::I32, known.shape(), values) {
            return im.tensor(&Value::Known(known));
        }
    }
    im.tensor(value)
}
