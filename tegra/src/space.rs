//! A GPU address space: allocation of GPU addresses and the list of mapped buffers.
//!
//! Owns the range of buffer addresses, reserves the two windows through which shaders access their
//! local and shared memory, and checks every address that the driver returns. The purpose of a
//! buffer belongs to [`crate::buffer`].
//!
//! # Range
//!
//! The range ends 4 GiB below 2^40: the driver uses the 4 GiB above the end for rings and engine
//! contexts, and the host unit, semaphores and QMDs have 40 address bits. (With the proven end of
//! `0xff_ffe0_0000` the driver placed a ring of 3 MB above 2^40, which was never fetched; that this
//! end cures it is inferred.) [`Range`] has both.
//!
//! # Reuse
//!
//! The driver allocates addresses with a buddy allocator and frees them when a buffer is unmapped.
//! It rounds each buffer to a power of two of pages and merges freed ranges, so a freed range fits
//! any later buffer of its size class. With a terabyte of addresses, sixteen times the memory of
//! the largest Orin, months of mapping and unmapping do not exhaust them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::address_space::{self as abi, PAGE_SIZE};
use crate::abi::ctrl::{self, AS_UNIFIED_VA};
use crate::address::GpuAddress;
use crate::cpu_map::CpuMap;
use crate::error::{Error, Node};
use crate::memory::{Handle, memory_error};
use crate::node::NodeFd;
use crate::orin::Orin;
use crate::pushbuffer::Windows;

/// First address for buffers: a null pointer with a small offset faults.
const START: u64 = 0x20_0000;
/// End of the range for buffers.
const END: u64 = 0xff_0000_0000;
/// End of the range in all code that ran on an Orin.
const PROVEN_END: u64 = 0xff_ffe0_0000;
/// Address of the local-memory window.
const LOCAL: u64 = 0xfd_0000_0000;
/// Address of the shared-memory window.
const SHARED: u64 = 0xfe_0000_0000;
/// Bytes reserved for each window: far more than is decoded, and proven.
const WINDOW: u64 = 1 << 30;

/// Size of the driver's own range above the end.
const DRIVER: u64 = 4 << 30;
/// The granule of the range's bounds.
const GRANULE: u64 = 2 << 20;
const _: () = {
    assert!(START < LOCAL && LOCAL + WINDOW <= SHARED && SHARED + WINDOW <= END);
    assert!(END + DRIVER <= GpuAddress::END);
    assert!(START.is_multiple_of(GRANULE) && END.is_multiple_of(GRANULE));
    assert!(PROVEN_END > END && PROVEN_END.is_multiple_of(GRANULE));
};

/// L2 caching of memory that the CPU does not write while it is mapped: weights and scratch.
///
/// The driver writes back and invalidates L2 when a buffer is unmapped, so lines of earlier owners
/// of a page do not survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L2 {
    /// Every access bypasses L2, as in all proven code.
    #[default]
    Volatile,
    /// L2 caches lines (inferred to be faster; not yet measured on hardware).
    Cached,
}

/// The GPU's access to a mapped buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read-only: a write is a fault. Not yet seen on an Orin.
    Read,
    /// Read and write, as in all proven code.
    ReadWrite,
}

/// End of an address space's range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Range {
    /// 4 GiB below 2^40, so that the driver's own range is below 2^40 too.
    #[default]
    Short,
    /// 2 MiB below 2^40, as in all proven code: the driver's own range is above 2^40.
    Proven,
}

/// Options of a whole address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// L2 caching of weights and scratch.
    pub l2: L2,
    /// The GPU's access to weights and code.
    pub sealed: Access,
    /// End of the range.
    pub range: Range,
}

impl Default for Options {
    /// The best-proven options, except for the range.
    fn default() -> Self {
        Self { l2: L2::Volatile, sealed: Access::ReadWrite, range: Range::Short }
    }
}

/// Number and size of the mapped buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Mapped buffers.
    pub buffers: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

/// An address space. Clones are the same space.
#[derive(Clone, Debug)]
pub struct AddressSpace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fd: NodeFd,
    orin: Orin,
    options: Options,
    windows: Windows,
    /// Mappings by first address.
    mappings: Mutex<BTreeMap<u64, Mapping>>,
}

impl AddressSpace {
    /// A new address space with its windows reserved. Weights and code are mapped for reading and
    /// writing.
    pub fn new(orin: &Orin, l2: L2) -> Result<Self, Error> {
        Self::with(orin, Options { l2, ..Options::default() })
    }

    /// A new address space with its windows reserved.
    pub fn with(orin: &Orin, options: Options) -> Result<Self, Error> {
        let end = match options.range {
            Range::Short => END,
            Range::Proven => PROVEN_END,
        };
        let mut args = ctrl::AllocAs {
            flags: AS_UNIFIED_VA,
            va_range_start: START,
            va_range_end: end,
            ..Default::default()
        };
        orin.ctrl().call(ctrl::ALLOC_AS, &mut args)?;
        let fd = NodeFd::adopt(Node::AddressSpace, args.as_fd);
        for window in [LOCAL, SHARED] {
            let mut space = abi::AllocSpace {
                pages: WINDOW / u64::from(PAGE_SIZE),
                page_size: PAGE_SIZE,
                flags: abi::SPACE_FIXED_OFFSET,
                o_a: window,
                ..Default::default()
            };
            fd.call(abi::ALLOC_SPACE, &mut space)?;
        }
        let windows = Windows::new(GpuAddress::new(LOCAL)?, GpuAddress::new(SHARED)?)?;
        let orin = orin.clone();
        let mappings = Mutex::default();
        Ok(Self(Arc::new(Inner { fd, orin, options, windows, mappings })))
    }

