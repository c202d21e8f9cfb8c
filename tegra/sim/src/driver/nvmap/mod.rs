//! `/dev/nvmap`: memory handles and their dma-bufs. Magic `N`.
//!
//! All opens of the node in a process share one handle table. Ids count up from 0x7fffffff. A
//! handle has a dma-buf from its creation and pages from ALLOC on; GPU and CPU mappings hold the
//! dma-buf, not the handle.

pub(super) mod access;
pub(super) mod import;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::abi::nvmap::*;
use super::device::{Device, NotDmaBuf};
use super::dispatch::{Args, Parts};
use super::errno::Answer;
use super::errno::{Refused, refusals};
use super::fd::NewFile;
use crate::memory::{Caching, DmaBuf, PAGE, Pages};
use crate::user;

refusals! { "nvmap";
    UNKNOWN = "any", ENOTTY, "wrong magic, or a request without a case", "nvmap_dev.c:nvmap_ioctl";
    NOT_USER = "any", EFAULT, "an argument address outside the program's half of the addresses",
        "nvmap_dev.c:nvmap_ioctl (access_ok)";
    BAD_ARGUMENT = "any", EFAULT, "the argument cannot be read or written",
        "nvmap_ioctl.c: copy_from_user and copy_to_user of each function";
    EMPTY = "CREATE", EINVAL, "size 0", "nvmap_handle.c:nvmap_create_handle";
    NO_HANDLE_MEMORY = "CREATE", ENOMEM, "no memory for the handle",
        "nvmap_handle.c:nvmap_create_handle";
    FROM_CLOSED = "FROM_FD", EBADF, "the fd is not open", "nvmap_ioctl.c:nvmap_ioctl_create";
    FROM_OTHER = "FROM_FD", EINVAL, "the fd is no dma-buf", "nvmap_ioctl.c:nvmap_ioctl_create";
    GET_CLOSED = "GET_FD", EBADF, "an unknown handle, whose number is no open fd either",
        "nvmap_ioctl.c:nvmap_ioctl_getfd";
    GET_OTHER = "GET_FD", EINVAL, "an unknown handle, whose number is an fd but no dma-buf's",
        "nvmap_ioctl.c:nvmap_ioctl_getfd";
    NO_FD = "GET_FD", EMFILE, "the fd table is full", "nvmap_ioctl.c:nvmap_install_fd";
    ALIGNMENT = "ALLOC", EINVAL, "align is no power of two", "nvmap_ioctl.c:nvmap_ioctl_alloc";
    NUMA = "ALLOC", EINVAL, "numa_nid below -1 or above MAX_NUMNODES",
        "nvmap_ioctl.c:nvmap_ioctl_alloc";
    ALLOC_UNKNOWN = "ALLOC", EINVAL, "handle 0 or unknown", "nvmap_ioctl.c:nvmap_ioctl_alloc";
    NO_HEAP = "ALLOC", ENOMEM, "no heap, an absent one, or a size above all of RAM",
        "nvmap_dev.c:is_nvmap_memory_available";
    TWICE = "ALLOC", EEXIST, "the handle has pages already", "nvmap_alloc.c:nvmap_alloc_handle";
    MIXED = "ALLOC", EINVAL, "IVM or VIDMEM mixed with other heaps",
        "nvmap_alloc.c:nvmap_alloc_handle";
    NO_PAGES = "ALLOC", ENOMEM, "no free memory", "nvmap_alloc.c:nvmap_alloc_handle";
    HEAPS_FAULT = "GET_AVAILABLE_HEAPS", EINVAL, "the argument cannot be written",
        "nvmap_ioctl.c:nvmap_ioctl_get_available_heaps";
    NO_CARVEOUT = "GET_HEAP_SIZE, QUERY_HEAP_PARAMS", ENODEV, "no such carveout",
        "nvmap_ioctl.c:nvmap_ioctl_get_heap_size";
    PARAMETERS_UNKNOWN = "PARAMETERS", ENODEV,
        "an unknown handle, or an argument that cannot be written",
        "nvmap_ioctl.c:nvmap_ioctl_get_handle_parameters";
    DUP_UNKNOWN = "DUP_HANDLE", EINVAL, "an unknown handle, or one without pages",
        "nvmap_ioctl.c:nvmap_ioctl_dup_handle";
    DUP_WRITABLE = "DUP_HANDLE", EPERM, "a writable duplicate of a read-only handle",
        "nvmap_ioctl.c:nvmap_ioctl_dup_handle";
    NOT_MODELLED = "GET_FD_FOR_RANGE_FROM_LIST, SCIIPC, IVM, VPR", EINVAL,
        "always: not simulated", "not the driver's answer";
    NOT_ALLOCATED_MMAP = "mmap of a dma-buf", EPERM, "the handle has no pages, or secure ones",
        "nvmap_dmabuf.c:__nvmap_map";
    READ_ONLY_MMAP = "mmap of a dma-buf", EPERM, "a writable mapping of read-only lent pages",
        "nvmap_dmabuf.c:__nvmap_map";
    RANGE_MMAP = "mmap of a dma-buf", EINVAL, "offset and length exceed the buffer",
        "drivers/dma-buf/dma-buf.c:dma_buf_mmap_internal";
    NODE_MMAP = "mmap", EPERM, "the node itself", "nvmap_dev.c:nvmap_map";
}

