//! From a fused plan to a program: the same steps with every address resolved.
//!
//! What is known when a plan is prepared is decided here; what changes from step to step (tokens,
//! positions, slots) is read from the mailboxes while the program runs. What stages are is in `stage`, those of products of tensors are
//! made in `products`.

use super::group::{Kernel, Source, Width};
use super::memory::{Cache, Memory, PlanMemory, WeightStorage, arena, stored, unsupported};
use super::product;
use super::rows::{self, Index, TopK};
use super::together::{self, Rows};
use super::variant::{self, Variant};
use super::{mixture, recurrent};
use crate::tune::Choices;
use crate::uses::is_table;
use crate::{
    Error, Result,
    precision::{residual_planes, residual_planes_of},
};
use plan::{
    Arena, Binary, Class, DType, MAX_WEIGHTS, NormKind, Op, Plan, Product, RopeStyle, Step, View,
};
use simd::Isa;
use simd::activations::ActivationFormat;
use simd::attention::POSITION_STEP;
use simd::packed::PackedLayout;
use simd::recurrent::TAPS;

mod products;
mod stage;

pub(super) use stage::{
    Arrange, Attention, Elementwise, Gate, KvRows, Linear, Matrix, NextInputs, Norm, Project,
    RopeKv, Rotation, Sample, Stage,
};

pub(super) struct Program {
    pub(super) stages: Vec<Stage>,
    /// Stages up to the end of each of the plan's steps.
    pub(super) ends: Vec<usize>,
    pub(super) rows: usize,
    /// The slots mailbox: rows after the last one with a slot are padding and are not computed.
    pub(super) slots: Option<*const i32>,
    /// Whether it is not worth waking a thread for.
    pub(super) small: bool,
    /// Sampled tokens of a step, and how many.
    pub(super) sampled: Option<(*const i32, usize)>,
    pub(super) buffers: PlanMemory,
    /// Of each buffer the value, where it is a constant: what stages point to.
    _constants: Box<[f32]>,
}

// SAFETY: the pointers lead into the instance's memory and the plan's own, which outlive the
// program (the instance drops the thread that runs it first); `instance` orders all access.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

pub(super) fn check(plan: &Plan) -> Result<()> {
    plan.validate().map_err(|e| Error::Invalid(e.to_string()))?;
    for step in &plan.steps {
        let op = &step.op;
        let fits = match op {
            _ if is_of_tensors(plan, op) => {
                check_tensors(plan, step)?;
                continue;
            }
            Op::ShortConv(conv) => (2..=TAPS).contains(&conv.weight.shape[1]),
            _ => true,
        };
        if !fits {
            return Err(unsupported(format!("step {} ({})", op.name(), step.label)));
        }
        let cached = |view: &View| plan.buffer(view.buffer).class == Class::State;
        let rows_apart = |view: &View| {
            matches!(op, Op::Glu { up, .. } if view == up) && row_stride(view).is_some()
        };
        let mut views = op.reads().into_iter().chain(op.writes());
        if views.any(|view| !view.is_contiguous() && !cached(view) && !rows_apart(view)) {
            return Err(unsupported(format!("strides in {} ({})", op.name(), step.label)));
        }
    }
    Ok(())
}

/// Whether an operation is one of tensors that may lie in any way: a primitive, other than those for which there is
/// a stage that knows the bucket's rows.
fn is_of_tensors(plan: &Plan, op: &Op) -> bool {
    let of = |view: &View| plan.buffer(view.buffer);
    let plain = |view: &View| {
        view.is_contiguous() && !matches!(of(view).class, Class::Constant(_) | Class::State)
    };
    match op {
        Op::Binary { op: Binary::Add | Binary::Mul, a, b, out } => {
            of(out).dtype != DType::F32 || ![a, b].into_iter().all(plain)
        }
        Op::Gather(gather) => {
            let table = of(&gather.table);
            let word = Width::of(table.dtype) == Some(Width::Word);
            gather.indices.len() != 1
                || !plain(&gather.table)
                || !plain(&gather.indices[0])
                || !(word || is_table(plan, gather))
        }
        Op::MatMul { .. }
        | Op::Conv(_)
        | Op::Scatter { .. }
        | Op::ScatterAdd { .. }
        | Op::TopK { .. } => true,
        op => plan::elementwise(op).is_some() || matches!(op, Op::Reduce { .. }),
    }
}

