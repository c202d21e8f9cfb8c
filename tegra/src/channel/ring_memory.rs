//! The memory that a channel and the host unit share: ring and USERD page.

use crate::abi::nvmap::Caching;
use crate::class::host::userd;
use crate::cpu_map::CpuMap;
use crate::error::Error;
use crate::memory::Handle;
use crate::orin::Orin;
use crate::queue::QueueError;

const RING: &str = "a ring";
const USERD: &str = "a USERD page";
/// Bytes of a ring entry.
const ENTRY: u64 = size_of::<u64>() as u64;

/// Ring and USERD page of one channel at a time. The next channel can reuse it.
///
/// Two separate dma-bufs, write-combined, as proven; this crate maps neither for the GPU.
#[derive(Debug)]
pub struct RingMemory {
    entries: u32,
    ring_cpu: CpuMap,
    ring: Handle,
    userd_cpu: CpuMap,
    userd: Handle,
}

impl RingMemory {
    /// Memory for `entries` entries, a power of two from 2 to 2^20.
    ///
    /// # Errors
    /// [`Error::Queue`] for another number, [`Error::OutOfMemory`], [`Error::Map`],
    /// [`Error::Request`].
    pub fn new(orin: &Orin, entries: u32) -> Result<Self, Error> {
        if !crate::queue::is_ring_size(entries) {
            return Err(QueueError::Entries { entries }.into());
        }
        let bytes = u64::from(entries) * ENTRY;
        let ring = Handle::allocate(orin, RING, bytes, Caching::WriteCombined)?;
        let userd = Handle::allocate(orin, USERD, userd::SIZE as u64, Caching::WriteCombined)?;
        Ok(Self { entries, ring_cpu: ring.map()?, ring, userd_cpu: userd.map()?, userd })
    }

    /// Ring entries.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    pub(super) const fn ring(&self) -> &Handle {
        &self.ring
    }

    pub(super) const fn userd(&self) -> &Handle {
        &self.userd
    }

    pub(crate) fn ring_base(&self) -> *mut u64 {
        self.ring_cpu.base().cast()
    }

    pub(crate) fn userd_base(&self) -> *mut u8 {
        self.userd_cpu.base()
    }

    /// Zeroes both pages, while no channel uses them: a new channel starts at entry 0.
    pub(super) fn clear(&mut self) {
        for cpu in [&self.ring_cpu, &self.userd_cpu] {
            let words = cpu.base().cast::<u64>();
            for word in 0..cpu.bytes() / size_of::<u64>() {
                // SAFETY: inside the mapping, aligned since pages are.
                unsafe { words.add(word).write_volatile(0) };
            }
        }
        crate::barrier::stores();
    }
}
