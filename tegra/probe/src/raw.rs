//! Requests in any order and with any value, which the wrappers of `tegra` do not make: the only
//! way to learn what a driver refuses.
//!
//! The driver checks every request here before it acts, and all objects are released when dropped.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use memmap2::{MmapMut, MmapOptions};
use nix::errno::Errno;
use nix::libc;
use tegra::abi::{Request, address_space, channel, ctrl, nvmap, tsg};
use tegra::error::{Error as TegraError, Node};

use super::error::Error;

/// A tag other than 0, which the kernel warns of.
const TAG: u16 = 0x0900;

/// Makes a request whose arguments have no pointers.
fn call<A>(fd: BorrowedFd<'_>, request: Request<A>, args: &mut A) -> Result<(), Errno> {
    // SAFETY: callers of this module pass the node's own fd; arguments name no memory, but for
    // `Nodes::characteristics` and `Nodes::import`, which argue themselves.
    unsafe { request.call(fd, args) }
}

/// Wraps an fd that a request has just returned.
fn own(fd: i32) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the driver has just made it, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(super) struct Nodes {
    nvmap: File,
    ctrl: File,
}

/// A handle with pages, freed when dropped.
pub(super) struct Memory<'a> {
    nodes: &'a Nodes,
    handle: u32,
    fd: OwnedFd,
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: the fd is that of nvmap. No failure is known.
        let _ = unsafe { nvmap::free(self.nodes.nvmap.as_fd(), self.handle) };
    }
}

impl Nodes {
    pub(super) fn open() -> Result<Self, Error> {
        let open = |node: Node| {
            let path = node.path().unwrap_or_default();
            OpenOptions::new().read(true).write(true).open(path).map_err(|error| {
                let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
                TegraError::Open { node, errno }
            })
        };
        Ok(Self { nvmap: open(Node::Nvmap)?, ctrl: open(Node::Ctrl)? })
    }

    /// The driver's whole characteristics record.
    pub(super) fn characteristics(&self) -> Result<Vec<u8>, Errno> {
        let mut record = vec![0u8; 1024];
        let mut args = ctrl::GetCharacteristics {
            gpu_characteristics_buf_size: record.len() as u64,
            gpu_characteristics_buf_addr: record.as_mut_ptr() as u64,
        };
        // SAFETY: address and size are those of `record`, which outlives the call.
        unsafe { ctrl::GET_CHARACTERISTICS.call(self.ctrl.as_fd(), &mut args)? };
        let known = usize::try_from(args.gpu_characteristics_buf_size).unwrap_or(usize::MAX);
        record.truncate(known);
        Ok(record)
    }

    /// An address space over a range.
    pub(super) fn space(&self, big_page_size: u32, start: u64, end: u64) -> Result<OwnedFd, Errno> {
        let mut args = ctrl::AllocAs {
            big_page_size,
            flags: ctrl::AS_UNIFIED_VA,
            va_range_start: start,
            va_range_end: end,
            ..Default::default()
        };
        call(self.ctrl.as_fd(), ctrl::ALLOC_AS, &mut args)?;
        own(args.as_fd)
    }

    pub(super) fn tsg(&self) -> Result<OwnedFd, Errno> {
        let mut args = ctrl::OpenTsg::default();
        call(self.ctrl.as_fd(), ctrl::OPEN_TSG, &mut args)?;
        own(args.tsg_fd as i32)
    }

    pub(super) fn channel(&self) -> Result<OwnedFd, Errno> {
        let mut args = ctrl::OpenChannel { channel_fd: -1 };
        call(self.ctrl.as_fd(), ctrl::OPEN_CHANNEL, &mut args)?;
        own(args.channel_fd)
    }

    pub(super) fn memory(&self, bytes: u64) -> Result<Memory<'_>, Errno> {
        let mut create = nvmap::Create64 { size64: bytes };
        call(self.nvmap.as_fd(), nvmap::CREATE_64, &mut create)?;
        let handle = create.handle();
        let mut alloc = nvmap::Alloc {
            handle,
            heap_mask: nvmap::HEAP_IOVMM,
            flags: nvmap::alloc_flags(nvmap::Caching::InnerCacheable, TAG),
            align: address_space::PAGE_SIZE,
            numa_nid: 0,
        };
        let alloc = call(self.nvmap.as_fd(), nvmap::ALLOC, &mut alloc);
        self.adopt(handle, alloc)
    }

    /// A handle over the pages of `pages`, which it pins.
    pub(super) fn import(&self, pages: &MmapMut) -> Result<Memory<'_>, Errno> {
        let mut args = nvmap::FromVa {
            va: pages.as_ptr() as u64,
            size: 0,
            flags: nvmap::alloc_flags(nvmap::Caching::InnerCacheable, TAG),
            size64: pages.len() as u64,
        };
        // SAFETY: the range is a mapping of ours without references, which the caller keeps longer
        // than the handle.
        unsafe { nvmap::FROM_VA.call(self.nvmap.as_fd(), &mut args)? };
        self.adopt(args.handle(), Ok(()))
    }

    /// The memory of a handle; frees the handle after an error.
    fn adopt(&self, handle: u32, so_far: Result<(), Errno>) -> Result<Memory<'_>, Errno> {
        let mut args = nvmap::HandleFd { fd: -1, handle };
        let fd = so_far
            .and_then(|()| call(self.nvmap.as_fd(), nvmap::GET_FD, &mut args))
            .and_then(|()| own(args.fd));
        match fd {
            Ok(fd) => Ok(Memory { nodes: self, handle, fd }),
            Err(errno) => {
                // SAFETY: as in `Memory::drop`.
                let _ = unsafe { nvmap::free(self.nvmap.as_fd(), handle) };
                Err(errno)
            }
        }
    }
}

