//! `/dev/nvmap`: memory handles and their dma-bufs. Header: `nvmap.h`, magic `N`.
//!
//! Handle ids come from a counter that starts at `0x7fff_ffff` and counts up: bit 31 is part of the
//! id, not a sign. The handle table belongs to the process, whichever fd is used.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Heap bit of ordinary system pages. Works although GET_AVAILABLE_HEAPS does not list it.
pub const HEAP_IOVMM: u32 = 1 << 30;
/// [`Alloc::flags`] bit 5: zeroed memory. Memory is zeroed in any case.
pub const FLAG_ZEROED: u32 = 1 << 5;
/// [`Alloc::flags`] bit 9: a handle that may only be mapped read-only.
pub const FLAG_READ_ONLY: u32 = 1 << 9;

/// CPU caching of a handle's pages: bits 1:0 of [`Alloc::flags`].
///
/// Bit 2 of the flags is SECURE: the value 5 is write-combined and secure, not cacheable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Caching {
    /// Device-like, slow in both directions.
    Uncached = 0,
    /// Fast to write in order, slow to read.
    WriteCombined = 1,
    /// Ordinary cached memory; the GPU snoops the CPU's caches.
    InnerCacheable = 2,
    /// The same as inner cacheable on arm64.
    Cacheable = 3,
}

/// Composes [`Alloc::flags`]: caching in bits 1:0, the allocation tag in bits 31:16.
///
/// Tag 0 works but makes the kernel log a warning, once per client.
#[must_use]
pub const fn alloc_flags(caching: Caching, tag: u16) -> u32 {
    (tag as u32) << 16 | caching as u32
}

layouts! {
    /// Arguments of [`CREATE_64`]. The kernel writes the handle over the low half of the size.
    pub struct Create64 = "nvmap_create_handle", size 8 {
        0 => size64: u64, "In: bytes wanted, rounded up to 4096. Out: see [`Create64::handle`].";
    }
}

impl Create64 {
    /// The handle, once the call has succeeded.
    #[must_use]
    pub const fn handle(&self) -> u32 {
        // Both overlay offset 0 of a union, and this ABI is little-endian.
        self.size64 as u32
    }
}

layouts! {
    /// Arguments of [`GET_FD`] and [`FROM_FD`].
    pub struct HandleFd = "nvmap_create_handle", size 8 {
        0 => fd: i32, "The dma-buf's fd: out for GET_FD, in for FROM_FD.";
        4 => handle: u32, "The handle: in for GET_FD, out for FROM_FD.";
    }

    /// Arguments of [`ALLOC`].
    pub struct Alloc = "nvmap_alloc_handle", size 20 {
        0 => handle: u32, "The handle to back with pages.";
        4 => heap_mask: u32, "One or more heap bits; [`HEAP_IOVMM`].";
        8 => flags: u32, "[`alloc_flags`].";
        12 => align: u32, "Alignment in bytes, a power of two, raised to 4096.";
        16 => numa_nid: i32, "NUMA node: 0, or -1 for any.";
    }

    /// Arguments of [`FROM_VA`].
    pub struct FromVa = "nvmap_create_handle_from_va", size 24 {
        0 => va: u64, "Page-aligned CPU address of existing pages.";
        8 => size: u32, "Bytes; 0 to use `size64`.";
        12 => flags: u32, "Flags as in [`Alloc`].";
        16 => size64: u64, "In: bytes when `size` is 0. Out: see [`FromVa::handle`].";
    }
}

impl FromVa {
    /// The handle, once the call has succeeded.
    #[must_use]
    pub const fn handle(&self) -> u32 {
        self.size64 as u32
    }
}

/// [`Cache64::op`]: write dirty lines back.
pub const CACHE_WRITE_BACK: i32 = 0;
/// [`Cache64::op`]: drop lines; the driver turns it into [`CACHE_WRITE_BACK_INVALIDATE`].
pub const CACHE_INVALIDATE: i32 = 1;
/// [`Cache64::op`]: write dirty lines back, then drop them.
pub const CACHE_WRITE_BACK_INVALIDATE: i32 = 2;

