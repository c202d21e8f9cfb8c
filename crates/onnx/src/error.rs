//! What can be wrong with a model, or with what it is given.

use std::io;
use std::path::PathBuf;

/// Why a model is not read, or not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The bytes are no message of `onnx.proto3`.
    #[error("no ONNX model, or damaged")]
    Decode(#[from] prost::DecodeError),
    /// The file is well formed, and says something that cannot be.
    #[error("{what}")]
    Model { what: String },
    /// Operators that are not there, each with its opset and first node.
    #[error("{} not supported: {}", if operators.len() == 1 { "an operator is" } else { "operators are" }, operators.join("; "))]
    Operators { operators: Vec<String> },
    /// A node that cannot be what it says, or needs something that is not supported.
    #[error("node `{node}` ({op}): {what}")]
    Node {
        node: String,
        op: String,
        what: String,
        /// Whether it wants to know an input before anything runs.
        depends: bool,
    },
    /// A tensor of the file.
    #[error("tensor `{name}`: {what}")]
    Tensor { name: String, what: String },
    /// What the caller gives.
    #[error("input `{name}`: {what}")]
    Input { name: String, what: String },
    #[error(transparent)]
    Graph(#[from] plan::graph::Error),
    /// The device cannot run it, or fails.
    #[error(transparent)]
    Run(#[from] nn::Failure),
}

/// What comes of a model.
pub type Result<T> = std::result::Result<T, Error>;
