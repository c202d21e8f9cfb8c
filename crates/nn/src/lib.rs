//! What networks are made of, over the tensor graph: [`functions`] of elements, [`shape`]s and order, windows
//! ([`conv`]), [`norm`]s, [`loss`]es, [`layers`] with parameters, [`optimiser`]s, and a [`Session`] of graphs on a device, a
//! [`Trainer`] that runs a step of training as one recorded plan, [`files`] of what it remembers.
//!
//! Everything here is made of the graph's primitives, so that it runs on every device and has gradients without a rule of
//! its own. It is a crate above `plan` and `device`, as the daemon is: neither knows of it.

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
pub use session::{Failure, Input, Session, Terms};
pub use train::Trainer;
