//! Memory that CPU and GPU both access.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::abi::nvmap::Caching;
use crate::address::GpuAddress;
use crate::barrier;
use crate::cpu_map::{CpuMap, within};
use crate::error::Error;
use crate::memory::Handle;
use crate::pushbuffer::Entry;
use crate::space::{Access, AddressSpace, GpuMap, L2};

const WHAT: &str = "a mailbox";

/// Command streams, QMDs, arguments, results, semaphores. Zeroed.
///
/// The CPU's view consists of atomic words, never a slice, since the GPU may write at any time. The
/// timeline decides who may access what: memory written before a submit belongs to the GPU until
/// the submission's point is reached, and the CPU reads the GPU's results after it has seen the
/// point.
#[derive(Debug)]
pub struct Mailbox {
    gpu: GpuMap,
    cpu: CpuMap,
    handle: Arc<Handle>,
}

impl Mailbox {
    /// Zeroed memory of at least `bytes`.
    pub fn new(space: &AddressSpace, bytes: u64) -> Result<Self, Error> {
        let handle =
            Arc::new(Handle::allocate(space.orin(), WHAT, bytes, Caching::InnerCacheable)?);
        let cpu = handle.map()?;
        // L2 would cache lines that the CPU changes later.
        let gpu = space.map(&handle, Access::ReadWrite, L2::Volatile)?;
        Ok(Self { gpu, cpu, handle })
    }

    /// GPU address of the first byte.
    #[must_use]
    pub const fn address(&self) -> GpuAddress {
        self.gpu.address()
    }

    /// Size in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.handle.bytes()
    }

    /// GPU address of the byte at `offset`.
    pub fn at(&self, offset: u64) -> Result<GpuAddress, Error> {
        within(offset, 1, self.bytes())?;
        Ok(self.address().offset(offset)?)
    }

    /// Loads the word at `offset`, a multiple of 4, before any later load of the GPU's results.
    pub fn load_u32(&self, offset: u64) -> Result<u32, Error> {
        let value = self.word(offset)?.load(Ordering::Relaxed);
        barrier::loads();
        Ok(value)
    }

    /// Loads the double word at `offset`, a multiple of 8, before any later load of the GPU's
    /// results.
    pub fn load_u64(&self, offset: u64) -> Result<u64, Error> {
        let value = self.long(offset)?.load(Ordering::Relaxed);
        barrier::loads();
        Ok(value)
    }

    /// Stores a word, after all earlier stores of the CPU.
    pub fn store_u32(&self, offset: u64, value: u32) -> Result<(), Error> {
        let word = self.word(offset)?;
        barrier::stores();
        word.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Stores a double word, after all earlier stores of the CPU: releases a semaphore.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), Error> {
        let long = self.long(offset)?;
        barrier::stores();
        long.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Copies bytes out, without ordering: the caller must have seen the GPU finish with them.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.cpu.read(offset, into)
    }

    /// Copies bytes in. The GPU sees them after the next submit, and must not be using that range.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        within(offset, from.len() as u64, self.bytes())?;
        let base = self.cpu.base().wrapping_add(offset as usize);
        let head = base.align_offset(size_of::<u64>()).min(from.len());
        let (first, rest) = from.split_at(head);
        let (longs, last) = rest.as_chunks::<8>();
        let tail = base.wrapping_add(head + size_of_val(longs));
        // SAFETY: `within` has checked the range, which the mapping covers, and `longs` begin at an
        // aligned address. All access of the CPU is atomic.
        unsafe {
            store_bytes(base, first);
            for (index, long) in longs.iter().enumerate() {
                let place = base.add(head + index * 8).cast();
                AtomicU64::from_ptr(place).store(u64::from_ne_bytes(*long), Ordering::Relaxed);
            }
            store_bytes(tail, last);
        }
        Ok(())
    }

    /// Copies words in; see [`Mailbox::write`]. `offset` must be a multiple of 4.
    pub fn write_words(&self, offset: u64, words: &[u32]) -> Result<(), Error> {
        self.place(offset, size_of_val(words) as u64, 4)?;
        let base = self.cpu.base().wrapping_add(offset as usize).cast::<u32>();
        for (index, word) in words.iter().enumerate() {
            // SAFETY: `place` has checked the range and the alignment.
            unsafe { AtomicU32::from_ptr(base.add(index)) }.store(*word, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies a command stream in and returns the ring entry that fetches it. [`Error::Entry`] for
    /// an invalid length.
    pub fn write_stream(&self, offset: u64, words: &[u32]) -> Result<Entry, Error> {
        let entry = Entry::new(self.at(offset)?, words.len())?;
        self.write_words(offset, words)?;
        Ok(entry)
    }

    /// CPU address of the first byte, for a port that outlives no field of this buffer.
    pub(crate) fn base(&self) -> *mut u8 {
        self.cpu.base()
    }

    fn place(&self, offset: u64, bytes: u64, alignment: u64) -> Result<usize, Error> {
        if !offset.is_multiple_of(alignment) {
            return Err(Error::Misaligned { offset, alignment });
        }
        within(offset, bytes, self.bytes())?;
        Ok(offset as usize)
    }

    fn word(&self, offset: u64) -> Result<&AtomicU32, Error> {
        let place = self.cpu.base().wrapping_add(self.place(offset, 4, 4)?);
        // SAFETY: inside the mapping, aligned, alive as long as `self`; the CPU uses only atomics.
        Ok(unsafe { AtomicU32::from_ptr(place.cast()) })
    }

    fn long(&self, offset: u64) -> Result<&AtomicU64, Error> {
        let place = self.cpu.base().wrapping_add(self.place(offset, 8, 8)?);
        // SAFETY: as in `word`.
        Ok(unsafe { AtomicU64::from_ptr(place.cast()) })
    }
}

/// # Safety
/// `into` is valid for the length of `from`, for atomic access.
unsafe fn store_bytes(into: *mut u8, from: &[u8]) {
    for (index, byte) in from.iter().enumerate() {
        // SAFETY: the caller's.
        unsafe { AtomicU8::from_ptr(into.add(index)) }.store(*byte, Ordering::Relaxed);
    }
}
