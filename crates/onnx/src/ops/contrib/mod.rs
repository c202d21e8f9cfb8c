//! Operators of onnxruntime's domain `com.microsoft`, which its optimisers and quantisers write.

mod attention;
mod fused;
mod norm;
mod packed;
mod quantised;

use crate::array::{Elem, Known};
use crate::error::NodeResult;
use crate::import::Value;
use crate::node::Operator;

pub(super) const FAMILIES: &[&[(&str, Operator)]] = &[
    attention::OPERATORS,
    fused::OPERATORS,
    norm::OPERATORS,
    packed::OPERATORS,
    quantised::OPERATORS,
];

/// Known values in a row.
fn vector(elem: Elem, values: &[f64]) -> NodeResult<Value> {
    let known = Known::new(elem, &[values.len()], values.to_vec());
    known.map(Value::Known).ok_or_else(|| "a vector of another length".into())
}
