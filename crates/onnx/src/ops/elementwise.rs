//! Elementwise operators: arithmetic, comparisons, activations.

use nn::functions::{self as f, add, div, mul, plus, sub, times};
use plan::graph::{Graph, Tensor};
use plan::{Binary, DType};

use super::cast::wrapped;
use crate::array::Elem;
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
        "Acosh" => area(g, x, -1.0)?,
        "Asin" => arcsine(g, x)?,
        "Asinh" => {
            // Uses the magnitude to avoid cancellation.
            let (size, sign) = (f::abs(g, x)?, f::sign(g, x)?);
            let made = area(g, size, 1.0)?;
            mul(g, made, sign)?
        }
        "Atan" => arctangent(g, x)?,
        "Atanh" => {
            let above = plus(g, x, 1.0)?;
            let negative = f::neg(g, x)?;
            let below = plus(g, negative, 1.0)?;
            let ratio = div(g, above, below)?;
            let ln = f::ln(g, ratio)?;
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
            div(g, x, below)?
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

/// `ln(x + sqrt(x^2 + one))`
fn area(g: &mut Graph, x: Tensor, one: f32) -> NodeResult<Tensor> {
    let squared = f::square(g, x)?;
    let inner = plus(g, squared, one)?;
    let root = f::sqrt(g, inner)?;
    let sum = add(g, x, root)?;
    Ok(f::ln(g, sum)?)
}

/// `(e^x - e^-x) / 2` if `odd`, else `(e^x + e^-x) / 2`.
fn hyperbolic(g: &mut Graph, x: Tensor, odd: bool) -> NodeResult<Tensor> {
    let negative = f::neg(g, x)?;
    let (up, down) = (f::exp(g, x)?, f::exp(g, negative)?);
    let both = if odd { sub(g, up, down)? } else { add(g, up, down)? };
    Ok(times(g, both, 0.5)?)
}

/// `atan(x / sqrt(1 - x^2))`
fn arcsine(g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
    let squared = f::square(g, x)?;
    let negative = f::neg(g, squared)?;
    let inner = plus(g, negative, 1.0)?;
    let root = f::sqrt(g, inner)?;
    let ratio = div(g, x, root)?;
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
        // A NaN does not compare with itself.
        let own = f::less_equal(g, x, x)?;
        f::not_of(g, own)?
    } else {
        let (up, down) =
            (node.integer("detect_positive", 1) != 0, node.integer("detect_negative", 1) != 0);
        let most = g.constant(f32::MAX);
        let least = g.constant(f32::MIN);
        // A value is infinite if it equals itself and exceeds the finite range; a NaN fails every
        // comparison.
        let own = f::less_equal(g, x, x)?;
        let (fits, reaches) = (f::less_equal(g, x, most)?, f::less_equal(g, least, x)?);
        let (above, below) = (f::not_of(g, fits)?, f::not_of(g, reaches)?);
        let zero = times(g, own, 0.0)?;
        let above = if up { above } else { zero };
        let below = if down { below } else { zero };
        let either = f::maximum(g, above, below)?;
        mul(g, either, own)?
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
            Some(value) if known.shape().len() <= im.g.shape(first).len() => {
                im.g.constant(value as f32)
            }
            _ => im.tensor(b)?,
        },
        _ => im.tensor(b)?,
    };
    Ok([first, second])
}

fn binary(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    if node.opset < 7 {
        return Err("opsets before 7 are not supported: they broadcast differently".into());
    }
    let elem = elem(node)?;
    let [a, b] = operands(im, node)?;
    let made = arithmetic(&mut im.g, node.op(), elem, a, b)?;
    let made = wrapped(&mut im.g, elem, made)?;
    Ok(device(elem, made))
}

