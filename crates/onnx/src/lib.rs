//! Runs ONNX models, opset 1 to 28, on any device. A [`Model`] is a parsed file whose operators are
//! all supported. A [`Network`] is that model for given input shapes, as one recorded plan.
//!
//! Owns the file format (`proto`, `array`, `order`), the operators (`ops`), control flow, which is
//! unrolled or repeated (`control`, `repeat`, `sequence`), and constant folding (`fold`), which computes shapes. Values on
//! which a shape depends are computed by an earlier stage (`network`). Everything else is built with
//! the functions of [`nn`]. Depends on `nn` and `device`; neither depends on it.

#![forbid(unsafe_code)]

mod array;
mod bounds;
mod control;
mod error;
mod external;
mod fold;
mod graph;
mod import;
mod item;
mod legacy;
mod limits;
mod model;
mod network;
mod node;
mod ops;
mod order;
mod proto;
mod repeat;
mod sequence;

pub use array::{Array, Elem};
pub use error::{Error, Result};
pub use external::{External, Links};
pub use limits::Limits;
pub use model::{Declared, Extent, Model};
pub use network::Network;
pub use ops::supported;
