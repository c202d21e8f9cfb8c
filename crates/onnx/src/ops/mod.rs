//! Registry of operators, one file per family.

mod attention;
pub(crate) mod bytes;
pub(crate) mod cast;
mod elementwise;
mod gather;
mod loss;
mod matrix;
mod norm;
mod positions;
mod quantise;
mod recurrent;
mod reduce;
mod resize;
mod shape;
pub(crate) mod shapes;
mod window;

use crate::node::Operator;

const FAMILIES: [&[(&str, Operator)]; 13] = [
    attention::OPERATORS,
    cast::OPERATORS,
    elementwise::OPERATORS,
    gather::OPERATORS,
    loss::OPERATORS,
    matrix::OPERATORS,
    norm::OPERATORS,
    positions::OPERATORS,
    quantise::OPERATORS,
    recurrent::OPERATORS,
    reduce::OPERATORS,
    shape::OPERATORS,
    window::OPERATORS,
];

/// Finds an operator by name.
pub(crate) fn find(name: &str) -> Option<Operator> {
    let mut all = FAMILIES.iter().copied().flatten();
    all.find(|(known, _)| *known == name).map(|(_, operator)| *operator)
}

/// Names of all operators, sorted.
#[must_use]
pub fn supported() -> Vec<&'static str> {
    let mut names: Vec<_> = FAMILIES.iter().copied().flatten().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names
}
