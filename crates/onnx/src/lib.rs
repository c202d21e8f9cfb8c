//! Networks of ONNX files, opset 7 to 21, on any device: a [`Model`] is a file that was read and whose operators are all
//! known, a [`Network`] is that model for inputs of certain shapes, as one recorded plan.
//!
//! Owns the format (`proto`, `array`), what each operator means (`ops`), and what is known before anything runs
//! (`fold`): shapes and what is computed from them, so that no shape depends on data. Everything else is drawn with the
//! functions of [`nn`], and runs wherever they do. It is a crate above `nn` and `device`; neither knows of it.

#![forbid(unsafe_code)]

mod array;
mod error;
mod external;
mod fold;
mod import;
mod model;
mod network;
mod node;
mod ops;
mod proto;

pub use array::{Array, Elem};
pub use error::{Error, Result};
pub use model::{Declared, Extent, Model};
pub use network::Network;
pub use ops::supported;
