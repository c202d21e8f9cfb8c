//! What lies where: the memory of an instance, and the sizes it is made of.

use std::collections::HashMap;
use std::io;

use super::group::{self, Width};
use super::joined;
use super::mem::AlignedBuf;
use super::product::{self, PANELS, Panels};
use super::together;
use super::variant::{STRIP, packing};
use super::{depthwise, mixture, recurrent, winograd};
use crate::plan_buffers::PlanBuffers;
use crate::precision::residual_planes;
use crate::slots::{Pieces, States, Table, rings};
use crate::tune::Choices;
use crate::uses::{Uses, numbers};
use crate::{BLOCK, Error, Part, Request, Result};
use plan::sample::Candidate;
use plan::{Arena, Buffer, BufferId, Class, DType, Group, Op, Plan, View};
use simd::Isa;
use simd::activations::{self, F32Block, Q8Block};
use simd::attention;
use simd::cache::CacheFormat;
use simd::packed::PackedLayout;
use simd::vector::LANES;

pub(super) const DEVICE: &str = "cpu";

/// Alignment of everything inside a buffer: a cache line.
const ALIGN: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) enum WeightStorage {
    Packed(PackedLayout),
    /// As many matrices of one layout, one after the other.
    Experts(usize, PackedLayout),
    /// So many elements as [`stored`] has them; `F32` are decoded from this type as they are uploaded.
    Plain(usize, DType),
    /// What products read, and rows of their columns.
    Panels(Panels),
}

impl WeightStorage {
    fn of(
        buffer: &Buffer,
        role: Option<Role>,
        isa: Isa,
        choices: Option<&Choices>,
    ) -> Result<Self> {
        if let Some(Role::Product(panels)) = role {
            return Ok(Self::Panels(panels));
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
            (&[rows, k], dtype) => Ok(Self::Packed(packed(dtype, rows, k)?)),
            (&[experts, rows, k], dtype) => Ok(Self::Experts(experts, packed(dtype, rows, k)?)),
            (&[n], DType::F32) => Ok(Self::Plain(n, DType::F32)),
            (shape, dtype) => {
                Err(unsupported(format!("weight `{}` of {dtype} {shape:?}", buffer.name)))
            }
        }
    }

    /// `None` where the size overflows.
    fn bytes(&self) -> Option<usize> {
        match self {
            Self::Packed(layout) => Some(layout.bytes()),
            Self::Experts(count, layout) => layout.bytes().checked_mul(*count),
            Self::Plain(n, dtype) => n.checked_mul(kept(*dtype).bytes()),
            Self::Panels(panels) => panels.bytes(),
        }
    }
}

/// Shape of a KV buffer, as this device lays it out: `[block][kv head]`, or a ring's `[slot][kv head]`, then what
/// `simd::cache` says.
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

    /// Positions that it takes, each at its place modulo this.
    pub(super) const fn positions(&self) -> usize {
        if self.ring { usize::MAX } else { self.capacity }
    }

    /// Bytes of a head's keys in a block or a ring, and of its values.
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

/// Sizes of everything that plans take beyond weights and state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Workspace {
    /// Bytes of the scratch arena, shared by all plans.
    pub(super) arena: usize,
    pub(super) q8: usize,
    pub(super) f32: usize,
    /// `f32` values of scratch for each thread.
    pub(super) thread: usize,
    /// Width of the logits that are sampled from.
    pub(super) vocabulary: usize,
    /// Bytes that a step of several stages keeps between them.
    pub(super) between: usize,
}

