//! The memory of an instance and of each plan's own buffers.

use std::collections::HashMap;
use std::io;

use super::layout::{Cache, Layout, WeightStorage};
use super::mem::AlignedBuf;
use super::workspace::{Workspace, size};
use crate::plan_buffers::PlanBuffers;
use crate::slots::Pieces;
use crate::{BLOCK, Error, Part, Result};
use plan::{BufferId, Plan};
use simd::activations::{F32Block, Q8Block};

/// Positions of the KV cache, for all sequences together, that are resident before the first request; and the most
/// bytes of them, and of each other buffer.
const POPULATED_POSITIONS: usize = 4096;
const POPULATED_BYTES: usize = 512 << 20;

/// The memory of a plan's own buffers. `instance` orders all access.
pub(super) struct PlanMemory {
    buf: AlignedBuf,
    buffers: PlanBuffers,
}

impl PlanMemory {
    /// Reserves the memory.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`] if the system rejects the mapping.
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

    /// Address of an offset in [`PlanBuffers`].
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset < self.buffers.bytes, "{offset} of {}", self.buffers.bytes);
        // SAFETY: inside the buffer, whose size is a `usize`.
        unsafe { self.buf.start().add(offset as usize) }.as_ptr()
    }
}

/// The memory that programs run in. Programs have raw pointers to it; `instance` orders all access.
pub(super) struct Memory {
    layout: Layout,
    weights: AlignedBuf,
    caches: AlignedBuf,
    table: AlignedBuf,
    arena: AlignedBuf,
    q8: AlignedBuf,
    f32: AlignedBuf,
    step: AlignedBuf,
    threads: Vec<AlignedBuf>,
}

impl Memory {
    /// Reserves all memory of an instance.
    ///
    /// # Errors
    ///
    /// The system rejects a mapping.
    pub(super) fn new(layout: Layout, threads: usize) -> io::Result<Self> {
        let w = layout.workspace;
        let memory = Self {
            weights: AlignedBuf::new(layout.weight_bytes)?,
            caches: AlignedBuf::new(layout.cache_bytes)?,
            table: AlignedBuf::new(layout.table.blocks() * size_of::<u32>())?,
            arena: AlignedBuf::new(w.arena)?,
            q8: AlignedBuf::new(w.q8 * size_of::<Q8Block>())?,
            f32: AlignedBuf::new(w.f32 * size_of::<F32Block>())?,
            step: AlignedBuf::new(w.step)?,
            threads: (0..threads)
                .map(|_| AlignedBuf::new(4 * w.thread))
                .collect::<io::Result<Vec<_>>>()?,
            layout,
        };
        // SAFETY: no program can run on this memory yet.
        unsafe { memory.set_table(0, &memory.layout.table.first()) };
        memory.populate();
        Ok(memory)
    }

    /// Makes resident what the first requests use: activations, and the first blocks and slots of each state.
    /// Otherwise the first answer would take several times as long as the second, for the kernel's clearing of pages.
    fn populate(&self) {
        let buffers = [&self.arena, &self.q8, &self.f32, &self.step].into_iter();
        for buffer in buffers.chain(&self.threads) {
            buffer.populate(0..buffer.len().min(POPULATED_BYTES));
        }
        let states = &self.layout.states;
        let block: usize = states.blocks.iter().map(|pieces| pieces.bytes).sum();
        let blocks = (POPULATED_BYTES / block.max(1)).clamp(1, POPULATED_POSITIONS / BLOCK);
        for (pieces, count) in states
            .blocks
            .iter()
            .map(|pieces| (pieces, blocks))
            .chain(states.rest.iter().map(|pieces| (pieces, 1)))
        {
            let Pieces { begin, bytes, .. } = *pieces;
            self.caches.populate(begin..begin + pieces.count.min(count) * bytes);
        }
    }

