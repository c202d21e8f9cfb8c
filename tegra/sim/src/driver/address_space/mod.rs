//! An address-space fd: areas and mappings of GPU addresses and their lifetimes. Magic `A`.
//!
//! Addresses come from a model of the driver's allocator ([`Buddy`]); mappings are written to the
//! GPU's [`Mmu`]. The driver's own 4 GiB are directly above the range that the program requested.

pub(super) mod mapping;
pub(super) mod remap;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::abi::address_space::*;
use super::buddy::Buddy;
use super::census::Counted;
use super::device::Device;
use super::dispatch::{Args, BAD_NESTED, Done, Handled, Rules, UNKNOWN, layout};
use super::errno::Answer;
use super::errno::refusals;
use crate::user;

use crate::gpu::{MapAccess, MapFlags, Mmu};
use crate::memory::{DmaBuf, PAGE};

refusals! { "as";
    BAD_CHANNEL = "BIND_CHANNEL", EINVAL, "the fd is no channel",
        "os/linux/ioctl_as.c:gk20a_as_ioctl_bind_channel";
    BOUND = "BIND_CHANNEL", EINVAL, "the channel has an address space already",
        "os/linux/ioctl_as.c:gk20a_as_ioctl_bind_channel";
    PAGE_SIZE = "ALLOC_SPACE", EINVAL, "page_size is not 4096",
        "common/mm/vm_area.c:nvgpu_vm_area_alloc_get_pagesize_index";
    NO_WINDOW = "GET_SYNC_RO_MAP", ENOMEM, "no range of the driver's addresses is free",
        "hal/sync/syncpt_cmdbuf_gv11b_fusa.c:gv11b_syncpt_get_sync_ro_map";
    NO_SPACE = "ALLOC_SPACE", ENOMEM,
        "no room; a fixed offset that is unaligned, outside or already taken",
        "common/mm/vm_area.c:nvgpu_vm_area_alloc_memory";
}

const ALLOC_AS_GRANULE: u64 = 1 << 21;
/// Size of the driver's range above the program's.
pub(super) const KERNEL_BYTES: u64 = 1 << 32;
/// Upper limit of every address space.
const LIMIT: u64 = 1 << 49;

layout! { VA_REGION, 24 { 0 => OFFSET: u64, 8 => PAGE_SIZE: u32, 16 => PAGES: u64 } }

const RULES: Rules = Rules { output_faults: true, always_out: Some(REMAP), ..Rules::of(REQUESTS) };

const SPACE_FIXED: u32 = 1 << 0;
const SPACE_SPARSE: u32 = 1 << 1;

/// `compr_kind` and `incompr_kind` for none.
const KIND_INVALID: i16 = -1;

/// Checked range of a new address space. Source: common/mm/as.c:gk20a_vm_alloc_share,
/// common/mm/vm.c:nvgpu_vm_init_attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    start: u64,
    end: u64,
}

/// Error of an invalid range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadRange {
    /// Start or end is 0 or not a multiple of 2 MiB, or the range is empty.
    Misshapen,
    /// The range and the driver's range above it do not fit.
    TooLarge,
}

impl Range {
    pub(super) fn new(start: u64, end: u64) -> Result<Self, BadRange> {
        let bad = |at: u64| at == 0 || !at.is_multiple_of(ALLOC_AS_GRANULE);
        if bad(start) || bad(end) || start >= end {
            return Err(BadRange::Misshapen);
        }
        if end.checked_add(KERNEL_BYTES).is_none_or(|limit| limit > LIMIT) {
            return Err(BadRange::TooLarge);
        }
        Ok(Self { start, end })
    }
}

/// An area of ALLOC_SPACE.
#[derive(Debug)]
struct Area {
    start: u64,
    /// Size as the driver computes it, with wrap-around.
    bytes: u64,
    sparse: bool,
    mappings: Vec<u64>,
}

impl Area {
    fn contains(&self, va: u64) -> bool {
        va >= self.start && va < self.start.saturating_add(self.bytes)
    }
}

/// A mapping made by the program.
#[derive(Debug)]
struct Mapping {
    buffer: Arc<DmaBuf>,
    bytes: u64,
    flags: u32,
    kind: i16,
    references: u32,
    /// The address came from the allocator instead of an area.
    allocated: bool,
    _counted: Counted,
}

