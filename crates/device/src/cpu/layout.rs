//! Offsets of weights and states, and the storage form of each weight.

use std::collections::HashMap;

use super::check::check;
use super::errors::unsupported;
use super::packed_operand::PackedOperand;
use super::variant::packing;
use super::width::{Width, plain_weight};
use super::workspace::Workspace;
use crate::plan_buffers::PlanBuffers;
use crate::slots::{Pieces, States, Table, rings};
use crate::tune::Choices;
use crate::uses::{Uses, numbers};
use crate::{BLOCK, Error, Request, Result};
use plan::{Buffer, Class, DType, Op};
use simd::Isa;
use simd::attention;
use simd::cache::CacheFormat;
use simd::packed::PackedLayout;

/// Alignment inside a buffer: a cache line.
const ALIGN: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) enum WeightStorage {
    Matrix(PackedLayout),
    /// Matrices of one layout, one per expert.
    Experts(usize, PackedLayout),
    /// Plain elements: integers of their own type, or `F32` decoded from this type at upload.
    Plain(usize, DType),
    /// Packed operand of tensor products; gathers read its columns.
    Product(PackedOperand),
}

impl WeightStorage {
    fn of(
        buffer: &Buffer,
        role: Option<Role>,
        isa: Isa,
        choices: Option<&Choices>,
    ) -> Result<Self> {
        if let Some(Role::Product(packed)) = role {
            return Ok(Self::Product(packed));
        }
        if role.is_some() {
            return Ok(Self::Plain(buffer.elements(), buffer.dtype));
        }
        let packed = |dtype, rows, k| {
            PackedLayout::new(dtype, rows, k)
                .map(|layout| layout.packed_by(packing(isa, choices, dtype, k)))
                .map_err(|e| unsupported(format!("weight `{}`: {e}", buffer.name)))
        };
        match (buffer.shape.as_slice(), buffer.dtype) {
            (&[rows, k], dtype) => Ok(Self::Matrix(packed(dtype, rows, k)?)),
            (&[experts, rows, k], dtype) => Ok(Self::Experts(experts, packed(dtype, rows, k)?)),
            (&[n], DType::F32) => Ok(Self::Plain(n, DType::F32)),
            (shape, dtype) => {
                Err(unsupported(format!("weight `{}` of {dtype} {shape:?}", buffer.name)))
            }
        }
    }

    /// `None` if the size overflows.
    fn bytes(&self) -> Option<usize> {
        match self {
            Self::Matrix(layout) => Some(layout.bytes()),
            Self::Experts(count, layout) => layout.bytes().checked_mul(*count),
            Self::Plain(n, dtype) => n.checked_mul(plain_weight(*dtype).bytes()),
            Self::Product(packed) => packed.bytes(),
        }
    }
}

/// Shape of a KV buffer on this device: `[block][kv head]`, or `[slot][kv head]` for a ring, then the layout of
/// `simd::cache`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cache {
    pub(super) slots: usize,
    pub(super) capacity: usize,
    pub(super) heads: usize,
    /// Values of a head.
    pub(super) dim: usize,
    pub(super) format: CacheFormat,
    /// See [`plan::Caches::ring`].
    pub(super) ring: bool,
}

impl Cache {
    fn of(buffer: &Buffer, ring: bool) -> Result<Self> {
        let (shape, dtype) = (buffer.shape.as_slice(), buffer.dtype);
        let &[slots, capacity, heads, dim] = shape else {
            return Err(unsupported(format!("KV cache `{}` of {shape:?}", buffer.name)));
        };
        let format = CacheFormat::of(dtype, dim).ok_or_else(|| {
            unsupported(format!("KV cache `{}` of {dtype} for heads of {dim}", buffer.name))
        })?;
        Ok(Self { slots, capacity, heads, dim, format, ring })
    }

    /// Number of valid positions; a ring stores each position modulo its capacity.
    pub(super) const fn positions(&self) -> usize {
        if self.ring { usize::MAX } else { self.capacity }
    }

    /// Bytes of one head's keys in a block or a ring, which equal those of its values.
    pub(super) const fn head_bytes(&self) -> usize {
        let ring = self.capacity.next_multiple_of(attention::POSITION_STEP);
        let positions = if self.ring { ring } else { BLOCK };
        positions * self.format.row_bytes(self.dim)
    }

