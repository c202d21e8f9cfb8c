//! Requests as a program without the wrappers makes them: any order, any value.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use tegra::abi::{Request, address_space, channel, ctrl, nvmap, tsg};

/// Makes a request.
pub(crate) fn call<A>(fd: BorrowedFd<'_>, request: Request<A>, args: &mut A) -> Result<(), Errno> {
    // SAFETY: callers pass the node's own fd and no nested addresses.
    unsafe { request.call(fd, args) }
}

fn own(fd: i32) -> OwnedFd {
    assert!(fd >= 0, "an fd");
    // SAFETY: the request has just made it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The two nodes.
pub(crate) struct Nodes {
    pub(crate) nvmap: File,
    pub(crate) ctrl: File,
}

/// The objects that a channel needs.
pub(crate) struct Parts {
    pub(crate) nodes: Nodes,
    pub(crate) space: OwnedFd,
    pub(crate) tsg: OwnedFd,
    pub(crate) veid: u32,
}

/// A handle with pages, freed when dropped.
pub(crate) struct Memory<'a> {
    nodes: &'a Nodes,
    pub(crate) handle: u32,
    pub(crate) fd: OwnedFd,
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: the fd is that of nvmap.
        unsafe { nvmap::free(self.nodes.nvmap.as_fd(), self.handle) }.unwrap();
    }
}

impl Nodes {
    pub(crate) fn open() -> Self {
        let open = |path| OpenOptions::new().read(true).write(true).open(path).unwrap();
        Self { nvmap: open("/dev/nvmap"), ctrl: open("/dev/nvgpu/igpu0/ctrl") }
    }

    /// The range of the wrappers.
    pub(crate) fn space_args() -> ctrl::AllocAs {
        ctrl::AllocAs {
            flags: ctrl::AS_UNIFIED_VA,
            va_range_start: 0x20_0000,
            va_range_end: 0xff_0000_0000,
            ..Default::default()
        }
    }

    pub(crate) fn space(&self) -> OwnedFd {
        let mut args = Self::space_args();
        call(self.ctrl.as_fd(), ctrl::ALLOC_AS, &mut args).unwrap();
        own(args.as_fd)
    }

    pub(crate) fn tsg(&self) -> OwnedFd {
        let mut args = ctrl::OpenTsg::default();
        call(self.ctrl.as_fd(), ctrl::OPEN_TSG, &mut args).unwrap();
        own(args.tsg_fd as i32)
    }

    pub(crate) fn channel(&self) -> OwnedFd {
        let mut args = ctrl::OpenChannel { channel_fd: -1 };
        call(self.ctrl.as_fd(), ctrl::OPEN_CHANNEL, &mut args).unwrap();
        own(args.channel_fd)
    }

    /// A handle without pages.
    pub(crate) fn create(&self, bytes: u64) -> u32 {
        let mut args = nvmap::Create64 { size64: bytes };
        call(self.nvmap.as_fd(), nvmap::CREATE_64, &mut args).unwrap();
        args.handle()
    }

    pub(crate) fn alloc(&self, handle: u32, tag: u16) -> Result<(), Errno> {
        let mut args = nvmap::Alloc {
            handle,
            heap_mask: nvmap::HEAP_IOVMM,
            flags: nvmap::alloc_flags(nvmap::Caching::WriteCombined, tag),
            align: 4096,
            numa_nid: 0,
        };
        call(self.nvmap.as_fd(), nvmap::ALLOC, &mut args)
    }

    pub(crate) fn memory(&self, bytes: u64) -> Memory<'_> {
        let handle = self.create(bytes);
        self.alloc(handle, 0x0900).unwrap();
        let mut args = nvmap::HandleFd { fd: 0, handle };
        call(self.nvmap.as_fd(), nvmap::GET_FD, &mut args).unwrap();
        Memory { nodes: self, handle, fd: own(args.fd) }
    }

    /// Maps the ctrl node; returns the address.
    pub(crate) fn map_ctrl(&self, bytes: usize, offset: i64) -> Result<usize, Errno> {
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, self.ctrl.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd, offset)
        };
        if base == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(base as usize) }
    }
}

impl Parts {
    pub(crate) fn new() -> Self {
        let nodes = Nodes::open();
        let (space, tsg) = (nodes.space(), nodes.tsg());
        let mut args = tsg::CreateSubcontext {
            r#type: tsg::SUBCONTEXT_ASYNC,
            as_fd: space.as_raw_fd(),
            ..Default::default()
        };
        call(tsg.as_fd(), tsg::CREATE_SUBCONTEXT, &mut args).unwrap();
        Self { nodes, space, tsg, veid: args.veid }
    }

    pub(crate) fn bind_space(&self, channel: &OwnedFd) -> Result<(), Errno> {
        let mut args = address_space::BindChannel { channel_fd: channel.as_raw_fd() as u32 };
        call(self.space.as_fd(), address_space::BIND_CHANNEL, &mut args)
    }

    pub(crate) fn bind_group(&self, channel: &OwnedFd) -> Result<(), Errno> {
        let mut args = tsg::BindChannelEx {
            channel_fd: channel.as_raw_fd(),
            subcontext_id: self.veid,
            ..Default::default()
        };
        call(self.tsg.as_fd(), tsg::BIND_CHANNEL_EX, &mut args)
    }

    pub(crate) fn watchdog(&self, channel: &OwnedFd, status: u32) -> Result<(), Errno> {
        let mut args = channel::Wdt { wdt_status: status, timeout_ms: 0 };
        call(channel.as_fd(), channel::WDT, &mut args)
    }

    /// A channel with address space, group and no watchdog.
    pub(crate) fn bound(&self) -> OwnedFd {
        let channel = self.nodes.channel();
        self.bind_space(&channel).unwrap();
        self.bind_group(&channel).unwrap();
        self.watchdog(&channel, channel::WDT_DISABLE).unwrap();
        channel
    }
}

/// Arguments that set a channel up.
pub(crate) fn set_up(ring: &Memory<'_>, userd: &Memory<'_>) -> channel::SetupBind {
    channel::SetupBind {
        num_gpfifo_entries: 512,
        flags: channel::BIND_DETERMINISTIC | channel::BIND_USERMODE,
        userd_dmabuf_fd: userd.fd.as_raw_fd(),
        gpfifo_dmabuf_fd: ring.fd.as_raw_fd(),
        ..Default::default()
    }
}

pub(crate) fn object(channel: &OwnedFd, class: u32) -> Result<(), Errno> {
    let mut args = channel::AllocObjCtx { class_num: class, ..Default::default() };
    call(channel.as_fd(), channel::ALLOC_OBJ_CTX, &mut args)
}