/// What is left open by a valid plan for steps of tensors.
fn check_tensors(plan: &Plan, step: &Step) -> Result<()> {
    let Step { op, label, .. } = step;
    let name = || format!("{} ({label})", op.name());
    for view in op.reads().into_iter().chain(op.writes()) {
        let buffer = plan.buffer(view.buffer);
        if buffer.elements() > LARGEST || view.elements() > LARGEST {
            let elements = buffer.elements().max(view.elements());
            return Err(unsupported(format!(
                "{elements} elements in {}: 2^31 - 1 are the most",
                name()
            )));
        }
        if stored(buffer).is_none() {
            return Err(unsupported(format!(
                "`{}` of {} in {}",
                buffer.name,
                buffer.dtype,
                name()
            )));
        }
    }
    // Blocks are written while others are still to be read.
    for out in op.writes() {
        let apart = |view: &&View| {
            view.buffer == out.buffer && (view.offset != out.offset || !view.is_contiguous())
        };
        if op.reads().iter().any(apart) {
            return Err(unsupported(format!("what {} reads written in another place", name())));
        }
    }
    Ok(())
}

/// Floating-point operations and bytes that one thread has done before another is awake: 10 to 20 us.
const SMALL: u64 = 500_000;

/// Most elements of a tensor.
const LARGEST: usize = i32::MAX as usize;

struct Resolver<'a> {
    plan: &'a Plan,
    memory: &'a Memory,
    arena: Arena,
    buffers: &'a PlanMemory,
    isa: Isa,
    choices: Option<&'a Choices>,
    constants: &'a [f32],
}

