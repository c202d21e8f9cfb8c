//! Memory of nvmap: handles with pages, and their mappings for the CPU.
//!
//! Independent of GPU addresses and of the memory's purpose.

use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;

use crate::abi::address_space::PAGE_SIZE;
use crate::abi::nvmap::{self, Caching};
use crate::cpu_map::CpuMap;
use crate::error::Error;
use crate::node::adopt;
use crate::orin::Orin;

/// Allocation tag. The kernel warns of tag 0; this one was used on hardware.
const TAG: u16 = 0x0900;

/// An nvmap handle with zeroed pages. Freed when dropped; mappings keep the pages.
#[derive(Debug)]
pub(crate) struct Handle {
    orin: Orin,
    what: &'static str,
    id: u32,
    bytes: u64,
}

impl Handle {
    /// Allocates `bytes`, rounded up to pages.
    pub(crate) fn allocate(
        orin: &Orin,
        what: &'static str,
        bytes: u64,
        caching: Caching,
    ) -> Result<Self, Error> {
        let rounded = bytes
            .checked_next_multiple_of(PAGE_SIZE.into())
            .ok_or_else(|| out_of_memory(orin, bytes))?;
        if rounded == 0 {
            return Err(Error::Empty { what });
        }
        let mut create = nvmap::Create64 { size64: rounded };
        orin.nvmap()
            .call(nvmap::CREATE_64, &mut create)
            .map_err(|error| memory_error(orin, rounded, error))?;
        // From here on a failure frees the handle.
        let handle = Self { orin: orin.clone(), what, id: create.handle(), bytes: rounded };
        let mut alloc = nvmap::Alloc {
            handle: handle.id,
            heap_mask: nvmap::HEAP_IOVMM,
            flags: nvmap::alloc_flags(caching, TAG),
            align: PAGE_SIZE,
            numa_nid: 0,
        };
        orin.nvmap()
            .call(nvmap::ALLOC, &mut alloc)
            .map_err(|error| memory_error(orin, rounded, error))?;
        Ok(handle)
    }

    /// Purpose of the memory.
    pub(crate) const fn what(&self) -> &'static str {
        self.what
    }

    /// Size, a multiple of the page size.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A new fd of the handle's dma-buf.
    pub(crate) fn export(&self) -> Result<OwnedFd, Error> {
        let mut args = nvmap::HandleFd { fd: 0, handle: self.id };
        self.orin.nvmap().call(nvmap::GET_FD, &mut args)?;
        Ok(adopt(args.fd))
    }

    /// Maps the pages into this process.
    pub(crate) fn map(&self) -> Result<CpuMap, Error> {
        CpuMap::new(self.export()?.as_fd(), self.what, self.bytes)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the fd is that of /dev/nvmap. No failure is known, and none could be handled.
        let _ = unsafe { nvmap::free(self.orin.nvmap().as_fd(), self.id) };
    }
}

/// Turns `ENOMEM` into [`Error::OutOfMemory`] if free memory was short. Otherwise the request
/// failed for another reason, and its error is returned unchanged.
pub(crate) fn memory_error(orin: &Orin, need: u64, error: Error) -> Error {
    match error.errno() {
        Some(Errno::ENOMEM) => match out_of_memory(orin, need) {
            short @ Error::OutOfMemory { have, .. } if have < need => short,
            _ => error,
        },
        _ => error,
    }
}

fn out_of_memory(orin: &Orin, need: u64) -> Error {
    Error::OutOfMemory { need, have: orin.memory().map_or(0, |memory| memory.free) }
}
