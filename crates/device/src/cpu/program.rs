//! From a fused plan to a program: the same steps with every address resolved.
//!
//! What is known when a plan is prepared is decided here; what changes from step to step (tokens,
//! positions, slots) is read from the mailboxes while the program runs.

use super::Isa;
use super::activations;
use super::instance::Own;
use super::memory::{Cache, Form, Memory, unsupported};
use super::packed::PackedLayout;
use super::variant::{self, Variant};
use crate::tune::Choices;
use crate::{
    Error,
    precision::{planes, planes_for},
};
use plan::{Arena, Binary, Class, Composite, DType, Epilogue, Op, Plan, RopeStyle, Step, View};

/// A weight matrix as a stage uses it.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) layout: PackedLayout,
    pub(super) packed: *const u8,
}

/// A per-head or per-row norm.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub(super) weight: *const f32,
    pub(super) eps: f32,
}

/// Attention's inputs that depend on the row.
#[derive(Clone, Copy)]
pub(super) struct RowsOfSlots {
    pub(super) slots: *const i32,
    pub(super) positions: *const i32,
}

/// One stage: all threads work on it, then meet at a barrier. `rows` are those of the plan's bucket.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// Rows of a packed matrix, decoded: `out[i] = matrix[ids[i]]`.
    Embed { matrix: Matrix, ids: *const i32, rows: usize, out: *mut f32 },
    /// Rows of 4-byte elements: `out[i] = table[ids[i]]`, zeroes for an index outside `0..extent`.
    Gather {
        table: *const u32,
        extent: usize,
        width: usize,
        ids: *const i32,
        rows: usize,
        out: *mut u32,
    },
    /// Cosines, then sines, of position times frequency.
    RopeTable {
        positions: *const i32,
        frequencies: *const f32,
        half: usize,
        magnitude: f32,
        rows: usize,
        out: *mut f32,
    },
    /// Rows normalised.
    RmsNorm { x: *const f32, norm: Norm, n: usize, rows: usize, out: *mut f32 },
    /// Elementwise sum of rows.
    Add { a: *const f32, b: *const f32, n: usize, rows: usize, out: *mut f32 },
    /// Elementwise gate.
    SwiGlu { gate: *const f32, up: *const f32, n: usize, rows: usize, out: *mut f32 },
    /// Rows, normalised if asked, brought into the form that products read.
    Arrange {
        x: *const f32,
        norm: Option<Norm>,
        k: usize,
        rows: usize,
        q8: Option<activations::Form>,
        f32: bool,
    },
    /// Products of the arranged rows with up to three matrices, each with its own number of planes.
    Project {
        weights: [Option<(Matrix, *mut f32, usize)>; 3],
        rows: usize,
        planes: usize,
        residual: Option<*const f32>,
        variant: Variant,
    },
    /// `silu(x W0^T) * (x W1^T)` of the arranged rows.
    Gate { gate: Matrix, up: Matrix, rows: usize, planes: usize, out: *mut f32, variant: Variant },
    /// Queries (none when `heads` is 0) rotated, keys rotated and values into their caches.
    RopeKv {
        q: *const f32,
        k: *const f32,
        v: *const f32,
        table: *const f32,
        at: RowsOfSlots,
        norms: Option<(Norm, Norm)>,
        style: RopeStyle,
        heads: usize,
        cache: Cache,
        rows: usize,
        out: *mut f32,
        keys: *mut u16,
        values: *mut u16,
    },
    /// Attention over the caches.
    Attend {
        q: *const f32,
        at: RowsOfSlots,
        heads: usize,
        cache: Cache,
        scale: f32,
        rows: usize,
        out: *mut f32,
        keys: *const u16,
        values: *const u16,
    },
    /// Tokens chosen from rows of logits; then, in decode, the next step's inputs.
    Sample {
        logits: *const f32,
        vocabulary: usize,
        temperature: *const f32,
        top_k: *const i32,
        top_p: *const f32,
        seed: *const i32,
        positions: *const i32,
        rows: usize,
        ids: *mut i32,
        advance: Option<(*mut i32, *mut i32)>,
    },
}

/// A prepared plan, ready to run.
pub(super) struct Program {
    pub(super) stages: Vec<Stage>,
    /// Stages up to the end of each of the plan's steps.
    pub(super) ends: Vec<usize>,
    /// Rows of tokens in the bucket.
    pub(super) rows: usize,
    /// The slots mailbox: rows after the last one with a slot are padding and are not computed.
    pub(super) slots: Option<*const i32>,
    /// Sampled tokens of a step, and how many.
    pub(super) sampled: Option<(*const i32, usize)>,
    /// The plan's own buffers.
    pub(super) own: Own,
}

