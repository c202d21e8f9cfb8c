//! A plan: a flat list of steps over named buffers, made for one bucket of shapes.

use std::ops::Range;

use crate::buffer::{Buffer, BufferId, Class};
use crate::op::Op;
use crate::step::{Cost, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outputs {
    /// None: a prefill chunk that is not the last of a prompt.
    None,
    /// One row of logits and one sampled token per sequence.
    Last,
    /// One row of logits per row of tokens.
    All,
    /// The final hidden state of every row, for embeddings.
    Hidden,
    /// No logits yet: the hidden states stay in device memory for a plan of the same row count with
    /// [`Self::Resumed`].
    Deferred,
    /// Like [`Self::Last`], from the hidden states that a plan with [`Self::Deferred`] left.
    Resumed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    pub batch: usize,
    /// Tokens per sequence: 1 in decode, more in prefill.
    pub chunk: usize,
    /// Context band: every row's position is below it.
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

/// Arithmetic of attention over long chunks, and of its products with F16 and BF16 weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// The arithmetic of `docs/numerics.md`, identical on all devices.
    #[default]
    Single,
    /// A device may round operands to 16 bits and accumulate like its tensor cores. Results differ
    /// between devices.
    Half,
}

impl Precision {
    /// Name in configuration and records.
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
    /// The composites that primitive steps belong to, each as one operation; empty after fusion.
    pub scopes: Vec<Op>,
    /// Executions of each repeated body. The steps of a body are neighbours; they run in order,
    /// all of them, this many times.
    pub repeats: Vec<usize>,
}

impl Plan {
    /// The buffer with this id.
    ///
    /// # Panics
    /// If the id is not in this plan; [`Plan::validate`] rejects such plans.
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
        self.steps.iter().map(|step| step.cost * self.executions(step)).sum()
    }

    /// Number of times that a step runs.
    #[must_use]
    pub fn executions(&self, step: &Step) -> usize {
        step.repeat.map_or(1, |repeat| self.repeats.get(repeat.0 as usize).copied().unwrap_or(1))
    }

    /// The steps as blocks of neighbours that run together, each with its number of executions.
    #[must_use]
    pub fn blocks(&self) -> Vec<(Range<usize>, usize)> {
        let mut blocks = Vec::new();
        let mut start = 0;
        for block in self.steps.chunk_by(|a, b| a.repeat == b.repeat) {
            let end = start + block.len();
            blocks.push((start..end, self.executions(&block[0])));
            start = end;
        }
        blocks
    }
}
