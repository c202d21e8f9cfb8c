//! MAP_BUFFER_EX, MAP_BUFFER_BATCH, UNMAP_BUFFER and MAPPING_MODIFY: reference-counted mappings of
//! buffers at GPU addresses.

use std::sync::Arc;

use super::{AddressSpace, KIND_INVALID, Mapping, Space};
use crate::driver::abi::address_space::{MAP_BUFFER_BATCH, MAP_BUFFER_EX, MAPPING_MODIFY};
use crate::driver::dispatch::{Args, BAD_NESTED, Done, Handled};
use crate::driver::errno::{Refused, refusals};
use crate::gpu::MapFlags;
use crate::memory::{DmaBuf, PAGE};
use crate::user;

refusals! { "as";
    BAD_BUFFER_FD = "MAP_BUFFER_EX", EBADF, "dmabuf_fd is not open",
        "os/linux/vm.c:nvgpu_vm_map_buffer (dma_buf_get)";
    NO_BUFFER = "MAP_BUFFER_EX", EINVAL, "dmabuf_fd is no dma-buf",
        "os/linux/vm.c:nvgpu_vm_map_buffer (dma_buf_get)";
    OFFSET_UNLESS_FIXED = "MAP_BUFFER_EX", EINVAL,
        "offset, buffer_offset or mapping_size without FIXED_OFFSET",
        "os/linux/vm.c:nvgpu_vm_map_buffer";
    BEYOND_BUFFER = "MAP_BUFFER_EX", EINVAL, "the range lies beyond the dma-buf",
        "os/linux/vm.c:nvgpu_vm_map_buffer, common/mm/vm.c:nvgpu_vm_new_mapping";
    ACCESS = "MAP_BUFFER_EX", EINVAL, "access bits 11:10 are 3",
        "os/linux/vm.c:nvgpu_vm_translate_map_access";
    TEGRA_RAW = "MAP_BUFFER_EX", EINVAL, "TEGRA_RAW, which is not supported",
        "os/linux/vm.c:nvgpu_vm_map_buffer";
    FLAGS = "MAP_BUFFER_EX", EINVAL, "unknown flags",
        "os/linux/vm.c:nvgpu_vm_translate_linux_flags";
    READ_ONLY = "MAP_BUFFER_EX", EINVAL, "a read-write map of a read-only dma-buf",
        "common/mm/vm.c:nvgpu_vm_map";
    NO_PAGES = "MAP_BUFFER_EX", ENOMEM, "the handle has no pages yet",
        "nvmap_dmabuf.c:nvmap_dmabuf_map_dma_buf";
    NO_AREA = "MAP_BUFFER_EX", EINVAL,
        "a fixed range that is unaligned, outside an allocated area, or over a live mapping",
        "common/mm/vm_area.c:nvgpu_vm_area_validate_buffer";
    NO_FALLBACK = "MAP_BUFFER_EX", EINVAL, "compr_kind without an incompr_kind to fall back to",
        "common/mm/vm.c:nvgpu_vm_compute_compression";
    NO_KIND = "MAP_BUFFER_EX", ENOMEM, "incompr_kind -1, and no compression",
        "common/mm/vm.c:nvgpu_vm_do_map";
    NO_VA = "MAP_BUFFER_EX", ENOMEM, "no range of addresses is free",
        "common/mm/gmmu/gmmu.c:nvgpu_gmmu_map_locked";
    BATCH = "MAP_BUFFER_BATCH", EINVAL, "more than 256 maps or unmaps",
        "os/linux/ioctl_as.c:gk20a_as_ioctl_map_buffer_batch";
    MODIFY = "MAPPING_MODIFY", EINVAL,
        "no mapping there, unaligned, beyond the mapping, or both kinds -1",
        "os/linux/vm.c:nvgpu_vm_mapping_modify";
}

const MAP_FIXED: u32 = 1 << 0;
const MAP_CACHEABLE: u32 = 1 << 2;
const MAP_UNMAPPED_PTE: u32 = 1 << 5;
const MAP_COMPBITS: u32 = 1 << 6;
const MAP_L3_ALLOC: u32 = 1 << 7;
const MAP_COHERENT: u32 = 1 << 9;
const MAP_ACCESS: u32 = 3 << 10;
const MAP_READ_ONLY: u32 = 1 << 10;
const MAP_READ_WRITE: u32 = 2 << 10;
const MAP_TEGRA_RAW: u32 = 1 << 12;
const MAP_KNOWN: u32 = MAP_FIXED
    | MAP_CACHEABLE
    | MAP_UNMAPPED_PTE
    | MAP_COMPBITS
    | MAP_L3_ALLOC
    | MAP_COHERENT
    | MAP_ACCESS
    | MAP_TEGRA_RAW;

/// Arguments of MAP_BUFFER_EX.
struct MapRequest {
    flags: u32,
    compressed_kind: i16,
    kind: i16,
    fd: i32,
    buffer_offset: u64,
    bytes: u64,
    va: u64,
}