/// Id of the first handle.
const FIRST_ID: u32 = u32::MAX / 2;
/// First address of the kernel.
const USER_END: u64 = 1 << 48;
/// Number of NUMA nodes that the kernel supports.
const MAX_NUMA_NODES: i32 = 16;

const HEAP_IOVMM: u32 = 1 << 30;
const HEAP_VPR: u32 = 1 << 28;
const HEAP_VIDMEM: u32 = 1 << 26;
const HEAP_FSI: u32 = 1 << 2;
const HEAP_IVM: u32 = 1 << 1;
/// Carveouts of the system and their sizes, which are not known from hardware.
const CARVEOUTS: [(u32, u64); 2] = [(HEAP_VPR, 0x4_0000_0000 >> 4), (HEAP_FSI, 4 << 20)];

const FLAG_CONTIGUOUS: u32 = 1 << 6;
const FLAG_READ_ONLY: u32 = 1 << 9;

/// Decodes the CPU caching of a handle from the two low bits of its flags.
fn caching(flags: u32) -> Caching {
    match flags & 3 {
        0 => Caching::Uncached,
        1 => Caching::WriteCombined,
        2 => Caching::InnerCacheable,
        _ => Caching::Cacheable,
    }
}

/// An entry of the handle table.
#[derive(Clone, Debug)]
struct Handle {
    buffer: Arc<DmaBuf>,
    /// The id only permits reads.
    read_only: bool,
    /// Arguments of ALLOC, for PARAMETERS.
    heap: Arc<Mutex<Heap>>,
    serial: u64,
}

/// Heap of a handle's pages.
#[derive(Clone, Copy, Debug)]
struct Heap {
    kind: u32,
    flags: u32,
    align: u64,
}

#[derive(Debug, Default)]
struct Table {
    handles: HashMap<u32, Handle>,
    next_id: u32,
    next_serial: u64,
    /// Heaps by inode of the dma-buf, for handles recreated from an fd.
    heaps: HashMap<u64, (Arc<Mutex<Heap>>, std::sync::Weak<DmaBuf>)>,
}

/// Handle table of the process.
#[derive(Debug)]
pub(super) struct Client(Mutex<Table>);

