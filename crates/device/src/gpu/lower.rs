//! From a fused plan to launches: kernels chosen, grids sized, every address resolved.
//!
//! What changes from step to step (tokens, positions, slots) is read from the mailboxes by the
//! kernels, so a list of launches is good for as long as the memory stands.

use std::collections::HashMap;
use std::ops::Range;

use orind_kernels::catalogue::launch::{
    ATTENTION_GROUP, attention_grid, elements_grid, embed_grid, matmul_grid, matmul_shared_bytes,
    prefill_attention_grid, prefill_attention_rows, prefill_attention_shared_bytes,
    project_shared_bytes, project_tiles, quantise_grid, quantise_shared_bytes, rope_kv_grid,
    rows_grid,
};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{
    AttentionParams, EmbedParams, GatherParams, MatmulParams, ProjectParams, QuantiseParams,
    RopeTableParams, RowsParams, SampleParams, Segment,
};

use super::launch::{Launch, Params, Region};
use super::layout::{Cache, SAMPLE_PARTS, WeightLayout, Workspace, unsupported, weight};
use super::limit;
use super::variant::{self, Shape, Tuning};
use crate::plan_buffers::PlanBuffers;
use crate::{Error, RING_STEPS, Result, precision};
use plan::{
    Activation, Arena, Attention, Binary, Buffer, Caches, Class, Cost, DType, Gather, Linear, Norm,
    NormKind, Normalise, Op, Plan, Product, Project, QkNorm, Queries, RopeKv, RopeStyle, RopeTable,
    Rows, Sample, Scores, Step, View,
};

/// Rows of activations that a projection takes at once.
const PROJECT_ROWS: usize = 8;
/// Blocks of attention that keep the largest Orin busy.
const ATTENTION_BLOCKS: u32 = 256;
/// The same of prefill attention, two for each SM: with fewer, a block for each row is sooner done.
const PREFILL_ATTENTION_BLOCKS: u32 = 32;

/// Blocks that divide a row's positions among them where the plan's rows see `context` of them.
pub(super) fn splits(heads: u32, kv_heads: u32, dim: u32, rows: u32, context: usize) -> u32 {
    let group = heads / kv_heads.max(1);
    let blocks = match Kernel::attention(dim, group, false) {
        Some(Kernel::Attention { heads: at_once, .. }) => heads / at_once,
        _ => heads,
    };
    let groups = u32::try_from((context as u64).div_ceil(ATTENTION_GROUP)).unwrap_or(u32::MAX);
    ATTENTION_BLOCKS.div_ceil((blocks * rows).max(1)).min(groups.max(1))
}

pub(super) struct Addresses<'a> {
    pub(super) weights: &'a HashMap<String, (u64, WeightLayout)>,
    pub(super) caches: &'a HashMap<String, (u64, Cache)>,
    pub(super) workspace: &'a Workspace,
    /// The scratch that only the GPU touches, as [`Workspace`] divides it.
    pub(super) scratch: u64,
    pub(super) counters: u64,
    /// The plan's own buffers, and where they begin.
    pub(super) buffers: &'a PlanBuffers,
    pub(super) buffers_at: u64,
    pub(super) sms: u32,
    pub(super) tuning: Tuning<'a>,
}

impl Addresses<'_> {
    const fn attention(&self) -> (u64, u64) {
        (self.scratch + self.workspace.arena, self.counters)
    }

    const fn sample(&self) -> (u64, u64, u64) {
        let parts = self.scratch + self.workspace.arena + self.workspace.attention;
        let candidates = parts + self.workspace.sample;
        (parts, candidates, self.counters + self.workspace.attention_counters)
    }

    /// Where quantised activations are, and what stands beside them.
    const fn activations(&self) -> [Region; 2] {
        let Workspace { quants, extras, .. } = *self.workspace;
        let at = self.scratch + self.workspace.scratch() - extras;
        [Region::new(at - quants, quants), Region::new(at, extras)]
    }
}

/// The launches of a plan.
///
/// # Errors
/// [`Error::Unsupported`] for steps, types or shapes that the kernels do not take,
/// [`Error::Invalid`] for a plan that is not valid.
pub(super) fn lower(plan: &Plan, addresses: &Addresses<'_>) -> Result<Vec<Launch>> {
    plan.validate().map_err(|e| Error::Invalid(e.to_string()))?;
    let arena = arena(plan);
    let mut lowering = Lowering { plan, addresses, arena, launches: Vec::new(), at: 0 };
    let mut steps = plan.steps.iter().enumerate().peekable();
    while let Some((at, step)) = steps.next() {
        lowering.at = at;
        match absorbed(plan, at) {
            Some(Absorbed { rope, attention, label }) => {
                steps.next();
                lowering.at = at + 1;
                lowering.attention(label, attention, Some(rope))?;
            }
            None => lowering.step(step)?,
        }
    }
    Ok(lowering.launches)
}