    pub(super) const fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) const fn workspace(&self) -> &Workspace {
        &self.layout.workspace
    }

    /// Rejects a plan whose needs were not counted when the memory was reserved.
    pub(super) fn admits(&self, plan: &Plan) -> Result<()> {
        if self.layout.workspace.max(Workspace::of(plan)?) == self.layout.workspace {
            return Ok(());
        }
        Err(Error::Invalid("the plan was not part of the request".into()))
    }

    pub(super) fn weight(&self, name: &str) -> Option<(*mut u8, WeightStorage)> {
        self.form(&self.layout.weights, name)
    }

    /// The plain copy of a matrix that is also read as plain numbers.
    pub(super) fn plain_copy(&self, name: &str) -> Option<(*mut u8, WeightStorage)> {
        self.form(&self.layout.plain_copies, name)
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

    /// A state that is not a KV cache, and its number of elements.
    pub(super) fn plain_state(&self, name: &str) -> Option<(*mut u8, usize)> {
        let (offset, elements) = self.layout.plain_states.get(name)?;
        // SAFETY: the layout's offsets are inside the buffer.
        Some((unsafe { self.caches.start().add(*offset) }.as_ptr(), *elements))
    }

    /// The block table, `[slot][entries]`, and the number of entries per slot.
    pub(super) fn block_table(&self) -> (*const u32, usize) {
        (self.table.start().as_ptr().cast_const().cast(), self.layout.table.entries)
    }

    pub(super) fn blocks(&self) -> u32 {
        self.layout.table.blocks() as u32
    }

    /// Writes entries of the block table from `at` on.
    ///
    /// # Safety
    ///
    /// The caller runs no kernel on this memory meanwhile; the table has these entries.
    unsafe fn set_table(&self, at: usize, entries: &[u32]) {
        // SAFETY: the caller's contract; the buffer is aligned for them.
        unsafe {
            let to = self.table.start().as_ptr().cast::<u32>().add(at);
            to.copy_from_nonoverlapping(entries.as_ptr(), entries.len());
        }
    }

    /// Assigns blocks to a slot.
    ///
    /// # Safety
    /// The caller runs no kernel on this memory meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a slot or block that is not there, or too many of them.
    pub(super) unsafe fn map(&self, slot: u32, blocks: &[u32]) -> Result<()> {
        let row = self.layout.table.row(slot, blocks)?;
        // SAFETY: the table has this slot; the rest is the caller's contract.
        unsafe { self.set_table(slot as usize * self.layout.table.entries, &row) };
        Ok(())
    }

    /// Copies one KV part to another.
    ///
    /// # Safety
    /// The caller runs no kernel on this memory meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a part that is not there.
    pub(super) unsafe fn copy_part(&self, from: Part, to: Part) -> Result<()> {
        let states = self.caches.start().as_ptr();
        for [from, to, bytes] in self.layout.states.copies(from, to)? {
            // SAFETY: both are different pieces of a state inside the buffer; no other code accesses it.
            unsafe { states.add(from).copy_to_nonoverlapping(states.add(to), bytes) };
        }
        Ok(())
    }

    /// Bytes of a KV part.
    pub(super) fn part_bytes(&self, part: Part) -> usize {
        self.layout.states.part_bytes(part)
    }

    /// Copies a KV part to `out`.
    ///
    /// # Safety
    /// The caller runs no kernel on this memory meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a part that is not there, or another length.
    pub(super) unsafe fn read_part(&self, part: Part, out: &mut [u8]) -> Result<()> {
        let (mut out, len) = (out.as_mut_ptr(), out.len());
        for range in self.layout.states.part(part, len)? {
            // SAFETY: the range is inside the states, and all ranges together have the length of `out`; no other
            // code accesses them.
            unsafe {
                let from = self.caches.start().as_ptr().add(range.start);
                out.copy_from_nonoverlapping(from, range.len());
                out = out.add(range.len());
            }
        }
        Ok(())
    }

    /// Copies bytes to a KV part.
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

    pub(super) fn step_scratch(&self) -> *mut u8 {
        self.step.start().as_ptr()
    }

    pub(super) fn thread(&self, index: usize) -> *mut f32 {
        self.threads[index].start().as_ptr().cast()
    }
}
