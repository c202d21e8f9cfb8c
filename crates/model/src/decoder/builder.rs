//! The graph under construction: how weights, states and mailboxes become its tensors.

use std::collections::BTreeMap;

use crate::adapter::Adapters;
use crate::error::Result;
use crate::gguf::Gguf;
use crate::hyper::Hyperparameters;
use crate::layout::KvLayout;
use crate::ports;
use crate::weights::{WeightKind, Weights};
use plan::graph::{Caches, Graph, Recurrence, Rows, Tensor};
use plan::{Bucket, Buffer, Class, DType};

/// Shape of a step, which its graph is built for.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) layout: KvLayout,
    pub(crate) bucket: Bucket,
    /// Type of the KV cache.
    pub(crate) cache: DType,
}

pub(super) struct Builder<'a> {
    pub(super) g: Graph,
    pub(super) gguf: &'a Gguf,
    pub(super) hyper: &'a Hyperparameters,
    pub(super) adapters: Option<&'a Adapters>,
    pub(super) weights: &'a mut Weights,
    pub(super) step: Step,
    /// KV cache of each layer built so far, after its new keys and values are written.
    pub(super) caches: BTreeMap<usize, Caches>,
    /// Values of RWKV's first layer, which the later ones blend with theirs.
    pub(super) first_values: Option<Tensor>,
    /// Scale of each adapter in each row, by the name of the adapters' factors and the number of rows.
    pub(super) adapter_scales: BTreeMap<(String, usize), Tensor>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        gguf: &'a Gguf,
        hyper: &'a Hyperparameters,
        adapters: Option<&'a Adapters>,
        weights: &'a mut Weights,
        step: Step,
    ) -> Self {
        Self {
            g: Graph::new(),
            gguf,
            hyper,
            adapters,
            weights,
            step,
            caches: BTreeMap::new(),
            first_values: None,
            adapter_scales: BTreeMap::new(),
        }
    }

    pub(super) fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<Tensor> {
        self.g.at(name);
        let name = format!("{name}.weight");
        let buffer = self.weights.tensor(self.gguf, &name, &[rows, columns], WeightKind::Matrix)?;
        self.weight(&buffer)
    }

    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<Tensor> {
        let buffer = self.weights.tensor(self.gguf, name, &[len], WeightKind::Vector)?;
        self.weight(&buffer)
    }

    /// A vector that only some files have.
    pub(super) fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<Tensor>> {
        match self.gguf.tensor(name) {
            Some(_) => self.vector(name, len).map(Some),
            None => Ok(None),
        }
    }

    /// An F32 tensor of any shape that is no factor of a matrix product; files may store it with one axis.
    pub(super) fn flat(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let all = [shape.iter().product()];
        let buffer = self.weights.reshaped(self.gguf, name, [shape, &all], WeightKind::Vector)?;
        let flat = self.weight(&buffer)?;
        Ok(self.g.reshape(flat, shape)?)
    }

    /// A constant vector that is computed from metadata.
    pub(super) fn derived(&mut self, name: &str, values: &[f32]) -> Result<Tensor> {
        let buffer = self.weights.derived(name, values);
        self.weight(&buffer)
    }

    pub(super) fn weight(&mut self, weight: &Buffer) -> Result<Tensor> {
        Ok(self.g.source(Class::Weight, &weight.name, weight.dtype, &weight.shape)?)
    }

    pub(super) fn mailbox(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        Ok(self.g.source(Class::Mailbox, name, dtype, shape)?)
    }

    pub(super) fn state(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        Ok(self.g.source(Class::State, name, dtype, shape)?)
    }

    /// A recurrent state of fixed size; each slot has two versions of it.
    pub(super) fn recurrence(
        &mut self,
        name: &str,
        size: &[usize],
        rows: Rows,
    ) -> Result<Recurrence> {
        let slots = self.step.layout.slots;
        let state = self.state(name, DType::F32, &[&[slots, 2], size].concat())?;
        let held = self.state(&ports::held(name), DType::I32, &[slots, 2])?;
        Ok(Recurrence { state, held, rows, chunk: self.step.bucket.chunk })
    }
}
