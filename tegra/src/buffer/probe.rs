//! Memory with attributes of the caller's choice, for measuring their effect.
//!
//! Only probes use it: the other buffer types fix the attributes that are known to work.

use std::sync::Arc;

use crate::abi::address_space as abi;
use crate::abi::nvmap::Caching;
use crate::address::GpuAddress;
use crate::cpu_map::{CpuMap, within};
use crate::error::Error;
use crate::memory::Handle;
use crate::space::{AddressSpace, GpuMap};

const WHAT: &str = "a trial buffer";

/// Attributes of a [`ProbeBuffer`]'s mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Caching of the CPU's mapping.
    pub caching: Caching,
    /// Flags of the GPU's mapping, such as [`abi::MAP_CACHEABLE`]; not
    /// [`abi::MAP_FIXED_OFFSET`].
    pub map_flags: u32,
}

/// A buffer with chosen attributes. Zeroed.
///
/// The CPU accesses words in order with plain loads and stores, without barriers or cache
/// maintenance: the purpose is to measure which of them the GPU sees.
#[derive(Debug)]
pub struct ProbeBuffer {
    gpu: GpuMap,
    cpu: CpuMap,
    handle: Arc<Handle>,
}

impl ProbeBuffer {
    /// Zeroed memory of at least `bytes`. [`Error::Request`] when the driver refuses the
    /// attributes.
    pub fn new(space: &AddressSpace, bytes: u64, attributes: Attributes) -> Result<Self, Error> {
        let Attributes { caching, map_flags } = attributes;
        let handle = Arc::new(Handle::allocate(space.orin(), WHAT, bytes, caching)?);
        let cpu = handle.map()?;
        let gpu = space.map_with(&handle, map_flags & !abi::MAP_FIXED_OFFSET)?;
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

    /// Stores `value(index)` in the first `words` double words.
    pub fn fill(&self, words: u64, value: impl Fn(u64) -> u64) -> Result<(), Error> {
        let base = self.words(words)?;
        for word in 0..words {
            // SAFETY: inside the mapping, aligned since pages are; volatile since the GPU may use
            // the memory.
            unsafe { base.wrapping_add(word as usize).write_volatile(value(word)) };
        }
        Ok(())
    }

    /// Loads the first `words` double words and counts those for which `matches(index, word)` is
    /// false.
    pub fn mismatches(&self, words: u64, matches: impl Fn(u64, u64) -> bool) -> Result<u64, Error> {
        let base = self.words(words)?;
        let mut wrong = 0;
        for word in 0..words {
            // SAFETY: as in `fill`.
            let found = unsafe { base.wrapping_add(word as usize).read_volatile() };
            wrong += u64::from(!matches(word, found));
        }
        Ok(wrong)
    }

    fn words(&self, words: u64) -> Result<*mut u64, Error> {
        within(0, words.saturating_mul(size_of::<u64>() as u64), self.bytes())?;
        Ok(self.cpu.base().cast())
    }
}