impl Client {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Table { next_id: FIRST_ID, ..Table::default() }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }

    /// Numbers of live handles and dma-bufs.
    pub(super) fn live(&self) -> (usize, usize) {
        let mut table = self.table();
        table.heaps.retain(|_, (_, buffer)| buffer.strong_count() > 0);
        (table.handles.len(), table.heaps.len())
    }

    /// Drops all handles, after the last open of the node was closed.
    pub(super) fn clear(&self) {
        self.table().handles.clear();
    }

    /// Returns the handle of an id.
    fn get(&self, id: u32) -> Option<Handle> {
        self.table().handles.get(&id).cloned()
    }

    fn insert(&self, buffer: Arc<DmaBuf>, read_only: bool, heap: Option<Heap>) -> u32 {
        let mut table = self.table();
        let inode = buffer.inode();
        let heap = match (table.heaps.get(&inode), heap) {
            (Some((heap, _)), None) => Arc::clone(heap),
            (_, heap) => {
                let unset = Heap { kind: 0, flags: 1, align: 0 };
                let heap = Arc::new(Mutex::new(heap.unwrap_or(unset)));
                table.heaps.retain(|_, (_, buffer)| buffer.strong_count() > 0);
                table.heaps.insert(inode, (Arc::clone(&heap), Arc::downgrade(&buffer)));
                heap
            }
        };
        let serial = table.next_serial;
        table.next_serial += 1;
        let mut id = table.next_id;
        while table.handles.contains_key(&id) {
            id = id.checked_add(1).unwrap_or(FIRST_ID);
        }
        table.next_id = id.checked_add(1).unwrap_or(FIRST_ID);
        table.handles.insert(id, Handle { buffer, read_only, heap, serial });
        id
    }

    /// Removes an id.
    fn remove(&self, id: u32) {
        self.table().handles.remove(&id);
    }

    pub(super) fn ioctl(&self, device: &Device, request: u32, arg: u64) -> Answer {
        let parts = Parts::of(request);
        if parts.magic != b'N' {
            return Err(&UNKNOWN);
        }
        let accessible = arg.checked_add(parts.size as u64).is_some_and(|end| end <= USER_END);
        if (parts.goes_in || parts.comes_out) && !accessible {
            return Err(&NOT_USER);
        }
        match request {
            // The argument is the id. The driver also accepts an fd of a dma-buf and closes it,
            // which is not modelled.
            FREE => self.remove(arg as u32),
            CREATE | CREATE_64 => self.create(request == CREATE_64, arg)?,
            FROM_FD => self.handle_of_fd(device, arg)?,
            GET_FD => self.get_fd(device, arg)?,
            ALLOC => self.alloc(device, &read(arg, ALLOC)?)?,
            FROM_VA => self.import_va(device, arg)?,
            WRITE | READ => self.copy(request == READ, arg)?,
            CACHE | CACHE_64 => self.cache(request == CACHE_64, arg)?,
            CACHE_LIST => self.cache_list(&read(arg, CACHE_LIST)?)?,
            GUP_TEST => self.gup_test(arg)?,
            SET_TAG_LABEL => Self::set_tag_label(&read(arg, SET_TAG_LABEL)?)?,
            GET_AVAILABLE_HEAPS => {
                let heaps = u64::from(HEAP_VPR | HEAP_FSI).to_le_bytes();
                user::write(arg, &heaps).map_err(|_| &HEAPS_FAULT)?;
            }
            GET_HEAP_SIZE => heap_size(arg)?,
            QUERY_HEAP_PARAMS => query_heap(device, arg)?,
            PARAMETERS => self.parameters(arg)?,
            DUP_HANDLE => self.duplicate(device, arg)?,
            GET_IVM_HEAPS => user::write(arg, &[0; 4]).map_err(|_| &BAD_ARGUMENT)?,
            GET_SCIIPCID | HANDLE_FROM_SCIIPCID | GET_FD_FOR_RANGE_FROM_LIST => {
                return Err(&NOT_MODELLED);
            }
            _ => return Err(&UNKNOWN),
        }
        Ok(0)
    }

    /// Creates a handle; the id overwrites the size. Source: nvmap_handle.c:nvmap_create_handle.
    fn create(&self, wide: bool, arg: u64) -> Result<(), Refused> {
        let mut args = read(arg, if wide { CREATE_64 } else { CREATE })?;
        let bytes =
            if wide { args.get(CREATE_64::SIZE64) } else { u64::from(args.get(CREATE::SIZE)) };
        if bytes == 0 {
            return Err(&EMPTY);
        }
        let buffer = DmaBuf::new(bytes).map_err(|_| &NO_HANDLE_MEMORY)?;
        let id = self.insert(buffer, false, None);
        args.set(if wide { CREATE_64::HANDLE64 } else { CREATE::HANDLE }, id);
        self.return_id(id, arg, &args)
    }

    /// Returns a new id to the program; removes it if that fails.
    fn return_id(&self, id: u32, arg: u64, args: &Args) -> Result<(), Refused> {
        user::write(arg, args.bytes()).map_err(|_| {
            self.remove(id);
            &BAD_ARGUMENT as Refused
        })
    }

    /// Imports an fd. A handle without pages, or a dma-buf of another exporter, returns another fd
    /// instead of an id. Source: nvmap_ioctl.c:nvmap_ioctl_create.
    fn handle_of_fd(&self, device: &Device, arg: u64) -> Result<(), Refused> {
        let mut args = read(arg, FROM_FD)?;
        let found = device.dma_buf(args.get(FROM_FD::FD));
        let buffer = found.map_err(|error| error.refused(&FROM_CLOSED, &FROM_OTHER))?;
        let Some(read_only) = buffer.pages().map(|pages| pages.read_only) else {
            let fd = device.fds.install(NewFile::DmaBuf(buffer)).map_err(|_| &NO_FD)?;
            args.set(FROM_FD::HANDLE, fd as u32);
            return user::write(arg, args.bytes()).map_err(|_| &BAD_ARGUMENT as Refused);
        };
        let id = self.insert(buffer, read_only, None);
        args.set(FROM_FD::HANDLE, id);
        self.return_id(id, arg, &args)
    }

    /// Source: nvmap_ioctl.c:nvmap_ioctl_getfd.
    fn get_fd(&self, device: &Device, arg: u64) -> Result<(), Refused> {
        let mut args = read(arg, GET_FD)?;
        let id = args.get(GET_FD::HANDLE);
        let buffer = match self.get(id) {
            Some(handle) => handle.buffer,
            None => device
                .dma_buf(id as i32)
                .map_err(|error: NotDmaBuf| error.refused(&GET_CLOSED, &GET_OTHER))?,
        };
        let fd = device.fds.install(NewFile::DmaBuf(buffer)).map_err(|_| &NO_FD)?;
        args.set(GET_FD::FD, fd);
        user::write(arg, args.bytes()).map_err(|_| &BAD_ARGUMENT as Refused)
    }

    /// Allocates pages; checks are in the order of the driver. Source:
    /// nvmap_ioctl.c:nvmap_ioctl_alloc, nvmap_dev.c: is_nvmap_memory_available,
    /// nvmap_alloc.c:nvmap_alloc_handle.
    fn alloc(&self, device: &Device, args: &Args) -> Result<(), Refused> {
        let (id, heaps) = (args.get(ALLOC::HANDLE), args.get(ALLOC::HEAP_MASK));
        let (flags, align) = (args.get(ALLOC::FLAGS), args.get(ALLOC::ALIGN));
        if align & align.wrapping_sub(1) != 0 && align != 0 {
            return Err(&ALIGNMENT);
        }
        if id == 0 {
            return Err(&ALLOC_UNKNOWN);
        }
        if !(-1..=MAX_NUMA_NODES).contains(&args.get(ALLOC::NUMA_NID)) {
            return Err(&NUMA);
        }
        let handle = self.get(id).ok_or(&ALLOC_UNKNOWN)?;
        let bytes = handle.buffer.bytes();
        let present = |heap: u32, size: u64| heaps & heap != 0 && bytes <= size;
        let available = if heaps & HEAP_IOVMM != 0 {
            bytes <= device.ram.total()
        } else {
            CARVEOUTS.iter().any(|(heap, size)| present(*heap, *size))
        };
        if !available {
            return Err(&NO_HEAP);
        }
        if handle.buffer.pages().is_some() {
            return Err(&TWICE);
        }
        for exclusive in [HEAP_IVM, HEAP_VIDMEM] {
            if heaps & exclusive != 0 && heaps != exclusive {
                return Err(&MIXED);
            }
        }
        // Small handles prefer carveouts, large ones system pages; VPR is first either way.
        let order = match bytes {
            PAGE => [HEAP_VPR, HEAP_FSI, HEAP_IOVMM],
            _ => [HEAP_VPR, HEAP_IOVMM, HEAP_FSI],
        };
        let size_of = |heap| CARVEOUTS.iter().find(|(kind, _)| *kind == heap).map(|found| found.1);
        let kind = order
            .into_iter()
            .find(|heap| heaps & heap != 0 && size_of(*heap).is_none_or(|size| bytes <= size))
            .ok_or(&NO_PAGES)?;
        let charge = match kind {
            HEAP_IOVMM if device.hardware.largest.is_some_and(|largest| bytes > largest) => {
                return Err(&NO_PAGES);
            }
            HEAP_IOVMM => Some(device.ram.charge(bytes).ok_or(&NO_PAGES)?),
            _ => None,
        };
        let caching = if heaps & HEAP_VPR != 0 { Caching::Uncached } else { caching(flags) };
        let pages = Pages { caching, read_only: false, charge };
        handle.buffer.allocate(pages).map_err(|_| &TWICE)?;
        let heap = Heap { kind, flags, align: u64::from(align).max(PAGE) };
        *handle.heap.lock() = heap;
        Ok(())
    }

    /// Reports the parameters of a handle; other fields are left as the program set them. Source:
    /// nvmap_ioctl.c:nvmap_ioctl_get_handle_parameters.
    fn parameters(&self, arg: u64) -> Result<(), Refused> {
        let mut args = read(arg, PARAMETERS)?;
        let handle = self.get(args.get(PARAMETERS::HANDLE)).ok_or(&PARAMETERS_UNKNOWN)?;
        let heap = *handle.heap.lock();
        let contiguous = match heap.kind {
            0 => false,
            HEAP_IOVMM => heap.flags & FLAG_CONTIGUOUS != 0,
            _ => true,
        };
        args.set(PARAMETERS::CONTIG, u8::from(contiguous));
        // There is no peer virtual machine.
        args.set(PARAMETERS::HEAP_NUMBER, u32::MAX);
        if handle.read_only {
            args.set(PARAMETERS::ACCESS_FLAGS, FLAG_READ_ONLY);
        }
        args.set(PARAMETERS::HEAP, u64::from(heap.kind));
        args.set(PARAMETERS::ALIGN, heap.align);
        args.set(PARAMETERS::COHERENCY, u64::from(heap.flags & 3));
        args.set(PARAMETERS::SIZE, handle.buffer.bytes());
        args.set(PARAMETERS::OFFSET, 0);
        args.set(PARAMETERS::SERIAL_ID, handle.serial);
        user::write(arg, args.bytes()).map_err(|_| &PARAMETERS_UNKNOWN as Refused)
    }

    /// Source: nvmap_ioctl.c:nvmap_ioctl_dup_handle.
    fn duplicate(&self, device: &Device, arg: u64) -> Result<(), Refused> {
        let mut args = read(arg, DUP_HANDLE)?;
        let id = args.get(DUP_HANDLE::HANDLE);
        let wants_read_only = args.get(DUP_HANDLE::ACCESS_FLAGS) == FLAG_READ_ONLY;
        let (buffer, read_only) = match self.get(id) {
            Some(handle) => (handle.buffer, handle.read_only),
            None => (device.dma_buf(id as i32).map_err(|_| &DUP_UNKNOWN)?, false),
        };
        if read_only && !wants_read_only {
            return Err(&DUP_WRITABLE);
        }
        if buffer.pages().is_none() {
            return Err(&DUP_UNKNOWN);
        }
        let id = self.insert(buffer, wants_read_only, None);
        args.set(DUP_HANDLE::DUP_HANDLE, id);
        self.return_id(id, arg, &args)
    }

    /// Checks whether the kernel would map a dma-buf into the program. Source:
    /// drivers/dma-buf/dma-buf.c:dma_buf_mmap_internal, nvmap_dmabuf.c:__nvmap_map.
    pub(super) fn check_mmap(
        &self,
        buffer: &DmaBuf,
        bytes: u64,
        writable: bool,
        offset: u64,
    ) -> Result<(), Refused> {
        let end = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > buffer.bytes()) {
            return Err(&RANGE_MMAP);
        }
        let pages = buffer.pages().ok_or(&NOT_ALLOCATED_MMAP)?;
        let heap = self.table().heaps.get(&buffer.inode()).map(|(heap, _)| Arc::clone(heap));
        let kind = heap.map(|heap| heap.lock().kind);
        if kind == Some(HEAP_VPR) {
            return Err(&NOT_ALLOCATED_MMAP);
        }
        if pages.read_only && writable { Err(&READ_ONLY_MMAP) } else { Ok(()) }
    }
}

