//! Pooling: how an embedding is computed from the hidden states of a text.

use crate::error::{Error, Result};
use crate::gguf::Gguf;

/// Rows of a text's hidden states that its embedding is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    First,
    Last,
}

impl Pooling {
    /// The file's `pooling_type`, one of llama.cpp's `LLAMA_POOLING_TYPE_*`; `None` if it is no embedding model.
    ///
    /// # Errors
    /// For a model with bidirectional attention, and for an unknown type.
    pub(crate) fn from_metadata(gguf: &Gguf, architecture: &str) -> Result<Option<Self>> {
        let key = |name: &str| format!("{architecture}.{name}");
        let causal = key("attention.causal");
        if gguf.metadata().bool_opt(&causal)? == Some(false) {
            return Err(Error::hyperparameter(causal, &false, "true"));
        }
        let pooling = key("pooling_type");
        match gguf.metadata().u32_opt(&pooling)? {
            None | Some(0) => Ok(None),
            Some(1) => Ok(Some(Self::Mean)),
            Some(2) => Ok(Some(Self::First)),
            Some(3) => Ok(Some(Self::Last)),
            Some(other) => Err(Error::hyperparameter(
                pooling,
                &other,
                "0 (none), 1 (mean), 2 (cls) or 3 (last)",
            )),
        }
    }
}
