//! The lowest vocabulary of the house: data types, buffers, steps, fusion passes.
//!
//! A [`Plan`] is a flat list of steps over named buffers. Everything above (`graph`, `model`)
//! produces plans, everything beside (`device`) consumes them; this module depends on neither.

#![forbid(unsafe_code)]

mod arena;
mod buffer;
mod conv;
mod cost;
mod dtype;
mod fuse;
pub mod graph;
mod mixture;
mod op;
pub mod quant;
mod recurrent;
pub mod sample;
mod schedule;
mod step;
mod validate;

pub use arena::{Arena, SCRATCH_ALIGN};
pub use buffer::{Buffer, BufferId, Class, Scalar, View, Window, row_major};
pub use conv::{Conv, Windows};
pub(crate) use cost::cost_of;
pub use dtype::{DType, UnknownDType};
pub use fuse::{Fusions, fuse};
pub use mixture::{Experts, Gating, Mixture, RouterScores, Routing, top_k};
pub use op::{
    Activation, Attention, Binary, Caches, Gather, Linear, MAX_INDICES, MAX_WEIGHTS, NextInputs,
    Norm, NormKind, Normalise, Op, Product, Project, QkNorm, Queries, Reduce, RopeKv, RopeStyle,
    RopeTable, Rows, Sample, SampleInputs, Scores, Temperature, Unary,
};
pub use recurrent::{DeltaHeads, DeltaRule, GatedDelta, Recurrence, ShortConv, Turn};
pub use schedule::{Group, elementwise, schedule};
pub use step::{Cost, ScopeId, Step};
pub use validate::Invalid;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outputs {
    /// None: a prefill chunk that is not a prompt's last.
    None,
    /// One row of logits, and one sampled token, per sequence.
    Last,
    /// A row of logits for every row of tokens.
    All,
    /// For every row of tokens what the logits would be made of, for embeddings.
    Hidden,
    /// None yet: what they are made of stays in the device's memory for a plan of as many rows with [`Self::Resumed`].
    Deferred,
    /// As [`Self::Last`], of what a plan with [`Self::Deferred`] has left.
    Resumed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    pub batch: usize,
    /// Tokens of each sequence: 1 in decode, more in prefill.
    pub chunk: usize,
    /// Context band: no row's position may reach it.
    pub context: usize,
    pub outputs: Outputs,
}

impl Bucket {
    /// One token for each of `batch` sequences.
    #[must_use]
    pub const fn decode(batch: usize, context: usize) -> Self {
        Self { batch, chunk: 1, context, outputs: Outputs::Last }
    }

    /// `chunk` tokens of one sequence.
    #[must_use]
    pub const fn prefill(chunk: usize, context: usize, outputs: Outputs) -> Self {
        Self { batch: 1, chunk, context, outputs }
    }

    #[must_use]
    pub const fn rows(&self) -> usize {
        self.batch * self.chunk
    }

    #[must_use]
    pub const fn logit_rows(&self) -> usize {
        match self.outputs {
            Outputs::None | Outputs::Hidden | Outputs::Deferred => 0,
            Outputs::Last | Outputs::Resumed => self.batch,
            Outputs::All => self.rows(),
        }
    }
}

/// What attention of a long chunk, and its products with weights of F16 and BF16, are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// The one arithmetic, of `docs/numerics.md`.
    #[default]
    Single,
    /// A device may round what it multiplies to 16 bits and add as its tensor cores do: no other device has the same bits.
    Half,
}

impl Precision {
    /// As configuration and records spell it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Half => "half",
        }
    }
}

/// A flat list of steps over named buffers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub bucket: Bucket,
    pub precision: Precision,
    pub buffers: Vec<Buffer>,
    pub steps: Vec<Step>,
    /// The composites that primitive steps belong to, each as the one operation that those steps make
    /// together; empty once fused.
    pub scopes: Vec<Op>,
}

impl Plan {
    /// The buffer behind an id.
    ///
    /// # Panics
    /// When the id is not of this plan; [`Plan::validate`] refuses such plans.
    #[must_use]
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    #[must_use]
    pub fn find(&self, class: Class, name: &str) -> Option<BufferId> {
        let index = self.buffers.iter().position(|b| b.class == class && b.name == name)?;
        Some(BufferId(u32::try_from(index).ok()?))
    }

    #[must_use]
    pub fn cost(&self) -> Cost {
        self.steps.iter().map(|step| step.cost).sum()
    }
}
