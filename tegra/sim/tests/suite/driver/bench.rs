//! Test bench: a device, a table of descriptors, and constructors of common objects.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tegra::abi::{Request, address_space, channel, ctrl, nvmap, tsg};
use tegra_sim::config::{Config, Injection};
use tegra_sim::driver::{Errno, FdTable, FileId, NewFile, Node, OpenFile, Orin, Refused};
use tegra_sim::finding::Collector;
use tegra_sim::gpu::GpuConfig;
use tegra_sim::memory::DmaBuf;
use tegra_sim::trace::Trace;

/// Fds of the table start here: far from those of the test itself.
const FIRST_FD: i32 = 5000;

#[derive(Debug)]
enum Entry {
    File(FileId),
    DmaBuf(Arc<DmaBuf>),
    Event(FileId, OwnedFd),
}

/// A program's descriptors.
#[derive(Debug)]
pub(crate) struct Fds {
    entries: Mutex<BTreeMap<i32, Entry>>,
    limit: AtomicUsize,
}

impl Fds {
    fn new() -> Arc<Self> {
        Arc::new(Self { entries: Mutex::default(), limit: AtomicUsize::new(usize::MAX) })
    }

    /// Lets no more than this many be open.
    pub(crate) fn limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns whether an event is latched, and consumes it, as a poll would.
    pub(crate) fn poll(&self, fd: i32) -> bool {
        let entries = self.entries.lock();
        let Some(Entry::Event(_, event)) = entries.get(&fd) else { panic!("{fd} is no event") };
        let mut count = [0u8; 8];
        // SAFETY: eight writable bytes.
        unsafe { libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), 8) == 8 }
    }
}

impl FdTable for Fds {
    fn install(&self, file: NewFile) -> io::Result<i32> {
        let mut entries = self.entries.lock();
        if entries.len() >= self.limit.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let fd = (FIRST_FD..).find(|fd| !entries.contains_key(fd)).unwrap();
        entries.insert(
            fd,
            match file {
                NewFile::Placeholder(id) => Entry::File(id),
                NewFile::DmaBuf(buffer) => Entry::DmaBuf(buffer),
                NewFile::Event(id, event) => Entry::Event(id, event),
            },
        );
        Ok(fd)
    }

    fn lookup(&self, fd: i32) -> Option<OpenFile> {
        Some(match self.entries.lock().get(&fd)? {
            Entry::File(id) | Entry::Event(id, _) => OpenFile::File(*id),
            Entry::DmaBuf(buffer) => OpenFile::DmaBuf(Arc::clone(buffer)),
        })
    }
}

/// A device with both nodes open.
pub(crate) struct Bench {
    pub(crate) orin: Arc<Orin>,
    pub(crate) fds: Arc<Fds>,
    pub(crate) findings: Arc<Collector>,
    pub(crate) nvmap: FileId,
    pub(crate) ctrl: FileId,
}

