//! Operators on scaled bytes: values are dequantised, computed in floating point, and quantised.

use nn::functions::{add, sub};
use plan::DType;

use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value};
use crate::node::{Node, Operator};
use crate::ops::bytes::byte_product;
use crate::ops::compose::Setting;
use crate::ops::{matrix, quantise, recurrent, window};

pub(super) const OPERATORS: &[(&str, Operator)] = &[
    ("DequantizeLinear", quantise::dequantise),
    ("DynamicQuantizeLSTM", lstm),
    ("DynamicQuantizeMatMul", dynamic_matmul),
    ("MatMulIntegerToFloat", matmul_to_float),
    ("QGemm", gemm),
    ("QLinearAdd", binary),
    ("QLinearAveragePool", average),
    ("QLinearConcat", concat),
    ("QLinearConv", window::convolution_quantised),
    ("QLinearGlobalAveragePool", global_average),
    ("QLinearLeakyRelu", unary),
    ("QLinearMul", binary),
    ("QLinearReduceMean", mean),
    ("QLinearSigmoid", unary),
    ("QLinearSoftmax", softmax),
    ("QLinearWhere", choose),
    ("QuantizeLinear", quantise::quantise),
];

/// An input with its scale and zero point, at three places.
pub(super) fn dequantised(
    im: &mut Import,
    node: &Node<'_>,
    [x, scale, zero]: [usize; 3],
) -> NodeResult<Value> {
    let inputs = [
        Some(node.input(x)?.clone()),
        Some(node.input(scale)?.clone()),
        node.optional(zero).cloned(),
    ];
    let made = im.outputs_of("DequantizeLinear", &inputs, &[], 1)?;
    made.into_iter().next().ok_or_else(|| invalid("no output".into()))
}

/// A value in the scale and with the zero point of two inputs; bytes of the input's type if there is
/// no zero point.
fn quantised(
    im: &mut Import,
    node: &Node<'_>,
    value: Value,
    [scale, zero]: [usize; 2],
) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let zero = match node.optional(zero) {
        Some(zero) => zero.clone(),
        None => Value::Known(crate::array::Known::of(elem, 0.0)),
    };
    let inputs = [value, node.input(scale)?.clone(), zero].map(Some);
    im.outputs_of("QuantizeLinear", &inputs, &[], 1)
}

fn binary(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (a, b) = (dequantised(im, node, [0, 1, 2])?, dequantised(im, node, [3, 4, 5])?);
    let op = if node.op() == "QLinearAdd" { "Add" } else { "Mul" };
    let made = im.apply(op, &[&a, &b], &[])?;
    quantised(im, node, made, [6, 7])
}

fn unary(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = dequantised(im, node, [0, 1, 2])?;
    let made = if node.op() == "QLinearSigmoid" {
        im.apply("Sigmoid", &[&x], &[])?
    } else {
        let alpha = Setting::Float(node.float("alpha", 0.01));
        im.apply("LeakyRelu", &[&x], &[("alpha", alpha)])?
    };
    quantised(im, node, made, [3, 4])
}

fn softmax(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let mut x = dequantised(im, node, [0, 1, 2])?;
    let (shape, at) = (im.shape(&x), node.integer("axis", -1));
    let old = node.integer("opset", 13) < 13;
    if old {
        x = im.apply("Flatten", &[&x], &[("axis", Setting::Int(at))])?;
    }
    let at = if old { -1 } else { at };
    let made = im.apply("Softmax", &[&x], &[("axis", Setting::Int(at))])?;
    let made = im.reshaped(&made, &shape)?;
    quantised(im, node, made, [3, 4])
}

fn mean(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = dequantised(im, node, [0, 1, 2])?;
    let keep = Setting::Int(node.integer("keepdims", 1));
    let axes: Vec<f64> =
        node.integers("axes").unwrap_or_default().iter().map(|a| *a as f64).collect();
    let axes = super::vector(Elem::I64, &axes)?;
    let made = im.apply("ReduceMean", &[&x, &axes], &[("keepdims", keep)])?;
    quantised(im, node, made, [3, 4])
}

fn choose(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let (a, b) = (dequantised(im, node, [1, 2, 3])?, dequantised(im, node, [4, 5, 6])?);
    let made = im.apply("Where", &[node.input(0)?, &a, &b], &[])?;
    let inputs = [made, node.input(7)?.clone(), node.input(8)?.clone()].map(Some);
    im.outputs_of("QuantizeLinear", &inputs, &[], 1)
}

/// Moves the channels from the last axis to the second, or back.
fn channels(im: &mut Import, x: &Value, first: bool) -> NodeResult<Value> {
    let rank = im.shape(x).len() as i64;
    let order = match first {
        true => [0, rank - 1].into_iter().chain(1..rank - 1).collect(),
        false => std::iter::once(0).chain(2..rank).chain([1]).collect(),
    };
    im.apply("Transpose", &[x], &[("perm", Setting::Ints(order))])
}

fn pooled(
    im: &mut Import,
    node: &Node<'_>,
    op: &str,
    settings: &[(&str, Setting)],
) -> NodeResult<Vec<Value>> {
    let last = node.flag("channels_last");
    let mut x = dequantised(im, node, [0, 1, 2])?;
    if last {
        x = channels(im, &x, true)?;
    }
    let mut made = im.apply(op, &[&x], settings)?;
    if last {
        made = channels(im, &made, false)?;
    }
    quantised(im, node, made, [3, 4])
}

fn global_average(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    pooled(im, node, "GlobalAveragePool", &[])
}

