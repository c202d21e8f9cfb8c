//! Hyperparameters of the architecture `granite`, read from GGUF metadata.
//!
//! The dense models of Granite 3 and 4, which are Llama with factors on embedding, scores, residuals and logits.

use super::rope;
use super::{keys::Keys, llama};
use crate::error::Result;
use crate::hyper::{Embedding, Hyperparameters, Logits};

pub(super) fn describe(keys: &Keys<'_>) -> Result<Hyperparameters> {
    let mut hyper = llama::describe(keys)?;
    hyper.embedding = Embedding { scale: keys.set("embedding_scale")?, ..hyper.embedding };
    hyper.logits = Logits { scale: keys.set("logit_scale")?.map(|scale| 1.0 / scale), cap: None };
    let residual_scale = keys.set("residual_scale")?;
    hyper.layers.iter_mut().for_each(|layer| layer.residual_scale = residual_scale);
    // Granite files without rotation have this key.
    if keys.gguf.metadata().bool_opt(&keys.key("rope.scaling.finetuned"))? == Some(false) {
        hyper.ropes = vec![rope::identity(hyper.layers[0].attention.head_size)];
    }
    Ok(hyper)
}