impl MapRequest {
    fn of(args: &Args) -> Self {
        Self {
            flags: args.get(MAP_BUFFER_EX::FLAGS),
            compressed_kind: args.get(MAP_BUFFER_EX::COMPR_KIND),
            kind: args.get(MAP_BUFFER_EX::INCOMPR_KIND),
            fd: args.get(MAP_BUFFER_EX::DMABUF_FD),
            buffer_offset: args.get(MAP_BUFFER_EX::BUFFER_OFFSET),
            bytes: args.get(MAP_BUFFER_EX::MAPPING_SIZE),
            va: args.get(MAP_BUFFER_EX::OFFSET),
        }
    }

    fn fixed(&self) -> bool {
        self.flags & MAP_FIXED != 0
    }
}

impl Space {
    /// Returns the mapping that the driver would reuse: the one at `va`, or the lowest of the
    /// buffer. Source: os/linux/vm.c:nvgpu_vm_find_mapping.
    fn find(&self, buffer: &Arc<DmaBuf>, kind: i16, va: Option<u64>) -> Option<u64> {
        let is_it = |va: &u64| {
            self.mappings
                .get(va)
                .is_some_and(|old| Arc::ptr_eq(&old.buffer, buffer) && old.kind == kind)
        };
        match va {
            Some(va) => Some(va).filter(is_it),
            None => {
                let addresses = self.by_buffer.get(&buffer.inode())?;
                addresses.iter().copied().filter(is_it).min()
            }
        }
    }

    /// Returns the area that contains a fixed range. Source:
    /// common/mm/vm_area.c:nvgpu_vm_area_validate_buffer.
    fn area_for(&self, va: u64, bytes: u64) -> Result<usize, Refused> {
        let end = va.checked_add(bytes).ok_or(&NO_AREA)?;
        let index = self.areas.iter().position(|area| area.contains(va)).ok_or(&NO_AREA)?;
        let area = &self.areas[index];
        let below = self.mappings.range(..end).next_back();
        let overlaps = below.is_some_and(|(start, mapping)| start + mapping.bytes > va);
        if !va.is_multiple_of(PAGE) || end > area.start.saturating_add(area.bytes) || overlaps {
            return Err(&NO_AREA);
        }
        Ok(index)
    }
}

impl AddressSpace {
    pub(super) fn map_buffer(&self, args: &mut Args) -> Handled {
        let va = self.map(&MapRequest::of(args))?;
        args.set(MAP_BUFFER_EX::OFFSET, va);
        Ok(Done::Ok)
    }

    /// Maps a buffer; checks are in the order of the driver. Source:
    /// os/linux/vm.c:nvgpu_vm_map_buffer and its callees.
    fn map(&self, request: &MapRequest) -> Result<u64, Refused> {
        let buffer = self
            .device
            .dma_buf(request.fd)
            .map_err(|error| error.refused(&BAD_BUFFER_FD, &NO_BUFFER))?;
        let fixed = request.fixed();
        if !fixed && (request.buffer_offset != 0 || request.va != 0 || request.bytes != 0) {
            return Err(&OFFSET_UNLESS_FIXED);
        }
        let size = buffer.bytes();
        if request.bytes > size || request.buffer_offset > size - request.bytes {
            return Err(&BEYOND_BUFFER);
        }
        let access = request.flags & MAP_ACCESS;
        if access == MAP_ACCESS {
            return Err(&ACCESS);
        }
        if request.flags & MAP_TEGRA_RAW != 0 {
            return Err(&TEGRA_RAW);
        }
        if request.flags & !MAP_KNOWN != 0 {
            return Err(&FLAGS);
        }
        let pages = buffer.pages().ok_or(&NO_PAGES)?;
        if pages.read_only && access == MAP_READ_WRITE {
            return Err(&READ_ONLY);
        }
        let read_only = pages.read_only || access == MAP_READ_ONLY;
        let flags = request.flags & !MAP_COMPBITS;
        let key = match request.compressed_kind {
            KIND_INVALID => request.kind,
            compressed => compressed,
        };

        let mut space = self.space();
        let same = space.find(&buffer, key, fixed.then_some(request.va));
        if let Some(va) = same
            && let Some(mapping) = space.mappings.get_mut(&va)
            && mapping.flags == flags
        {
            mapping.references += 1;
            return Ok(va);
        }
        let bytes = match request.bytes {
            0 => size,
            bytes => bytes.next_multiple_of(PAGE),
        };
        if bytes > size || request.buffer_offset > size - bytes {
            return Err(&BEYOND_BUFFER);
        }
        let area = if fixed { Some(space.area_for(request.va, bytes)?) } else { None };
        // Page tables cannot represent a buffer offset within a page.
        if !request.buffer_offset.is_multiple_of(PAGE) {
            return Err(&NO_AREA);
        }
        if request.compressed_kind != KIND_INVALID && request.kind == KIND_INVALID {
            return Err(&NO_FALLBACK);
        }
        if !(0..=0xff).contains(&request.kind) {
            return Err(&NO_KIND);
        }
        let va = match area {
            Some(_) => request.va,
            None => space.user.alloc(bytes).ok_or(&NO_VA)?,
        };
        let map_flags = MapFlags {
            cacheable: flags & MAP_CACHEABLE != 0,
            access: self.map_access(read_only),
            unmapped_pte: flags & MAP_UNMAPPED_PTE != 0,
        };
        if let Some(index) = area
            && space.areas[index].sparse
        {
            self.mmu.unmap(va, bytes);
        }
        let mapped = self.mmu.map(va, Arc::clone(&buffer), request.buffer_offset, bytes, map_flags);
        if mapped.is_err() {
            if area.is_none() {
                space.user.free(va);
            }
            return Err(&NO_VA);
        }
        if let Some(index) = area {
            space.areas[index].mappings.push(va);
        }
        space.by_buffer.entry(buffer.inode()).or_default().push(va);
        let mapping = Mapping {
            buffer,
            bytes,
            flags,
            kind: key,
            references: 1,
            allocated: area.is_none(),
            _counted: self.device.census.mappings.one(),
        };
        space.mappings.insert(va, mapping);
        Ok(va)
    }