impl Workspace {
    fn of(plan: &Plan) -> Result<Self> {
        let groups = product::groups(plan);
        let mut w = Self { arena: size(arena(plan, &groups).bytes)?, ..Self::default() };
        for group in groups.iter().filter(|group| group.is_kernel(plan)) {
            w.thread = w.thread.max(group::registers(plan, group) * group::BLOCK);
        }
        for group in
            groups.iter().filter(|g| product::result(&plan.steps[g.steps.start].op).is_some())
        {
            let own = match &plan.steps[group.steps.start].op {
                Op::Conv(conv) if product::is_depthwise(conv) => depthwise::scratch(conv),
                Op::Conv(conv) => product::scratch(conv).max(winograd::scratch(conv)),
                _ => PANELS,
            };
            w.thread = w.thread.max(own + group::registers(plan, group) * group::BLOCK);
        }
        for set in together::sets(plan, &groups) {
            let steps = groups[set.clone()].iter().map(|group| &plan.steps[group.steps.start]);
            let values = steps.map(|step| between(plan, &step.op, set.len() > 1));
            let values = values.fold(0usize, usize::saturating_add);
            w.between = w.between.max(values.saturating_mul(4));
        }
        let last = |view: &View| view.shape.last().copied().unwrap_or(0);
        for step in &plan.steps {
            match &step.op {
                Op::Project(project) => {
                    let k = last(&project.x).max(1);
                    let rows = project.x.elements() / k;
                    let blocks = activations::blocks(k) * rows;
                    w.q8 = w.q8.max(blocks * residual_planes(plan, project));
                    w.f32 = w.f32.max(blocks);
                    w.thread = w.thread.max(rows.min(activations::TILE) * STRIP);
                    if project.norm.is_some() {
                        w.thread = w.thread.max(k);
                    }
                }
                Op::RopeKv(rope) => w.thread = w.thread.max(last(&rope.k)),
                Op::Attention(attention) => {
                    w.thread = w.thread.max(attention::scratch_len(last(&attention.q)));
                }
                Op::Mixture(mixture) => {
                    let need = mixture::Needs::of(mixture);
                    (w.q8, w.f32) = (w.q8.max(need.blocks), w.f32.max(need.blocks));
                    w.thread = w.thread.max(activations::TILE * STRIP).max(2 * mixture.experts());
                    w.between = w.between.max(need.bytes);
                }
                Op::GatedDelta(delta) => {
                    let (rows, heads) = (delta.mixed.shape[0], &delta.heads);
                    w.between = w.between.max(4 * recurrent::needs(rows, heads));
                    w.thread = w.thread.max(LANES * heads.key_size);
                }
                Op::DeltaRule(rule) => w.thread = w.thread.max(LANES * last(&rule.key)),
                Op::Conv(conv) => {
                    w.between = w.between.max(conv.weight.elements().saturating_mul(4));
                }
                Op::Scatter { .. } | Op::ScatterAdd { .. } => w.thread = w.thread.max(group::BLOCK),
                Op::TopK { x, .. } => w.thread = w.thread.max(last(x)),
                Op::Sample(sample) => w.vocabulary = w.vocabulary.max(last(&sample.logits)),
                _ => {}
            }
        }
        Ok(w)
    }

    fn max(self, other: Self) -> Self {
        Self {
            arena: self.arena.max(other.arena),
            q8: self.q8.max(other.q8),
            f32: self.f32.max(other.f32),
            thread: self.thread.max(other.thread),
            vocabulary: self.vocabulary.max(other.vocabulary),
            between: self.between.max(other.between),
        }
    }

    fn bytes(&self, threads: usize) -> usize {
        let per_thread = 4 * self.thread + self.vocabulary * (size_of::<Candidate>() + 4);
        self.arena
            + self.q8 * size_of::<Q8Block>()
            + self.f32 * size_of::<F32Block>()
            + self.between
            + threads * per_thread
    }
}

/// Values that a product of matrices keeps beside its result: operands in 4 bytes, rows in panels where they are no weights,
/// and columns, if they are `packed` too.
fn between(plan: &Plan, op: &Op, packed: bool) -> usize {
    let Op::MatMul { a, b, .. } = op else { return 0 };
    let copied = |view: &View| match stored(plan.buffer(view.buffer)) {
        Some(Width::Less(_)) => view.elements(),
        _ => 0,
    };
    let panels = match b.shape[..] {
        [.., n, _] if packed => b.elements() / n.max(1) * n.next_multiple_of(LANES),
        _ => 0,
    };
    [copied(a), copied(b), a.elements(), panels].into_iter().fold(0, usize::saturating_add)
}

/// The memory of a plan's own buffers. Who may touch it, and when, is `instance`'s business.
pub(super) struct PlanMemory {
    buf: AlignedBuf,
    buffers: PlanBuffers,
}

