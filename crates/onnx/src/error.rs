//! Errors of models and their inputs.

use std::io;
use std::path::{Path, PathBuf};

use crate::import::Value;

/// Reason why a model cannot be read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The bytes are not a message of `onnx.proto3`.
    #[error("not an ONNX model, or damaged")]
    Decode(#[from] prost::DecodeError),
    /// The file is well formed but contradictory or unsupported.
    #[error("{what}")]
    Model { what: String },
    /// Unsupported operators, each with its opset and first node.
    #[error("{} not supported: {}", if operators.len() == 1 { "an operator is" } else { "operators are" }, operators.join("; "))]
    Operators { operators: Vec<String> },
    /// A node that is invalid or needs something unsupported.
    #[error("node `{node}` ({op}): {what}")]
    Node { node: String, op: String, what: String },
    /// Several of the above, all that were found.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<Self>),
    /// A gather or scatter beyond its tensor.
    #[error("an index that the network computes is outside of the axis that it selects from")]
    Outside,
    /// A limit of preparing a network.
    #[error("preparing the network takes {what}, the limit")]
    Limit { what: String },
    #[error("the network was cancelled")]
    Cancelled,
    /// The network was prepared for other data: a shape follows from values that have changed.
    #[error("a shape follows from the data, and the network is prepared for other data")]
    Changed,
    /// An invalid tensor of the file.
    #[error("tensor `{name}`: {what}")]
    Tensor { name: String, what: String },
    /// An invalid input from the caller.
    #[error("input `{name}`: {what}")]
    Input { name: String, what: String },
    /// A result that cannot be returned exactly.
    #[error("output `{name}`: {what}")]
    Output { name: String, what: String },
    #[error(transparent)]
    Graph(#[from] plan::graph::Error),
    /// The device cannot run the model, or fails.
    #[error(transparent)]
    Run(#[from] nn::Failure),
}

impl Error {
    /// One error, or all that were found.
    pub(crate) fn all(mut errors: Vec<Self>) -> Option<Self> {
        match errors.len() {
            0 | 1 => errors.pop(),
            _ => Some(Self::Several(errors)),
        }
    }

    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// Result of an operation on models.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a node cannot be built, without the node's name.
#[derive(Debug)]
pub(crate) struct NodeError {
    pub(crate) what: String,
    /// Inputs whose values the node needs before anything runs.
    pub(crate) needs: Vec<usize>,
}

/// An error that no values of inputs would remove.
pub(crate) fn invalid(what: String) -> NodeError {
    NodeError { what, needs: Vec::new() }
}

impl From<String> for NodeError {
    fn from(what: String) -> Self {
        invalid(what)
    }
}

impl From<&str> for NodeError {
    fn from(what: &str) -> Self {
        invalid(what.to_owned())
    }
}

impl From<plan::graph::Error> for NodeError {
    fn from(error: plan::graph::Error) -> Self {
        invalid(error.to_string())
    }
}

pub(crate) type NodeResult<T> = std::result::Result<T, NodeError>;

/// Reason why building stops: an error, or values that only a run of what is built so far can
/// provide.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(NodeError),
    /// Values on the device that are needed to go on. If `optional`, there is another way without.
    Needs {
        values: Vec<Value>,
        optional: bool,
        what: String,
    },
}

impl<E: Into<NodeError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

pub(crate) type Built<T> = std::result::Result<T, Stop>;