fn arithmetic(g: &mut Graph, op: &str, elem: Elem, a: Tensor, b: Tensor) -> NodeResult<Tensor> {
    Ok(match op {
        "Add" => g.binary(Binary::Add, a, b)?,
        "Sub" => g.binary(Binary::Sub, a, b)?,
        "Mul" => g.binary(Binary::Mul, a, b)?,
        "Div" if elem.is_integer() => {
            // Subtracts the remainder first, so that rounding the quotient is exact.
            let left = g.binary(Binary::Rem, a, b)?;
            let whole = g.binary(Binary::Sub, a, left)?;
            let (whole, b) = (g.cast(whole, DType::F32)?, g.cast(b, DType::F32)?);
            let quotient = div(g, whole, b)?;
            let quotient = f::round(g, quotient)?;
            g.cast(quotient, DType::I32)?
        }
        "Div" => div(g, a, b)?,
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
fn smaller(g: &mut Graph, a: Tensor, b: Tensor) -> NodeResult<Tensor> {
    let (a, b) = (opposite(g, a)?, opposite(g, b)?);
    let largest = g.binary(Binary::Max, a, b)?;
    opposite(g, largest)
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
    let (x, slope) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let g = &mut im.g;
    let zero = g.constant(0.0);
    let below = f::less(g, x, zero)?;
    let scaled = mul(g, x, slope)?;
    let mut made = g.select(below, scaled, x)?;
    if elem.is_integer() {
        made = g.cast(made, DType::I32)?;
    }
    Ok(device(elem, made))
}

fn clip(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let mut x = im.tensor(node.input(0)?)?;
    let of = |im: &mut Import, place: usize, name: &str| -> NodeResult<Option<Tensor>> {
        match (node.optional(place), node.float_if(name)) {
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
    let made = if like_c {
        left
    } else {
        // Adds the divisor if the remainder is not zero and has the other sign.
        let (l, d) = (g.cast(left, DType::F32)?, g.cast(b, DType::F32)?);
        let zero = g.constant(0.0);
        let (below, other) = (f::less(g, l, zero)?, f::less(g, d, zero)?);
        let (same, nothing) = (f::equal(g, below, other)?, f::equal(g, l, zero)?);
        let stays = f::maximum(g, same, nothing)?;
        let moved = g.binary(Binary::Add, left, b)?;
        g.select(stays, left, moved)?
    };
    Ok(device(elem, made))
}

fn power(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = elem(node)?;
    let x = im.float(node.input(0)?)?;
    let exponent = node.input(1)?;
    let uniform = match exponent {
        Value::Known(known) => known
            .uniform()
            .filter(|_| known.shape().len() <= im.shape(node.input(0).unwrap_or(exponent)).len()),
        Value::Device { .. } => None,
    };
    let made = match uniform {
        Some(0.5) => f::sqrt(&mut im.g, x)?,
        Some(power) if power == power.trunc() && (0.0..=64.0).contains(&power) => {
            f::powi(&mut im.g, x, power as i32)?
        }
        _ => {
            let exponent = im.float(exponent)?;
            general_power(&mut im.g, x, exponent)?
        }
    };
    let made = if elem.is_integer() {
        let whole = f::round(&mut im.g, made)?;
        im.g.cast(whole, DType::I32)?
    } else {
        made
    };
    Ok(device(elem, made))
}

/// `|x|^y`, negative if `x` is negative and `y` is odd.
fn general_power(g: &mut Graph, x: Tensor, y: Tensor) -> NodeResult<Tensor> {
    let size = f::abs(g, x)?;
    let ln = f::ln(g, size)?;
    let angle = mul(g, ln, y)?;
    let size = f::exp(g, angle)?;
    let (zero, one, two) = (g.constant(0.0), g.constant(1.0), g.constant(2.0));
    let nothing = f::equal(g, y, zero)?;
    let shape = g.shape(nothing).to_vec();
    let one = g.expand(one, &shape)?;
    let size = g.select(nothing, one, size)?;
    let y_abs = f::abs(g, y)?;
    let odd = g.binary(Binary::Rem, y_abs, two)?;
    let below = f::less(g, x, zero)?;
    let turn = mul(g, below, odd)?;
    let factor = times(g, turn, -2.0)?;
    let factor = plus(g, factor, 1.0)?;
    Ok(mul(g, size, factor)?)
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
    let (a, b) = (im.tensor(node.input(1)?)?, im.tensor(node.input(2)?)?);
    let made = im.g.select(condition, a, b)?;
    Ok(device(elem, made))
}
