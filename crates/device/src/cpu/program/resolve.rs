//! Addresses of a plan's operands in an instance's memory.

use crate::cpu::check::{forward, row_stride};
use crate::cpu::errors::unsupported;
use crate::cpu::group::Source;
use crate::cpu::layout::{Cache, WeightStorage};
use crate::cpu::memory::{Memory, PlanMemory};
use crate::cpu::operand::{Operand, Storage};
use crate::cpu::packed_operand::PackedOperand;
use crate::cpu::width::{Width, stored};
use crate::tune::Choices;
use crate::uses::is_table;
use crate::{Error, Result};
use plan::{Arena, Buffer, Class, DType, Gather, Op, Plan, RopeKv, View};
use simd::Isa;
use simd::attention::POSITION_STEP;
use simd::packed::PackedLayout;

/// A plan, and the memory that its operands are resolved for.
pub(super) struct Resolver<'a> {
    pub(super) plan: &'a Plan,
    pub(super) memory: &'a Memory,
    pub(super) arena: Arena,
    pub(super) buffers: &'a PlanMemory,
    pub(super) isa: Isa,
    pub(super) choices: Option<&'a Choices>,
    /// The value of each constant buffer.
    pub(super) constants: &'a [f32],
}

impl Resolver<'_> {
    /// Address and storage width of a view's first element.
    pub(super) fn locate(&self, view: &View) -> Result<(*mut u8, Width)> {
        let buffer = self.plan.buffer(view.buffer);
        let width = stored(buffer)
            .ok_or_else(|| unsupported(format!("`{}` of {}", buffer.name, buffer.dtype)))?;
        // SAFETY: the plan is valid, so the view lies inside its buffer.
        Ok((unsafe { self.base(buffer, view)?.add(width.bytes() * view.offset) }, width))
    }

    /// Address of a view's buffer.
    fn base(&self, buffer: &Buffer, view: &View) -> Result<*mut u8> {
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
                let forms = [self.memory.weight(name), self.memory.plain_copy(name)];
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

    /// Address of a view of 4-byte elements.
    pub(super) fn address(&self, view: &View) -> Result<*mut u8> {
        // SAFETY: as in `locate`.
        Ok(unsafe { self.base(self.plan.buffer(view.buffer), view)?.add(4 * view.offset) })
    }

    pub(super) fn f32(&self, view: &View) -> Result<*mut f32> {
        Ok(self.typed(view, DType::F32)?.cast())
    }

    pub(super) fn i32(&self, view: &View) -> Result<*mut i32> {
        Ok(self.typed(view, DType::I32)?.cast())
    }

    fn typed(&self, view: &View, dtype: DType) -> Result<*mut u8> {
        let buffer = self.plan.buffer(view.buffer);
        if buffer.dtype != dtype {
            return Err(unsupported(format!("`{}` of {} as {dtype}", buffer.name, buffer.dtype)));
        }
        self.address(view)
    }

    pub(super) fn source(&self, view: &View) -> Result<Source> {
        let (base, width) = self.locate(view)?;
        Source::new(base, width, &view.shape, &view.strides)
    }

    /// A weight that was packed for tensor products when it was uploaded.
    pub(super) fn packed(&self, op: &Op, view: &View) -> Option<(*mut u8, PackedOperand)> {
        let buffer = self.plan.buffer(view.buffer);
        match self.memory.weight(&buffer.name).filter(|_| buffer.class == Class::Weight)? {
            (base, WeightStorage::Product(packed)) => {
                (PackedOperand::of(op, view, buffer) == Some(packed)).then_some((base, packed))
            }
            _ => None,
        }
    }

    /// The operation with resolved operands.
    ///
    /// # Errors
    ///
    /// An operand has a type, form or shape that the kernels cannot read.
    pub(super) fn operation(&self, op: &Op) -> Result<Op<Operand>> {
        check_shapes(self.plan, op)?;
        let (matrices, integers) = (matrices(self.plan, op), integers(op));
        let among = |list: &[&View], view: &View| list.iter().any(|one| std::ptr::eq(*one, view));
        let resolve = |view: &View| {
            let dtype = match op {
                Op::Gather(gather) if !among(&integers, view) => self.copied(gather),
                _ if among(&integers, view) => DType::I32,
                _ => DType::F32,
            };
            let (address, storage) = match op {
                Op::Gather(gather) if std::ptr::eq(&raw const gather.table, view) => {
                    match self.packed(op, view) {
                        Some((base, packed)) => (base, Storage::Packed(packed)),
                        None if among(&matrices, view) => self.matrix(view)?,
                        None => (self.address(view)?, Storage::Plain),
                    }
                }
                _ if among(&matrices, view) => self.matrix(view)?,
                _ => match self.cache(op, view)? {
                    Some((base, cache)) => (base, Storage::Cache(cache)),
                    None => (self.typed(view, dtype)?, Storage::Plain),
                },
            };
            let [first, last] =
                [view.shape.first(), view.shape.last()].map(|extent| extent.copied().unwrap_or(1));
            let elements = view.elements();
            let stride = match view.strides[..] {
                [_] => forward(view)?[0],
                _ => row_stride(view).unwrap_or(last),
            };
            Ok(Operand { address, storage, first, last, elements, stride })
        };
        let failure = std::cell::RefCell::new(None);
        let operand = |view: &View| {
            resolve(view).unwrap_or_else(|e: Error| {
                failure.borrow_mut().get_or_insert(e);
                let (address, storage) = (std::ptr::null_mut(), Storage::Plain);
                Operand { address, storage, first: 0, last: 0, elements: 0, stride: 0 }
            })
        };
        let resolved = op.map(operand, operand);
        match failure.into_inner() {
            Some(error) => Err(error),
            None => check_caches(resolved),
        }
    }

    /// Type of the rows that a gather copies: `F32` when it decodes them.
    fn copied(&self, gather: &Gather) -> DType {
        match self.plan.buffer(gather.table.buffer).dtype {
            dtype if Width::of(dtype) == Some(Width::Word) => dtype,
            _ => DType::F32,
        }
    }

    /// A packed weight matrix, or those of all experts.
    pub(super) fn matrix(&self, view: &View) -> Result<(*mut u8, Storage)> {
        let buffer = self.plan.buffer(view.buffer);
        let whole = buffer.class == Class::Weight && view.shape == buffer.shape;
        let fits = |layout: &PackedLayout| {
            view.shape.ends_with(&[layout.rows(), layout.k()]) && buffer.dtype == layout.dtype()
        };
        match self.memory.weight(&buffer.name).filter(|_| whole) {
            Some((packed, WeightStorage::Matrix(layout)))
                if view.shape.len() == 2 && fits(&layout) =>
            {
                Ok((packed, Storage::Matrix(layout)))
            }
            Some((packed, WeightStorage::Experts(_, layout)))
                if view.shape.len() == 3 && fits(&layout) =>
            {
                Ok((packed, Storage::Matrix(layout)))
            }
            _ => Err(unsupported(format!("`{}` as a matrix of weights", buffer.name))),
        }
    }

    /// A KV cache, if the view is one that the operation reads or writes.
    fn cache(&self, op: &Op, view: &View) -> Result<Option<(*mut u8, Cache)>> {
        let caches = match op {
            Op::Attention(attention) => &attention.caches,
            Op::RopeKv(rope) => &rope.caches,
            _ => return Ok(None),
        };
        if ![&caches.keys, &caches.values].into_iter().any(|cache| std::ptr::eq(cache, view)) {
            return Ok(None);
        }
        let name = &self.plan.buffer(view.buffer).name;
        let whole = |c: &Cache| {
            *view.shape == [c.slots, c.capacity, c.heads, c.dim]
                && c.ring == caches.ring
                && (!c.ring || c.capacity.is_multiple_of(POSITION_STEP))
        };
        let cache = self.memory.cache(name).filter(|(_, cache)| whole(cache));
        cache.map(Some).ok_or_else(|| unsupported(format!("`{name}` as a KV cache")))
    }
}