struct Absorbed<'a> {
    rope: &'a RopeKv,
    attention: &'a Attention,
    label: &'a str,
}

/// The step at `at` and the next one, if one launch does both: in decode, where every row has a slot of
/// its own, the next is the attention over what this one rotates, and nobody else reads that.
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

/// Where scratch lies. What one launch reads for two steps lives until the second has written.
pub(super) fn arena(plan: &Plan) -> Arena {
    let last_of = |at| at + usize::from(absorbed(plan, at).is_some());
    Arena::with_launches(plan, |_, bytes| bytes, last_of)
}

struct Lowering<'a> {
    plan: &'a Plan,
    addresses: &'a Addresses<'a>,
    arena: Arena,
    launches: Vec<Launch>,
    /// The number of the plan's step that is lowered.
    at: usize,
}

/// A matrix of weights, and where the products with it go: of a gate's pair only the first one's do.
#[derive(Clone, Copy)]
struct Matrix {
    address: u64,
    weight: Weight,
    n: u32,
    /// Planes of the activations that its products have.
    planes: u32,
    out: Option<Region>,
}

/// The matrices of a launch, and where their products of the step's first row go.
fn segments(matrices: &[Matrix]) -> [Segment; 3] {
    let mut segments = [Segment::default(); 3];
    for (segment, &Matrix { address, n, out, planes, .. }) in segments.iter_mut().zip(matrices) {
        let out = out.map_or(0, |out| out.address);
        *segment = Segment { weights: address, out, n, planes };
    }
    segments
}

/// Everything about a projection's step but its matrices.
struct Projection {
    x: Region,
    k: usize,
    /// 0 for no norm.
    norm_weight: u64,
    eps: f32,
    residual: Option<Region>,
    swiglu: bool,
}

/// Rows of activations that one launch of a projection takes.
#[derive(Clone, Copy)]
struct Chunk {
    first: usize,
    rows: usize,
    /// Rows that the kernel has room for.
    room: u32,
    planes: u32,
    shared_bytes: u32,
}

/// Rows and columns of a view whose last axis is the row.
pub(super) fn rows_of(view: &View) -> (usize, usize) {
    let n = view.shape.last().copied().unwrap_or(1).max(1);
    (view.elements() / n, n)
}

/// Refuses a plan with a step that the kernels cannot do.
pub(super) fn check(plan: &Plan) -> Result<()> {
    match plan.steps.iter().find_map(|step| Some((lacking(&step.op)?, step))) {
        Some((lacking, step)) => Err(unsupported(format!("{lacking} ({})", step.label))),
        None => Ok(()),
    }
}

/// What a step asks for that the kernels cannot do.
fn lacking(op: &Op) -> Option<&'static str> {
    let norm = |norm: &Norm| match norm {
        Norm { kind: NormKind::Rms, bias: None, .. } => None,
        _ => Some("LayerNorm"),
    };
    let not_silu = |activation| (activation != Activation::Silu).then_some("GELU");
    match op {
        Op::Normalise(step) => norm(&step.norm),
        Op::Bias { .. } => Some("biases"),
        Op::Scale { .. } => Some("factors on activations"),
        Op::SoftCap { .. } => Some("soft caps"),
        Op::Activate { .. } => Some("feed-forward parts without a gate"),
        Op::Rope { .. } => Some("queries over the cache of another layer"),
        Op::Glu { activation, .. } => not_silu(*activation),
        Op::Project(Project { norm: before, product, .. }) => {
            let after = match product {
                Product::Each(each) if each.iter().any(|l| l.activation.is_some()) => {
                    Some("an activation in a projection")
                }
                Product::Each(each) if each.iter().any(|l| l.bias.is_some()) => Some("biases"),
                Product::Residual { bias: Some(_), .. } => Some("biases"),
                Product::Glu { activation, .. } => not_silu(*activation),
                Product::Each(_) | Product::Residual { .. } => None,
            };
            before.as_ref().and_then(norm).or(after)
        }
        Op::RopeKv(RopeKv { caches: Caches { ring: true, .. }, .. })
        | Op::Attention(Attention { caches: Caches { ring: true, .. }, .. }) => {
            Some("a ring of keys and values")
        }
        Op::RopeKv(RopeKv { k, table, .. }) => {
            let [rotated, dim] = [table, k].map(|view| view.shape.last().copied().unwrap_or(0));
            (2 * rotated != dim).then_some("rotation of a part of each head")
        }
        Op::Attention(Attention { sinks: Some(_), .. }) => Some("attention sinks"),
        Op::Attention(Attention { scores, .. }) => match scores {
            Scores { window: Some(_), .. } => Some("attention within a window"),
            Scores { cap: Some(_), .. } => Some("soft-capped attention"),
            Scores { temperature: Some(_), .. } => Some("attention with a temperature"),
            _ => None,
        },
        _ => None,
    }
}