#[derive(Debug)]
struct Space {
    user: Buddy,
    kernel: Buddy,
    areas: Vec<Area>,
    mappings: BTreeMap<u64, Mapping>,
    /// Addresses of mappings by the buffer's inode.
    by_buffer: HashMap<u64, Vec<u64>>,
    syncpoint_window: Option<u64>,
}

/// An address space, which lives as long as its fd or a channel bound to it.
pub(super) struct AddressSpace {
    device: Arc<Device>,
    id: u64,
    mmu: Arc<Mmu>,
    space: Mutex<Space>,
    _counted: Counted,
}

impl AddressSpace {
    pub(super) fn new(device: &Arc<Device>, range: Range) -> Arc<Self> {
        Arc::new(Self {
            device: Arc::clone(device),
            id: device.serial(),
            mmu: Arc::new(Mmu::new()),
            space: Mutex::new(Space {
                user: Buddy::new(range.start, range.end),
                kernel: Buddy::new(range.end, range.end + KERNEL_BYTES),
                areas: Vec::new(),
                mappings: BTreeMap::new(),
                by_buffer: HashMap::new(),
                syncpoint_window: None,
            }),
            _counted: device.census.address_spaces.one(),
        })
    }

    /// End of the program's range and start of the driver's.
    pub(super) fn end(&self) -> u64 {
        self.space().user.end()
    }

    /// Unique number of the address space.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Page tables.
    pub(super) fn mmu(&self) -> &Arc<Mmu> {
        &self.mmu
    }

    fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock()
    }

    /// Answers one request. `bind` binds the channel of an fd to this address space: none when the fd is no
    /// channel, false when the channel has an address space already.
    pub(super) fn ioctl(
        self: &Arc<Self>,
        request: u32,
        arg: u64,
        bind: impl FnOnce(i32, &Arc<Self>) -> Option<bool>,
    ) -> Answer {
        RULES.dispatch(request, arg, |args| match request {
            BIND_CHANNEL => {
                let bound = bind(args.get(BIND_CHANNEL::CHANNEL_FD), self).ok_or(&BAD_CHANNEL)?;
                if bound { Ok(Done::Ok) } else { Err(&BOUND) }
            }
            ALLOC_SPACE => self.alloc_space(args),
            FREE_SPACE => {
                self.free_space(args.get(FREE_SPACE::OFFSET));
                Ok(Done::Ok)
            }
            MAP_BUFFER_EX => self.map_buffer(args),
            UNMAP_BUFFER => {
                self.unmap(args.get(UNMAP_BUFFER::OFFSET));
                Ok(Done::Ok)
            }
            GET_VA_REGIONS => self.va_regions(args),
            MAP_BUFFER_BATCH => self.map_batch(args),
            GET_SYNC_RO_MAP => self.syncpoint_window(args),
            MAPPING_MODIFY => self.modify(args),
            REMAP => self.remap(args),
            _ => Err(&UNKNOWN),
        })
    }

    /// Allocates an area. `o_a.align` is ignored. Source: common/mm/vm_area.c:nvgpu_vm_area_alloc.
    fn alloc_space(&self, args: &mut Args) -> Handled {
        let (pages, flags) = (args.get(ALLOC_SPACE::PAGES), args.get(ALLOC_SPACE::FLAGS));
        if args.get(ALLOC_SPACE::PAGE_SIZE) != PAGE as u32 {
            return Err(&PAGE_SIZE);
        }
        let bytes = pages.wrapping_mul(PAGE);
        let mut space = self.space();
        let start = if flags & SPACE_FIXED != 0 {
            space.user.alloc_fixed(args.get(ALLOC_SPACE::OFFSET), bytes)
        } else {
            space.user.alloc(bytes)
        };
        let start = start.ok_or(&NO_SPACE)?;
        let sparse = flags & SPACE_SPARSE != 0;
        space.areas.push(Area { start, bytes, sparse, mappings: Vec::new() });
        args.set(ALLOC_SPACE::OFFSET, start);
        Ok(Done::Ok)
    }

    /// Frees the area that contains `va`, and drops one reference of each mapping in it. Source:
    /// common/mm/vm_area.c:nvgpu_vm_area_free.
    fn free_space(&self, va: u64) {
        let mut space = self.space();
        let Some(index) = space.areas.iter().position(|area| area.contains(va)) else { return };
        let area = space.areas.remove(index);
        for mapping in area.mappings {
            self.put(&mut space, mapping);
        }
        if area.sparse {
            self.mmu.unmap(area.start, area.bytes);
        }
        space.user.free(area.start);
    }

    /// Reports one region, of small pages. Source:
    /// os/linux/ioctl_as.c:gk20a_as_ioctl_get_va_regions.
    fn va_regions(&self, args: &mut Args) -> Handled {
        const REGION: u32 = VA_REGION::BYTES as u32;
        if args.get(GET_VA_REGIONS::BUF_SIZE) >= REGION {
            let space = self.space();
            let (start, end) = (space.user.start(), space.user.end());
            let mut region = Args::zeroed(VA_REGION::BYTES);
            region.set(VA_REGION::OFFSET, start);
            region.set(VA_REGION::PAGE_SIZE, PAGE as u32);
            region.set(VA_REGION::PAGES, (end - start) / PAGE);
            user::write(args.get(GET_VA_REGIONS::BUF_ADDR), region.bytes())
                .map_err(|_| &BAD_NESTED)?;
        }
        args.set(GET_VA_REGIONS::BUF_SIZE, REGION);
        Ok(Done::Ok)
    }

    /// Source: hal/sync/syncpt_cmdbuf_gv11b_fusa.c:gv11b_syncpt_get_sync_ro_map.
    fn syncpoint_window(&self, args: &mut Args) -> Handled {
        let base = self.map_syncpoints().ok_or(&NO_WINDOW)?;
        args.set(GET_SYNC_RO_MAP::BASE_GPUVA, base);
        args.set(GET_SYNC_RO_MAP::SYNC_SIZE, super::device::SYNCPOINT_BYTES as u32);
        args.set(GET_SYNC_RO_MAP::NUM_SYNCPOINTS, super::device::SYNCPOINTS);
        Ok(Done::Ok)
    }

    /// Returns the read-only window of all syncpoints, creating it on first use.
    fn map_syncpoints(&self) -> Option<u64> {
        let mut space = self.space();
        if space.syncpoint_window.is_none() {
            let shim = self.device.syncpoints()?;
            let va = self.map_kernel(&mut space, shim, 0, shim.bytes(), MapAccess::ReadOnly)?;
            space.syncpoint_window = Some(va);
        }
        space.syncpoint_window
    }

    /// Maps a syncpoint that a channel can increment.
    pub(super) fn map_syncpoint(&self, id: u32) -> Option<u64> {
        self.map_syncpoints()?;
        let shim = self.device.syncpoints()?;
        let bytes = super::device::SYNCPOINT_BYTES;
        let offset = u64::from(id) * bytes;
        self.map_kernel(&mut self.space(), shim, offset, bytes, MapAccess::ReadWrite)
    }

    /// Maps a ring read-only in the driver's range.
    pub(super) fn map_ring(&self, ring: &Arc<DmaBuf>) -> Option<u64> {
        self.map_kernel(&mut self.space(), ring, 0, ring.bytes(), MapAccess::ReadOnly)
    }

    /// Undoes [`AddressSpace::map_ring`] or [`AddressSpace::map_syncpoint`].
    pub(super) fn unmap_kernel(&self, va: u64, bytes: u64) {
        self.mmu.unmap(va, bytes);
        self.space().kernel.free(va);
    }

    /// Returns the access rights of a mapping made by the program.
    fn map_access(&self, read_only: bool) -> MapAccess {
        match read_only {
            true if self.device.quirks.read_only_maps_fault => MapAccess::Nothing,
            true => MapAccess::ReadOnly,
            false => MapAccess::ReadWrite,
        }
    }

    fn map_kernel(
        &self,
        space: &mut Space,
        buffer: &Arc<DmaBuf>,
        offset: u64,
        bytes: u64,
        access: MapAccess,
    ) -> Option<u64> {
        let va = space.kernel.alloc(bytes)?;
        let flags = MapFlags { access, ..MapFlags::default() };
        if self.mmu.map(va, Arc::clone(buffer), offset, bytes, flags).is_err() {
            space.kernel.free(va);
            return None;
        }
        Some(va)
    }
}