// SAFETY: the pointers lead into the instance's memory and the plan's own, which outlive the
// program (the instance drops the thread that runs it first); `instance` orders all access.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

/// Refuses steps that this device does not run.
pub(super) fn check(plan: &Plan) -> Result<(), Error> {
    plan.validate().map_err(|e| Error::Invalid(e.to_string()))?;
    let i32 = |view: &View| plan.buffer(view.buffer).dtype == DType::I32;
    for step in &plan.steps {
        let fits = match &step.op {
            Op::Gather => step.reads.len() == 2,
            Op::Binary(Binary::Add) => {
                !i32(&step.writes[0]) && step.reads[0].shape == step.reads[1].shape
            }
            Op::Project { .. } | Op::RopeKv { .. } | Op::Sample | Op::SampleAdvance => true,
            Op::Composite(c) => matches!(
                c,
                Composite::RmsNorm { .. }
                    | Composite::RopeTable { .. }
                    | Composite::SwiGlu
                    | Composite::Attention { .. }
            ),
            _ => false,
        };
        if !fits {
            return Err(unsupported(format!("step {} ({})", step.op.name(), step.label)));
        }
        let cached = |view: &View| plan.buffer(view.buffer).class == Class::State;
        if step.reads.iter().chain(&step.writes).any(|v| !v.is_contiguous() && !cached(v)) {
            return Err(unsupported(format!("strides in {} ({})", step.op.name(), step.label)));
        }
    }
    Ok(())
}

/// Resolves the operands of a plan.
struct Resolver<'a> {
    plan: &'a Plan,
    memory: &'a Memory,
    arena: Arena,
    own: &'a Own,
    tuning: (Isa, Option<&'a Choices>),
}