/// Views that an operation reads as packed matrices.
fn matrices<'a>(plan: &Plan, op: &'a Op) -> Vec<&'a View> {
    match op {
        Op::Project(project) => project.product.weights(),
        Op::Mixture(mixture) => {
            [&mixture.gate, &mixture.up, &mixture.down].map(|experts| &experts.weight).into()
        }
        Op::Gather(gather) if is_table(plan, gather) => vec![&gather.table],
        _ => Vec::new(),
    }
}

/// Operands of type `I32`. The others are `F32`, except matrices, KV caches and gathered rows.
fn integers(op: &Op) -> Vec<&View> {
    let mut views = match op {
        Op::Gather(gather) => gather.indices.iter().collect(),
        Op::RopeTable(table) => vec![&table.positions],
        Op::RopeKv(RopeKv { rows, .. }) | Op::Attention(plan::Attention { rows, .. }) => {
            vec![&rows.slots, &rows.positions]
        }
        Op::Sample(sample) => {
            let plan::SampleInputs { top_k, seed, positions, adjustments, .. } = &sample.inputs;
            let mut views = vec![top_k, seed, positions, &sample.ids];
            views.extend(adjustments);
            views.extend(sample.next.iter().flat_map(|next| [&next.tokens, &next.positions]));
            views
        }
        _ => Vec::new(),
    };
    if let Some(memory) = op.memory() {
        views.extend([&memory.held, &memory.rows.slots, &memory.rows.positions]);
    }
    views
}

