//! `smollm3`: every fourth layer knows no positions.

use super::{keys::Keys, llama};
use crate::Result;
use crate::hyper::Hyperparameters;
use crate::rope::Rope;

const PERIOD: usize = 4;

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = llama::describe(keys)?;
    hyper.ropes.push(Rope::still(hyper.layers[0].attention.head_size));
    for layer in hyper.layers.iter_mut().skip(PERIOD - 1).step_by(PERIOD) {
        layer.attention.rope = 1;
    }
    Ok(hyper)
}