/// Copies the argument of a request in.
fn read(arg: u64, request: u32) -> Result<Args, Refused> {
    Args::read(arg, Parts::of(request).size).map_err(|_| &BAD_ARGUMENT as Refused)
}

/// Source: nvmap_ioctl.c:nvmap_ioctl_get_heap_size.
fn heap_size(arg: u64) -> Result<(), Refused> {
    let mut args = read(arg, GET_HEAP_SIZE)?;
    let heaps = args.get(GET_HEAP_SIZE::HEAP);
    let (_, size) = CARVEOUTS.iter().find(|(heap, _)| heaps & heap != 0).ok_or(&NO_CARVEOUT)?;
    args.set(GET_HEAP_SIZE::SIZE, *size);
    user::write(arg, args.bytes()).map_err(|_| &BAD_ARGUMENT as Refused)
}

/// Source: nvmap_ioctl.c:nvmap_ioctl_query_heap_params.
fn query_heap(device: &Device, arg: u64) -> Result<(), Refused> {
    use QUERY_HEAP_PARAMS::{FREE, GRANULE_SIZE, HEAP_MASK, LARGEST_FREE_BLOCK, TOTAL};
    let mut args = read(arg, QUERY_HEAP_PARAMS)?;
    let heaps = args.get(HEAP_MASK);
    if heaps & (HEAP_IOVMM - 1) != 0 {
        let (_, size) = CARVEOUTS.iter().find(|(heap, _)| heaps & heap != 0).ok_or(&NO_CARVEOUT)?;
        args.set(TOTAL, *size);
        args.set(FREE, *size);
    } else if heaps & HEAP_IOVMM != 0 {
        args.set(TOTAL, device.ram.total());
        args.set(FREE, device.ram.free());
        args.set(GRANULE_SIZE, PAGE as u32);
    }
    args.set(LARGEST_FREE_BLOCK, PAGE);
    user::write(arg, args.bytes()).map_err(|_| &BAD_ARGUMENT as Refused)
}
