//! Hyperparameters of the architecture `qwen3`, read from GGUF metadata.
//!
//! The dense models of Qwen 3. QK norm covers each head.

use super::{keys::Keys, qwen2};
use crate::error::Result;
use crate::hyper::{Hyperparameters, QkNorm};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = qwen2::describe(keys)?;
    hyper.layers.iter_mut().for_each(|layer| layer.attention.qk_norm = Some(QkNorm::Head));
    Ok(hyper)
}
