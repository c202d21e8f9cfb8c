//! From a fused plan to launches: kernels chosen, grids sized, every address resolved.
//!
//! What changes from step to step (tokens, positions, slots) is read from the mailboxes by the
//! kernels, so a list of launches is good for as long as the memory stands.

use std::collections::HashMap;

use orind_kernels::catalogue::launch::{
    attention_grid, elements_grid, embed_grid, project_shared_bytes, project_tiles, rope_kv_grid,
    rows_grid,
};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{
    AttentionParams, EmbedParams, GatherParams, ProjectParams, RopeTableParams, RowsParams,
    SampleParams, Segment,
};
use orind_kernels::repack;

use super::launch::{Launch, Params, Region};
use super::layout::{Cache, Form, Own, SAMPLE_PARTS, Working, unsupported};
use super::limit;
use super::variant::{self, Shape, Tuning};
use crate::{Error, RING_STEPS, precision};
use plan::{
    Arena, Binary, Buffer, Class, Composite, DType, Epilogue, Op, Plan, RopeStyle, Step, View,
};

/// Rows of activations that a projection takes at once.
const PROJECT_ROWS: usize = 8;
/// Blocks of attention that keep the largest Orin busy with one row.
const ATTENTION_BLOCKS: u32 = 64;
/// Positions below which a split is not worth its merge (`MIN_SPAN` of the kernel).
const LEAST_SPAN: usize = 64;

/// Parts that a row's positions are split into. It decides the order in which numbers are added, so
/// it depends on the model and the capacity of its slots, never on batch or device.
pub(super) fn splits(heads: u32, kv_heads: u32, dim: u32, capacity: usize) -> u32 {
    let group = heads / kv_heads.max(1);
    let blocks = match Kernel::attention(dim, group, false) {
        Some(Kernel::Attention { heads: at_once, .. }) => heads / at_once,
        _ => heads,
    };
    let most = u32::try_from(capacity.div_ceil(LEAST_SPAN)).unwrap_or(u32::MAX).max(1);
    ATTENTION_BLOCKS.div_ceil(blocks.max(1)).min(most)
}

/// Where everything lies, for one plan.
pub(super) struct Addresses<'a> {
    pub(super) weights: &'a HashMap<String, (u64, Form)>,
    pub(super) caches: &'a HashMap<String, (u64, Cache)>,
    pub(super) working: &'a Working,
    /// The scratch that only the GPU touches, as [`Working`] divides it.
    pub(super) scratch: u64,
    /// The counters, likewise.
    pub(super) counters: u64,
    /// The plan's own buffers and their base.
    pub(super) own: (&'a Own, u64),
    /// Streaming multiprocessors of the device.
    pub(super) sms: u32,
    /// How projections are laid over threads.
    pub(super) tuning: Tuning<'a>,
}

impl Addresses<'_> {
    const fn attention(&self) -> (u64, u64) {
        (self.scratch + self.working.arena, self.counters)
    }

    const fn sample(&self) -> (u64, u64, u64) {
        let parts = self.scratch + self.working.arena + self.working.attention;
        let candidates = parts + self.working.sample;
        (parts, candidates, self.counters + self.working.attention_counters)
    }
}

/// The launches of a plan.
///
/// # Errors
/// [`Error::Unsupported`] for steps, types or shapes that the kernels do not take,
/// [`Error::Invalid`] for a plan that is not valid.
pub(super) fn lower(plan: &Plan, addresses: &Addresses<'_>) -> Result<Vec<Launch>, Error> {
    plan.validate().map_err(|e| Error::Invalid(e.to_string()))?;
    let arena = arena(plan);
    let mut lowering = Lowering { plan, addresses, arena, launches: Vec::new() };
    let mut steps = plan.steps.iter().peekable();
    while let Some(step) = steps.next() {
        let next = steps.next_if(|next| absorbs(plan, step, next));
        match next {
            Some(attention) => lowering.attention(attention, Some(step))?,
            None => lowering.step(step)?,
        }
    }
    Ok(lowering.launches)
}