impl PlanMemory {
    /// Reserves it.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] when the system refuses.
    pub(super) fn new(plan: &Plan) -> Result<Self> {
        let buffers = PlanBuffers::new(plan);
        let buf = AlignedBuf::new(size(buffers.bytes)?).map_err(|e| Error::OutOfMemory {
            what: format!("mailboxes and outputs ({e})"),
            need: buffers.bytes,
            have: 0,
        })?;
        Ok(Self { buf, buffers })
    }

    pub(super) const fn buffers(&self) -> &PlanBuffers {
        &self.buffers
    }

    pub(super) fn address(&self, buffer: BufferId) -> Option<*mut u8> {
        Some(self.at(self.buffers.offset(buffer)?))
    }

    /// Address of an offset that [`PlanBuffers`] gives.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset < self.buffers.bytes, "{offset} of {}", self.buffers.bytes);
        // SAFETY: inside the buffer, whose size is a `usize`.
        unsafe { self.buf.start().add(offset as usize) }.as_ptr()
    }
}

/// All sizes of an instance, by arithmetic.
pub(super) struct Layout {
    weights: HashMap<String, (usize, WeightStorage)>,
    /// Of matrices that are read as plain numbers too, where those lie.
    beside: HashMap<String, (usize, WeightStorage)>,
    weight_bytes: usize,
    caches: HashMap<String, (usize, Cache)>,
    /// States that lie as their buffers say, beside the caches: where, and how many elements.
    plain_states: HashMap<String, (usize, usize)>,
    states: States,
    table: Table,
    cache_bytes: usize,
    workspace: Workspace,
    plan_bytes: u64,
}

impl Layout {
    /// Lays out what a request asks for, weights as its choices want them.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a weight, cache or step that this device cannot hold or run.
    pub(super) fn new(request: &Request<'_>, isa: Isa) -> Result<Self> {
        let (uses, cached) = (Uses::of(request), caches(request));
        let roles = roles(request, &uses);
        let (mut weights, mut beside) = (HashMap::new(), HashMap::new());
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
                place(role, &mut beside)?;
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
            super::program::check(plan)?;
            workspace = workspace.max(Workspace::of(plan)?);
            plan_bytes += PlanBuffers::new(plan).bytes;
        }
        Ok(Self {
            weights,
            beside,
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

/// Offsets of a plan's scratch buffers, of which a group's live until its end, and those of groups that are done together
/// until theirs. What is joined lies where it belongs.
pub(super) fn arena(plan: &Plan, groups: &[Group]) -> Arena {
    let sets = together::sets(plan, groups).into_iter();
    let last: Vec<usize> = sets
        .flat_map(|set| {
            let (start, end) = (groups[set.start].steps.start, groups[set.end - 1].steps.end);
            (start..end).map(move |_| end - 1)
        })
        .collect();
    let inside = joined::inside(plan, groups);
    let place =
        |buffer| inside.get(&buffer).map_or((buffer, 0), |(whole, at)| (*whole, 4 * *at as u64));
    Arena::new(plan, |step| last[step], place)
}

/// How a buffer's elements lie in memory; `None` for blocks.
pub(super) fn stored(buffer: &Buffer) -> Option<Width> {
    if buffer.class == Class::Weight { Some(kept(buffer.dtype)) } else { Width::of(buffer.dtype) }
}

/// How a weight lies that is no matrix of products: bytes as they are, what is no integer decoded as it is uploaded.
pub(super) fn kept(dtype: DType) -> Width {
    Width::of(dtype).filter(|_| dtype.is_integer()).unwrap_or(Width::Word)
}

/// What weights are beside matrices of projections and rows of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Numbers as they come.
    Plain,
    /// An operand of products that all want it in the same panels.
    Product(Panels),
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
                let panels = Panels::of(&step.op, view, buffer);
                let panels = panels.filter(|_| buffer.dtype == DType::F32);
                let role = panels.map_or(Role::Plain, Role::Product);
                let known = roles.entry(buffer.name.as_str()).or_insert(role);
                // Panels are for products alone.
                if *known != role || uses[buffer.name.as_str()].matrices {
                    *known = Role::Plain;
                }
            }
        }
    }
    // Rows are taken out of panels that are of columns.
    for (plan, step) in request.plans.iter().flat_map(|p| p.steps.iter().map(move |s| (p, s))) {
        let Op::Gather(gather) = &step.op else { continue };
        let buffer = plan.buffer(gather.table.buffer);
        let own = Panels::of(&step.op, &gather.table, buffer).map(Role::Product);
        if buffer.class == Class::Weight
            && let Some(role) = roles.get_mut(buffer.name.as_str())
            && own != Some(*role)
        {
            *role = Role::Plain;
        }
    }
    roles
}