layouts! {
    /// Arguments of [`CACHE_64`].
    pub struct Cache64 = "nvmap_cache_op_64", size 32 {
        0 => addr: u64, "In: CPU address inside a mapping of the handle.";
        8 => handle: u32, "In: the handle.";
        16 => len: u64, "In: bytes.";
        24 => op: i32, "In: one of the `CACHE_` operations.";
    }

    /// Arguments of [`GET_HEAP_SIZE`].
    pub struct HeapSize = "nvmap_heap_size", size 16 {
        0 => heap: u32, "In: one heap bit.";
        8 => size: u64, "Out: bytes.";
    }

    /// Arguments of [`GET_AVAILABLE_HEAPS`].
    pub struct AvailableHeaps = "nvmap_available_heaps", size 8 {
        0 => heaps: u64, "Out: heap bits. An Orin reports `0x1000_0004`, without [`HEAP_IOVMM`].";
    }

    /// Arguments of [`QUERY_HEAP_PARAMS`]. The numbers are bytes.
    pub struct QueryHeapParams = "nvmap_query_heap_params", size 48 {
        0 => heap_mask: u32, "In: exactly one heap bit.";
        4 => flags: u32, "In: heap flags, 0.";
        8 => contig: u8, "Out: whether the heap is contiguous.";
        16 => total: u64, "Out: size of the heap; for [`HEAP_IOVMM`] all of RAM.";
        24 => free: u64, "Out: free bytes.";
        32 => largest_free_block: u64, "Out: the largest free block.";
        40 => granule_size: u32, "Out: allocation granule.";
    }

    /// Arguments of [`PARAMETERS`].
    pub struct Parameters = "nvmap_handle_parameters", size 72 {
        0 => contig: u8, "Out: whether the pages are contiguous.";
        4 => import_id: u32, "Out: import id.";
        8 => handle: u32, "In, although the direction bits say read only: the handle.";
        12 => heap_number: u32, "Out: heap number.";
        16 => access_flags: u32, "Out: 1 read-only, 2 read-write.";
        24 => heap: u64, "Out: heap bit, 0 until allocated.";
        32 => align: u64, "Out: alignment.";
        40 => coherency: u64, "Out: caching, as [`Caching`].";
        48 => size: u64, "Out: bytes.";
        56 => offset: u64, "Out: offset of a sub-buffer.";
        64 => serial_id: u64, "Out: number of the buffer.";
    }
}

requests! {
    magic b'N';
    /// Creates a handle and its dma-buf, without pages. `EINVAL`: size 0. `ENOMEM`.
    CREATE_64 = readwrite 1 Create64, "NVMAP_IOC_CREATE_64";
    /// Allocates and zeroes a handle's pages. `EINVAL`: unknown handle, alignment not a power of
    /// two, bad NUMA node. `EEXIST`: already allocated. `ENOMEM`: absent heap or no memory.
    ALLOC = write 3 Alloc, "NVMAP_IOC_ALLOC";
    /// Returns a new close-on-exec fd of the handle's dma-buf at every call. `EINVAL`: unknown
    /// handle. `EMFILE`.
    GET_FD = readwrite 15 HandleFd, "NVMAP_IOC_GET_FD";
    /// Returns the handle of an nvmap dma-buf. `EBADF` or `EINVAL`: not one.
    FROM_FD = readwrite 16 HandleFd, "NVMAP_IOC_FROM_FD";
    /// Maintains the CPU's caches. Not needed where the GPU snoops them, see
    /// [`super::ctrl::FLAG_IO_COHERENCE`]. `EINVAL`: address 0, unknown operation.
    /// `EADDRNOTAVAIL`: no nvmap mapping there. `EFAULT`: a mapping of another handle.
    CACHE_64 = write 12 Cache64, "NVMAP_IOC_CACHE_64";
    /// Creates an allocated handle over existing pages of this process, which stay pinned while the
    /// handle or a mapping of it lives: the device may read and write them. `EINVAL`: address not
    /// page-aligned, no mapping there, I/O memory, or a writable handle over read-only pages.
    FROM_VA = readwrite 22 FromVa, "NVMAP_IOC_FROM_VA";
    /// Reports the carveout heaps.
    GET_AVAILABLE_HEAPS = read 25 AvailableHeaps, "NVMAP_IOC_GET_AVAILABLE_HEAPS";
    /// Reports the size of a carveout. `ENODEV`: no such carveout, such as [`HEAP_IOVMM`].
    GET_HEAP_SIZE = read 26 HeapSize, "NVMAP_IOC_GET_HEAP_SIZE";
    /// Reports the kernel's parameters of a handle. `EINVAL`: unknown handle.
    PARAMETERS = read 27 Parameters, "NVMAP_IOC_PARAMETERS";
    /// Reports size and free space of one heap. `ENODEV`: no such carveout.
    QUERY_HEAP_PARAMS = read 105 QueryHeapParams, "NVMAP_IOC_QUERY_HEAP_PARAMS";
}

/// Request number of FREE, `NVMAP_IOC_FREE`: the handle is passed by value, see [`free`].
pub const FREE: u32 = nix::request_code_none!(b'N', 4) as u32;

/// Drops this process's reference to a handle. GPU and CPU mappings keep the memory alive. An
/// unknown handle and handle 0 succeed too.
///
/// # Safety
/// `fd` refers to `/dev/nvmap`.
pub unsafe fn free(fd: BorrowedFd<'_>, handle: u32) -> Result<(), Errno> {
    let request = FREE as nix::sys::ioctl::ioctl_num_type;
    let handle = nix::libc::c_ulong::from(handle);
    // SAFETY: the argument is a number, no memory is passed; the caller answers for the fd.
    let result = unsafe { nix::libc::ioctl(fd.as_raw_fd(), request, handle) };
    Errno::result(result).map(drop)
}
