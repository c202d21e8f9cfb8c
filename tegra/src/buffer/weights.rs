//! Memory that the CPU fills once and the GPU then only reads.

use std::sync::Arc;

use crate::abi::nvmap::Caching;
use crate::address::GpuAddress;
use crate::cpu_map::CpuMap;
use crate::error::Error;
use crate::memory::Handle;
use crate::space::{AddressSpace, GpuMap};

const WHAT: &str = "weights";

/// Weights that the CPU is writing. The GPU cannot access them: they have no GPU address yet.
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

    /// Returns the size in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.handle.bytes()
    }

    /// The memory, to read a file into.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is valid for its length and initialised (the driver zeroes pages). No
        // other code can reach the pages: the GPU has no mapping of them, the dma-buf's fd does not
        // leave this type, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.cpu.base(), self.cpu.bytes()) }
    }

    /// Maps the memory for the GPU. [`Error::OutOfMemory`] without a free range of addresses.
    pub fn seal(self) -> Result<Weights, Error> {
        let gpu = self.space.map(&self.handle, self.space.sealed(), self.space.l2())?;
        Ok(Weights { gpu, filled: self })
    }
}

/// Weights that the GPU reads. The address space decides whether a write by the GPU is a fault.
#[derive(Debug)]
pub struct Weights {
    gpu: GpuMap,
    filled: Filling,
}

impl Weights {
    /// GPU address of the first byte.
    #[must_use]
    pub const fn address(&self) -> GpuAddress {
        self.gpu.address()
    }

    /// Size in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.filled.bytes()
    }

    /// The same memory, for reading by the CPU.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        let cpu = &self.filled.cpu;
        // SAFETY: as in `Filling::as_mut_slice`, but shared: the CPU cannot write sealed memory,
        // and no work gets the address for writing.
        unsafe { std::slice::from_raw_parts(cpu.base(), cpu.bytes()) }
    }

    /// Unmaps the memory from the GPU to write it again. It loses its address: work that still uses
    /// it faults.
    #[must_use]
    pub fn reopen(self) -> Filling {
        self.filled
    }
}
