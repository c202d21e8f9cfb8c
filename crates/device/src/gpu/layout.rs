//! Memory layout of an instance: sizes and offsets of weights, states and scratch.

use std::collections::HashMap;

use orind_kernels::catalogue::Weight;
use orind_kernels::catalogue::launch::{
    attention_partial_bytes, halves_bytes, matmul_activations_bytes,
};

use super::lower;
use super::storage::{ALIGN, SAMPLE_PARTS, State, WeightLayout, Workspace, unsupported};
use crate::plan_buffers::PlanBuffers;
use crate::slots::{Pieces, States, Table, rings};
use crate::uses::Uses;
use crate::{Error, Footprint, Request, Result, precision};
use plan::{Attention, GatedDelta, NormKind, Op, Plan, Sample, ShortConv};

/// Scratch bytes of the sampler per part and row.
const SAMPLE_PART_BYTES: u64 = 16;

/// Scratch that a plan needs.
fn workspace_of(plan: &Plan) -> Result<Workspace> {
    lower::check(plan)?;
    let mut w = Workspace { arena: lower::arena(plan).bytes, ..Workspace::default() };
    let grow = |a: &mut u64, b: u64| *a = (*a).max(b.next_multiple_of(ALIGN));
    for step in &plan.steps {
        match &step.op {
            Op::Attention(Attention { q, caches, .. }) => {
                let (&[rows, heads, dim], &[_, capacity, kv_heads, _]) =
                    (q.shape.as_slice(), caches.keys.shape.as_slice())
                else {
                    return Err(unsupported(format!("attention of {:?}", q.shape)));
                };
                let [r, h, kv, d] = [rows, heads, kv_heads, dim].map(|n| n as u32);
                let splits = lower::splits(h, kv, d, r, plan.bucket.context);
                let [rows, heads, dim] = [rows as u64, heads as u64, dim as u64];
                if splits > 1 {
                    let parts =
                        attention_partial_bytes(rows, heads, dim, capacity as u64, caches.ring);
                    grow(&mut w.attention, parts);
                }
                grow(&mut w.block_counters, 4 * rows * heads);
            }
            Op::Project(project) => {
                let (rows, k) = lower::rows_of(&project.x);
                if project.norm.as_ref().is_some_and(|norm| norm.kind == NormKind::Layer) {
                    grow(&mut w.normed, 4 * rows as u64 * k as u64);
                }
                let planes = precision::residual_planes(plan, project) as u32;
                for view in project.product.weights() {
                    let Some(weight) = Weight::of(plan.buffer(view.buffer).dtype) else {
                        continue;
                    };
                    // Any tile may be chosen.
                    let tiles = weight.tiles().iter().filter(|_| rows > 1);
                    for &tile in tiles {
                        let [rows, k] = [rows, k].map(|n| n as u32);
                        let bytes = matmul_activations_bytes(weight, tile, rows, planes, k);
                        grow(&mut w.activations, bytes);
                    }
                    if lower::takes_halves(plan, weight, rows, k) {
                        grow(&mut w.activations, halves_bytes(rows as u32, k as u32));
                    }
                }
            }
            Op::Mixture(mixture) => {
                grow(&mut w.mixture, lower::mixture_bytes(mixture));
                grow(&mut w.activations, lower::mixture_activations(plan, mixture));
            }
            Op::ShortConv(ShortConv { memory, .. }) | Op::GatedDelta(GatedDelta { memory, .. }) => {
                grow(&mut w.block_counters, 4 * memory.sequences() as u64);
            }
            Op::Sample(Sample { logits, inputs, .. }) => {
                let rows = inputs.temperature.elements() as u64;
                let vocabulary = logits.shape.last().copied().unwrap_or(0) as u64;
                grow(&mut w.sample, rows * u64::from(SAMPLE_PARTS) * SAMPLE_PART_BYTES);
                // Followed by the edited logits.
                let each = if inputs.adjustments.is_some() { 12 } else { 8 };
                grow(&mut w.candidates, each * rows * vocabulary);
                grow(&mut w.sample_counters, 4 * (rows + 1));
            }
            _ => {}
        }
    }
    w.arena = w.arena.next_multiple_of(ALIGN);
    Ok(w)
}

