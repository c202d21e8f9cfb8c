//! Lowers a fused plan to launches: selects kernels, computes grids and resolves addresses.
//!
//! Inputs that change per step (tokens, positions, slots) are read from mailboxes by the kernels,
//! so launches stay valid as long as the memory exists. This module walks the plan and resolves
//! operands; each family of kernels has a file; [`check`] rejects unsupported steps.

mod attention;
mod check;
mod elementwise;
mod matmul;
mod mixture;
mod prefetch;
mod project;
mod recurrent;
mod sample;
mod tensor;

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{elements_grid, embed_grid, rows_grid};
use orind_kernels::params::{self, EmbedParams, GatherParams, RopeTableParams};

use super::launch::{Launch, Params, Region};
use super::storage::{Cache, State, WeightLayout, Workspace, plain, unsupported};
use super::variant::Tuning;
use crate::plan_buffers::PlanBuffers;
use crate::slots::Table;
use crate::uses::is_table;
use crate::{Error, Result};
use plan::{
    Activation, Arena, Attention, Buffer, Class, DType, Gather, Group, Normalise, Op, Plan, RopeKv,
    RopeTable, Step, View,
};

pub(super) use attention::splits;
pub(super) use check::check;
pub(super) use matmul::takes_halves;
pub(super) use mixture::{activations_bytes as mixture_activations, work_bytes as mixture_bytes};
use project::Matrix;
pub(super) use project::cost;

/// Most launches of a plan: each takes about 1 KiB of memory.
const MOST_LAUNCHES: usize = 1 << 18;

/// Compilation time after which a message is logged.
const SILENT: Duration = Duration::from_secs(1);

pub(super) struct Addresses<'a> {
    pub(super) weights: &'a HashMap<String, (u64, WeightLayout)>,
    pub(super) states: &'a HashMap<String, (u64, State)>,
    /// Address and shape of the block table.
    pub(super) table: (u64, Table),
    pub(super) workspace: &'a Workspace,
    /// Address of the GPU-only scratch, divided by [`Workspace`].
    pub(super) scratch: u64,
    pub(super) counters: u64,
    /// The plan's own buffers, and their address.
    pub(super) buffers: &'a PlanBuffers,
    pub(super) buffers_at: u64,
    pub(super) sms: u32,
    pub(super) tuning: Tuning<'a>,
}

impl Addresses<'_> {
    /// Partial results of attention.
    const fn attention(&self) -> Region {
        Region::new(self.scratch + self.workspace.arena, self.workspace.attention)
    }

    /// Block counters of attention or of a sequence.
    const fn block_counters(&self) -> Region {
        Region::new(self.counters, self.workspace.block_counters)
    }

    /// Address of an MoE layer's intermediate results.
    const fn mixture(&self) -> u64 {
        self.normed().address - self.workspace.mixture
    }

    /// Rows after a LayerNorm.
    const fn normed(&self) -> Region {
        let normed = self.workspace.normed;
        Region::new(self.activations().address - normed, normed)
    }

    const fn sample(&self) -> (u64, u64, u64) {
        let parts = self.scratch + self.workspace.arena + self.workspace.attention;
        let candidates = parts + self.workspace.sample;
        (parts, candidates, self.counters + self.workspace.block_counters)
    }

    /// Quantised activations.
    const fn activations(&self) -> Region {
        let bytes = self.workspace.activations;
        Region::new(self.scratch + self.workspace.scratch() - bytes, bytes)
    }
}

