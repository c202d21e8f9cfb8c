//! Plans: what a step of a model computes, as a flat list of operations over named buffers.
//!
//! Owns data types, buffers, operations, the rewriting of a [`Plan`] into fused steps, the tensor
//! [`graph`] that plans are lowered from, and block formats ([`quant`]). Independent of devices and models.

#![forbid(unsafe_code)]

mod arena;
mod attention;
mod buffer;
mod conv;
mod cost;
mod dtype;
mod elementwise;
mod fuse;
pub mod graph;
mod mixture;
mod op;
mod plan;
mod project;
pub mod quant;
mod recurrent;
pub mod sample;
mod schedule;
mod step;
mod validate;

pub use arena::{Arena, SCRATCH_ALIGN};
pub use attention::{
    Attention, Caches, QkNorm, Queries, RopeKv, RopeStyle, RopeTable, Rows, Scores, Temperature,
};
pub use buffer::{Buffer, BufferId, Class, Scalar, View, Window, row_major};
pub use conv::{Conv, Windows};
pub use dtype::{DType, UnknownDType};
pub use elementwise::{Activation, Binary, Reduce, Unary, maximum};
pub use fuse::{Fusions, fuse};
pub use mixture::{Experts, Gating, Mixture, RouterScores, Routing, top_k};
pub use op::{Gather, MAX_INDICES, NextInputs, Op, Sample, SampleInputs};
pub use plan::{Bucket, Outputs, Plan, Precision};
pub use project::{Linear, MAX_WEIGHTS, Norm, NormKind, Normalise, Product, Project};
pub use recurrent::{DeltaHeads, DeltaRule, GatedDelta, Recurrence, ShortConv, Turn};
pub use schedule::{Group, elementwise, schedule};
pub use step::{Cost, RepeatId, ScopeId, Step};
pub use validate::Invalid;
