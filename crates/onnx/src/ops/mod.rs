//! Registry of operators, one file per family.

mod attention;
pub(crate) mod bytes;
pub(crate) mod cast;
mod compose;
mod contrib;
mod detect;
mod elementwise;
mod gather;
mod grid_sample;
mod loss;
mod matrix;
mod ml;
mod norm;
mod positions;
mod quantise;
mod recurrent;
mod reduce;
mod resize;
mod scatter;
mod shape;
pub(crate) mod shapes;
mod spectrum;
mod window;

use crate::node::Operator;

const FAMILIES: [&[(&str, Operator)]; 17] = [
    attention::OPERATORS,
    cast::OPERATORS,
    detect::OPERATORS,
    elementwise::OPERATORS,
    gather::OPERATORS,
    grid_sample::OPERATORS,
    loss::OPERATORS,
    matrix::OPERATORS,
    norm::OPERATORS,
    positions::OPERATORS,
    quantise::OPERATORS,
    recurrent::OPERATORS,
    reduce::OPERATORS,
    scatter::OPERATORS,
    shape::OPERATORS,
    spectrum::OPERATORS,
    window::OPERATORS,
];

/// Operators of a family, by name.
type Family = &'static [(&'static str, Operator)];

/// Operators of other domains than ONNX's own.
const DOMAINS: [(&str, &[Family]); 2] =
    [("ai.onnx.ml", ml::FAMILIES), ("com.microsoft", contrib::FAMILIES)];

/// Finds an operator by its domain, empty for ONNX's own, and its name.
pub(crate) fn find(domain: &str, name: &str) -> Option<Operator> {
    let families = match domain {
        "" => &FAMILIES[..],
        domain => DOMAINS.iter().find(|(known, _)| *known == domain)?.1,
    };
    let mut all = families.iter().copied().flatten();
    all.find(|(known, _)| *known == name).map(|(_, operator)| *operator)
}

/// True if an operator computes from the values of weights while the graph is built.
pub(crate) fn reads_weights(domain: &str, name: &str) -> bool {
    domain == "com.microsoft" && matches!(name, "MatMulNBits" | "GatherBlockQuantized")
}

/// Names of all operators, sorted.
#[must_use]
pub fn supported() -> Vec<String> {
    let own = FAMILIES.iter().copied().flatten().map(|(name, _)| (*name).to_owned());
    let others = DOMAINS.iter().flat_map(|(domain, families)| {
        families.iter().copied().flatten().map(move |(name, _)| format!("{domain}.{name}"))
    });
    let control = crate::control::NAMES.iter().chain(crate::sequence::NAMES);
    let control = control.map(|name| (*name).to_owned());
    let mut names: Vec<_> = own.chain(others).chain(control).collect();
    names.sort_unstable();
    names
}