/// Lowers a plan to launches.
///
/// # Errors
///
/// [`Error::Unsupported`] for steps, types or shapes that no kernel supports, [`Error::Invalid`]
/// for an invalid plan.
pub(super) fn lower(plan: &Plan, addresses: &Addresses<'_>) -> Result<Vec<Launch>> {
    plan.validate().map_err(|e| Error::Invalid(e.to_string()))?;
    let arena = arena(plan);
    let mut lowering = Lowering { plan, addresses, arena, launches: Vec::new(), at: 0 };
    let groups = groups(plan);
    let blocks = plan.blocks();
    let mut body = 0..0;
    let (mut at, mut told) = (0, Instant::now());
    while let Some(step) = plan.steps.get(at) {
        if blocks.iter().any(|(steps, _)| steps.start == at) {
            body.start = lowering.launches.len();
        }
        let group = groups.iter().find(|group| group.steps.start == at);
        lowering.at = at;
        match (group, absorbed(plan, at)) {
            (Some(group), _) => lowering.group(group)?,
            (None, Some(Absorbed { rope, attention, label })) => {
                lowering.at = at + 1;
                lowering.attention(label, attention, Some(rope))?;
            }
            (None, None) => lowering.step(step)?,
        }
        at = lowering.at + 1;
        if let Some((_, count)) = blocks.iter().find(|(steps, _)| steps.end == at) {
            body.end = lowering.launches.len();
            lowering.repeat(body.clone(), *count)?;
        }
        // Kernels may have to be compiled.
        if told.elapsed() > SILENT {
            told = Instant::now();
            tracing::info!(step = at, of = plan.steps.len(), "compiling kernels");
        }
    }
    let mut launches = lowering.launches;
    prefetch::set_prefetch(&mut launches);
    Ok(launches)
}

/// Fused groups of elementwise steps and reductions.
fn groups(plan: &Plan) -> Vec<Group> {
    plan::schedule(plan).into_iter().filter(|group| group.is_kernel(plan)).collect()
}

struct Absorbed<'a> {
    rope: &'a RopeKv,
    attention: &'a Attention,
    label: &'a str,
}

/// Steps `at` and `at + 1` if one launch performs both: in decode, where every row has its own
/// slot, an attention whose queries and keys only it reads.
fn absorbed(plan: &Plan, at: usize) -> Option<Absorbed<'_>> {
    let (step, next) = (&plan.steps[at], plan.steps.get(at + 1)?);
    let (Op::RopeKv(rope), Op::Attention(attention)) = (&step.op, &next.op) else { return None };
    let rotated = &rope.queries.as_ref()?.out;
    let reads = |step: &&Step| step.op.reads().iter().any(|view| view.buffer == rotated.buffer);
    let absorbs = plan.bucket.chunk == 1
        && attention.q == *rotated
        && attention.caches == rope.caches
        && attention.rows == rope.rows
        && plan.steps.iter().filter(reads).count() == 1
        && plan.buffer(rotated.buffer).class == Class::Scratch;
    absorbs.then_some(Absorbed { rope, attention, label: &next.label })
}

/// Layout of scratch. Inputs of a launch that performs two steps stay alive until the second has
/// written.
pub(super) fn arena(plan: &Plan) -> Arena {
    let groups = groups(plan);
    let last_of = |at| {
        let group = groups.iter().find(|group| group.steps.contains(&at));
        let own = at + usize::from(absorbed(plan, at).is_some());
        group.map_or(own, |group| group.steps.end - 1)
    };
    Arena::new(plan, last_of, |buffer| (buffer, 0))
}

struct Lowering<'a> {
    plan: &'a Plan,
    addresses: &'a Addresses<'a>,
    arena: Arena,
    launches: Vec<Launch>,
    /// Index of the current step.
    at: usize,
}

/// Rows and columns of a view; the last axis is the row.
pub(super) fn rows_of(view: &View) -> (usize, usize) {
    let n = view.shape.last().copied().unwrap_or(1).max(1);
    (view.elements() / n, n)
}

/// The kernels' number of an activation.
const fn number_of(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => params::SILU,
        Activation::Gelu => params::GELU,
    }
}

fn count(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| unsupported(format!("a dimension of {n}")))
}