impl Resolver<'_> {
    /// Address of a view of 4-byte elements.
    fn address(&self, view: &View) -> Result<*mut u8, Error> {
        let buffer = self.plan.buffer(view.buffer);
        let base = match buffer.class {
            Class::Scratch => self
                .arena
                .offset(view.buffer)
                .and_then(|offset| usize::try_from(offset).ok())
                // SAFETY: the arena's offsets are inside the memory reserved for it.
                .map(|offset| unsafe { self.memory.arena().add(offset) }),
            Class::Mailbox | Class::Output => self.own.address(view.buffer),
            Class::Weight => match self.memory.weight(&buffer.name) {
                Some((base, Form::Plain(n))) if n == buffer.elements() => Some(base),
                _ => None,
            },
            Class::State | Class::Constant(_) => None,
        };
        let base = base.ok_or_else(|| {
            unsupported(format!("{:?} `{}` as an operand here", buffer.class, buffer.name))
        })?;
        // SAFETY: the plan is valid, so the view lies inside its buffer.
        Ok(unsafe { base.add(4 * view.offset) })
    }

    fn f32(&self, view: &View) -> Result<*mut f32, Error> {
        Ok(self.typed(view, DType::F32)?.cast())
    }

    fn i32(&self, view: &View) -> Result<*mut i32, Error> {
        Ok(self.typed(view, DType::I32)?.cast())
    }

    fn typed(&self, view: &View, dtype: DType) -> Result<*mut u8, Error> {
        let buffer = self.plan.buffer(view.buffer);
        if buffer.dtype != dtype {
            return Err(unsupported(format!("`{}` of {} as {dtype}", buffer.name, buffer.dtype)));
        }
        self.address(view)
    }

    fn matrix(&self, view: &View) -> Result<Matrix, Error> {
        let buffer = self.plan.buffer(view.buffer);
        match self.memory.weight(&buffer.name) {
            Some((packed, Form::Packed(layout)))
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

    fn cache(&self, view: &View) -> Result<(*mut u16, Cache), Error> {
        let buffer = self.plan.buffer(view.buffer);
        self.memory
            .cache(&buffer.name)
            .filter(|(_, c)| *view.shape == [c.slots, c.capacity, c.heads, c.dim])
            .ok_or_else(|| unsupported(format!("`{}` as a KV cache", buffer.name)))
    }

    fn slots(&self, slots: &View, positions: &View) -> Result<RowsOfSlots, Error> {
        Ok(RowsOfSlots { slots: self.i32(slots)?, positions: self.i32(positions)? })
    }

    fn stages(&self, step: &Step, stages: &mut Vec<Stage>) -> Result<(), Error> {
        let (reads, writes) = (&step.reads[..], &step.writes[..]);
        let last = |view: &View| view.shape.last().copied().unwrap_or(1);
        let rows_of = |view: &View| view.elements() / last(view).max(1);
        let stage = match &step.op {
            Op::Gather => self.gather(step)?,
            Op::Binary(_) => Stage::Add {
                a: self.f32(&reads[0])?,
                b: self.f32(&reads[1])?,
                n: last(&reads[0]),
                rows: rows_of(&reads[0]),
                out: self.f32(&writes[0])?,
            },
            Op::Project { .. } => return self.project(step, stages),
            Op::RopeKv { style, norm, queries } => {
                self.rope_kv(step, *style, norm.map(plan::Scalar::get), *queries)?
            }
            Op::Sample => self.sample(step, None)?,
            Op::SampleAdvance => {
                let advance = (self.i32(&writes[1])?, self.i32(&writes[2])?);
                self.sample(step, Some(advance))?
            }
            Op::Composite(Composite::RmsNorm { eps }) => Stage::RmsNorm {
                x: self.f32(&reads[0])?,
                norm: Norm { weight: self.f32(&reads[1])?, eps: eps.get() },
                n: last(&reads[0]),
                rows: rows_of(&reads[0]),
                out: self.f32(&writes[0])?,
            },
            Op::Composite(Composite::SwiGlu) => Stage::SwiGlu {
                gate: self.f32(&reads[0])?,
                up: self.f32(&reads[1])?,
                n: last(&reads[0]),
                rows: rows_of(&reads[0]),
                out: self.f32(&writes[0])?,
            },
            Op::Composite(Composite::RopeTable { magnitude }) => Stage::RopeTable {
                positions: self.i32(&reads[0])?,
                frequencies: self.f32(&reads[1])?,
                half: reads[1].elements(),
                magnitude: magnitude.get(),
                rows: reads[0].elements(),
                out: self.f32(&writes[0])?,
            },
            Op::Composite(Composite::Attention { scale }) => {
                let (keys, cache) = self.cache(&reads[1])?;
                let (values, _) = self.cache(&reads[2])?;
                let [rows, heads, dim] = self.heads(&reads[0], &cache)?;
                debug_assert_eq!(dim, cache.dim);
                Stage::Attend {
                    q: self.f32(&reads[0])?,
                    at: self.slots(&reads[3], &reads[4])?,
                    heads,
                    cache,
                    scale: scale.get(),
                    rows,
                    out: self.f32(&writes[0])?,
                    keys,
                    values,
                }
            }
            // `check` refused the others.
            _ => return Err(unsupported(format!("step {}", step.op.name()))),
        };
        stages.push(stage);
        Ok(())
    }

    /// `[M, H, D]` of queries that fit the cache.
    fn heads(&self, q: &View, cache: &Cache) -> Result<[usize; 3], Error> {
        match q.shape[..] {
            [rows, heads, dim]
                if dim == cache.dim && cache.heads > 0 && heads.is_multiple_of(cache.heads) =>
            {
                Ok([rows, heads, dim])
            }
            _ => Err(unsupported(format!("queries {:?} over {cache:?}", q.shape))),
        }
    }

    fn gather(&self, step: &Step) -> Result<Stage, Error> {
        let (table, ids) = (&step.reads[0], &step.reads[1]);
        let (rows, indices) = (ids.elements(), self.i32(ids)?);
        let buffer = self.plan.buffer(table.buffer);
        if buffer.class == Class::Weight && table.shape.len() == 2 {
            let (matrix, out) = (self.matrix(table)?, self.f32(&step.writes[0])?);
            return Ok(Stage::Embed { matrix, ids: indices, rows, out });
        }
        Ok(Stage::Gather {
            table: self.address(table)?.cast(),
            extent: table.shape[0],
            width: table.shape[1..].iter().product(),
            ids: indices,
            rows,
            out: self.typed(&step.writes[0], buffer.dtype)?.cast(),
        })
    }

    fn project(&self, step: &Step, stages: &mut Vec<Stage>) -> Result<(), Error> {
        let Op::Project { norm, weights, epilogue } = step.op else { return Ok(()) };
        let x = &step.reads[0];
        let k = x.shape.last().copied().unwrap_or(1);
        let rows = x.elements() / k.max(1);
        let norm = match norm {
            Some(eps) => Some(Norm { weight: self.f32(&step.reads[1])?, eps: eps.get() }),
            None => None,
        };
        let first = 1 + usize::from(norm.is_some());
        let matrices = step.reads[first..first + weights]
            .iter()
            .map(|view| self.matrix(view))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(m) = matrices.iter().find(|m| m.layout.k() != k) {
            return Err(Error::Invalid(format!("{k} columns times {} rows", m.layout.k())));
        }
        let planes = planes(self.plan, step);
        stages.push(Stage::Arrange {
            x: self.f32(x)?,
            norm,
            k,
            rows,
            q8: matrices
                .iter()
                .filter(|m| m.layout.quantised())
                .map(|m| activations::Form { planes, span: m.layout.span() })
                .max_by_key(|form| form.span),
            f32: matrices.iter().any(|m| !m.layout.quantised()),
        });
        let widest = matrices.iter().map(|m| m.layout.group_bytes()).max().unwrap_or(1);
        let (isa, choices) = self.tuning;
        let case = variant::case(self.plan, step);
        let variant = Variant::of(isa, choices, case.as_ref(), (widest, rows));
        let stage = match (epilogue, &matrices[..]) {
            (Epilogue::SwiGlu, &[gate, up]) => {
                Stage::Gate { gate, up, rows, planes, out: self.f32(&step.writes[0])?, variant }
            }
            (Epilogue::None | Epilogue::Residual, [_] | [_, _] | [_, _, _]) => {
                let mut outputs = [None; 3];
                for (i, (&matrix, out)) in matrices.iter().zip(&step.writes).enumerate() {
                    let used = planes_for(self.plan, out).min(planes);
                    outputs[i] = Some((matrix, self.f32(out)?, used));
                }
                let residual = match epilogue {
                    Epilogue::Residual => {
                        Some(self.f32(&step.reads[first + weights])?.cast_const())
                    }
                    _ => None,
                };
                Stage::Project { weights: outputs, rows, planes, residual, variant }
            }
            _ => return Err(unsupported(format!("{weights} weights in {}", step.op.name()))),
        };
        stages.push(stage);
        Ok(())
    }

    fn rope_kv(
        &self,
        step: &Step,
        style: RopeStyle,
        eps: Option<f32>,
        queries: bool,
    ) -> Result<Stage, Error> {
        // Without queries every operand stands one place further in front.
        let at = usize::from(queries);
        let (reads, writes) = (&step.reads, &step.writes);
        let (keys, cache) = self.cache(&writes[at])?;
        let (values, _) = self.cache(&writes[at + 1])?;
        let [rows, heads, _] = self.heads(&reads[0], &cache)?;
        let norms = match eps {
            Some(eps) => Some((
                Norm { weight: self.f32(&reads[at + 5])?, eps },
                Norm { weight: self.f32(&reads[2 * at + 5])?, eps },
            )),
            None => None,
        };
        let (q, out) = if queries {
            (self.f32(&reads[0])?, self.f32(&writes[0])?)
        } else {
            (std::ptr::null_mut(), std::ptr::null_mut())
        };
        Ok(Stage::RopeKv {
            q,
            k: self.f32(&reads[at])?,
            v: self.f32(&reads[at + 1])?,
            table: self.f32(&reads[at + 2])?,
            at: self.slots(&reads[at + 3], &reads[at + 4])?,
            norms,
            style,
            heads: if queries { heads } else { 0 },
            cache,
            rows,
            out,
            keys,
            values,
        })
    }

    fn sample(&self, step: &Step, advance: Option<(*mut i32, *mut i32)>) -> Result<Stage, Error> {
        let reads = &step.reads;
        Ok(Stage::Sample {
            logits: self.f32(&reads[0])?,
            vocabulary: reads[0].shape.last().copied().unwrap_or(0),
            temperature: self.f32(&reads[1])?,
            top_k: self.i32(&reads[2])?,
            top_p: self.f32(&reads[3])?,
            seed: self.i32(&reads[4])?,
            positions: self.i32(&reads[5])?,
            rows: reads[1].elements(),
            ids: self.i32(&step.writes[0])?,
            advance,
        })
    }
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
        own: Own,
        tuning: (Isa, Option<&Choices>),
    ) -> Result<Self, Error> {
        let arena = Arena::new(plan, |_, bytes| bytes);
        let resolver = Resolver { plan, memory, arena, own: &own, tuning };
        let (mut stages, mut ends) = (Vec::new(), Vec::new());
        for step in &plan.steps {
            resolver.stages(step, &mut stages)?;
            ends.push(stages.len());
        }
        let rows = plan.bucket.rows();
        let slots = stages.iter().find_map(|stage| match stage {
            Stage::Attend { at, rows: r, .. } | Stage::RopeKv { at, rows: r, .. } if *r == rows => {
                Some(at.slots)
            }
            _ => None,
        });
        let sampled = stages.iter().find_map(|stage| match stage {
            Stage::Sample { ids, rows, .. } => Some((ids.cast_const(), *rows)),
            _ => None,
        });
        Ok(Self { stages, ends, rows, slots, sampled, own })
    }
}
