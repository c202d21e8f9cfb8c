//! Memory of nvmap: handles with pages, and their mappings for the CPU.
//!
//! Knows nothing of GPU addresses or of what memory is used for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::abi::address_space::PAGE_SIZE;
use crate::abi::nvmap::{self, Caching};
use crate::error::Error;
use crate::node::{adopt, errno_of};
use crate::orin::Orin;

/// Any tag but 0, which the kernel warns of; this one was used on hardware.
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

    /// What its memory is for.
    pub(crate) const fn what(&self) -> &'static str {
        self.what
    }

    /// Bytes, a multiple of the page size.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A new fd of the handle's dma-buf.
    pub(crate) fn export(&self) -> Result<OwnedFd, Error> {
        let mut args = nvmap::HandleFd { fd: 0, handle: self.id };
        self.orin.nvmap().call(nvmap::GET_FD, &mut args)?;
        Ok(adopt(args.fd))
    }

    /// The pages in this process.
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

/// The errors of memory requests: `ENOMEM` where there was less than needed says how much; where there was
/// enough it is about something else, and stays the request's.
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

/// Memory of a driver mapped into this process, shared with the GPU.
///
/// Not a slice: others may change it at any time. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct CpuMap(MmapRaw);

impl CpuMap {
    /// Maps the first `bytes` behind `fd`, for reading and writing.
    pub(crate) fn new(fd: BorrowedFd<'_>, what: &'static str, bytes: u64) -> Result<Self, Error> {
        let refuse = |errno| Error::Map { what, bytes, errno };
        let length = usize::try_from(bytes).map_err(|_| refuse(Errno::ENOMEM))?;
        let map = MmapOptions::new().len(length).map_raw(&fd);
        map.map(Self).map_err(|error| refuse(errno_of(&error)))
    }

    /// The first byte; valid for [`CpuMap::bytes`] bytes while `self` lives.
    pub(crate) fn base(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Copies bytes out. Orders nothing: the GPU must have been seen to be done with them.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        within(offset, into.len() as u64, self.bytes() as u64)?;
        let base = self.base().wrapping_add(offset as usize);
        let head = base.align_offset(size_of::<u64>()).min(into.len());
        let (first, rest) = into.split_at_mut(head);
        let (longs, last) = rest.as_chunks_mut::<8>();
        let tail = base.wrapping_add(head + size_of_val(longs));
        // SAFETY: `within` has checked the range, which the mapping covers, and `longs` begin at an
        // aligned address. All access of the CPU is atomic.
        unsafe {
            load_bytes(base, first);
            for (index, long) in longs.iter_mut().enumerate() {
                let place = base.add(head + index * 8).cast();
                *long = AtomicU64::from_ptr(place).load(Ordering::Relaxed).to_ne_bytes();
            }
            load_bytes(tail, last);
        }
        Ok(())
    }
}

/// # Safety
/// `from` is valid for the length of `into`, for atomic access.
unsafe fn load_bytes(from: *mut u8, into: &mut [u8]) {
    for (index, byte) in into.iter_mut().enumerate() {
        // SAFETY: the caller's.
        *byte = unsafe { AtomicU8::from_ptr(from.add(index)) }.load(Ordering::Relaxed);
    }
}

/// Checks that `bytes` at `offset` lie within `size`.
pub(crate) fn within(offset: u64, bytes: u64, size: u64) -> Result<(), Error> {
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::Range { offset, bytes, size }),
    }
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn ranges() {
        assert!(within(0, 0, 0).is_ok());
        assert!(within(4, 4, 8).is_ok());
        assert!(within(5, 4, 8).is_err());
        assert!(within(9, 0, 8).is_err());
        assert!(within(u64::MAX, 2, 8).is_err());
    }
}