impl Lowering<'_> {
    fn buffer(&self, view: &View) -> &Buffer {
        self.plan.buffer(view.buffer)
    }

    /// A contiguous view of 4-byte elements.
    fn region(&self, view: &View) -> Result<Region> {
        if !view.is_contiguous() {
            let Buffer { class, name, .. } = self.buffer(view);
            let what = format!("{class:?} `{name}` with strides as an operand here");
            return Err(unsupported(what));
        }
        Ok(Region::new(self.address(view)?, 4 * view.elements() as u64))
    }

    /// Address of a view of 4-byte elements.
    fn address(&self, view: &View) -> Result<u64> {
        let buffer = self.buffer(view);
        let base = match buffer.class {
            Class::Scratch => self.arena.offset(view.buffer).map(|at| self.addresses.scratch + at),
            Class::Mailbox | Class::Output => {
                let base = self.addresses.buffers_at;
                self.addresses.buffers.offset(view.buffer).map(|at| base + at)
            }
            Class::Weight => self.addresses.weights.get(&buffer.name).and_then(|(at, weight)| {
                let numbers = weight.numbers()?;
                (numbers.bytes == Self::bytes(buffer)).then_some(at + numbers.at)
            }),
            Class::State => match self.addresses.states.get(&buffer.name) {
                Some((at, State::Recurrent { .. })) => Some(*at),
                _ => None,
            },
            Class::Constant(_) => None,
        };
        let base = base.ok_or_else(|| {
            unsupported(format!("{:?} `{}` as an operand here", buffer.class, buffer.name))
        })?;
        Ok(base + 4 * view.offset as u64)
    }

    /// Storage type of a buffer's elements.
    fn dtype(buffer: &Buffer) -> DType {
        if buffer.class == Class::Weight { plain(buffer.dtype) } else { buffer.dtype }
    }

    /// Storage size of a buffer in bytes.
    fn bytes(buffer: &Buffer) -> u64 {
        match Self::dtype(buffer) {
            dtype if dtype == buffer.dtype => buffer.bytes(),
            dtype => buffer.elements() as u64 * dtype.block_bytes() as u64,
        }
    }

    fn typed(&self, view: &View, dtype: DType) -> Result<Region> {
        let buffer = self.buffer(view);
        if buffer.dtype != dtype {
            return Err(unsupported(format!("`{}` of {} as {dtype}", buffer.name, buffer.dtype)));
        }
        self.region(view)
    }

    fn f32(&self, view: &View) -> Result<Region> {
        self.typed(view, DType::F32)
    }

    /// Address of an optional view; 0 for none.
    fn optional(&self, view: Option<&View>) -> Result<u64> {
        view.map_or(Ok(0), |view| Ok(self.f32(view)?.address))
    }

    fn i32(&self, view: &View) -> Result<Region> {
        self.typed(view, DType::I32)
    }

    fn cache(&self, view: &View) -> Result<(Region, Cache)> {
        let buffer = self.buffer(view);
        match self.addresses.states.get(&buffer.name) {
            Some(&(at, State::Cache(c)))
                if *view.shape == [c.slots, c.capacity, c.heads, c.dim].map(|n| n as usize) =>
            {
                Ok((Region::new(at, c.bytes()), c))
            }
            _ => Err(unsupported(format!("`{}` as a KV cache", buffer.name))),
        }
    }

    fn launch(
        &mut self,
        label: &str,
        kernel: Kernel,
        grid: [u32; 3],
        params: Params,
        reads: Vec<Region>,
        writes: Vec<Region>,
    ) {
        let label = label.to_owned();
        let (step, shared_bytes) = (self.at, 0);
        let launch = Launch { step, label, kernel, grid, shared_bytes, params, reads, writes };
        self.launches.push(launch);
    }

    /// Launches a body again until it has run `count` times.
    fn repeat(&mut self, body: Range<usize>, count: usize) -> Result<()> {
        let all = body.len().saturating_mul(count - 1);
        if self.launches.len().saturating_add(all) > MOST_LAUNCHES {
            let what = format!("a body of {} launches {count} times", body.len());
            return Err(unsupported(format!("{what}, more than {MOST_LAUNCHES} in all")));
        }
        let body = self.launches[body].to_vec();
        self.launches.extend(std::iter::repeat_n(body, count - 1).flatten());
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<()> {
        let label = step.label.as_str();
        match &step.op {
            Op::Gather(gather) => self.gather(label, gather),
            Op::Normalise(Normalise { x, norm, out }) => {
                let (rows, x, out) = (rows_of(x), self.f32(x)?, self.f32(out)?);
                self.norm(label, norm, rows, x, out)
            }
            Op::RopeTable(table) => self.rope_table(label, table),
            Op::Attention(attention) => self.attention(label, attention, None),
            Op::RopeKv(rope) => self.rope_kv(label, rope),
            Op::Rope { style, x, table, out } => self.rope(label, *style, [x, table], out),
            Op::Mixture(mixture) => self.mixture(label, mixture),
            Op::ShortConv(conv) => self.short_conv(label, conv),
            Op::GatedDelta(delta) => self.gated_delta(label, delta),
            Op::DeltaRule(rule) => self.delta_rule(label, rule),
            Op::Scatter { indices, values, table } => {
                self.scatter(label, indices, [values, table], false)
            }
            Op::ScatterAdd { indices, values, out } => {
                self.scatter(label, indices, [values, out], true)
            }
            Op::TopK { x, out } => self.top_k(label, x, out),
            Op::MatMul { a, b, out } => self.matmul_of_tensors(label, [a, b], out),
            Op::Project(project) => self.project(label, project),
            Op::Sample(sample) => self.sample(label, sample),
            op if self.elementwise(label, op)? => Ok(()),
            op => Err(unsupported(format!("step {} ({label})", op.name()))),
        }
    }

    fn gather(&mut self, label: &str, gather: &Gather) -> Result<()> {
        let table = &gather.table;
        let packed = self.matrix(table, None).ok().filter(|_| is_table(self.plan, gather));
        let ids = match &gather.indices[..] {
            [ids] if packed.is_some() => ids,
            [ids]
                if table.is_contiguous()
                    && ids.is_contiguous()
                    && Self::dtype(self.buffer(table)).block_bytes() == 4 =>
            {
                ids
            }
            _ => return self.gather_of_tensors(label, gather),
        };
        let out = self.region(&gather.out)?;
        let rows = count(ids.elements())?;
        let ids = self.i32(ids)?;
        if let Some(Matrix { address, weight, n, .. }) = packed {
            let k = count(table.shape[1])?;
            let params = Params::Embed(EmbedParams {
                table: address,
                ids: ids.address,
                out: out.address,
                n,
                k,
                rows,
                reserved: 0,
            });
            let grid = embed_grid(weight, k, rows);
            self.launch(label, Kernel::Embed(weight), grid, params, vec![ids], vec![out]);
            return Ok(());
        }
        let source = self.region(table)?;
        let width = count(table.shape[1..].iter().product())?;
        let params = Params::Gather(GatherParams {
            table: source.address,
            ids: ids.address,
            out: out.address,
            extent: count(table.shape[0])?,
            width,
            rows,
            reserved: 0,
        });
        let grid = elements_grid(width, rows);
        self.launch(label, Kernel::Gather, grid, params, vec![source, ids], vec![out]);
        Ok(())
    }

    fn rope_table(&mut self, label: &str, step: &RopeTable) -> Result<()> {
        let positions = self.i32(&step.positions)?;
        let frequencies = self.f32(&step.frequencies)?;
        let out = self.f32(&step.out)?;
        let rows = count(step.positions.elements())?;
        let params = Params::RopeTable(RopeTableParams {
            positions: positions.address,
            frequencies: frequencies.address,
            out: out.address,
            half: count(step.frequencies.elements())?,
            rows,
            magnitude: step.magnitude.get(),
            reserved: 0,
        });
        let grid = rows_grid(rows);
        self.launch(label, Kernel::RopeTable, grid, params, vec![positions], vec![out]);
        Ok(())
    }
}
