//! Memory that the CPU fills once and the GPU then only reads.

use std::sync::Arc;

use crate::abi::nvmap::Caching;
use crate::address::GpuAddress;
use crate::error::Error;
use crate::memory::{CpuMap, Handle};
use crate::space::{AddressSpace, GpuMap};

const WHAT: &str = "weights";

/// Weights that the CPU is writing. The GPU cannot see them: they have no address yet.
#[derive(Debug)]
pub struct Filling {
    cpu: CpuMap,
    handle: Arc<Handle>,
    space: AddressSpace,
}

impl Filling {
    /// Zeroed memory of at least `bytes`.
    pub fn new(space: &AddressSpace, bytes: u64) -> Result<Self, Error> {
        let handle =
            Arc::new(Handle::allocate(space.orin(), WHAT, bytes, Caching::InnerCacheable)?);
        let cpu = handle.map()?;
        Ok(Self { cpu, handle, space: space.clone() })
    }

    /// Its size in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.handle.bytes()
    }

    /// The memory, to read a file into.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is valid for its length and initialised (the driver zeroes pages).
        // Nobody else can reach the pages: the GPU has no mapping of them, the dma-buf's fd is not
        // given out, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.cpu.base(), self.cpu.bytes()) }
    }

    /// Hands the memory to the GPU. [`Error::OutOfMemory`] without a free range of addresses.
    pub fn seal(self) -> Result<Weights, Error> {
        let gpu = self.space.map(&self.handle, self.space.sealed(), self.space.l2())?;
        Ok(Weights { gpu, filled: self })
    }
}

/// Weights that the GPU reads. Whether a write by the GPU is a fault, the address space decides.
#[derive(Debug)]
pub struct Weights {
    gpu: GpuMap,
    filled: Filling,
}

impl Weights {
    /// Where the GPU sees the first byte.
    #[must_use]
    pub const fn address(&self) -> GpuAddress {
        self.gpu.address()
    }

    /// Size in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.filled.bytes()
    }

    /// The same memory for the CPU, which may read it too.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let cpu = &self.filled.cpu;
        // SAFETY: as in `Filling::as_mut_slice`, but shared: the CPU cannot write while it is sealed,
        // and no work is given the address to write to.
        unsafe { std::slice::from_raw_parts(cpu.base(), cpu.bytes()) }
    }

    /// Takes the memory back from the GPU to write it again. It loses its address: work that still
    /// uses it faults.
    #[must_use]
    pub fn reopen(self) -> Filling {
        self.filled
    }
}