impl Resolver<'_> {
    /// Address of a view of 4-byte elements.
    fn address(&self, view: &View) -> Result<*mut u8> {
        // SAFETY: the plan is valid, so the view lies inside its buffer.
        Ok(unsafe { self.base(view)?.add(4 * view.offset) })
    }

    /// Address of a view's first element, and how elements lie.
    fn locate(&self, view: &View) -> Result<(*mut u8, Width)> {
        let buffer = self.plan.buffer(view.buffer);
        let width = stored(buffer)
            .ok_or_else(|| unsupported(format!("`{}` of {}", buffer.name, buffer.dtype)))?;
        // SAFETY: as in `address`.
        Ok((unsafe { self.base(view)?.add(width.bytes() * view.offset) }, width))
    }

    /// Address of the buffer that a view is of.
    fn base(&self, view: &View) -> Result<*mut u8> {
        let buffer = self.plan.buffer(view.buffer);
        let base = match buffer.class {
            Class::Scratch => self
                .arena
                .offset(view.buffer)
                .and_then(|offset| usize::try_from(offset).ok())
                // SAFETY: the arena's offsets are inside the memory reserved for it.
                .map(|offset| unsafe { self.memory.arena().add(offset) }),
            Class::Mailbox | Class::Output => self.buffers.address(view.buffer),
            Class::Weight => {
                let name = &buffer.name;
                let forms = [self.memory.weight(name), self.memory.beside(name)];
                forms.into_iter().flatten().find_map(|(base, storage)| match storage {
                    WeightStorage::Plain(n, _) if n == buffer.elements() => Some(base),
                    _ => None,
                })
            }
            Class::State => match self.memory.plain_state(&buffer.name) {
                Some((base, n)) if n == buffer.elements() => Some(base),
                _ => None,
            },
            // Never written: the plan is valid.
            Class::Constant(_) => {
                Some(std::ptr::from_ref(&self.constants[view.buffer.index()]).cast_mut().cast())
            }
        };
        base.ok_or_else(|| {
            unsupported(format!("{:?} `{}` as an operand here", buffer.class, buffer.name))
        })
    }

    fn f32(&self, view: &View) -> Result<*mut f32> {
        Ok(self.typed(view, DType::F32)?.cast())
    }

    fn optional(&self, view: Option<&View>) -> Result<Option<*const f32>> {
        view.map(|view| Ok(self.f32(view)?.cast_const())).transpose()
    }

    fn i32(&self, view: &View) -> Result<*mut i32> {
        Ok(self.typed(view, DType::I32)?.cast())
    }

    fn typed(&self, view: &View, dtype: DType) -> Result<*mut u8> {
        let buffer = self.plan.buffer(view.buffer);
        if buffer.dtype != dtype {
            return Err(unsupported(format!("`{}` of {} as {dtype}", buffer.name, buffer.dtype)));
        }
        self.address(view)
    }

    fn matrix(&self, view: &View) -> Result<Matrix> {
        let buffer = self.plan.buffer(view.buffer);
        match self.memory.weight(&buffer.name) {
            Some((packed, WeightStorage::Packed(layout)))
                if buffer.class == Class::Weight
                    && view.shape == buffer.shape
                    && *view.shape == [layout.rows(), layout.k()]
                    && buffer.dtype == layout.dtype() =>
            {
                Ok(Matrix { layout, packed })
            }
            _ => Err(unsupported(format!("`{}` as a matrix of weights", buffer.name))),
        }
    }

    /// Keys, values, and how both lie.
    fn caches(&self, caches: &plan::Caches) -> Result<(*mut u8, *mut u8, Cache)> {
        let of = |view: &View| {
            let buffer = self.plan.buffer(view.buffer);
            let whole = |c: &Cache| {
                *view.shape == [c.slots, c.capacity, c.heads, c.dim]
                    && c.ring == caches.ring
                    && (!c.ring || c.capacity.is_multiple_of(POSITION_STEP))
            };
            self.memory
                .cache(&buffer.name)
                .filter(|(_, cache)| whole(cache))
                .ok_or_else(|| unsupported(format!("`{}` as a KV cache", buffer.name)))
        };
        let ((keys, cache), (values, _)) = (of(&caches.keys)?, of(&caches.values)?);
        Ok((keys, values, cache))
    }

    fn norm(&self, norm: &plan::Norm) -> Result<Norm> {
        let bias = self.optional(norm.bias.as_ref())?;
        Ok(Norm { kind: norm.kind, weight: self.f32(&norm.weight)?, bias, eps: norm.eps.get() })
    }

    fn rows(&self, rows: &plan::Rows) -> Result<KvRows> {
        let (slots, positions) = (self.i32(&rows.slots)?, self.i32(&rows.positions)?);
        let (table, entries) = self.memory.table();
        Ok(KvRows { slots, positions, table, entries })
    }

    /// Stages of a step that is no group of elementwise ones.
    fn stages(&self, step: &Step, stages: &mut Vec<Stage>) -> Result<()> {
        let stage = match &step.op {
            op @ Op::Gather(gather) if let Some(stage) = self.lines(op, gather)? => stage,
            op @ Op::Gather(gather) if is_table(self.plan, gather) => {
                let Ok(matrix) = self.matrix(&gather.table) else {
                    return self.of_tensors(op, stages);
                };
                let ids = &gather.indices[0];
                let (rows, out) = (ids.elements(), self.f32(&gather.out)?);
                Stage::Embed { matrix, ids: self.i32(ids)?, rows, out }
            }
            op if is_of_tensors(self.plan, op) => return self.of_tensors(op, stages),
            Op::Gather(gather) => self.gather(gather)?,
            Op::Binary { op: Binary::Add, a, b, out } => {
                self.elementwise(Elementwise::Add(self.f32(b)?), a, out)?
            }
            Op::Binary { op: Binary::Mul, a, b, out } => {
                self.elementwise(Elementwise::Multiply(self.f32(b)?), a, out)?
            }
            Op::Gate { gate, x, out } => {
                let each = gate.elements() == x.elements();
                let gate = self.f32(gate)?.cast_const();
                self.elementwise(Elementwise::Gate { gate, each }, x, out)?
            }
            Op::Bias { x, bias, out } => {
                self.elementwise(Elementwise::Bias(self.f32(bias)?), x, out)?
            }
            Op::Scale { factor, x, out } => {
                self.elementwise(Elementwise::Scale(factor.get()), x, out)?
            }
            Op::SoftCap { cap, x, out } => {
                self.elementwise(Elementwise::SoftCap(cap.get()), x, out)?
            }
            Op::Activate { activation, x, out } => {
                self.elementwise(Elementwise::Activate(*activation), x, out)?
            }
            Op::Glu { activation, gate, up, out } => {
                let stride = row_stride(up).unwrap_or_else(|| unreachable!("`check` saw to it"));
                let (activation, up) = (*activation, self.f32(up)?.cast_const());
                self.elementwise(Elementwise::Glu { activation, up, stride }, gate, out)?
            }
            Op::Normalise(plan::Normalise { x, norm, out }) => {
                let (rows, n) = rows_of(x);
                let (x, norm) = (self.f32(x)?, self.norm(norm)?);
                Stage::Normalise { x, norm, n, rows, out: self.f32(out)? }
            }
            Op::Rope { style, x, table, out } => {
                let &[rows, heads, dim] = &x.shape[..] else {
                    return Err(unsupported(format!("heads {:?}", x.shape)));
                };
                let (x, rotation) = (self.f32(x)?, self.rotation(table, *style, dim)?);
                Stage::Rope { x, rotation, heads, dim, rows, out: self.f32(out)? }
            }
            Op::RopeTable(table) => Stage::RopeTable {
                positions: self.i32(&table.positions)?,
                frequencies: self.f32(&table.frequencies)?,
                half: table.frequencies.elements(),
                magnitude: table.magnitude.get(),
                rows: table.positions.elements(),
                out: self.f32(&table.out)?,
            },
            Op::Project(project) => return self.project(project, stages),
            Op::RopeKv(rope) => Stage::RopeKv(self.rope_kv(rope)?),
            Op::Attention(attention) => Stage::Attention(self.attention(attention)?),
            Op::Mixture(op) => {
                let mixture = self.mixture(op)?;
                stages.extend(mixture::Part::ALL.map(|part| Stage::Mixture(part, mixture)));
                return Ok(());
            }
            Op::ShortConv(conv) => {
                let conv = self.short_conv(conv)?;
                stages.extend([Stage::ShortConv(conv), Stage::Note(conv.memory)]);
                return Ok(());
            }
            Op::GatedDelta(delta) => {
                let delta = self.gated_delta(delta)?;
                stages.extend([
                    Stage::PrepareDelta(delta),
                    Stage::GatedDelta(delta),
                    Stage::Note(delta.memory),
                ]);
                return Ok(());
            }
            Op::DeltaRule(rule) => {
                let rule = self.delta_rule(rule)?;
                stages.extend([Stage::DeltaRule(rule), Stage::Note(rule.memory)]);
                return Ok(());
            }
            Op::Sample(sample) => Stage::Sample(self.sample(sample)?),
            op => unreachable!("{} is of a group, or refused by `check`", op.name()),
        };
        stages.push(stage);
        Ok(())
    }

    fn elementwise(&self, op: Elementwise, x: &View, out: &View) -> Result<Stage> {
        let (rows, n) = rows_of(x);
        Ok(Stage::Elementwise { op, x: self.f32(x)?, n, rows, out: self.f32(out)? })
    }

    fn of_tensors(&self, op: &Op, stages: &mut Vec<Stage>) -> Result<()> {
        stages.push(match op {
            Op::Gather(plan::Gather { table, indices, out }) => {
                let axes = indices.len();
                let (base, width) = self.locate(table)?;
                Stage::TakeRows(Box::new(rows::Gather {
                    table: Source::new(base, width, &table.shape[axes..], &table.strides[axes..])?,
                    indices: self.indices(table, indices)?,
                    rows: indices[0].elements(),
                    width: table.shape[axes..].iter().product(),
                    out: self.address(out)?.cast(),
                }))
            }
            Op::Scatter { indices, values, table } => {
                Stage::PutRows(Box::new(self.scatter(indices, values, table, None)?))
            }
            Op::ScatterAdd { indices, values, out } => {
                let leading = out.shape[..indices.len()].iter().product();
                Stage::PutRows(Box::new(self.scatter(indices, values, out, Some(leading))?))
            }
            Op::TopK { x, out } => {
                let (rows, width) = rows_of(x);
                let (x, count) = (self.source(x)?, out.shape[1]);
                Stage::TopK(Box::new(TopK {
                    x,
                    rows,
                    width,
                    count,
                    out: self.address(out)?.cast(),
                }))
            }
            op => unreachable!("{} is of a group", op.name()),
        });
        Ok(())
    }

    fn source(&self, view: &View) -> Result<Source> {
        let (base, width) = self.locate(view)?;
        Source::new(base, width, &view.shape, &view.strides)
    }

    fn indices(&self, table: &View, indices: &[View]) -> Result<Vec<Index>> {
        let index = |(axis, view): (usize, &View)| {
            let (extent, stride) = (table.shape[axis], forward(table)?[axis]);
            Ok(Index { at: self.i32(view)?, step: forward(view)?[0], extent, stride })
        };
        indices.iter().enumerate().map(index).collect()
    }

    fn scatter(
        &self,
        indices: &[View],
        values: &View,
        table: &View,
        adds: Option<usize>,
    ) -> Result<rows::Scatter> {
        let (at, width) = self.locate(table)?;
        Ok(rows::Scatter {
            indices: self.indices(table, indices)?,
            values: self.source(values)?,
            rows: indices[0].elements(),
            width: table.shape[indices.len()..].iter().product(),
            table: at,
            stored: width,
            adds,
        })
    }

    /// The rotation of heads of `dim` values by a table `[M, 2, R/2]`.
    fn rotation(&self, table: &View, style: RopeStyle, dim: usize) -> Result<Rotation> {
        match table.shape[..] {
            [_, 2, half] if 2 * half <= dim => {
                Ok(Rotation { table: self.f32(table)?, half, style })
            }
            _ => Err(unsupported(format!("rotation of {dim} by {:?}", table.shape))),
        }
    }

    /// `[M, H, D]` of queries that fit the cache.
    fn heads(&self, q: &View, cache: &Cache) -> Result<[usize; 3]> {
        match q.shape[..] {
            [rows, heads, dim]
                if dim == cache.dim && cache.heads > 0 && heads.is_multiple_of(cache.heads) =>
            {
                Ok([rows, heads, dim])
            }
            _ => Err(unsupported(format!("queries {:?} over {cache:?}", q.shape))),
        }
    }

    /// Rows of a table that lies in a product's panels.
    fn lines(&self, op: &Op, gather: &plan::Gather) -> Result<Option<Stage>> {
        let plan::Gather { table, indices, out } = gather;
        let Some((at, panels)) = self.packed(op, table) else { return Ok(None) };
        let [ids] = &indices[..] else { return Ok(None) };
        let (step, rows) = (forward(ids)?.first().copied().unwrap_or(0), ids.elements());
        let (ids, out) = (self.i32(ids)?.cast_const(), self.f32(out)?);
        Ok(Some(Stage::Lines { panels, table: at, ids, step, rows, out }))
    }

    fn gather(&self, gather: &plan::Gather) -> Result<Stage> {
        let (table, ids) = (&gather.table, &gather.indices[0]);
        let (rows, ids) = (ids.elements(), self.i32(ids)?);
        let buffer = self.plan.buffer(table.buffer);
        Ok(Stage::Gather {
            table: self.address(table)?.cast(),
            extent: table.shape[0],
            width: table.shape[1..].iter().product(),
            ids,
            rows,
            out: self.typed(&gather.out, buffer.dtype)?.cast(),
        })
    }

    fn linear(&self, linear: &plan::Linear) -> Result<Linear> {
        let plan::Linear { weight, bias, activation, out } = linear;
        Ok(Linear {
            matrix: self.matrix(weight)?,
            bias: self.optional(bias.as_ref())?,
            activation: *activation,
            out: self.f32(out)?,
            used_planes: residual_planes_of(self.plan, out),
        })
    }

    fn project(&self, project: &plan::Project, stages: &mut Vec<Stage>) -> Result<()> {
        let (rows, k) = rows_of(&project.x);
        let weights = project.product.weights().into_iter();
        let layouts =
            weights.map(|view| Ok(self.matrix(view)?.layout)).collect::<Result<Vec<_>>>()?;
        if let Some(layout) = layouts.iter().find(|layout| layout.k() != k) {
            return Err(Error::Invalid(format!("{k} columns times {} rows", layout.k())));
        }
        let planes = residual_planes(self.plan, project);
        stages.push(Stage::Arrange(Arrange {
            x: self.f32(&project.x)?,
            norm: project.norm.as_ref().map(|norm| self.norm(norm)).transpose()?,
            k,
            rows,
            q8: layouts
                .iter()
                .filter(|layout| layout.quantised())
                .map(|layout| ActivationFormat { residual_planes: planes, span: layout.span() })
                .max_by_key(|format| format.span),
            f32: layouts.iter().any(|layout| !layout.quantised()),
        }));
        let case = variant::case(self.plan, project);
        let widest = widest(&layouts)?;
        let variant = Variant::of(self.isa, self.choices, case.as_ref(), widest, rows);
        let linears = |linears, residual| {
            Stage::Project(Project { linears, rows, residual_planes: planes, residual, variant })
        };
        stages.push(match &project.product {
            Product::Each(each) => {
                let mut to = [None; MAX_WEIGHTS];
                for (to, linear) in to.iter_mut().zip(each) {
                    *to = Some(self.linear(linear)?);
                }
                linears(to, None)
            }
            Product::Residual { weight, bias, residual, out } => {
                let (weight, bias, out) = (weight.clone(), bias.clone(), out.clone());
                let linear = plan::Linear { weight, bias, activation: None, out };
                let residual = self.f32(residual)?.cast_const();
                linears([Some(self.linear(&linear)?), None, None], Some(residual))
            }
            Product::Glu { activation, gate, up, out } => Stage::Gate(Gate {
                activation: *activation,
                gate: self.matrix(gate)?,
                up: self.matrix(up)?,
                rows,
                residual_planes: planes,
                out: self.f32(out)?,
                variant,
            }),
        });
        Ok(())
    }

    fn rope_kv(&self, rope: &plan::RopeKv) -> Result<RopeKv> {
        let (keys, values, cache) = self.caches(&rope.caches)?;
        let [rows, ..] = self.heads(&rope.k, &cache)?;
        let norm = |weight: &View, eps: plan::Scalar| {
            let (kind, weight, eps) = (NormKind::Rms, self.f32(weight)?, eps.get());
            Ok::<_, Error>(Norm { kind, weight, bias: None, eps })
        };
        let (mut q, mut out, mut heads) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        if let Some(queries) = &rope.queries {
            [_, heads, _] = self.heads(&queries.q, &cache)?;
            (q, out) = (self.f32(&queries.q)?, self.f32(&queries.out)?);
        }
        let (mut q_norm, mut k_norm) = (None, None);
        if let Some(plan::QkNorm { q, k, eps }) = &rope.norm {
            q_norm = q.as_ref().map(|q| norm(q, *eps)).transpose()?;
            k_norm = Some(norm(k, *eps)?);
        }
        Ok(RopeKv {
            q,
            q_norm,
            k: self.f32(&rope.k)?,
            k_norm,
            v: self.f32(&rope.v)?,
            rotation: self.rotation(&rope.table, rope.style, cache.dim)?,
            at: self.rows(&rope.rows)?,
            heads,
            cache,
            rows,
            out,
            keys,
            values,
        })
    }

    fn attention(&self, attention: &plan::Attention) -> Result<Attention> {
        let (keys, values, cache) = self.caches(&attention.caches)?;
        let [rows, heads, _] = self.heads(&attention.q, &cache)?;
        Ok(Attention {
            q: self.f32(&attention.q)?,
            at: self.rows(&attention.rows)?,
            heads,
            cache,
            scores: attention.scores,
            sinks: self.optional(attention.sinks.as_ref())?,
            rows,
            out: self.f32(&attention.out)?,
            keys,
            values,
        })
    }

    fn remembered(&self, memory: &plan::Recurrence) -> Result<recurrent::Memory> {
        let plain = |view: &View, dtype: DType| {
            let buffer = self.plan.buffer(view.buffer);
            self.memory
                .plain_state(&buffer.name)
                .filter(|(_, elements)| {
                    buffer.dtype == dtype
                        && view.shape == buffer.shape
                        && *elements == buffer.elements()
                })
                .map(|(address, _)| address)
                .ok_or_else(|| unsupported(format!("`{}` as a state", buffer.name)))
        };
        Ok(recurrent::Memory {
            state: plain(&memory.state, DType::F32)?.cast(),
            held: plain(&memory.held, DType::I32)?.cast(),
            at: self.rows(&memory.rows)?,
            slots: memory.state.shape[0],
            sequences: memory.sequences(),
            chunk: memory.chunk,
            size: memory.size(),
        })
    }

    fn short_conv(&self, conv: &plan::ShortConv) -> Result<recurrent::ShortConv> {
        Ok(recurrent::ShortConv {
            x: self.f32(&conv.x)?,
            weight: self.f32(&conv.weight)?,
            channels: conv.weight.shape[0],
            taps: conv.weight.shape[1],
            memory: self.remembered(&conv.memory)?,
            out: self.f32(&conv.out)?,
        })
    }

    fn gated_delta(&self, delta: &plan::GatedDelta) -> Result<recurrent::GatedDelta> {
        let (rows, keyed) = (delta.mixed.shape[0], self.memory.between().cast::<f32>());
        let heads = delta.heads;
        Ok(recurrent::GatedDelta {
            mixed: self.f32(&delta.mixed)?,
            step: self.f32(&delta.step)?,
            strength: self.f32(&delta.strength)?,
            rate: self.f32(&delta.rate)?,
            bias: self.f32(&delta.bias)?,
            heads,
            eps: delta.eps.get(),
            memory: self.remembered(&delta.memory)?,
            keyed,
            gates: keyed.wrapping_add(rows * 2 * heads.keys * heads.key_size),
            rows,
            out: self.f32(&delta.out)?,
        })
    }

    fn delta_rule(&self, rule: &plan::DeltaRule) -> Result<recurrent::DeltaRule> {
        let [_, heads, key_size] = rule.query.shape[..] else {
            return Err(unsupported(format!("heads {:?}", rule.query.shape)));
        };
        Ok(recurrent::DeltaRule {
            query: self.f32(&rule.query)?,
            decay: self.f32(&rule.decay)?,
            key: self.f32(&rule.key)?,
            value: self.f32(&rule.value)?,
            take: self.f32(&rule.take)?,
            add: self.f32(&rule.add)?,
            heads,
            key_size,
            value_size: rule.value.shape[2],
            memory: self.remembered(&rule.memory)?,
            out: self.f32(&rule.out)?,
        })
    }

    fn experts(&self, experts: &plan::Experts) -> Result<mixture::Experts> {
        let buffer = self.plan.buffer(experts.weight.buffer);
        let matrix = match self.memory.weight(&buffer.name) {
            Some((packed, WeightStorage::Experts(_, layout)))
                if buffer.class == Class::Weight && experts.weight.shape == buffer.shape =>
            {
                Matrix { layout, packed }
            }
            _ => return Err(unsupported(format!("`{}` as matrices of experts", buffer.name))),
        };
        let bias = experts.bias.as_ref().map(|bias| self.f32(bias)).transpose()?;
        Ok(mixture::Experts { matrix, bias: bias.map(<*mut f32>::cast_const) })
    }

    fn mixture(&self, op: &plan::Mixture) -> Result<mixture::Mixture> {
        let (gate, up, down) =
            (self.experts(&op.gate)?, self.experts(&op.up)?, self.experts(&op.down)?);
        let ((rows, width), hidden) = (rows_of(&op.x), op.hidden());
        let layouts = [&gate, &up, &down].map(|experts| experts.matrix.layout);
        if layouts.map(|layout| layout.quantised()) != [layouts[0].quantised(); 3]
            || layouts[0].span() != layouts[1].span()
        {
            return Err(unsupported(format!(
                "a mixture of {}, {} and {}",
                layouts[0].dtype(),
                layouts[1].dtype(),
                layouts[2].dtype()
            )));
        }
        Ok(mixture::Mixture {
            x: self.f32(&op.x)?,
            logits: self.f32(&op.logits)?,
            preference: self.optional(op.preference.as_ref())?,
            scales: self.optional(op.scales.as_ref())?,
            routing: op.routing,
            gating: op.gating,
            experts: op.experts(),
            rows,
            width,
            hidden,
            gate,
            up,
            down,
            variant: Variant::of(self.isa, self.choices, None, widest(&layouts)?, rows),
            work: mixture::Needs::of(op).at(self.memory.between()),
            out: self.f32(&op.out)?,
        })
    }

    fn sample(&self, sample: &plan::Sample) -> Result<Sample> {
        let (inputs, (rows, vocabulary)) = (&sample.inputs, rows_of(&sample.logits));
        let next = |next: &plan::NextInputs| {
            let (tokens, positions) = (self.i32(&next.tokens)?, self.i32(&next.positions)?);
            Ok::<_, Error>(NextInputs { tokens, positions })
        };
        let adjustments = |words: &View| Ok::<_, Error>(self.i32(words)?.cast_const());
        Ok(Sample {
            logits: self.f32(&sample.logits)?,
            vocabulary,
            temperature: self.f32(&inputs.temperature)?,
            top_k: self.i32(&inputs.top_k)?,
            top_p: self.f32(&inputs.top_p)?,
            min_p: self.f32(&inputs.min_p)?,
            seed: self.i32(&inputs.seed)?,
            positions: self.i32(&inputs.positions)?,
            adjustments: inputs.adjustments.as_ref().map(adjustments).transpose()?,
            rows,
            ids: self.i32(&sample.ids)?,
            next: sample.next.as_ref().map(next).transpose()?,
        })
    }
}