    /// The GPU that the space belongs to.
    #[must_use]
    pub fn orin(&self) -> &Orin {
        &self.0.orin
    }

    /// Windows of local and shared memory.
    #[must_use]
    pub fn windows(&self) -> Windows {
        self.0.windows
    }

    /// L2 caching of weights and scratch.
    #[must_use]
    pub fn l2(&self) -> L2 {
        self.0.options.l2
    }

    /// The GPU's access to weights and code.
    #[must_use]
    pub fn sealed(&self) -> Access {
        self.0.options.sealed
    }

    /// Number and size of the buffers mapped now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mappings = self.0.mappings.lock();
        let bytes = mappings.values().map(|mapping| mapping.bytes).sum();
        Usage { buffers: mappings.len() as u64, bytes }
    }

    /// Every buffer mapped now, by address.
    #[must_use]
    pub fn mappings(&self) -> Vec<Mapping> {
        self.0.mappings.lock().values().cloned().collect()
    }

    /// Maps a handle's pages. The mapping keeps the pages alive.
    pub(crate) fn map(
        &self,
        handle: &Arc<Handle>,
        access: Access,
        l2: L2,
    ) -> Result<GpuMap, Error> {
        let access = match access {
            Access::Read => abi::MAP_ACCESS_READ_ONLY,
            // The driver's default for a writable buffer, as in the proven code.
            Access::ReadWrite => 0,
        };
        let l2 = match l2 {
            L2::Volatile => 0,
            L2::Cached => abi::MAP_CACHEABLE,
        };
        self.map_with(handle, access | l2)
    }

    /// Maps a handle's pages with the caller's flags.
    pub(crate) fn map_with(&self, handle: &Arc<Handle>, flags: u32) -> Result<GpuMap, Error> {
        let dma_buf = handle.export()?;
        let mut args = abi::MapBufferEx {
            flags,
            compr_kind: abi::KIND_INVALID,
            incompr_kind: abi::KIND_PITCH,
            dmabuf_fd: dma_buf.as_raw_fd() as u32,
            page_size: PAGE_SIZE,
            ..Default::default()
        };
        let bytes = handle.bytes();
        self.0
            .fd
            .call(abi::MAP_BUFFER_EX, &mut args)
            .map_err(|error| memory_error(&self.0.orin, bytes, error))?;
        let address = match GpuAddress::new(args.offset) {
            Ok(address) => address,
            Err(error) => {
                self.unmap(args.offset);
                return Err(error.into());
            }
        };
        let writable = flags & abi::MAP_ACCESS_READ_ONLY == 0;
        let cacheable = flags & abi::MAP_CACHEABLE != 0;
        let handle = Arc::clone(handle);
        let mapping = Mapping { address, bytes, writable, cacheable, handle };
        self.0.mappings.lock().insert(address.get(), mapping);
        // From here on a failure unmaps the buffer.
        let map = GpuMap { space: self.clone(), address };
        address.spanning(bytes)?;
        if [LOCAL, SHARED].into_iter().any(|window| meets_window(address.get(), bytes, window)) {
            return Err(Error::Window { address, bytes });
        }
        Ok(map)
    }

    fn unmap(&self, offset: u64) {
        // An unknown address succeeds too; another failure leaves the range to the end of the
        // space.
        let _ = self.0.fd.call(abi::UNMAP_BUFFER, &mut abi::UnmapBuffer { offset });
    }

    /// Makes a channel use this space.
    pub(crate) fn bind(&self, channel: &NodeFd) -> Result<(), Error> {
        let channel_fd = channel.as_fd().as_raw_fd() as u32;
        self.0.fd.call(abi::BIND_CHANNEL, &mut abi::BindChannel { channel_fd })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

const fn meets_window(address: u64, bytes: u64, window: u64) -> bool {
    address < window + WINDOW && window < address + bytes
}

/// One mapped buffer, for a fault report. Keeps the memory alive, not its address.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// GPU address of the first byte.
    pub address: GpuAddress,
    /// Its size.
    pub bytes: u64,
    /// The GPU may write.
    pub writable: bool,
    /// L2 may cache it.
    pub cacheable: bool,
    handle: Arc<Handle>,
}

impl Mapping {
    /// Purpose of the memory: `weights`, `scratch`.
    #[must_use]
    pub fn what(&self) -> &'static str {
        self.handle.what()
    }

    /// Maps the memory for the CPU, which may have no other mapping of it.
    pub fn view(&self) -> Result<View, Error> {
        self.handle.map().map(View)
    }
}

/// A CPU view of a mapped buffer.
#[derive(Debug)]
pub struct View(CpuMap);

impl View {
    /// Copies bytes out. They may be older than the GPU's own view if its L2 has dirty lines.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.0.read(offset, into)
    }
}

/// A buffer's mapping in an address space. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct GpuMap {
    space: AddressSpace,
    address: GpuAddress,
}

impl GpuMap {
    pub(crate) const fn address(&self) -> GpuAddress {
        self.address
    }
}

impl Drop for GpuMap {
    fn drop(&mut self) {
        // Removed first: the driver may reuse the address once it is free.
        self.space.0.mappings.lock().remove(&self.address.get());
        self.space.unmap(self.address.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_met_by_its_first_and_last_byte_only() {
        let page = u64::from(PAGE_SIZE);
        assert!(!meets_window(LOCAL - page, page, LOCAL));
        assert!(meets_window(LOCAL - page, page + 1, LOCAL));
        assert!(meets_window(LOCAL + WINDOW - page, page, LOCAL));
        assert!(!meets_window(LOCAL + WINDOW, page, LOCAL));
        assert!(meets_window(START, END - START, SHARED));
    }
}