/// Whether one launch does both steps: in decode, where every row has a slot of its own, `next` is
/// the attention over what `step` rotates, and nobody else reads that.
fn absorbs(plan: &Plan, step: &Step, next: &Step) -> bool {
    let (Op::RopeKv { queries: true, .. }, Op::Composite(Composite::Attention { .. })) =
        (&step.op, &next.op)
    else {
        return false;
    };
    let rotated = &step.writes[0];
    let readers = plan.steps.iter().filter(|s| s.reads.iter().any(|r| r.buffer == rotated.buffer));
    plan.bucket.chunk == 1
        && next.reads[0] == *rotated
        && next.reads[1..3] == step.writes[1..3]
        && next.reads[3..5] == step.reads[4..6]
        && readers.count() == 1
        && plan.buffers.get(rotated.buffer.index()).is_some_and(|b| b.class == Class::Scratch)
}

/// Where scratch lies. What one launch reads for two steps lives until the second has written.
pub(super) fn arena(plan: &Plan) -> Arena {
    let mut launched = plan.clone();
    for (at, pair) in plan.steps.windows(2).enumerate() {
        if absorbs(plan, &pair[0], &pair[1]) {
            launched.steps[at + 1].reads.extend_from_slice(&pair[0].reads);
        }
    }
    Arena::new(&launched, |_, bytes| bytes)
}

struct Lowering<'a> {
    plan: &'a Plan,
    addresses: &'a Addresses<'a>,
    arena: Arena,
    launches: Vec<Launch>,
}

/// Rows and columns of a view whose last axis is the row.
fn rows_of(view: &View) -> (usize, usize) {
    let n = view.shape.last().copied().unwrap_or(1).max(1);
    (view.elements() / n, n)
}

