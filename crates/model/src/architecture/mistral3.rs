//! Hyperparameters of the architecture `mistral3`, read from GGUF metadata.
//!
//! Ministral 3. Beyond the training context, queries are scaled by a factor that grows with the position.

use super::{keys::Keys, llama};
use crate::error::Result;
use crate::hyper::Hyperparameters;
use plan::{Scalar, Temperature};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = llama::describe(keys)?;
    let temperature = match keys.set("attention.temperature_scale")? {
        Some(slope) => {
            let length = keys.number_opt("rope.scaling.original_context_length", 1 << 30)?;
            let length = length.unwrap_or(hyper.context);
            Some(Temperature { slope: Scalar::new(slope), length })
        }
        None => None,
    };
    hyper.layers.iter_mut().for_each(|layer| layer.attention.scores.temperature = temperature);
    Ok(hyper)
}
