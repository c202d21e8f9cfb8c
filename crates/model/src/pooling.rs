//! How the rows of a text become its embedding, as a model's file says it.

use crate::gguf::Gguf;
use crate::{Error, Result};

/// Which rows of a text's hidden state its embedding is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all.
    Mean,
    First,
    Last,
}

impl Pooling {
    /// What a file says: llama.cpp's `LLAMA_POOLING_TYPE_*` under `pooling_type`. `None` where a model is not
    /// made for embeddings.
    ///
    /// # Errors
    /// For a model whose tokens see those behind them, and for a number that is none of those.
    pub(crate) fn of(gguf: &Gguf, architecture: &str) -> Result<Option<Self>> {
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
