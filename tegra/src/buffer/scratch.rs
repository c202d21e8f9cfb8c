//! Memory that only the GPU accesses.

use std::sync::Arc;

use crate::abi::nvmap::Caching;
use crate::address::GpuAddress;
use crate::error::Error;
use crate::memory::Handle;
use crate::space::{Access, AddressSpace, GpuMap};

const WHAT: &str = "scratch";

/// Activations, KV cache, the threads' local memory. Zeroed.
#[derive(Debug)]
pub struct Scratch {
    gpu: GpuMap,
    handle: Arc<Handle>,
}

impl Scratch {
    /// Zeroed memory of at least `bytes`.
    pub fn new(space: &AddressSpace, bytes: u64) -> Result<Self, Error> {
        let handle =
            Arc::new(Handle::allocate(space.orin(), WHAT, bytes, Caching::InnerCacheable)?);
        let gpu = space.map(&handle, Access::ReadWrite, space.l2())?;
        Ok(Self { gpu, handle })
    }

    /// Allocates scratch memory that the CPU zeroes as well: for memory that the GPU reads before it is completely
    /// written.
    pub fn cleared(space: &AddressSpace, bytes: u64) -> Result<Self, Error> {
        let scratch = Self::new(space, bytes)?;
        let cpu = scratch.handle.map()?;
        // SAFETY: the mapping is valid for its length, and no other code knows of the pages yet.
        unsafe { cpu.base().write_bytes(0, cpu.bytes()) };
        Ok(scratch)
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

    /// Copies the memory for a fault report.
    ///
    /// The copy may be older than the GPU's own view if its L2 has dirty lines.
    pub fn snapshot(&self) -> Result<Vec<u8>, Error> {
        let cpu = self.handle.map()?;
        let mut copy = vec![0; cpu.bytes()];
        cpu.read(0, &mut copy)?;
        Ok(copy)
    }
}