/// The range that tests give their address spaces.
pub(crate) const RANGE: (u64, u64) = (0x20_0000, 0xff_0000_0000);

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(&Config::default())
    }

    pub(crate) fn with(config: &Config) -> Self {
        let findings = Arc::new(Collector::default());
        let mut gpu = GpuConfig::new(config, Trace::off(), Arc::new(Injection::new(config)));
        gpu.reporter = Arc::clone(&findings) as Arc<_>;
        let fds = Fds::new();
        let orin = Orin::with_gpu(config, gpu, Arc::clone(&fds) as Arc<_>).unwrap();
        let nvmap = orin.open(Node::Nvmap).unwrap();
        let ctrl = orin.open(Node::Ctrl).unwrap();
        Self { orin, fds, findings, nvmap, ctrl }
    }

    /// A typed ioctl.
    pub(crate) fn call<A>(
        &self,
        file: FileId,
        request: Request<A>,
        args: &mut A,
    ) -> Result<i32, Refused> {
        let address = std::ptr::from_mut(args) as u64;
        self.orin.ioctl(file, request.code(), address)
    }

    /// A typed ioctl that succeeds; its arguments afterwards.
    pub(crate) fn ask<A>(&self, file: FileId, request: Request<A>, mut args: A) -> A {
        self.call(file, request, &mut args).unwrap();
        args
    }

    /// An ioctl by its name in the header, with raw bytes.
    pub(crate) fn raw(&self, file: FileId, name: &str, args: &mut [u8]) -> Result<i32, Refused> {
        self.orin.ioctl(file, code(name), args.as_mut_ptr() as u64)
    }

    /// The description behind an fd.
    pub(crate) fn file(&self, fd: i32) -> FileId {
        match self.fds.lookup(fd) {
            Some(OpenFile::File(id)) => id,
            other => panic!("{fd} is {other:?}"),
        }
    }

    /// Closes an fd, and its description with the last one.
    pub(crate) fn close(&self, fd: i32) {
        let entry = self.fds.entries.lock().remove(&fd);
        match entry.unwrap_or_else(|| panic!("{fd} is not open")) {
            Entry::File(id) | Entry::Event(id, _) => self.orin.close(id),
            Entry::DmaBuf(_) => {}
        }
    }

    /// Closes every fd, newest first, and both nodes.
    pub(crate) fn close_all(&self) {
        let open: Vec<i32> = self.fds.entries.lock().keys().rev().copied().collect();
        open.into_iter().for_each(|fd| self.close(fd));
        self.orin.close(self.ctrl);
        self.orin.close(self.nvmap);
    }

    pub(crate) fn handle(&self, bytes: u64) -> u32 {
        self.ask(self.nvmap, nvmap::CREATE_64, nvmap::Create64 { size64: bytes }).handle()
    }

    pub(crate) fn try_alloc(&self, handle: u32) -> Result<i32, Refused> {
        let flags = nvmap::alloc_flags(nvmap::Caching::WriteCombined, 0x900);
        let (heap_mask, align) = (nvmap::HEAP_IOVMM, 4096);
        let mut alloc = nvmap::Alloc { handle, heap_mask, flags, align, numa_nid: 0 };
        self.call(self.nvmap, nvmap::ALLOC, &mut alloc)
    }

    pub(crate) fn alloc(&self, handle: u32) {
        self.try_alloc(handle).unwrap();
    }

    pub(crate) fn fd_of(&self, handle: u32) -> i32 {
        self.ask(self.nvmap, nvmap::GET_FD, nvmap::HandleFd { fd: 0, handle }).fd
    }

    pub(crate) fn free(&self, handle: u32) {
        self.orin.ioctl(self.nvmap, nvmap::FREE, u64::from(handle)).unwrap();
    }

    /// An allocated buffer: its handle and an fd.
    pub(crate) fn buffer(&self, bytes: u64) -> (u32, i32) {
        let handle = self.handle(bytes);
        self.alloc(handle);
        (handle, self.fd_of(handle))
    }

    pub(crate) fn dma_buf(&self, fd: i32) -> Arc<DmaBuf> {
        match self.fds.lookup(fd) {
            Some(OpenFile::DmaBuf(buffer)) => buffer,
            other => panic!("{fd} is {other:?}"),
        }
    }

    pub(crate) fn weak(&self, fd: i32) -> Weak<DmaBuf> {
        Arc::downgrade(&self.dma_buf(fd))
    }

    pub(crate) fn alloc_as(&self, start: u64, end: u64) -> Result<i32, Refused> {
        let mut args = ctrl::AllocAs {
            flags: ctrl::AS_UNIFIED_VA,
            va_range_start: start,
            va_range_end: end,
            ..ctrl::AllocAs::default()
        };
        self.call(self.ctrl, ctrl::ALLOC_AS, &mut args).map(|_| args.as_fd)
    }

    /// The fd of an address space over [`RANGE`].
    pub(crate) fn space(&self) -> i32 {
        self.alloc_as(RANGE.0, RANGE.1).unwrap()
    }

    pub(crate) fn tsg(&self) -> i32 {
        let args = self.ask(self.ctrl, ctrl::OPEN_TSG, ctrl::OpenTsg::default());
        args.tsg_fd as i32
    }

    pub(crate) fn open_channel(&self, runlist: i32) -> Result<i32, Refused> {
        let mut args = ctrl::OpenChannel { channel_fd: runlist };
        self.call(self.ctrl, ctrl::OPEN_CHANNEL, &mut args).map(|_| args.channel_fd)
    }

    pub(crate) fn channel(&self) -> i32 {
        self.open_channel(-1).unwrap()
    }

    pub(crate) fn subcontext(&self, tsg: i32, kind: u32, space: i32) -> Result<u32, Refused> {
        let mut args = tsg::CreateSubcontext { r#type: kind, as_fd: space, veid: 77, reserved: 0 };
        self.call(self.file(tsg), tsg::CREATE_SUBCONTEXT, &mut args).map(|_| args.veid)
    }

    pub(crate) fn bind_space(&self, space: i32, channel: i32) -> Result<i32, Refused> {
        let mut args = address_space::BindChannel { channel_fd: channel as u32 };
        self.call(self.file(space), address_space::BIND_CHANNEL, &mut args)
    }

    pub(crate) fn bind_tsg(
        &self,
        tsg: i32,
        channel_fd: i32,
        subcontext_id: u32,
    ) -> Result<i32, Refused> {
        let mut args = tsg::BindChannelEx { channel_fd, subcontext_id, reserved: [0; 16] };
        self.call(self.file(tsg), tsg::BIND_CHANNEL_EX, &mut args)
    }

    pub(crate) fn watchdog(&self, channel: i32, status: u32) -> Result<i32, Refused> {
        let mut args = channel::Wdt { wdt_status: status, timeout_ms: 0 };
        self.call(self.file(channel), channel::WDT, &mut args)
    }

    /// All that a channel needs before SETUP_BIND.
    pub(crate) fn bind(&self, channel: i32, space: i32, tsg: i32, veid: u32) {
        self.bind_space(space, channel).unwrap();
        self.bind_tsg(tsg, channel, veid).unwrap();
        self.watchdog(channel, channel::WDT_DISABLE).unwrap();
    }

    pub(crate) fn setup(
        &self,
        channel: i32,
        args: &mut channel::SetupBind,
    ) -> Result<i32, Refused> {
        self.call(self.file(channel), channel::SETUP_BIND, args)
    }

    pub(crate) fn object(&self, channel: i32, class_num: u32) -> Result<i32, Refused> {
        let mut args = channel::AllocObjCtx { class_num, ..channel::AllocObjCtx::default() };
        self.call(self.file(channel), channel::ALLOC_OBJ_CTX, &mut args)
    }

    pub(crate) fn map(
        &self,
        space: i32,
        args: &mut address_space::MapBufferEx,
    ) -> Result<u64, Refused> {
        self.call(self.file(space), address_space::MAP_BUFFER_EX, args).map(|_| args.offset)
    }

    pub(crate) fn unmap(&self, space: i32, offset: u64) -> Result<i32, Refused> {
        let mut args = address_space::UnmapBuffer { offset };
        self.call(self.file(space), address_space::UNMAP_BUFFER, &mut args)
    }

    /// Takes pages of an address space; at 0, anywhere.
    pub(crate) fn area(
        &self,
        space: i32,
        at: u64,
        pages: u64,
        sparse: bool,
    ) -> Result<u64, Refused> {
        let fixed = if at == 0 { 0 } else { address_space::SPACE_FIXED_OFFSET };
        let flags = fixed | if sparse { address_space::SPACE_SPARSE } else { 0 };
        let mut args =
            address_space::AllocSpace { pages, page_size: 4096, flags, o_a: at, padding: [0; 2] };
        self.call(self.file(space), address_space::ALLOC_SPACE, &mut args).map(|_| args.o_a)
    }

    /// A TSG with one asynchronous subcontext, and a channel in both, watchdog off: ready for
    /// SETUP_BIND.
    pub(crate) fn ready(&self) -> Ready {
        let (space, tsg) = (self.space(), self.tsg());
        let veid = self.subcontext(tsg, tsg::SUBCONTEXT_ASYNC, space).unwrap();
        let channel = self.channel();
        self.bind(channel, space, tsg, veid);
        let ((_, ring), (_, userd)) = (self.buffer(8192), self.buffer(4096));
        Ready { space, tsg, veid, channel, ring, userd }
    }

    /// As [`Bench::ready`], with the ring set up and a compute object.
    pub(crate) fn running(&self) -> Ready {
        let ready = self.ready();
        self.setup(ready.channel, &mut ready.request()).unwrap();
        self.object(ready.channel, 0xc7c0).unwrap();
        ready
    }
}