fn count(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| unsupported(format!("a dimension of {n}")))
}

/// The parameters of some of the rows, with the same scratch: launches do not overlap.
fn rows_of_attention(all: AttentionParams, first: u32, rows: u32) -> AttentionParams {
    let mut part = AttentionParams { rows, ..all };
    let (first, dim) = (u64::from(first), u64::from(all.dim));
    let (queries, keys) = (u64::from(all.heads) * dim, u64::from(all.kv_heads) * dim);
    part.q += 4 * first * queries;
    part.out += 4 * first * queries;
    part.slots += 4 * first;
    part.positions += 4 * first;
    // Absent without rotation.
    if all.table != 0 {
        part.k += 4 * first * keys;
        part.v += 4 * first * keys;
        part.table += 4 * first * dim;
    }
    part
}

/// Whether so many rows meet a matrix on tensor cores: more than the kernels for few rows take at once.
pub(super) const fn is_matmul(weight: Weight, rows: usize) -> bool {
    weight.is_quantised() && rows > PROJECT_ROWS
}

/// As many of the rows as one launch can take.
fn chunk(weight: Weight, planes: u32, rows: Range<usize>, k: usize) -> Option<Chunk> {
    (1..=rows.len().min(PROJECT_ROWS)).rev().find_map(|take| {
        let kernel = Kernel::project(weight, u32::try_from(take).ok()?, planes)?;
        let Kernel::Project { rows: room, .. } = kernel else { return None };
        let shared_bytes = project_shared_bytes(weight, room, planes, k)?;
        Some(Chunk { first: rows.start, rows: take, room, planes, shared_bytes })
    })
}

/// All rows, launch by launch. `None` where no kernel takes that many columns.
fn chunks(weight: Weight, planes: u32, rows: usize, k: usize) -> Option<Vec<Chunk>> {
    let mut chunks = Vec::new();
    let mut first = 0;
    while first < rows {
        let chunk = chunk(weight, planes, first..rows, k)?;
        first += chunk.rows;
        chunks.push(chunk);
    }
    Some(chunks)
}

/// Planes of the activations that products with a matrix have.
fn planes(plan: &Plan, weight: Weight, out: &View) -> u32 {
    if weight.is_quantised() { precision::residual_planes_of(plan, out) as u32 } else { 1 }
}

/// What a plan moves and computes: each launch of a projection for few rows reads its matrices anew.
pub(super) fn cost(plan: &Plan) -> Cost {
    let mut cost = plan.cost();
    for step in &plan.steps {
        let Op::Project(project) = &step.op else { continue };
        let (rows, k) = rows_of(&project.x);
        let of = |view: &View| weight(plan.buffer(view.buffer).dtype);
        for view in project.product.weights() {
            let few = of(view).filter(|weight| !is_matmul(*weight, rows));
            let launches = few.and_then(|weight| {
                let planes = match &project.product {
                    Product::Each(each) => each
                        .iter()
                        .filter(|linear| of(&linear.weight) == Some(weight))
                        .map(|linear| planes(plan, weight, &linear.out))
                        .max()?,
                    Product::Glu { out, .. } | Product::Residual { out, .. } => {
                        planes(plan, weight, out)
                    }
                };
                chunks(weight, planes, rows, k)
            });
            // What has no kernel is refused by `lower`.
            let again = launches.map_or(0, |launches| launches.len() - 1);
            cost.weight_bytes += plan.buffer(view.buffer).bytes() * again as u64;
        }
    }
    cost
}

#[expect(clippy::cast_precision_loss, reason = "dimensions are far below 2^24")]
fn inverse(n: usize) -> f32 {
    1.0 / n as f32
}

