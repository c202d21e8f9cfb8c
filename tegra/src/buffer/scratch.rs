//! Memory that only the GPU touches.

use std::sync::Arc;

use crate::abi::nvmap::Caching;
use crate::address::GpuAddress;
use crate::error::Error;
use crate::memory::Handle;
use crate::space::{Access, AddressSpace, GpuMap};

const WHAT: &str = "scratch";

/// Activations, key-value storage, the threads' local memory. Zero at first.
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

    /// The same, of which the CPU writes every byte: for memory of which more is read than was written.
    pub fn cleared(space: &AddressSpace, bytes: u64) -> Result<Self, Error> {
        let scratch = Self::new(space, bytes)?;
        let cpu = scratch.handle.map()?;
        // SAFETY: the mapping is valid for its length, and nobody else knows of the pages yet.
        unsafe { cpu.base().write_bytes(0, cpu.bytes()) };
        Ok(scratch)
    }

    /// Where the GPU sees the first byte.
    #[must_use]
    pub const fn address(&self) -> GpuAddress {
        self.gpu.address()
    }

    /// Size in bytes, a multiple of the page size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.handle.bytes()
    }

    /// A copy of the memory as the CPU sees it, for a report after a fault.
    ///
    /// Of a working GPU with lines in its L2 it may show older content.
    pub fn snapshot(&self) -> Result<Vec<u8>, Error> {
        let cpu = self.handle.map()?;
        let mut copy = vec![0; cpu.bytes()];
        cpu.read(0, &mut copy)?;
        Ok(copy)
    }
}
