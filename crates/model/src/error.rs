//! Errors of loading a model or an adapter.

use std::fmt::Display;

use crate::gguf::{self, Gguf};
use plan::{DType, graph};

/// The most adapters of one model.
pub const MAX_ADAPTERS: usize = 8;

/// Reason why a file cannot be loaded as a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error("architecture `{found}` is not supported; supported: {supported}")]
    Architecture { found: String, supported: String },
    #[error("`{key}` is {value}, {expected}")]
    Hyperparameter { key: String, value: String, expected: String },
    #[error("tensor `{name}` is missing from {path}")]
    MissingTensor { name: String, path: String },
    #[error("tensor `{name}` has shape {found:?}, {expected:?} expected from the metadata")]
    TensorShape { name: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("tensor `{name}` is {found}, {expected} expected")]
    TensorType { name: String, found: DType, expected: &'static str },
    #[error("tensor `{name}` is not part of what is supported of architecture `{architecture}`")]
    UnknownTensor { name: String, architecture: &'static str },
    #[error(
        "{dtype} cannot store the keys and values of layer {layer}, which has heads of {head_size}: F16 stores any \
         size, Q8_0 and Q4_0 multiples of 32"
    )]
    CacheType { dtype: DType, layer: usize, head_size: usize },
    #[error("tensor `{tensor}`, element {at}, is {value}: the file or the model is damaged")]
    NotFinite { tensor: String, at: u64, value: f32 },
    #[error("the model has no {bytes} bytes at offset {offset} of weight `{name}`")]
    Weight { name: String, offset: u64, bytes: usize },
    #[error("this is an adapter, not a model: load it with `--lora`, in addition to a model")]
    IsAdapter,
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A bug of this program.
    #[error("building the graph")]
    Graph(#[from] graph::Error),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn hyperparameter(key: String, value: &dyn Display, expected: &str) -> Self {
        let expected = format!("{expected} expected");
        Self::Hyperparameter { key, value: value.to_string(), expected }
    }

    pub(crate) fn missing_tensor(gguf: &Gguf, name: &str) -> Self {
        Self::MissingTensor { name: name.into(), path: gguf.path().display().to_string() }
    }
}

/// Reason why a file cannot be loaded as an adapter, or does not fit its model.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    #[error("`{key}` is `{found}`, `{expected}` expected: not a LoRA adapter")]
    Kind { key: &'static str, found: String, expected: &'static str },
    #[error("made for architecture `{found}`, the model is `{expected}`")]
    Architecture { found: String, expected: &'static str },
    #[error("`adapter.lora.alpha` is {found}, a finite number expected")]
    Alpha { found: f32 },
    #[error("activated LoRA (`adapter.alora.invocation_tokens`) is not supported")]
    Activated,
    #[error("no tensors in the file")]
    Empty,
    #[error("tensor `{name}` is not part of a LoRA adapter: names end in `.lora_a` or `.lora_b`")]
    Suffix { name: String },
    #[error("tensor `{name}` has no counterpart `{missing}`")]
    Unpaired { name: String, missing: String },
    #[error(
        "tensor `{name}` has shape {found:?}, {expected:?} expected for the model's `{target}`"
    )]
    Shape { name: String, found: Vec<usize>, expected: Vec<usize>, target: String },
    #[error("tensor `{name}` is {found}, floating-point or quantised expected")]
    Type { name: String, found: DType },
    #[error("tensor `{name}`: the model has no `{wanted}`")]
    UnknownTensor { name: String, wanted: String },
    #[error("tensor `{name}`: adapters for {of} are not supported")]
    Unsupported { name: String, of: &'static str },
    #[error("adapter {path}: {defect}")]
    File { path: String, defect: Box<AdapterError> },
    #[error("{found} adapters, at most {MAX_ADAPTERS} per model")]
    TooMany { found: usize },
}