#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) weights: HashMap<String, WeightLayout>,
    pub(super) weight_bytes: u64,
    /// Offset and kind of each state.
    pub(super) states: HashMap<String, (u64, State)>,
    pub(super) state_bytes: u64,
    /// Pieces of states, by block and slot.
    pub(super) slots: States,
    pub(super) table: Table,
    pub(super) workspace: Workspace,
    plan_bytes: u64,
    /// Largest mailbox size of a plan.
    pub(super) mailbox_bytes: u64,
}

impl Layout {
    /// Computes the layout of a request.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a weight, cache or step that no kernel supports.
    pub(super) fn new(request: &Request<'_>) -> Result<Self> {
        let mut weights = HashMap::new();
        let mut weight_bytes = 0u64;
        let uses = Uses::of(request);
        for buffer in request.weights {
            let uses = uses.get(buffer.name.as_str()).copied().unwrap_or_default();
            let weight = WeightLayout::of(buffer, uses)?;
            weight_bytes = weight_bytes.saturating_add(weight.bytes().next_multiple_of(ALIGN));
            weights.insert(buffer.name.clone(), weight);
        }
        let rings = rings(request);
        let (mut states, mut slots) = (HashMap::new(), States::default());
        let (mut state_bytes, mut table) = (0u64, Table::default());
        for buffer in request.states {
            let state = State::of(buffer, rings.contains(&*buffer.name))?;
            let begin = state_bytes as usize;
            match state {
                State::Cache(cache) if cache.ring => slots.rest.push(cache.at(state_bytes)),
                State::Cache(cache) => {
                    slots.blocks.push(cache.at(state_bytes));
                    table.grow(cache.slots as usize, cache.capacity as usize);
                }
                State::Recurrent { bytes, slots: count } => {
                    let bytes = (bytes / u64::from(count)) as usize;
                    slots.rest.push(Pieces { begin, count: count as usize, bytes });
                }
            }
            states.insert(buffer.name.clone(), (state_bytes, state));
            state_bytes = state_bytes.saturating_add(state.bytes().next_multiple_of(ALIGN));
        }
        let mut workspace = Workspace::default();
        let (mut plan_bytes, mut mailbox_bytes) = (0, 0u64);
        for plan in request.plans {
            workspace = workspace.max(workspace_of(plan)?);
            let buffers = PlanBuffers::new(plan);
            plan_bytes += buffers.bytes;
            mailbox_bytes = mailbox_bytes.max(buffers.mailbox_bytes);
        }
        Ok(Self {
            weights,
            weight_bytes,
            states,
            state_bytes,
            slots,
            table,
            workspace,
            plan_bytes,
            mailbox_bytes,
        })
    }

    /// Size of the block table in bytes.
    pub(super) const fn table_bytes(&self) -> u64 {
        4 * self.table.blocks() as u64
    }

    /// Addresses of states that start at `base`.
    pub(super) fn states_at(&self, base: u64) -> HashMap<String, (u64, State)> {
        self.states.iter().map(|(name, (at, state))| (name.clone(), (base + at, *state))).collect()
    }

    /// Rejects a plan that the layout was not computed for.
    pub(super) fn admits(&self, plan: &Plan) -> Result<()> {
        if self.workspace.max(workspace_of(plan)?) == self.workspace
            && PlanBuffers::new(plan).mailbox_bytes <= self.mailbox_bytes
        {
            return Ok(());
        }
        Err(Error::Invalid("the plan was not part of the request".into()))
    }

    pub(super) const fn footprint(&self) -> Footprint {
        Footprint {
            weights: self.weight_bytes,
            state: self.state_bytes,
            activations: self.workspace.scratch()
                + self.workspace.counters()
                + self.table_bytes()
                + self.plan_bytes,
        }
    }
}