/// Maps a buffer, and unmaps it if the driver accepts the flags; returns the address.
pub(super) fn map(space: &OwnedFd, memory: &Memory<'_>, flags: u32) -> Result<u64, Errno> {
    let fixed = flags & address_space::MAP_FIXED_OFFSET != 0;
    let mut args = address_space::MapBufferEx {
        flags,
        compr_kind: address_space::KIND_INVALID,
        incompr_kind: address_space::KIND_PITCH,
        dmabuf_fd: memory.fd.as_raw_fd() as u32,
        page_size: address_space::PAGE_SIZE,
        // An address without a reservation.
        offset: if fixed { 0x10_0000_0000 } else { 0 },
        ..Default::default()
    };
    call(space.as_fd(), address_space::MAP_BUFFER_EX, &mut args)?;
    let mut unmap = address_space::UnmapBuffer { offset: args.offset };
    call(space.as_fd(), address_space::UNMAP_BUFFER, &mut unmap)?;
    Ok(args.offset)
}

/// Reserves addresses and frees them at once; returns the address.
pub(super) fn reserve(space: &OwnedFd, pages: u64, page_size: u32) -> Result<u64, Errno> {
    let mut args = address_space::AllocSpace { pages, page_size, ..Default::default() };
    call(space.as_fd(), address_space::ALLOC_SPACE, &mut args)?;
    let offset = args.o_a;
    let mut free = address_space::FreeSpace { offset, pages, page_size, ..Default::default() };
    call(space.as_fd(), address_space::FREE_SPACE, &mut free)?;
    Ok(offset)
}

pub(super) struct Parts<'a> {
    pub(super) nodes: &'a Nodes,
    space: OwnedFd,
    tsg: OwnedFd,
    veid: u32,
}

impl<'a> Parts<'a> {
    pub(super) fn new(nodes: &'a Nodes, start: u64, end: u64) -> Result<Self, Errno> {
        let (space, tsg) = (nodes.space(0, start, end)?, nodes.tsg()?);
        let mut args = tsg::CreateSubcontext {
            r#type: tsg::SUBCONTEXT_ASYNC,
            as_fd: space.as_raw_fd(),
            ..Default::default()
        };
        call(tsg.as_fd(), tsg::CREATE_SUBCONTEXT, &mut args)?;
        Ok(Self { nodes, space, tsg, veid: args.veid })
    }

    pub(super) fn bind_space(&self, channel: &OwnedFd) -> Result<(), Errno> {
        let mut args = address_space::BindChannel { channel_fd: channel.as_raw_fd() as u32 };
        call(self.space.as_fd(), address_space::BIND_CHANNEL, &mut args)
    }

    pub(super) fn bind_group(&self, channel: &OwnedFd) -> Result<(), Errno> {
        let mut args = tsg::BindChannelEx {
            channel_fd: channel.as_raw_fd(),
            subcontext_id: self.veid,
            ..Default::default()
        };
        call(self.tsg.as_fd(), tsg::BIND_CHANNEL_EX, &mut args)
    }

    /// A channel with address space and group, with or without its watchdog.
    pub(super) fn bound(&self, watched: bool) -> Result<OwnedFd, Errno> {
        let channel = self.nodes.channel()?;
        self.bind_space(&channel)?;
        self.bind_group(&channel)?;
        if !watched {
            let mut args = channel::Wdt { wdt_status: channel::WDT_DISABLE, timeout_ms: 0 };
            call(channel.as_fd(), channel::WDT, &mut args)?;
        }
        Ok(channel)
    }
}

/// Sets a channel up with a ring of `entries`.
pub(super) fn set_up(
    channel: &OwnedFd,
    ring: &Memory<'_>,
    userd: &Memory<'_>,
    entries: u32,
    flags: u32,
) -> Result<(), Errno> {
    let mut args = channel::SetupBind {
        num_gpfifo_entries: entries,
        flags,
        userd_dmabuf_fd: userd.fd.as_raw_fd(),
        gpfifo_dmabuf_fd: ring.fd.as_raw_fd(),
        ..Default::default()
    };
    call(channel.as_fd(), channel::SETUP_BIND, &mut args)
}

pub(super) fn object(channel: &OwnedFd, class: u32) -> Result<(), Errno> {
    let mut args = channel::AllocObjCtx { class_num: class, ..Default::default() };
    call(channel.as_fd(), channel::ALLOC_OBJ_CTX, &mut args)
}

/// Sets the context-switch limit, in milliseconds.
pub(super) fn set_timeout(channel: &OwnedFd, timeout: u32) -> Result<(), Errno> {
    call(channel.as_fd(), channel::SET_TIMEOUT, &mut channel::SetTimeout { timeout })
}

/// Anonymous pages of this process, populated.
pub(super) fn pages(bytes: usize) -> Result<MmapMut, Errno> {
    let map = MmapOptions::new().len(bytes).populate().map_anon();
    map.map_err(|error| error.raw_os_error().map_or(Errno::ENOMEM, Errno::from_raw))
}
