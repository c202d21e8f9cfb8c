//! The port of a real channel: mapped memory, a mapped doorbell and the CPU's barriers.

use std::ptr;

use super::{Port, TAIL_WORDS};
use crate::barrier;
use crate::class::host::userd;

/// CPU addresses of a channel's memory.
#[derive(Clone, Copy, Debug)]
pub struct PortMemory {
    /// The ring: 8 bytes for each entry.
    pub ring: *mut u64,
    /// Ring entries, a power of two.
    pub entries: u32,
    /// The USERD page.
    pub userd: *mut u8,
    /// The pool of tails: [`super::TAIL_BYTES`] for each ring entry.
    pub tails: *mut u32,
    /// The timeline's payload.
    pub timeline: *const u64,
    /// The doorbell register.
    pub doorbell: *mut u32,
    /// The channel's token.
    pub token: u32,
}

/// A [`Port`] over mapped memory.
///
/// Indices are masked, so that a wrong one stays inside the memory.
#[derive(Debug)]
pub struct MappedPort(PortMemory);

// SAFETY: mappings belong to no thread, and the port is not shared: `Port` stores through `&mut`.
unsafe impl Send for MappedPort {}

impl MappedPort {
    /// A port over `memory`.
    ///
    /// # Safety
    /// While the port lives every pointer is valid, aligned for its type and as long as its field
    /// says, and no Rust reference to the memory exists. `entries` is a power of two. The GPU is
    /// powered while the doorbell is one of a GPU.
    #[must_use]
    pub const unsafe fn new(memory: PortMemory) -> Self {
        Self(memory)
    }

    const fn index(&self, index: u32) -> usize {
        (index & (self.0.entries - 1)) as usize
    }

    /// The ring's entry at `index`.
    pub(crate) fn entry(&self, index: u32) -> u64 {
        // SAFETY: the index is masked to the ring.
        unsafe { self.0.ring.add(self.index(index)).read_volatile() }
    }

    /// A register of the USERD page.
    pub(crate) fn userd(&self, offset: usize) -> u32 {
        debug_assert!(offset + 4 <= userd::SIZE && offset.is_multiple_of(4), "a USERD register");
        // SAFETY: registers are inside the page.
        unsafe { self.0.userd.add(offset).cast::<u32>().read_volatile() }
    }
}

impl Port for MappedPort {
    #[inline(always)]
    fn store_entry(&mut self, index: u32, entry: u64) {
        // SAFETY: the index is masked to the ring.
        unsafe { self.0.ring.add(self.index(index)).write_volatile(entry) }
    }

    #[inline(always)]
    fn store_tail(&mut self, index: u32, word: usize, value: u32) {
        let word = self.index(index) * TAIL_WORDS + word % TAIL_WORDS;
        // SAFETY: index and word are masked to the pool.
        unsafe { self.0.tails.add(word).write_volatile(value) }
    }

    #[inline(always)]
    fn order_work_before_put(&mut self) {
        barrier::stores();
    }

    #[inline(always)]
    fn store_put(&mut self, index: u32) {
        let index = self.index(index) as u32;
        // SAFETY: the register is inside the USERD page and is aligned.
        unsafe { self.0.userd.add(userd::GP_PUT).cast::<u32>().write_volatile(index) }
    }

    #[inline(always)]
    fn order_put_before_doorbell(&mut self) {
        barrier::stores();
    }

    #[inline(always)]
    fn ring_doorbell(&mut self) {
        // SAFETY: the register is mapped and the GPU powered.
        unsafe { self.0.doorbell.write_volatile(self.0.token) }
    }

    #[inline(always)]
    fn load_timeline(&self) -> u64 {
        // SAFETY: the slot is mapped and aligned.
        let value = unsafe { ptr::read_volatile(self.0.timeline) };
        barrier::loads();
        value
    }
}
