//! Conversions between element types: the `Cast` operators, and the wrapping of narrow integers.

use nn::functions as f;
use plan::graph::{Graph, Tensor};
use plan::{Binary, DType};

use crate::array::Elem;
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] = &[("Cast", cast), ("CastLike", cast)];

/// Target type of a cast.
pub(crate) fn cast_to(node: &Node<'_>) -> NodeResult<Elem> {
    node.ignore(&["saturate", "round_mode"]);
    let number = node.integer("to", 0);
    let found = i32::try_from(number).ok().and_then(Elem::of);
    found.ok_or_else(|| invalid(format!("element type {number} is not supported")))
}

/// Converts a number like a cast.
pub(crate) fn cast_value(x: f64, to: Elem) -> f64 {
    match to {
        Elem::Bool => f64::from(u8::from(x != 0.0)),
        Elem::F64 => x,
        Elem::F32 => f64::from(x as f32),
        Elem::F16 => half::f16::from_f64(x).to_f64(),
        Elem::BF16 => half::bf16::from_f64(x).to_f64(),
        _ => {
            let (least, greatest) = to.range().unwrap_or_else(|| unreachable!("an integer type"));
            x.trunc().clamp(least, greatest)
        }
    }
}

/// Wraps integers of 2 to 16 bits, as far as 32-bit arithmetic represents them.
pub(super) fn wrapped(g: &mut Graph, elem: Elem, x: Tensor) -> NodeResult<Tensor> {
    let by = |g: &mut Graph, op, x, n: f32| {
        let n = g.constant(n);
        g.binary(op, x, n)
    };
    Ok(match elem {
        Elem::U2 | Elem::U4 | Elem::U8 | Elem::U16 => {
            by(g, Binary::And, x, (1u32 << elem.bits()) as f32 - 1.0)?
        }
        Elem::I2 | Elem::I4 | Elem::I8 | Elem::I16 => {
            let away = (32 - elem.bits()) as f32;
            let up = by(g, Binary::ShiftLeft, x, away)?;
            by(g, Binary::ShiftRight, up, away)?
        }
        _ => x,
    })
}

fn cast(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let to = if node.op() == "Cast" {
        cast_to(node)?
    } else {
        node.ignore(&["saturate", "round_mode"]);
        node.input(1)?.elem()
    };
    let x = node.input(0)?;
    let from = x.elem();
    let x = im.tensor(x)?;
    let made = converted(&mut im.g, from, to, x)?;
    Ok(device(to, made))
}

/// Converts elements between types, as far as the device distinguishes them.
pub(crate) fn converted(g: &mut Graph, from: Elem, to: Elem, x: Tensor) -> NodeResult<Tensor> {
    if to == Elem::Bool {
        if from == Elem::Bool {
            return Ok(x);
        }
        let x = g.cast(x, DType::F32)?;
        let zero = g.constant(0.0);
        let same = f::equal(g, x, zero)?;
        return Ok(f::not_of(g, same)?);
    }
    if to.is_integer() {
        let made = g.cast(x, DType::I32)?;
        return wrapped(g, to, made);
    }
    let wide = g.cast(x, DType::F32)?;
    let narrow = match to {
        Elem::F16 => DType::F16,
        Elem::BF16 => DType::BF16,
        _ => return Ok(wide),
    };
    let rounded = g.cast(wide, narrow)?;
    Ok(g.cast(rounded, DType::F32)?)
}