impl Lowering<'_> {
    fn buffer(&self, view: &View) -> &Buffer {
        self.plan.buffer(view.buffer)
    }

    /// Address of a contiguous view of 4-byte elements.
    fn region(&self, view: &View) -> Result<Region> {
        let buffer = self.buffer(view);
        let refused =
            |why: &str| unsupported(format!("{:?} `{}` {why}", buffer.class, buffer.name));
        if !view.is_contiguous() {
            return Err(refused("with strides as an operand here"));
        }
        let base = match buffer.class {
            Class::Scratch => self.arena.offset(view.buffer).map(|at| self.addresses.scratch + at),
            Class::Mailbox | Class::Output => {
                let base = self.addresses.buffers_at;
                self.addresses.buffers.offset(view.buffer).map(|at| base + at)
            }
            Class::Weight => match self.addresses.weights.get(&buffer.name) {
                Some((at, WeightLayout::Plain(bytes))) if *bytes == buffer.bytes() => Some(*at),
                _ => None,
            },
            Class::State | Class::Constant(_) => None,
        };
        let base = base.ok_or_else(|| refused("as an operand here"))?;
        Ok(Region::new(base + 4 * view.offset as u64, 4 * view.elements() as u64))
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

    fn i32(&self, view: &View) -> Result<Region> {
        self.typed(view, DType::I32)
    }

    fn matrix(&self, view: &View, out: Option<&View>) -> Result<Matrix> {
        let buffer = self.buffer(view);
        match self.addresses.weights.get(&buffer.name) {
            Some(&(address, WeightLayout::Matrix(weight, _)))
                if buffer.class == Class::Weight && view.shape == buffer.shape =>
            {
                let planes = out.map_or(1, |out| planes(self.plan, weight, out));
                let out = out.map(|out| self.f32(out)).transpose()?;
                Ok(Matrix { address, weight, n: count(view.shape[0])?, planes, out })
            }
            _ => Err(unsupported(format!("`{}` as a matrix of weights", buffer.name))),
        }
    }

    fn cache(&self, view: &View) -> Result<(Region, Cache)> {
        let buffer = self.buffer(view);
        match self.addresses.caches.get(&buffer.name) {
            Some(&(at, c))
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

    fn step(&mut self, step: &Step) -> Result<()> {
        let label = step.label.as_str();
        match &step.op {
            Op::Gather(gather) => self.gather(label, gather),
            Op::Binary { op: Binary::Add, a, b, out } => {
                self.elementwise(label, Kernel::Add, [a, b], out)
            }
            Op::Glu { gate, up, out, .. } => {
                self.elementwise(label, Kernel::SwiGlu, [gate, up], out)
            }
            Op::Normalise(norm) => self.rms_norm(label, norm),
            Op::RopeTable(table) => self.rope_table(label, table),
            Op::Attention(attention) => self.attention(label, attention, None),
            Op::RopeKv(rope) => self.rope_kv(label, rope),
            Op::Project(project) => self.project(label, project),
            Op::Sample(sample) => self.sample(label, sample),
            op => Err(unsupported(format!("step {} ({label})", op.name()))),
        }
    }

    fn gather(&mut self, label: &str, gather: &Gather) -> Result<()> {
        let table = &gather.table;
        let [ids] = &gather.indices[..] else {
            return Err(unsupported(format!("gather by several indices ({label})")));
        };
        let out = self.region(&gather.out)?;
        let rows = count(ids.elements())?;
        let ids = self.i32(ids)?;
        if self.buffer(table).class == Class::Weight && table.shape.len() == 2 {
            let Matrix { address, weight, n, .. } = self.matrix(table, None)?;
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

    fn elementwise(
        &mut self,
        label: &str,
        kernel: Kernel,
        operands: [&View; 2],
        out: &View,
    ) -> Result<()> {
        let (rows, n) = rows_of(operands[0]);
        let [a, b] = [self.f32(operands[0])?, self.f32(operands[1])?];
        let out = self.f32(out)?;
        let (rows, n) = (count(rows)?, count(n)?);
        let params = Params::Rows(RowsParams {
            a: a.address,
            b: b.address,
            out: out.address,
            n,
            rows,
            ..RowsParams::default()
        });
        self.launch(label, kernel, elements_grid(n, rows), params, vec![a, b], vec![out]);
        Ok(())
    }

    fn rms_norm(&mut self, label: &str, step: &Normalise) -> Result<()> {
        let (rows, n) = rows_of(&step.x);
        let (x, weight) = (self.f32(&step.x)?, self.f32(&step.norm.weight)?);
        let (out, rows) = (self.f32(&step.out)?, count(rows)?);
        let params = Params::Rows(RowsParams {
            a: x.address,
            b: weight.address,
            out: out.address,
            n: count(n)?,
            rows,
            eps: step.norm.eps.get(),
            reserved: 0,
        });
        self.launch(label, Kernel::RmsNorm, rows_grid(rows), params, vec![x], vec![out]);
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

    /// Products of the rows with matrices of one type at a time, as many rows as a kernel takes.
    fn project(&mut self, label: &str, project: &Project) -> Result<()> {
        let (rows, k) = rows_of(&project.x);
        let mut projection = Projection {
            x: self.f32(&project.x)?,
            k,
            norm_weight: 0,
            eps: 0.0,
            residual: None,
            swiglu: false,
        };
        if let Some(norm) = &project.norm {
            projection.norm_weight = self.f32(&norm.weight)?.address;
            projection.eps = norm.eps.get();
        }
        let mut matrices = match &project.product {
            Product::Each(each) => {
                let matrix = |l: &Linear| self.matrix(&l.weight, Some(&l.out));
                each.iter().map(matrix).collect::<Result<Vec<_>, _>>()?
            }
            Product::Glu { gate, up, out, .. } => {
                projection.swiglu = true;
                let (gate, up) = (self.matrix(gate, Some(out))?, self.matrix(up, None)?);
                if gate.weight != up.weight {
                    let what = format!("gate and up of different types ({label})");
                    return Err(unsupported(what));
                }
                vec![gate, up]
            }
            Product::Residual { weight, residual, out, .. } => {
                projection.residual = Some(self.f32(residual)?);
                vec![self.matrix(weight, Some(out))?]
            }
        };
        while let Some(&Matrix { weight, .. }) = matrices.first() {
            let (same, rest): (Vec<_>, Vec<_>) =
                matrices.into_iter().partition(|m| m.weight == weight);
            matrices = rest;
            let planes = same.iter().map(|m| m.planes).max().unwrap_or(1);
            if is_matmul(weight, rows)
                && let Some(most) = limit::rows_of_matmul(&segments(&same), count(k)?)
            {
                self.matmul(label, &projection, &same, planes, rows, most as usize)?;
                continue;
            }
            let chunks = chunks(weight, planes, rows, k).ok_or_else(|| {
                unsupported(format!("{k} columns of {} ({label})", weight.name()))
            })?;
            for chunk in chunks {
                self.project_rows(label, &projection, &same, chunk)?;
            }
        }
        Ok(())
    }

    /// Products of many rows with matrices of one type: the rows as integers, then one launch for at `most` so
    /// many of them.
    fn matmul(
        &mut self,
        label: &str,
        projection: &Projection,
        matrices: &[Matrix],
        planes: u32,
        all: usize,
        most: usize,
    ) -> Result<()> {
        let &Projection { x, k, norm_weight, eps, residual, swiglu } = projection;
        let (weight, k) = (matrices[0].weight, count(k)?);
        let segments = segments(matrices);
        let ns: Vec<u32> = matrices.iter().map(|m| m.n).take(if swiglu { 1 } else { 3 }).collect();
        let shared_bytes = quantise_shared_bytes(weight, planes, k as usize)
            .ok_or_else(|| unsupported(format!("{k} columns of {} ({label})", weight.name())))?;
        let activations = self.addresses.activations();
        for first in (0..all).step_by(most) {
            let rows = most.min(all - first);
            // The rows of these launches within the rows of the step.
            let part = |whole: Region, n: u32| {
                let (first, rows, n) = (first as u64, rows as u64, u64::from(n));
                Region::new(whole.address + 4 * n * first, 4 * n * rows)
            };
            let x = part(x, k);
            let rows = count(rows)?;
            let [quants, extras] = activations.map(|region| region.address);
            let quantise =
                QuantiseParams { x: x.address, norm_weight, quants, extras, k, rows, planes, eps };
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel: Kernel::Quantise(weight),
                grid: quantise_grid(rows),
                shared_bytes,
                params: Params::Quantise(quantise),
                reads: vec![x],
                writes: activations.to_vec(),
            });
            let mut of_rows = segments;
            let mut writes = Vec::new();
            for (segment, matrix) in of_rows.iter_mut().zip(matrices) {
                let Some(out) = matrix.out.map(|out| part(out, matrix.n)) else { continue };
                segment.out = out.address;
                writes.push(out);
            }
            let residual = residual.map(|r| part(r, segments[0].n));
            let params = MatmulParams {
                quants,
                extras,
                residual: residual.map_or(0, |r| r.address),
                segments: of_rows,
                k,
                rows,
                swiglu: u32::from(swiglu),
                reserved: 0,
            };
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel: Kernel::Matmul(weight),
                grid: matmul_grid(rows, &ns, swiglu),
                shared_bytes: matmul_shared_bytes(weight),
                params: Params::Matmul(params),
                reads: activations.into_iter().chain(residual).collect(),
                writes,
            });
        }
        Ok(())
    }

    /// One launch: a chunk of the rows, and matrices of one type.
    fn project_rows(
        &mut self,
        label: &str,
        projection: &Projection,
        matrices: &[Matrix],
        chunk: Chunk,
    ) -> Result<()> {
        let &Projection { x, k, norm_weight, eps, residual, swiglu } = projection;
        let Chunk { first, rows, room, planes, shared_bytes } = chunk;
        // The rows of this launch within the rows of the step.
        let part = |whole: Region, n: u64| {
            Region::new(whole.address + 4 * n * first as u64, 4 * n * rows as u64)
        };
        let mut segments = [Segment::default(); 3];
        let mut writes = Vec::new();
        for (segment, &Matrix { address, n, planes, out, .. }) in segments.iter_mut().zip(matrices)
        {
            let out = out.map(|out| part(out, u64::from(n)));
            writes.extend(out);
            let out = out.map_or(0, |out| out.address);
            *segment = Segment { weights: address, out, n, planes };
        }
        let x = part(x, k as u64);
        let residual = residual.map(|r| part(r, u64::from(segments[0].n)));
        let params = ProjectParams {
            x: x.address,
            norm_weight,
            residual: residual.map_or(0, |r| r.address),
            segments,
            k: count(k)?,
            rows: count(rows)?,
            swiglu: u32::from(swiglu),
            eps,
            inverse_k: inverse(k),
            reserved: 0,
        };
        let weight = matrices[0].weight;
        let Addresses { sms, tuning, .. } = self.addresses;
        let case = variant::case(weight, planes, room, &params);
        let Shape { variant, blocks } = tuning.shape(weight, &case);
        let ns: Vec<u32> = matrices.iter().map(|m| m.n).take(if swiglu { 1 } else { 3 }).collect();
        self.launches.push(Launch {
            step: self.at,
            label: label.to_owned(),
            kernel: Kernel::Project { weight, rows: room, planes, variant },
            // More blocks than the device holds at once would only prepare the same activations again.
            grid: [project_tiles(variant, &ns, swiglu).min(sms * blocks).max(1), 1, 1],
            shared_bytes,
            params: Params::Project(params),
            reads: std::iter::once(x).chain(residual).collect(),
            writes,
        });
        Ok(())
    }

    /// What [`RopeKv`] says of queries, keys, values and norms, into the parameters.
    fn rotation(&self, rope: &RopeKv, params: &mut AttentionParams) -> Result<Vec<Region>> {
        let (k, v, table) = (self.f32(&rope.k)?, self.f32(&rope.v)?, self.f32(&rope.table)?);
        (params.k, params.v, params.table) = (k.address, v.address, table.address);
        let mut regions = vec![k, v, table];
        regions.extend(self.rows(&rope.rows, params)?);
        if let Some(Queries { q, .. }) = &rope.queries {
            let q = self.f32(q)?;
            params.q = q.address;
            regions.push(q);
        }
        if let Some(QkNorm { q, k, eps }) = &rope.norm {
            params.eps = eps.get();
            params.k_norm = self.f32(k)?.address;
            if let Some(q) = q {
                params.q_norm = self.f32(q)?.address;
            }
        }
        params.interleaved = u32::from(rope.style == RopeStyle::Interleaved);
        Ok(regions)
    }

    /// Slots and positions, into the parameters.
    fn rows(&self, rows: &Rows, params: &mut AttentionParams) -> Result<[Region; 2]> {
        let (slots, positions) = (self.i32(&rows.slots)?, self.i32(&rows.positions)?);
        (params.slots, params.positions) = (slots.address, positions.address);
        Ok([slots, positions])
    }

    /// Caches and sizes, into the parameters.
    fn shape(
        &self,
        params: &mut AttentionParams,
        caches: &Caches,
        rows: usize,
        heads: usize,
    ) -> Result<[Region; 2]> {
        let (keys, cache) = self.cache(&caches.keys)?;
        let (values, other) = self.cache(&caches.values)?;
        let heads = count(heads)?;
        if cache != other || !heads.is_multiple_of(cache.heads) {
            return Err(unsupported(format!("{heads} query heads over {cache:?} and {other:?}")));
        }
        (params.keys, params.values) = (keys.address, values.address);
        (params.rows, params.heads) = (count(rows)?, heads);
        (params.kv_heads, params.dim) = (cache.heads, cache.dim);
        (params.slot_count, params.capacity) = (cache.slots, cache.capacity);
        Ok([keys, values])
    }

    fn rope_kv(&mut self, label: &str, rope: &RopeKv) -> Result<()> {
        let shape = &rope.queries.as_ref().map_or(&rope.k, |queries| &queries.q).shape;
        let [rows, heads, _] = shape[..] else {
            return Err(unsupported(format!("heads {shape:?}")));
        };
        let mut params = AttentionParams::default();
        let reads = self.rotation(rope, &mut params)?;
        let mut writes = self.shape(&mut params, &rope.caches, rows, heads)?.to_vec();
        let mut rotated = 0;
        if let Some(Queries { out, .. }) = &rope.queries {
            let out = self.f32(out)?;
            (params.q_out, rotated) = (out.address, params.heads);
            writes.push(out);
        }
        let grid = rope_kv_grid(rotated, params.kv_heads, params.rows);
        self.launch(label, Kernel::RopeKv, grid, Params::Attention(params), reads, writes);
        Ok(())
    }

    /// Attention, which rotates and stores first when `rotation` is given.
    fn attention(
        &mut self,
        label: &str,
        attention: &Attention,
        rotation: Option<&RopeKv>,
    ) -> Result<()> {
        let [rows, heads, dim] = attention.q.shape[..] else {
            return Err(unsupported(format!("queries {:?}", attention.q.shape)));
        };
        let mut params = AttentionParams::default();
        let mut regions = match rotation {
            Some(rope) => self.rotation(rope, &mut params)?,
            None => {
                let q = self.f32(&attention.q)?;
                params.q = q.address;
                let [slots, positions] = self.rows(&attention.rows, &mut params)?;
                vec![q, slots, positions]
            }
        };
        let caches = self.shape(&mut params, &attention.caches, rows, heads)?;
        regions.extend(caches);
        let out = self.f32(&attention.out)?;
        params.out = out.address;
        params.scale = attention.scores.scale.get();
        // Rows of one sequence share a slot.
        let shared = rotation.is_none() && self.plan.bucket.batch == 1;
        if shared && self.prefill_attention(label, params, &regions, out) {
            return Ok(());
        }
        let group = params.heads / params.kv_heads;
        let context = self.plan.bucket.context;
        let splits = splits(params.heads, params.kv_heads, params.dim, params.rows, context);
        let kernel = Kernel::attention(count(dim)?, group, rotation.is_some());
        let grid = kernel
            .and_then(|kernel| attention_grid(kernel, params.heads, params.kv_heads, splits, 1));
        let (Some(kernel), Some([blocks, ..])) = (kernel, grid) else {
            return Err(unsupported(format!("heads of {dim} values ({label})")));
        };
        (params.partial, params.counters) = self.addresses.attention();
        let workspace = self.addresses.workspace;
        let mut writes = vec![
            out,
            Region::new(params.partial, workspace.attention),
            Region::new(params.counters, workspace.attention_counters),
        ];
        if rotation.is_some() {
            writes.extend(caches);
        }
        let most = limit::rows_of_attention(kernel, &params, blocks, context as u64);
        for first in (0..params.rows).step_by(most as usize) {
            let rows = most.min(params.rows - first);
            let part = Params::Attention(rows_of_attention(params, first, rows));
            let grid = [blocks, splits, rows];
            self.launch(label, kernel, grid, part, regions.clone(), writes.clone());
        }
        Ok(())
    }

    /// Attention of many rows of a sequence, which share what they read of its cache; false where there are too
    /// few of them, or no kernel takes such heads.
    fn prefill_attention(
        &mut self,
        label: &str,
        params: AttentionParams,
        reads: &[Region],
        out: Region,
    ) -> bool {
        let AttentionParams { rows, heads, kv_heads, dim, .. } = params;
        let group = heads / kv_heads;
        let Some(kernel) = Kernel::prefill_attention(dim, group) else { return false };
        let grid = |rows| prefill_attention_grid(kernel, heads, kv_heads, rows);
        let (Some([blocks, tiles, _]), Some(tile)) =
            (grid(rows), prefill_attention_rows(kernel, group))
        else {
            return false;
        };
        if blocks * tiles < PREFILL_ATTENTION_BLOCKS {
            return false;
        }
        let context = self.plan.bucket.context as u64;
        let most = limit::rows_of_attention(kernel, &params, blocks, context);
        let most = (most / tile).max(1) * tile;
        for first in (0..rows).step_by(most as usize) {
            let part = rows_of_attention(params, first, most.min(rows - first));
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel,
                grid: [blocks, part.rows.div_ceil(tile), 1],
                shared_bytes: prefill_attention_shared_bytes(kernel),
                params: Params::Attention(part),
                reads: reads.to_vec(),
                writes: vec![out],
            });
        }
        true
    }

    fn sample(&mut self, label: &str, sample: &Sample) -> Result<()> {
        let (rows, vocabulary) = rows_of(&sample.logits);
        let (buffers, base) = (self.addresses.buffers, self.addresses.buffers_at);
        let inputs = &sample.inputs;
        let regions = [
            self.f32(&sample.logits)?,
            self.f32(&inputs.temperature)?,
            self.i32(&inputs.top_k)?,
            self.f32(&inputs.top_p)?,
            self.i32(&inputs.seed)?,
            self.i32(&inputs.positions)?,
        ];
        let [logits, temperature, top_k, top_p, seed, positions] = regions.map(|r| r.address);
        let ids = self.i32(&sample.ids)?;
        let (parts, candidates, counters) = self.addresses.sample();
        let ring = Region::new(base + buffers.ring, 4 * u64::from(RING_STEPS) * rows as u64);
        let cursor = Region::new(base + buffers.cursor, 4);
        let workspace = self.addresses.workspace;
        let mut writes = vec![
            ids,
            ring,
            cursor,
            Region::new(parts, workspace.sample),
            Region::new(candidates, workspace.candidates),
            Region::new(counters, workspace.sample_counters),
        ];
        let (mut next_tokens, mut next_positions) = (0, 0);
        if let Some(next) = &sample.next {
            let (tokens, positions) = (self.i32(&next.tokens)?, self.i32(&next.positions)?);
            (next_tokens, next_positions) = (tokens.address, positions.address);
            writes.extend([tokens, positions]);
        }
        let rows = count(rows)?;
        let params = Params::Sample(SampleParams {
            logits,
            temperature,
            top_k,
            top_p,
            seed,
            positions,
            ids: ids.address,
            next_tokens,
            next_positions,
            ring: ring.address,
            cursor: cursor.address,
            partial: parts,
            counters,
            candidates,
            vocabulary: count(vocabulary)?,
            rows,
            ring_entries: RING_STEPS,
            reserved: 0,
        });
        let grid = [SAMPLE_PARTS, rows, 1];
        self.launch(label, Kernel::Sample, grid, params, regions.to_vec(), writes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{BufferId, Scalar, Temperature};

    #[test]
    fn what_the_kernels_cannot_do_is_named() {
        let view = |shape: &[usize]| View::whole(BufferId(0), shape);
        let one = || view(&[1, 64]);
        let norm = |kind| Norm { kind, weight: view(&[64]), bias: None, eps: Scalar::new(1e-5) };
        let project = |norm, product| Op::Project(Project { x: one(), norm: Some(norm), product });
        let linear = |bias, activation| {
            Product::Each(vec![Linear { weight: one(), bias, activation, out: one() }])
        };
        let glu = |activation| Product::Glu { activation, gate: one(), up: one(), out: one() };
        let attention = |scores, sinks| {
            let (rows, caches) = (
                Rows { slots: one(), positions: one() },
                Caches { keys: one(), values: one(), ring: false },
            );
            Op::Attention(Attention { scores, q: one(), caches, rows, sinks, out: one() })
        };
        let plain = Scores::scaled(0.1);
        let temperature = Temperature { slope: Scalar::new(0.1), length: 64 };
        for (op, expected) in [
            (project(norm(NormKind::Rms), linear(None, None)), None),
            (project(norm(NormKind::Layer), linear(None, None)), Some("LayerNorm")),
            (project(norm(NormKind::Rms), linear(Some(one()), None)), Some("biases")),
            (project(norm(NormKind::Rms), glu(Activation::Silu)), None),
            (project(norm(NormKind::Rms), glu(Activation::Gelu)), Some("GELU")),
            (Op::Bias { x: one(), bias: one(), out: one() }, Some("biases")),
            (attention(plain, None), None),
            (attention(plain, Some(one())), Some("attention sinks")),
            (
                attention(Scores { window: Some(8), ..plain }, None),
                Some("attention within a window"),
            ),
            (
                attention(Scores { cap: Some(Scalar::new(5.0)), ..plain }, None),
                Some("soft-capped attention"),
            ),
            (
                attention(Scores { temperature: Some(temperature), ..plain }, None),
                Some("attention with a temperature"),
            ),
        ] {
            assert_eq!(lacking(&op), expected, "{}", op.name());
        }
    }
}