/// Fds of what a channel needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub(crate) space: i32,
    pub(crate) tsg: i32,
    pub(crate) veid: u32,
    pub(crate) channel: i32,
    pub(crate) ring: i32,
    pub(crate) userd: i32,
}

impl Ready {
    /// A correct SETUP_BIND.
    pub(crate) fn request(&self) -> channel::SetupBind {
        channel::SetupBind {
            num_gpfifo_entries: 1024,
            flags: channel::BIND_DETERMINISTIC | channel::BIND_USERMODE,
            userd_dmabuf_fd: self.userd,
            gpfifo_dmabuf_fd: self.ring,
            work_submit_token: u32::MAX,
            ..channel::SetupBind::default()
        }
    }
}

/// A correct MAP_BUFFER_EX of a whole buffer.
pub(crate) fn whole(fd: i32) -> address_space::MapBufferEx {
    address_space::MapBufferEx {
        compr_kind: address_space::KIND_INVALID,
        incompr_kind: address_space::KIND_PITCH,
        dmabuf_fd: fd as u32,
        page_size: 4096,
        ..address_space::MapBufferEx::default()
    }
}

/// The request number of a name in the L4T headers.
pub(crate) fn code(name: &str) -> u32 {
    let table = include_str!("../../../../tests/data/ioctls.csv");
    let line = table
        .lines()
        .find(|line| line.starts_with("r36.4.3,") && line.split(',').nth(2) == Some(name))
        .unwrap_or_else(|| panic!("no request {name}"));
    let number = line.split(',').nth(3).and_then(|number| number.strip_prefix("0x"));
    u32::from_str_radix(number.unwrap(), 16).unwrap()
}

/// `N` zero bytes with fields set: `(offset, value, bytes of it)`.
pub(crate) fn bytes<const N: usize>(fields: &[(usize, u64, usize)]) -> [u8; N] {
    let mut bytes = [0; N];
    for (at, value, len) in fields {
        bytes[*at..at + len].copy_from_slice(&value.to_le_bytes()[..*len]);
    }
    bytes
}

pub(crate) fn errno<T>(result: Result<T, Refused>) -> Result<T, Errno> {
    result.map_err(|refused| refused.errno)
}
