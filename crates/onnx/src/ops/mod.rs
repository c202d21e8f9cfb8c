//! The operators: a table of names, a file for each family, and the arithmetic of shapes that the host needs as well.

mod attention;
mod elementwise;
mod gather;
mod loss;
mod matrix;
mod norm;
mod place;
mod quantise;
mod recurrent;
mod reduce;
mod resize;
mod shape;
mod shapes;
mod window;

pub(crate) use elementwise::converted;
pub(crate) use shapes::{
    Reduced, broadcast, cuts, expanded, flattened, order, parts, places, reduction, reshaped,
    squeezed, unsqueezed,
};

use super::array::Elem;
use super::import::{Import, Value};
use super::node::{Made, Node, why};

/// Draws a node; its outputs in their order.
pub(crate) type Operator = fn(&mut Import, &Node<'_>) -> Made<Vec<Value>>;

const FAMILIES: [&[(&str, Operator)]; 12] = [
    attention::OPERATORS,
    elementwise::OPERATORS,
    gather::OPERATORS,
    loss::OPERATORS,
    matrix::OPERATORS,
    norm::OPERATORS,
    place::OPERATORS,
    quantise::OPERATORS,
    recurrent::OPERATORS,
    reduce::OPERATORS,
    shape::OPERATORS,
    window::OPERATORS,
];

/// The operator of that name.
pub(crate) fn find(name: &str) -> Option<Operator> {
    let mut all = FAMILIES.iter().copied().flatten();
    all.find(|(known, _)| *known == name).map(|(_, operator)| *operator)
}

/// Names of all operators, in their order.
#[must_use]
pub fn supported() -> Vec<&'static str> {
    let mut names: Vec<_> = FAMILIES.iter().copied().flatten().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names
}

/// The type that a cast is to.
pub(crate) fn cast_to(node: &Node<'_>) -> Made<Elem> {
    node.pass_over(&["saturate", "round_mode"]);
    let number = node.integer("to", 0);
    let found = i32::try_from(number).ok().and_then(Elem::of);
    found.ok_or_else(|| why(format!("element type {number} is not supported")))
}

/// A number of another type, as casts make it.
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
