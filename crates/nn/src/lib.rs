//! Neural networks over the tensor graph: elementwise [`functions`], [`shape`] operations,
//! convolutions ([`conv`]), [`norm`]s, [`loss`]es, [`layers`] with parameters, [`optimiser`]s. A
//! [`Session`] runs graphs on a device, a [`Trainer`] runs training steps as recorded plans,
//! [`files`] reads and writes weights.
//!
//! Everything is built from the graph's primitives, so it runs on every device and is
//! differentiable without extra rules. Depends on `plan` and `device`; neither depends on it.

#![forbid(unsafe_code)]

pub mod conv;
pub mod files;
pub mod functions;
pub mod init;
pub mod layers;
pub mod loss;
pub mod norm;
pub mod optimiser;
pub mod session;
pub mod shape;
mod train;

pub use plan::graph::{Error, Graph, Result, Tensor};
pub use session::{Failure, Input, Session, SessionOptions};
pub use train::Trainer;