    /// Drops a reference. For a fixed mapping with other references, the driver waits up to 100 ms
    /// and then continues. Source: common/mm/vm.c:nvgpu_vm_unmap.
    pub(super) fn unmap(&self, va: u64) {
        let mut space = self.space();
        let gone = self.put(&mut space, va);
        if gone {
            space.areas.iter_mut().for_each(|area| area.mappings.retain(|other| *other != va));
        }
    }

    /// Drops a reference; returns whether it was the last.
    pub(super) fn put(&self, space: &mut Space, va: u64) -> bool {
        let Some(mapping) = space.mappings.get_mut(&va) else { return false };
        mapping.references -= 1;
        if mapping.references != 0 {
            return false;
        }
        let Some(mapping) = space.mappings.remove(&va) else { return false };
        self.mmu.unmap(va, mapping.bytes);
        // Source: common/mm/gmmu/page_table.c:nvgpu_gmmu_cache_maint_unmap.
        self.device.gpu.unmapped(&self.mmu, va, mapping.bytes);
        if mapping.allocated {
            space.user.free(va);
        }
        let inode = mapping.buffer.inode();
        if let Some(addresses) = space.by_buffer.get_mut(&inode) {
            addresses.retain(|other| *other != va);
            if addresses.is_empty() {
                space.by_buffer.remove(&inode);
            }
        }
        true
    }

    /// Unmaps, then maps; does not return the addresses of the maps. Source:
    /// os/linux/ioctl_as.c:gk20a_as_ioctl_map_buffer_batch.
    pub(super) fn map_batch(&self, args: &Args) -> Handled {
        const MOST: u32 = 256;
        let (unmaps, maps) = (args.get(MAP_BUFFER_BATCH::UNMAPS), args.get(MAP_BUFFER_BATCH::MAPS));
        let (unmap_count, map_count) =
            (args.get(MAP_BUFFER_BATCH::NUM_UNMAPS), args.get(MAP_BUFFER_BATCH::NUM_MAPS));
        if unmap_count > MOST || map_count > MOST {
            return Err(&BATCH);
        }
        for i in 0..u64::from(unmap_count) {
            let va = user::read_array(unmaps.wrapping_add(8 * i)).map_err(|_| &BAD_NESTED)?;
            self.unmap(u64::from_le_bytes(va));
        }
        for i in 0..u64::from(map_count) {
            let at = maps.wrapping_add(MAP_BUFFER_EX::BYTES as u64 * i);
            let map = Args::read(at, MAP_BUFFER_EX::BYTES).map_err(|_| &BAD_NESTED)?;
            self.map(&MapRequest::of(&map))?;
        }
        Ok(Done::Ok)
    }

    /// Only checks: kinds have no simulated effect. Source: os/linux/vm.c:nvgpu_vm_mapping_modify.
    pub(super) fn modify(&self, args: &Args) -> Handled {
        let (offset, bytes) =
            (args.get(MAPPING_MODIFY::BUFFER_OFFSET), args.get(MAPPING_MODIFY::BUFFER_SIZE));
        let va = args.get(MAPPING_MODIFY::MAP_ADDRESS);
        let space = self.space();
        let mapping = space.mappings.get(&va).ok_or(&MODIFY)?;
        let aligned = offset.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        let inside = bytes <= mapping.bytes && offset <= mapping.bytes - bytes;
        // Without compression tags the incompressible kind is used.
        if !aligned || !inside || args.get(MAPPING_MODIFY::INCOMPR_KIND) == KIND_INVALID {
            return Err(&MODIFY);
        }
        Ok(Done::Ok)
    }
}
