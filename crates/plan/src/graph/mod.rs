//! Lazy tensor graph: a small set of primitives, composites built from them, and shape checks when
//! an operation is added. Nothing runs here: [`Graph::lower`] returns a [`Plan`](crate::Plan),
//! which a device runs.

mod builder;
mod composite;
mod conv;
mod grad;
mod lower;
mod mixture;
mod primitive;
mod recurrent;
mod repeat;

pub use builder::{
    Caches, Error, Experts, Graph, MAX_NODES, Norm, Recurrence, Result, Rows, SampleInputs, Tensor,
};
pub use mixture::MixtureWeights;
pub use recurrent::{DeltaGates, DeltaOperands};
pub use repeat::{BodyEnds, Counter};