fn average(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let mut settings = Vec::new();
    for name in ["kernel_shape", "strides", "pads"] {
        settings.extend(node.integers(name).map(|all| (name, Setting::Ints(all))));
    }
    for name in ["ceil_mode", "count_include_pad"] {
        settings.push((name, Setting::Int(node.integer(name, 0))));
    }
    settings.push(match &*node.text("auto_pad", "NOTSET")? {
        "SAME_UPPER" => ("auto_pad", Setting::Text("SAME_UPPER")),
        "SAME_LOWER" => ("auto_pad", Setting::Text("SAME_LOWER")),
        "VALID" => ("auto_pad", Setting::Text("VALID")),
        _ => ("auto_pad", Setting::Text("NOTSET")),
    });
    pooled(im, node, "AveragePool", &settings)
}

/// The scale and zero point of the result come first, then three inputs for each part.
fn concat(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let mut parts = Vec::new();
    for place in (2..node.inputs.len()).step_by(3) {
        parts.push(Some(dequantised(im, node, [place, place + 1, place + 2])?));
    }
    let at = Setting::Int(node.integer("axis", 1));
    let made = im.outputs_of("Concat", &parts, &[("axis", at)], 1)?;
    let value = made.into_iter().next().ok_or_else(|| invalid("no output".into()))?;
    let inputs = [value, node.input(0)?.clone(), node.input(1)?.clone()].map(Some);
    im.outputs_of("QuantizeLinear", &inputs, &[], 1)
}

/// The bias has the product of both scales. Without an output scale the result is a float.
fn gemm(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let a = dequantised(im, node, [0, 1, 2])?;
    // Scales may be given for each column of the product.
    let of = |place: usize| node.optional(place).cloned();
    let at = ("axis", Setting::Int(i64::from(!node.flag("transB"))));
    let made = im.outputs_of("DequantizeLinear", &[of(3), of(4), of(5)], &[at], 1)?;
    let b = made.into_iter().next().ok_or_else(|| invalid("no output".into()))?;
    let alpha = node.float("alpha", 1.0);
    let settings = [
        ("transA", Setting::Int(node.integer("transA", 0))),
        ("transB", Setting::Int(node.integer("transB", 0))),
        ("alpha", Setting::Float(alpha)),
    ];
    let mut made = im.apply("Gemm", &[&a, &b], &settings)?;
    if let Some(bias) = node.optional(6) {
        let scale = im.apply("Mul", &[node.input(1)?, node.input(4)?], &[])?;
        let factor = Value::Known(crate::array::Known::of(Elem::F32, f64::from(alpha)));
        let scale = im.apply("Mul", &[&scale, &factor], &[])?;
        let bias = im.apply("Cast", &[bias], &[("to", Setting::Int(1))])?;
        let bias = im.apply("Mul", &[&bias, &scale], &[])?;
        made = im.apply("Add", &[&made, &bias], &[])?;
    }
    match node.optional(7) {
        Some(_) => quantised(im, node, made, [7, 8]),
        None => Ok(vec![made]),
    }
}

/// A floating-point matrix, quantised by its own range, times a quantised one.
fn dynamic_matmul(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let x = Some(node.input(0)?.clone());
    let made = im.outputs_of("DynamicQuantizeLinear", &[x], &[], 3)?;
    let [x, scale, zero] = &made[..] else { return Err("three outputs expected".into()) };
    let (x, zero) = (im.float(x)?, im.float(zero)?);
    let x = sub(&mut im.g, x, zero)?;
    let weight = matrix::minus_zero_point(im, node, [1, 3], 0)?;
    let tensor = matrix::product(im, x, weight)?;
    let made = Value::Device { elem: Elem::F32, tensor };
    let scale = im.apply("Mul", &[scale, node.input(2)?], &[])?;
    let made = im.apply("Mul", &[&made, &scale], &[])?;
    biased(im, made, node.optional(4))
}

fn matmul_to_float(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let a = matrix::byte_operand(im, node, [0, 4], 1)?;
    let b = matrix::byte_operand(im, node, [1, 5], 0)?;
    let sums = byte_product(im, &a, &b)?;
    let tensor = im.g.cast(sums, DType::F32)?;
    let made = Value::Device { elem: Elem::F32, tensor };
    let scale = im.apply("Mul", &[node.input(2)?, node.input(3)?], &[])?;
    let made = im.apply("Mul", &[&made, &scale], &[])?;
    biased(im, made, node.optional(6))
}

fn biased(im: &mut Import, made: Value, bias: Option<&Value>) -> NodeResult<Vec<Value>> {
    let Some(bias) = bias else { return Ok(vec![made]) };
    let elem = made.elem();
    let (x, bias) = (im.float(&made)?, im.float(bias)?);
    let tensor = add(&mut im.g, x, bias)?;
    Ok(vec![Value::Device { elem, tensor }])
}

/// LSTM with weights in bytes, `[D, I, 4 H]`; inputs and states are rounded to bytes.
fn lstm(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let mut inputs = node.inputs.clone();
    for (place, scale) in [(1, 8), (2, 10)] {
        let weight = im.float(node.input(place)?)?;
        let directions = im.g.shape(weight)[0];
        let mut parts = [weight, weight];
        for (part, place) in parts.iter_mut().zip([scale, scale + 1]) {
            let value = im.float(node.input(place)?)?;
            let count = im.g.shape(value).iter().product::<usize>();
            let shape = [directions, 1, count.checked_div(directions).unwrap_or(1)];
            *part = im.g.reshape(value, &shape)?;
        }
        let moved = sub(&mut im.g, weight, parts[1])?;
        let scaled = nn::functions::mul(&mut im.g, moved, parts[0])?;
        let tensor = nn::shape::transpose(&mut im.g, scaled, 1, 2)?;
        inputs[place] = Some(Value::Device { elem: Elem::F32, tensor });
    }
    let node = node.with(inputs);
    recurrent::layer(im, &node, "LSTM", true)
}