/// Rows and columns of a view whose last axis is the row.
fn rows_of(view: &View) -> (usize, usize) {
    let n = view.shape.last().copied().unwrap_or(1);
    (view.elements() / n.max(1), n)
}

/// Distance between the rows of a matrix whose rows are dense.
fn row_stride(view: &View) -> Option<usize> {
    match (&view.shape[..], &view.strides[..]) {
        _ if view.is_contiguous() => Some(rows_of(view).1),
        ([_, _], &[stride, 1]) => usize::try_from(stride).ok(),
        _ => None,
    }
}

/// The strides of what a stage reads in the order that it lies in.
fn forward(view: &View) -> Result<Vec<usize>> {
    view.forward().ok_or_else(|| unsupported("a product or rows of what goes backward".into()))
}

/// The one with the largest row groups.
fn widest(layouts: &[PackedLayout]) -> Result<&PackedLayout> {
    let widest = layouts.iter().max_by_key(|layout| layout.group_bytes());
    widest.ok_or_else(|| Error::Invalid("a product with no weights".to_owned()))
}

impl Program {
    /// Resolves a plan that [`check`] has accepted and the memory admits, for an instruction set
    /// and under the choices given.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for operands that this device cannot take there.
    pub(super) fn new(
        plan: &Plan,
        memory: &Memory,
        buffers: PlanMemory,
        isa: Isa,
        choices: Option<&Choices>,
    ) -> Result<Self> {
        let groups = product::groups(plan);
        let constant = |buffer: &plan::Buffer| match buffer.class {
            Class::Constant(value) => value.get(),
            _ => 0.0,
        };
        let constants: Box<[f32]> = plan.buffers.iter().map(constant).collect();
        let resolver = Resolver {
            plan,
            memory,
            arena: arena(plan, &groups),
            buffers: &buffers,
            isa,
            choices,
            constants: &constants,
        };
        let (mut stages, mut ends) = (Vec::new(), Vec::new());
        let locate = |view: &View| resolver.locate(view);
        for set in together::sets(plan, &groups) {
            let (group, set) = (&groups[set.start], &groups[set]);
            let step = &plan.steps[group.steps.start];
            let alone = group.steps.len() == 1 && !is_of_tensors(plan, &step.op);
            let product = product::result(&step.op).is_some();
            match (together::space(plan, group), set) {
                (_, [_, _, ..]) if product => resolver.products(set, &mut stages)?,
                (Some((rows, length)), [_, _, ..]) => {
                    let kernels = resolver.kernels(set)?;
                    stages.push(Stage::Rows(Box::new(Rows::new(kernels, rows, length))));
                }
                _ if product => resolver.product(group, &mut stages)?,
                _ if group.is_kernel(plan) && !alone => {
                    let kernel = Kernel::new(plan, group, &locate)?;
                    if !kernel.is_done() {
                        stages.push(Stage::Group(Box::new(kernel)));
                    }
                }
                _ => resolver.stages(step, &mut stages)?,
            }
            let steps = set.iter().map(|group| group.steps.len()).sum::<usize>();
            ends.extend(std::iter::repeat_n(stages.len(), steps));
        }
        let rows = plan.bucket.rows();
        let slots = stages.iter().find_map(|stage| match stage {
            Stage::Attention(Attention { at, rows: r, .. })
            | Stage::RopeKv(RopeKv { at, rows: r, .. })
                if *r == rows =>
            {
                Some(at.slots)
            }
            Stage::Note(memory) => Some(memory.at.slots),
            _ => None,
        });
        let sampled = stages.iter().find_map(|stage| match stage {
            Stage::Sample(Sample { ids, rows, .. }) => Some((ids.cast_const(), *rows)),
            _ => None,
        });
        let cost = plan.cost();
        let work = cost.flops + cost.bytes();
        let small = slots.is_none() && work <= SMALL;
        Ok(Self { stages, ends, rows, slots, small, sampled, buffers, _constants: constants })
    }
}