/// Checks the shapes that kernels rely on.
fn check_shapes(plan: &Plan, op: &Op) -> Result<()> {
    let rotation = |table: &View, dim: Option<&usize>| match (&table.shape[..], dim) {
        (&[_, 2, half], Some(dim)) if 2 * half <= *dim => Ok(()),
        (shape, dim) => Err(unsupported(format!("rotation of {dim:?} by {shape:?}"))),
    };
    let heads = |view: &View| match view.shape[..] {
        [_, _, _] => Ok(()),
        _ => Err(unsupported(format!("heads {:?}", view.shape))),
    };
    if let Some(memory) = op.memory() {
        for view in [&memory.state, &memory.held] {
            let buffer = plan.buffer(view.buffer);
            if buffer.class != Class::State || view.shape != buffer.shape {
                return Err(unsupported(format!("`{}` as a state", buffer.name)));
            }
        }
    }
    match op {
        Op::Rope { x, table, .. } => heads(x).and_then(|()| rotation(table, x.shape.last())),
        Op::RopeKv(rope) => rotation(&rope.table, rope.k.shape.last()),
        Op::DeltaRule(rule) => heads(&rule.query).and_then(|()| heads(&rule.value)),
        _ => Ok(()),
    }
}

/// Checks that heads of queries and keys fit the caches.
fn check_caches(op: Op<Operand>) -> Result<Op<Operand>> {
    let fits = |q: &Operand, cache: &Cache| {
        if q.last == cache.dim && cache.heads > 0 && q.heads().is_multiple_of(cache.heads) {
            return Ok(());
        }
        let (heads, dim) = (q.heads(), q.last);
        Err(unsupported(format!("{heads} heads of {dim} over {cache:?}")))
    };
    match &op {
        Op::Attention(attention) => fits(&attention.q, &attention.caches.keys.cache())?,
        Op::RopeKv(rope) => {
            let cache = rope.caches.keys.cache();
            for heads in rope.queries.iter().map(|queries| &queries.q).chain([&rope.k]) {
                fits(heads, &cache)?;
            }
        }
        _ => {}
    }
    Ok(op)
}