fn count(n: usize) -> Result<u32, Error> {
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

#[expect(clippy::cast_precision_loss, reason = "dimensions are far below 2^24")]
fn inverse(n: usize) -> f32 {
    1.0 / n as f32
}

impl Lowering<'_> {
    fn buffer(&self, view: &View) -> &Buffer {
        self.plan.buffer(view.buffer)
    }

    /// Address of a contiguous view of 4-byte elements.
    fn region(&self, view: &View) -> Result<Region, Error> {
        let buffer = self.buffer(view);
        let refused =
            |why: &str| unsupported(format!("{:?} `{}` {why}", buffer.class, buffer.name));
        if !view.is_contiguous() {
            return Err(refused("with strides as an operand here"));
        }
        let base = match buffer.class {
            Class::Scratch => self.arena.offset(view.buffer).map(|at| self.addresses.scratch + at),
            Class::Mailbox | Class::Output => {
                let (own, base) = self.addresses.own;
                own.offset(view.buffer).map(|at| base + at)
            }
            Class::Weight => match self.addresses.weights.get(&buffer.name) {
                Some((at, Form::Plain(bytes))) if *bytes == buffer.bytes() => Some(*at),
                _ => None,
            },
            Class::State | Class::Constant(_) => None,
        };
        let base = base.ok_or_else(|| refused("as an operand here"))?;
        Ok(Region::new(base + 4 * view.offset as u64, 4 * view.elements() as u64))
    }

    fn typed(&self, view: &View, dtype: DType) -> Result<Region, Error> {
        let buffer = self.buffer(view);
        if buffer.dtype != dtype {
            return Err(unsupported(format!("`{}` of {} as {dtype}", buffer.name, buffer.dtype)));
        }
        self.region(view)
    }

    fn f32(&self, view: &View) -> Result<Region, Error> {
        self.typed(view, DType::F32)
    }

    fn i32(&self, view: &View) -> Result<Region, Error> {
        self.typed(view, DType::I32)
    }

    fn matrix(&self, view: &View) -> Result<(u64, Weight, repack::Layout), Error> {
        let buffer = self.buffer(view);
        match self.addresses.weights.get(&buffer.name) {
            Some(&(at, Form::Matrix(weight, layout)))
                if buffer.class == Class::Weight && view.shape == buffer.shape =>
            {
                Ok((at, weight, layout))
            }
            _ => Err(unsupported(format!("`{}` as a matrix of weights", buffer.name))),
        }
    }

    fn cache(&self, view: &View) -> Result<(Region, Cache), Error> {
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

    fn push(
        &mut self,
        step: &Step,
        (kernel, grid, shared_bytes): (Kernel, [u32; 3], u32),
        params: Params,
        reads: Vec<Region>,
        writes: Vec<Region>,
    ) {
        let label = step.label.clone();
        self.launches.push(Launch { label, kernel, grid, shared_bytes, params, reads, writes });
    }

    fn step(&mut self, step: &Step) -> Result<(), Error> {
        match &step.op {
            Op::Gather => self.gather(step),
            Op::Binary(Binary::Add) => self.elementwise(step, Kernel::Add),
            Op::Composite(Composite::SwiGlu) => self.elementwise(step, Kernel::SwiGlu),
            Op::Composite(Composite::RmsNorm { eps }) => self.rms_norm(step, eps.get()),
            Op::Composite(Composite::RopeTable { magnitude }) => {
                self.rope_table(step, magnitude.get())
            }
            Op::Composite(Composite::Attention { .. }) => self.attention(step, None),
            Op::RopeKv { .. } => self.rope_kv(step),
            Op::Project { .. } => self.project(step),
            Op::Sample | Op::SampleAdvance => self.sample(step),
            op => Err(unsupported(format!("step {} ({})", op.name(), step.label))),
        }
    }

    fn gather(&mut self, step: &Step) -> Result<(), Error> {
        let [table, ids] = &step.reads[..] else {
            return Err(unsupported(format!("gather by several indices ({})", step.label)));
        };
        let out = self.region(&step.writes[0])?;
        let rows = count(ids.elements())?;
        let ids = self.i32(ids)?;
        if self.buffer(table).class == Class::Weight && table.shape.len() == 2 {
            let (at, weight, _) = self.matrix(table)?;
            let (n, k) = (count(table.shape[0])?, count(table.shape[1])?);
            let (kernel, grid) = (Kernel::Embed(weight), embed_grid(weight, k, rows));
            let params = EmbedParams {
                table: at,
                ids: ids.address,
                out: out.address,
                n,
                k,
                rows,
                reserved: 0,
            };
            self.push(step, (kernel, grid, 0), Params::Embed(params), vec![ids], vec![out]);
            return Ok(());
        }
        let source = self.region(table)?;
        let extent = count(table.shape[0])?;
        let width = count(table.shape[1..].iter().product())?;
        let (kernel, grid) = (Kernel::Gather, elements_grid(width, rows));
        let (table, ids_at) = (source.address, ids.address);
        let params =
            GatherParams { table, ids: ids_at, out: out.address, extent, width, rows, reserved: 0 };
        self.push(step, (kernel, grid, 0), Params::Gather(params), vec![source, ids], vec![out]);
        Ok(())
    }

    fn elementwise(&mut self, step: &Step, kernel: Kernel) -> Result<(), Error> {
        let (rows, n) = rows_of(&step.reads[0]);
        let (a, b) = (self.f32(&step.reads[0])?, self.f32(&step.reads[1])?);
        let out = self.f32(&step.writes[0])?;
        let (rows, n) = (count(rows)?, count(n)?);
        let grid = elements_grid(n, rows);
        let params = RowsParams {
            a: a.address,
            b: b.address,
            out: out.address,
            n,
            rows,
            ..RowsParams::default()
        };
        self.push(step, (kernel, grid, 0), Params::Rows(params), vec![a, b], vec![out]);
        Ok(())
    }

    fn rms_norm(&mut self, step: &Step, eps: f32) -> Result<(), Error> {
        let (rows, n) = rows_of(&step.reads[0]);
        let (x, weight) = (self.f32(&step.reads[0])?, self.f32(&step.reads[1])?);
        let out = self.f32(&step.writes[0])?;
        let params = RowsParams {
            a: x.address,
            b: weight.address,
            out: out.address,
            n: count(n)?,
            rows: count(rows)?,
            eps,
            inverse_n: inverse(n),
        };
        let grid = rows_grid(params.rows);
        self.push(step, (Kernel::RmsNorm, grid, 0), Params::Rows(params), vec![x], vec![out]);
        Ok(())
    }

    fn rope_table(&mut self, step: &Step, magnitude: f32) -> Result<(), Error> {
        let positions = self.i32(&step.reads[0])?;
        let frequencies = self.f32(&step.reads[1])?;
        let out = self.f32(&step.writes[0])?;
        let rows = count(step.reads[0].elements())?;
        let params = RopeTableParams {
            positions: positions.address,
            frequencies: frequencies.address,
            out: out.address,
            half: count(step.reads[1].elements())?,
            rows,
            magnitude,
            reserved: 0,
        };
        let shape = (Kernel::RopeTable, rows_grid(rows), 0);
        self.push(step, shape, Params::RopeTable(params), vec![positions], vec![out]);
        Ok(())
    }

    /// Products of the rows with matrices of one type at a time, as many rows as a kernel takes.
    fn project(&mut self, step: &Step) -> Result<(), Error> {
        let Op::Project { norm, weights, epilogue } = step.op else { return Ok(()) };
        let (rows, k) = rows_of(&step.reads[0]);
        let x = self.f32(&step.reads[0])?;
        let norm_weight = match norm {
            Some(_) => self.f32(&step.reads[1])?.address,
            None => 0,
        };
        let first = 1 + usize::from(norm.is_some());
        let swiglu = epilogue == Epilogue::SwiGlu;
        let residual = match epilogue {
            Epilogue::Residual => Some(self.f32(&step.reads[first + weights])?),
            _ => None,
        };
        let mut matrices = Vec::new();
        for (i, view) in step.reads[first..first + weights].iter().enumerate() {
            let (at, weight, _) = self.matrix(view)?;
            let out = match step.writes.get(i) {
                Some(out) => Some(self.f32(out)?),
                None => None,
            };
            matrices.push((at, weight, count(view.shape[0])?, out));
        }
        if swiglu && matrices.windows(2).any(|pair| pair[0].1 != pair[1].1) {
            return Err(unsupported(format!("gate and up of different types ({})", step.label)));
        }
        let wanted = count(precision::planes(self.plan, step))?;
        while let Some(&(_, weight, ..)) = matrices.first() {
            let (same, rest): (Vec<_>, Vec<_>) = matrices.into_iter().partition(|m| m.1 == weight);
            matrices = rest;
            let planes = if weight.is_quantised() { wanted } else { 1 };
            let mut done = 0;
            while done < rows {
                let (take, kernel, shared) =
                    self.rows_at_once(step, weight, planes, rows - done, k)?;
                self.project_rows(
                    step,
                    (kernel, shared),
                    (x, norm_weight, norm.map_or(0.0, plan::Scalar::get)),
                    (done, take, k),
                    &same,
                    (swiglu, residual),
                )?;
                done += take;
            }
        }
        Ok(())
    }

    /// How many of `rows` rows one launch takes, with which kernel and how much shared memory.
    fn rows_at_once(
        &self,
        step: &Step,
        weight: Weight,
        planes: u32,
        rows: usize,
        k: usize,
    ) -> Result<(usize, Kernel, u32), Error> {
        for take in (1..=rows.min(PROJECT_ROWS)).rev() {
            let Some(kernel) = Kernel::project(weight, count(take)?, planes) else { continue };
            let Kernel::Project { rows: room, .. } = kernel else { continue };
            if let Some(shared) = project_shared_bytes(weight, room, planes, k) {
                return Ok((take, kernel, shared));
            }
        }
        Err(unsupported(format!("{k} columns of {} ({})", weight.name(), step.label)))
    }

    fn project_rows(
        &mut self,
        step: &Step,
        (kernel, shared): (Kernel, u32),
        (x, norm_weight, eps): (Region, u64, f32),
        (first, rows, k): (usize, usize, usize),
        matrices: &[(u64, Weight, u32, Option<Region>)],
        (swiglu, residual): (bool, Option<Region>),
    ) -> Result<(), Error> {
        let Kernel::Project { weight, rows: room, planes, .. } = kernel else { return Ok(()) };
        // The rows of this launch within the rows of the step.
        let part = |whole: Region, n: u64| {
            Region::new(whole.address + 4 * n * first as u64, 4 * n * rows as u64)
        };
        let mut segments = [Segment::default(); 3];
        let mut writes = Vec::new();
        for (segment, &(weights, _, n, out)) in segments.iter_mut().zip(matrices) {
            let out = out.map(|out| part(out, u64::from(n)));
            writes.extend(out);
            *segment = Segment { weights, out: out.map_or(0, |out| out.address), n, reserved: 0 };
        }
        let x = part(x, k as u64);
        let residual = residual.map(|r| part(r, u64::from(segments[0].n)));
        let ns: Vec<u32> = matrices.iter().map(|m| m.2).take(if swiglu { 1 } else { 3 }).collect();
        let Addresses { sms, tuning, .. } = self.addresses;
        let case = variant::case((weight, planes), (ns.iter().sum(), count(k)?, room), swiglu);
        let Shape { variant, blocks } = tuning.shape(weight, &case);
        let kernel = Kernel::Project { weight, rows: room, planes, variant };
        // More blocks than the device holds at once would only prepare the same activations again.
        let grid = [project_tiles(variant, &ns, swiglu).min(sms * blocks).max(1), 1, 1];
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
        let reads = std::iter::once(x).chain(residual).collect();
        self.push(step, (kernel, grid, shared), Params::Project(params), reads, writes);
        Ok(())
    }

    /// What [`Op::RopeKv`] says of keys, values and norms, into the parameters.
    fn rotation(&self, step: &Step, params: &mut AttentionParams) -> Result<Vec<Region>, Error> {
        let Op::RopeKv { style, norm, queries } = step.op else { return Ok(Vec::new()) };
        let at = usize::from(queries);
        let reads = &step.reads;
        let operands = [&reads[at], &reads[at + 1], &reads[at + 2]];
        let mut regions = operands.iter().map(|v| self.f32(v)).collect::<Result<Vec<_>, _>>()?;
        [params.k, params.v, params.table] = [0, 1, 2].map(|i: usize| regions[i].address);
        let (slots, positions) = (self.i32(&reads[at + 3])?, self.i32(&reads[at + 4])?);
        (params.slots, params.positions) = (slots.address, positions.address);
        regions.extend([slots, positions]);
        if queries {
            let q = self.f32(&reads[0])?;
            params.q = q.address;
            regions.push(q);
        }
        if let Some(eps) = norm {
            params.eps = eps.get();
            params.k_norm = self.f32(&reads[2 * at + 5])?.address;
            if queries {
                params.q_norm = self.f32(&reads[at + 5])?.address;
            }
        }
        params.interleaved = u32::from(style == RopeStyle::Interleaved);
        Ok(regions)
    }

    /// Caches and sizes, into the parameters.
    fn shape(
        &self,
        params: &mut AttentionParams,
        (keys, values): (&View, &View),
        (rows, heads): (usize, usize),
    ) -> Result<[Region; 2], Error> {
        let ((keys, cache), (values, other)) = (self.cache(keys)?, self.cache(values)?);
        let heads = count(heads)?;
        if cache != other || !heads.is_multiple_of(cache.heads) {
            return Err(unsupported(format!("{heads} query heads over {cache:?} and {other:?}")));
        }
        (params.keys, params.values) = (keys.address, values.address);
        (params.rows, params.heads) = (count(rows)?, heads);
        (params.kv_heads, params.dim) = (cache.heads, cache.dim);
        (params.slot_count, params.capacity) = (cache.slots, cache.capacity);
        params.inverse_dim = inverse(cache.dim as usize);
        Ok([keys, values])
    }

    fn rope_kv(&mut self, step: &Step) -> Result<(), Error> {
        let Op::RopeKv { queries, .. } = step.op else { return Ok(()) };
        let at = usize::from(queries);
        let [rows, heads, _] = step.reads[0].shape[..] else {
            return Err(unsupported(format!("heads {:?}", step.reads[0].shape)));
        };
        let mut params = AttentionParams::default();
        let reads = self.rotation(step, &mut params)?;
        let caches =
            self.shape(&mut params, (&step.writes[at], &step.writes[at + 1]), (rows, heads))?;
        let mut writes = caches.to_vec();
        if queries {
            let out = self.f32(&step.writes[0])?;
            params.q_out = out.address;
            writes.push(out);
        }
        let rotated = if queries { params.heads } else { 0 };
        let grid = rope_kv_grid(rotated, params.kv_heads, params.rows);
        self.push(step, (Kernel::RopeKv, grid, 0), Params::Attention(params), reads, writes);
        Ok(())
    }

    /// Attention, which rotates and stores first when `rotation` is given.
    fn attention(&mut self, step: &Step, rotation: Option<&Step>) -> Result<(), Error> {
        let Op::Composite(Composite::Attention { scale }) = step.op else { return Ok(()) };
        let reads = &step.reads;
        let [rows, heads, dim] = reads[0].shape[..] else {
            return Err(unsupported(format!("queries {:?}", reads[0].shape)));
        };
        let mut params = AttentionParams::default();
        let mut regions = match rotation {
            Some(rope) => self.rotation(rope, &mut params)?,
            None => {
                let q = self.f32(&reads[0])?;
                let (slots, positions) = (self.i32(&reads[3])?, self.i32(&reads[4])?);
                params.q = q.address;
                (params.slots, params.positions) = (slots.address, positions.address);
                vec![q, slots, positions]
            }
        };
        let caches = self.shape(&mut params, (&reads[1], &reads[2]), (rows, heads))?;
        regions.extend(caches);
        let out = self.f32(&step.writes[0])?;
        params.out = out.address;
        params.scale = scale.get();
        let group = params.heads / params.kv_heads;
        params.splits = splits(params.heads, params.kv_heads, params.dim, params.capacity as usize);
        let kernel = Kernel::attention(count(dim)?, group, rotation.is_some());
        let grid = kernel.and_then(|kernel| {
            attention_grid(kernel, params.heads, params.kv_heads, params.splits, 1)
        });
        let (Some(kernel), Some([blocks, ..])) = (kernel, grid) else {
            return Err(unsupported(format!("heads of {dim} values ({})", step.label)));
        };
        (params.partial, params.counters) = self.addresses.attention();
        let working = self.addresses.working;
        let mut writes = vec![
            out,
            Region::new(params.partial, working.attention),
            Region::new(params.counters, working.attention_counters),
        ];
        if rotation.is_some() {
            writes.extend(caches);
        }
        let most = limit::rows_of_attention(&params, blocks, self.plan.bucket.context as u64);
        for first in (0..params.rows).step_by(most as usize) {
            let rows = most.min(params.rows - first);
            let part = Params::Attention(rows_of_attention(params, first, rows));
            let shape = (kernel, [blocks, params.splits, rows], 0);
            self.push(step, shape, part, regions.clone(), writes.clone());
        }
        Ok(())
    }

    fn sample(&mut self, step: &Step) -> Result<(), Error> {
        let reads = &step.reads;
        let (rows, vocabulary) = rows_of(&reads[0]);
        let (own, base) = self.addresses.own;
        let regions = [
            self.f32(&reads[0])?,
            self.f32(&reads[1])?,
            self.i32(&reads[2])?,
            self.f32(&reads[3])?,
            self.i32(&reads[4])?,
            self.i32(&reads[5])?,
        ];
        let [logits, temperature, top_k, top_p, seed, positions] = regions.map(|r| r.address);
        let ids = self.i32(&step.writes[0])?;
        let (parts, candidates, counters) = self.addresses.sample();
        let ring = Region::new(base + own.ring, 4 * u64::from(RING_STEPS) * rows as u64);
        let cursor = Region::new(base + own.cursor, 4);
        let working = self.addresses.working;
        let mut writes = vec![
            ids,
            ring,
            cursor,
            Region::new(parts, working.sample),
            Region::new(candidates, working.candidates),
            Region::new(counters, working.sample_counters),
        ];
        let mut next = [0, 0];
        if step.op == Op::SampleAdvance {
            let (tokens, positions) = (self.i32(&step.writes[1])?, self.i32(&step.writes[2])?);
            next = [tokens.address, positions.address];
            writes.extend([tokens, positions]);
        }
        let params = SampleParams {
            logits,
            temperature,
            top_k,
            top_p,
            seed,
            positions,
            ids: ids.address,
            next_tokens: next[0],
            next_positions: next[1],
            ring: ring.address,
            cursor: cursor.address,
            partial: parts,
            counters,
            candidates,
            vocabulary: count(vocabulary)?,
            rows: count(rows)?,
            ring_entries: RING_STEPS,
            reserved: 0,
        };
        let grid = [SAMPLE_PARTS, count(rows)?, 1];
        let params = Params::Sample(params);
        self.push(step, (Kernel::Sample, grid, 0), params, regions.to_vec(), writes);
        Ok(())
    }
}