/// States that steps touch, and whether one does as a KV cache.
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

/// The memory that programs run in. They hold raw pointers into it; who may touch what, and when, is
/// `instance`'s business.
pub(super) struct Memory {
    layout: Layout,
    weights: AlignedBuf,
    caches: AlignedBuf,
    table: AlignedBuf,
    arena: AlignedBuf,
    q8: AlignedBuf,
    f32: AlignedBuf,
    between: AlignedBuf,
    threads: Vec<AlignedBuf>,
}

impl Memory {
    /// Reserves everything.
    ///
    /// # Errors
    ///
    /// The system refuses a mapping.
    pub(super) fn new(layout: Layout, threads: usize) -> io::Result<Self> {
        let w = layout.workspace;
        let memory = Self {
            weights: AlignedBuf::new(layout.weight_bytes)?,
            caches: AlignedBuf::new(layout.cache_bytes)?,
            table: AlignedBuf::new(layout.table.blocks() * size_of::<u32>())?,
            arena: AlignedBuf::new(w.arena)?,
            q8: AlignedBuf::new(w.q8 * size_of::<Q8Block>())?,
            f32: AlignedBuf::new(w.f32 * size_of::<F32Block>())?,
            between: AlignedBuf::new(w.between)?,
            threads: (0..threads)
                .map(|_| AlignedBuf::new(4 * w.thread))
                .collect::<io::Result<Vec<_>>>()?,
            layout,
        };
        // SAFETY: nothing runs on memory that nobody has.
        unsafe { memory.set_table(0, &memory.layout.table.first()) };
        Ok(memory)
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) const fn workspace(&self) -> &Workspace {
        &self.layout.workspace
    }

    /// Refuses a plan that was not counted when the memory was reserved.
    pub(super) fn admits(&self, plan: &Plan) -> Result<()> {
        if self.layout.workspace.max(Workspace::of(plan)?) == self.layout.workspace {
            return Ok(());
        }
        Err(Error::Invalid("the plan was not part of the request".into()))
    }

    pub(super) fn weight(&self, name: &str) -> Option<(*mut u8, WeightStorage)> {
        self.form(&self.layout.weights, name)
    }

    /// A matrix as plain numbers, where it is read as such too.
    pub(super) fn beside(&self, name: &str) -> Option<(*mut u8, WeightStorage)> {
        self.form(&self.layout.beside, name)
    }

    fn form(
        &self,
        of: &HashMap<String, (usize, WeightStorage)>,
        name: &str,
    ) -> Option<(*mut u8, WeightStorage)> {
        let (offset, weight) = of.get(name)?;
        // SAFETY: the layout's offsets are inside the buffer.
        Some((unsafe { self.weights.start().add(*offset) }.as_ptr(), *weight))
    }

    pub(super) fn cache(&self, name: &str) -> Option<(*mut u8, Cache)> {
        let (offset, cache) = self.layout.caches.get(name)?;
        // SAFETY: the layout's offsets are inside the buffer.
        Some((unsafe { self.caches.start().add(*offset) }.as_ptr(), *cache))
    }

    /// A state that lies as its buffer says, and its elements.
    pub(super) fn plain_state(&self, name: &str) -> Option<(*mut u8, usize)> {
        let (offset, elements) = self.layout.plain_states.get(name)?;
        // SAFETY: the layout's offsets are inside the buffer.
        Some((unsafe { self.caches.start().add(*offset) }.as_ptr(), *elements))
    }

    /// Which blocks are whose: `[slot][entries]`, and how many entries a slot has.
    pub(super) fn table(&self) -> (*const u32, usize) {
        (self.table.start().as_ptr().cast_const().cast(), self.layout.table.entries)
    }

    pub(super) fn blocks(&self) -> u32 {
        self.layout.table.blocks() as u32
    }

