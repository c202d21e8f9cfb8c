//! An address-space fd, from [`super::ctrl::ALLOC_AS`]. Header: `nvgpu-as.h`, magic `A`.
//!
//! Pages are 4 KiB only. The driver's buddy allocator allocates from the top of the range first and
//! rounds sizes up to a power of two of pages.

/// The only page size that an Orin has.
pub const PAGE_SIZE: u32 = 4096;
/// "No compressed kind" in [`MapBufferEx::compr_kind`].
pub const KIND_INVALID: i16 = -1;
/// Pitch-linear memory in [`MapBufferEx::incompr_kind`].
pub const KIND_PITCH: i16 = 0;

/// [`AllocSpace::flags`]: the offset is chosen by the caller.
pub const SPACE_FIXED_OFFSET: u32 = 1 << 0;
/// [`AllocSpace::flags`]: the area is sparse, to be filled page by page.
pub const SPACE_SPARSE: u32 = 1 << 1;

/// [`MapBufferEx::flags`]: the GPU address is chosen by the caller, inside an allocated area.
pub const MAP_FIXED_OFFSET: u32 = 1 << 0;
/// [`MapBufferEx::flags`]: the GPU's L2 may cache lines; without it every access bypasses L2.
pub const MAP_CACHEABLE: u32 = 1 << 2;
/// [`MapBufferEx::flags`]: bits 11:10, the GPU may only read.
pub const MAP_ACCESS_READ_ONLY: u32 = 1 << 10;
/// [`MapBufferEx::flags`]: bits 11:10, the GPU may read and write. Both bits 0: the default of the
/// buffer.
pub const MAP_ACCESS_READ_WRITE: u32 = 2 << 10;

layouts! {
    /// Arguments of [`BIND_CHANNEL`].
    pub struct BindChannel = "nvgpu_as_bind_channel_args", size 4 {
        0 => channel_fd: u32, "In: the channel's fd.";
    }

    /// Arguments of [`ALLOC_SPACE`].
    pub struct AllocSpace = "nvgpu_as_alloc_space_args", size 32 {
        0 => pages: u64, "In: pages wanted.";
        8 => page_size: u32, "In: [`PAGE_SIZE`].";
        12 => flags: u32, "In: [`SPACE_FIXED_OFFSET`], [`SPACE_SPARSE`].";
        16 => o_a: u64, "In: address when fixed, else alignment. Out: address.";
        24 => padding: [u32; 2], "Reserved.";
    }

    /// Arguments of [`FREE_SPACE`].
    pub struct FreeSpace = "nvgpu_as_free_space_args", size 32 {
        0 => offset: u64, "In: address of the area.";
        8 => pages: u64, "In: its pages.";
        16 => page_size: u32, "In: [`PAGE_SIZE`].";
        20 => padding: [u32; 3], "Reserved.";
    }

    /// Arguments of [`MAP_BUFFER_EX`].
    pub struct MapBufferEx = "nvgpu_as_map_buffer_ex_args", size 40 {
        0 => flags: u32, "In: the `MAP_` flags.";
        4 => compr_kind: i16, "In: [`KIND_INVALID`].";
        6 => incompr_kind: i16, "In: [`KIND_PITCH`].";
        8 => dmabuf_fd: u32, "In: any dma-buf; it may be closed after the call.";
        12 => page_size: u32, "In: [`PAGE_SIZE`]; ignored by r36.";
        16 => buffer_offset: u64, "In: start within the buffer; 0 unless fixed.";
        24 => mapping_size: u64, "In: bytes; 0 for the whole buffer, and unless fixed.";
        32 => offset: u64, "In when fixed, else 0. Out: GPU address.";
    }

    /// Arguments of [`UNMAP_BUFFER`].
    pub struct UnmapBuffer = "nvgpu_as_unmap_buffer_args", size 8 {
        0 => offset: u64, "In: the GPU address that the map returned.";
    }

    /// Arguments of [`GET_VA_REGIONS`].
    pub struct GetVaRegions = "nvgpu_as_get_va_regions_args", size 16 {
        0 => buf_addr: u64, "In: CPU address of [`VaRegion`] items.";
        8 => buf_size: u32, "In: bytes of the buffer. Out: bytes available.";
        12 => reserved: u32, "Reserved.";
    }

    /// One range of an address space as GET_VA_REGIONS lists it.
    pub struct VaRegion = "nvgpu_as_va_region", size 24 {
        0 => offset: u64, "First address.";
        8 => page_size: u32, "Page size.";
        12 => reserved: u32, "Reserved.";
        16 => pages: u64, "Pages.";
    }

    /// Arguments of [`GET_SYNC_RO_MAP`].
    pub struct GetSyncRoMap = "nvgpu_as_get_sync_ro_map_args", size 16 {
        0 => base_gpuva: u64, "Out: GPU address of all syncpoints, for reading.";
        8 => sync_size: u32, "Out: bytes of each, `0x1_0000`.";
        12 => num_syncpoints: u32, "Out: how many.";
    }
}

requests! {
    magic b'A';
    /// Makes a channel use this address space; before the TSG binds it. `EINVAL`: bad fd, already
    /// bound.
    BIND_CHANNEL = readwrite 1 BindChannel, "NVGPU_AS_IOCTL_BIND_CHANNEL";
    /// Frees an area and unmaps its buffers. An unknown address succeeds.
    FREE_SPACE = readwrite 3 FreeSpace, "NVGPU_AS_IOCTL_FREE_SPACE";
    /// Drops one reference to a mapping. An unknown address succeeds.
    UNMAP_BUFFER = readwrite 5 UnmapBuffer, "NVGPU_AS_IOCTL_UNMAP_BUFFER";
    /// Reserves an area. `EINVAL`: page size. `ENOMEM`: a fixed address that is unaligned, outside
    /// or used; no space left.
    ALLOC_SPACE = readwrite 6 AllocSpace, "NVGPU_AS_IOCTL_ALLOC_SPACE";
    /// Maps a dma-buf. The same buffer, flags and kind return the same address and one more
    /// reference. `EINVAL`: unknown flags, access 3, offsets without a fixed address, a fixed range
    /// unaligned, overlapping or outside an area, beyond the buffer, writable map of a read-only
    /// buffer. `EBADF`: bad fd. `ENOMEM`: buffer without pages, no space left, no kind.
    MAP_BUFFER_EX = readwrite 7 MapBufferEx, "NVGPU_AS_IOCTL_MAP_BUFFER_EX";
    /// Lists the ranges of the address space through a nested buffer.
    GET_VA_REGIONS = readwrite 8 GetVaRegions, "NVGPU_AS_IOCTL_GET_VA_REGIONS";
    /// Maps all syncpoints for reading.
    GET_SYNC_RO_MAP = read 12 GetSyncRoMap, "NVGPU_AS_IOCTL_GET_SYNC_RO_MAP";
}