    const fn at(&self, begin: usize) -> Pieces {
        let blocks = if self.ring { 1 } else { self.capacity.div_ceil(BLOCK) };
        Pieces { begin, count: self.slots * blocks, bytes: self.heads * self.head_bytes() }
    }
}

/// Sizes and offsets of an instance's memory.
pub(super) struct Layout {
    pub(super) weights: HashMap<String, (usize, WeightStorage)>,
    /// Plain copies of matrices that are also read as plain numbers.
    pub(super) plain_copies: HashMap<String, (usize, WeightStorage)>,
    pub(super) weight_bytes: usize,
    pub(super) caches: HashMap<String, (usize, Cache)>,
    /// Offsets and element counts of states that are not KV caches, stored in the layout of their buffers.
    pub(super) plain_states: HashMap<String, (usize, usize)>,
    pub(super) states: States,
    pub(super) table: Table,
    pub(super) cache_bytes: usize,
    pub(super) workspace: Workspace,
    pub(super) plan_bytes: u64,
}

impl Layout {
    /// Computes the layout for a request, with the packing that its choices select.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a weight, cache or step that this device does not support.
    pub(super) fn new(request: &Request<'_>, isa: Isa) -> Result<Self> {
        let (uses, cached) = (Uses::of(request), caches(request));
        let roles = roles(request, &uses);
        let (mut weights, mut plain_copies) = (HashMap::new(), HashMap::new());
        let mut weight_bytes = 0usize;
        for buffer in request.weights {
            let name = buffer.name.as_str();
            let role = roles.get(name).copied();
            let packed = uses.get(name).is_some_and(|uses| uses.matrices);
            let mut place = |role, of: &mut HashMap<_, _>| {
                let weight = WeightStorage::of(buffer, role, isa, request.choices)?;
                of.insert(buffer.name.clone(), (weight_bytes, weight));
                weight_bytes = grow(weight_bytes, weight.bytes().unwrap_or(usize::MAX))?;
                Ok::<_, Error>(())
            };
            place(role.filter(|_| !packed), &mut weights)?;
            if packed && role.is_some() {
                place(role, &mut plain_copies)?;
            }
        }
        let mut caches = HashMap::new();
        let mut plain_states = HashMap::new();
        let rings = rings(request);
        let (mut states, mut table) = (States::default(), Table::default());
        let mut cache_bytes = 0usize;
        for buffer in request.states {
            let width = Width::of(buffer.dtype);
            let plain = |width: &Width| {
                width.bytes() != 2 || cached.get(buffer.name.as_str()) == Some(&false)
            };
            let bytes = if let Some(width) = width.filter(plain) {
                plain_states.insert(buffer.name.clone(), (cache_bytes, buffer.elements()));
                let bytes = buffer.elements().saturating_mul(width.bytes());
                let slots = buffer.shape.first().copied().unwrap_or(1).max(1);
                states.rest.push(Pieces { begin: cache_bytes, count: slots, bytes: bytes / slots });
                bytes
            } else {
                let cache = Cache::of(buffer, rings.contains(buffer.name.as_str()))?;
                let pieces = cache.at(cache_bytes);
                if cache.ring {
                    states.rest.push(pieces);
                } else {
                    states.blocks.push(pieces);
                    table.grow(cache.slots, cache.capacity);
                }
                caches.insert(buffer.name.clone(), (cache_bytes, cache));
                pieces.count * pieces.bytes
            };
            cache_bytes = grow(cache_bytes, bytes)?;
        }
        let mut workspace = Workspace::default();
        let mut plan_bytes = 0;
        for plan in request.plans {
            check(plan)?;
            workspace = workspace.max(Workspace::of(plan)?);
            plan_bytes += PlanBuffers::new(plan).bytes;
        }
        Ok(Self {
            weights,
            plain_copies,
            weight_bytes,
            caches,
            plain_states,
            states,
            table,
            cache_bytes,
            workspace,
            plan_bytes,
        })
    }

    pub(super) fn footprint(&self, threads: usize) -> crate::Footprint {
        crate::Footprint {
            weights: self.weight_bytes as u64,
            state: self.cache_bytes as u64,
            activations: self.workspace.bytes(threads) as u64 + self.plan_bytes,
        }
    }
}