    /// Sets entries of the table from one on.
    ///
    /// # Safety
    /// Nothing runs on this memory meanwhile; there are as many.
    unsafe fn set_table(&self, at: usize, entries: &[u32]) {
        // SAFETY: the caller's contract; the buffer is aligned for them.
        unsafe {
            let to = self.table.start().as_ptr().cast::<u32>().add(at);
            to.copy_from_nonoverlapping(entries.as_ptr(), entries.len());
        }
    }

    /// Gives a slot blocks.
    ///
    /// # Safety
    /// Nothing runs on this memory meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a slot or block that is not there, or too many of them.
    pub(super) unsafe fn map(&self, slot: u32, blocks: &[u32]) -> Result<()> {
        let row = self.layout.table.row(slot, blocks)?;
        // SAFETY: the slot is one of the table's, and the caller's contract.
        unsafe { self.set_table(slot as usize * self.layout.table.entries, &row) };
        Ok(())
    }

    /// Copies a part onto another.
    ///
    /// # Safety
    /// Nothing runs on this memory meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a part that is not there.
    pub(super) unsafe fn copy_part(&self, from: Part, to: Part) -> Result<()> {
        let states = self.caches.start().as_ptr();
        for [from, to, bytes] in self.layout.states.copies(from, to)? {
            // SAFETY: both are pieces of a state, which is inside the buffer, and not the same; nobody else is there.
            unsafe { states.add(from).copy_to_nonoverlapping(states.add(to), bytes) };
        }
        Ok(())
    }

    /// Bytes of a part.
    pub(super) fn part_bytes(&self, part: Part) -> usize {
        self.layout.states.part_bytes(part)
    }

    /// Copies a part out.
    ///
    /// # Safety
    /// Nothing runs on this memory meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a part that is not there, or another length.
    pub(super) unsafe fn read_part(&self, part: Part, out: &mut [u8]) -> Result<()> {
        let (mut out, len) = (out.as_mut_ptr(), out.len());
        for range in self.layout.states.part(part, len)? {
            // SAFETY: the range is inside the states, and together they are as long as `out`; nobody else is there.
            unsafe {
                let from = self.caches.start().as_ptr().add(range.start);
                out.copy_from_nonoverlapping(from, range.len());
                out = out.add(range.len());
            }
        }
        Ok(())
    }

    /// Copies a part in.
    ///
    /// # Safety
    /// As [`Memory::read_part`].
    ///
    /// # Errors
    /// As [`Memory::read_part`].
    pub(super) unsafe fn write_part(&self, part: Part, bytes: &[u8]) -> Result<()> {
        let (mut from, len) = (bytes.as_ptr(), bytes.len());
        for range in self.layout.states.part(part, len)? {
            // SAFETY: as in `read_part`.
            unsafe {
                let to = self.caches.start().as_ptr().add(range.start);
                to.copy_from_nonoverlapping(from, range.len());
                from = from.add(range.len());
            }
        }
        Ok(())
    }

    pub(super) fn arena(&self) -> *mut u8 {
        self.arena.start().as_ptr()
    }

    pub(super) fn q8(&self) -> *mut Q8Block {
        self.q8.start().as_ptr().cast()
    }

    pub(super) fn f32(&self) -> *mut F32Block {
        self.f32.start().as_ptr().cast()
    }

    pub(super) fn between(&self) -> *mut u8 {
        self.between.start().as_ptr()
    }

    pub(super) fn thread(&self, index: usize) -> *mut f32 {
        self.threads[index].start().as_ptr().cast()
    }
}

pub(super) fn unsupported(what: String) -> Error {
    Error::Unsupported { device: DEVICE, what }
}

fn size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| unsupported(format!("{bytes} bytes of scratch")))
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

    #[test]
    fn weights_lie_as_the_request_chooses_and_take_no_more_room() {
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
        let choice = Choice::from([(super::super::variant::PACKING.to_owned(), 32)]);
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
            let panel_width = |layout: &Layout| {
                ["chosen", "other columns", "plain"].map(|name| match layout.weights[name].1 {
                    WeightStorage::Packed(layout) => layout.panel_width(),
                    _ => 0,
                })
            };
            let most = isa.packings().last().unwrap() / LANES;
            assert_eq!(panel_width(&chosen), [most, 1, 1], "{isa}");
            assert_eq!(panel_width(&heuristic), [1; 3], "{isa}");
            assert_eq!(chosen.weight_bytes, heuristic.weight_bytes);
        }
    }
}