/// Uses of weights, except as matrices of projections and tables of gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Plain numbers.
    Plain,
    /// An operand of products that all read it in the same packed form.
    Product(PackedOperand),
}

/// The roles of weights that have one.
fn roles<'a>(request: &Request<'a>, uses: &HashMap<&'a str, Uses>) -> HashMap<&'a str, Role> {
    let mut roles: HashMap<&str, Role> = HashMap::new();
    for plan in request.plans {
        for step in &plan.steps {
            for view in numbers(plan, &step.op) {
                let buffer = plan.buffer(view.buffer);
                if buffer.class != Class::Weight {
                    continue;
                }
                let packed = PackedOperand::of(&step.op, view, buffer);
                let packed = packed.filter(|_| buffer.dtype == DType::F32);
                let role = packed.map_or(Role::Plain, Role::Product);
                let known = roles.entry(buffer.name.as_str()).or_insert(role);
                // Packed operands are for products only.
                if *known != role || uses[buffer.name.as_str()].matrices {
                    *known = Role::Plain;
                }
            }
        }
    }
    // Gathers can read rows of packed columns.
    for (plan, step) in request.plans.iter().flat_map(|p| p.steps.iter().map(move |s| (p, s))) {
        let Op::Gather(gather) = &step.op else { continue };
        let buffer = plan.buffer(gather.table.buffer);
        let own = PackedOperand::of(&step.op, &gather.table, buffer).map(Role::Product);
        if buffer.class == Class::Weight
            && let Some(role) = roles.get_mut(buffer.name.as_str())
            && own != Some(*role)
        {
            *role = Role::Plain;
        }
    }
    roles
}

/// States that steps access; true if a step uses it as a KV cache.
fn caches<'a>(request: &Request<'a>) -> HashMap<&'a str, bool> {
    let mut caches = HashMap::new();
    for plan in request.plans {
        for step in &plan.steps {
            let cache = matches!(step.op, Op::KvWrite { .. } | Op::Attention(_) | Op::RopeKv(_));
            for view in step.op.reads().into_iter().chain(step.op.writes()) {
                let buffer = plan.buffer(view.buffer);
                if buffer.class == Class::State {
                    *caches.entry(buffer.name.as_str()).or_insert(false) |= cache;
                }
            }
        }
    }
    caches
}

/// The next aligned offset after `bytes` at `offset`.
fn grow(offset: usize, bytes: usize) -> Result<usize> {
    offset
        .checked_add(bytes)
        .and_then(|end| end.checked_next_multiple_of(ALIGN))
        .ok_or_else(|| unsupported("memory beyond this machine's addresses".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{Case, Choice};
    use simd::vector::LANES;

    #[test]
    fn weights_are_packed_as_chosen_without_using_more_memory() {
        let matrix = |name: &str, dtype, cols| Buffer {
            name: name.to_owned(),
            class: Class::Weight,
            dtype,
            shape: vec![48, cols],
        };
        let weights = [
            matrix("chosen", DType::Q8_0, 1024),
            matrix("other columns", DType::Q8_0, 512),
            matrix("plain", DType::F16, 1024),
        ];
        let case = |dtype| Case { family: "project".into(), dtype, rows: 48, cols: 1024, batch: 1 };
        let choice = Choice::from([(crate::cpu::variant::PACKING.to_owned(), 32)]);
        let choices: Choices = [DType::Q8_0, DType::F16]
            .map(|dtype| (case(dtype), choice.clone()))
            .into_iter()
            .collect();
        for isa in Isa::available() {
            let lay = |choices| {
                let request = Request { weights: &weights, states: &[], plans: &[], choices };
                Layout::new(&request, isa).unwrap()
            };
            let (chosen, heuristic) = (lay(Some(&choices)), lay(None));
            let interleave = |layout: &Layout| {
                ["chosen", "other columns", "plain"].map(|name| match layout.weights[name].1 {
                    WeightStorage::Matrix(layout) => layout.interleave(),
                    _ => 0,
                })
            };
            let most = isa.packings().last().unwrap() / LANES;
            assert_eq!(interleave(&chosen), [most, 1, 1], "{isa}");
            assert_eq!(interleave(&heuristic), [1; 3], "{isa}");
            assert_eq!(chosen.weight_bytes, heuristic.weight_bytes);
        }
    }
}
