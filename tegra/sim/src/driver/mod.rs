//! Drivers: nvmap and nvgpu of L4T r36.4.x as a program sees them.
//!
//! [`Orin`] implements `open`, `ioctl`, `mmap` and `close` of the device nodes, with the values and
//! errnos of the drivers. Each node has a module. Shared parts: [`errno`] (refusals and their
//! table), [`fd`] (the program's file descriptors), `abi` (request codes) and `device` (GPU, RAM,
//! ids). [`crate::gpu`] executes what a doorbell starts.

mod abi;
mod address_space;
mod buddy;
mod census;
mod channel;
mod ctrl;
mod device;
mod dispatch;
pub mod errno;
pub mod fd;
mod interrupt;
mod node;
mod nvmap;
mod release;
mod tsg;
mod vma;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

pub use crate::user;
pub use abi::requests;
use address_space::AddressSpace;
use channel::Channel;
use ctrl::{Ctrl, NoFd, Opened};
use device::Device;
pub use dispatch::Request;
pub use errno::{Answer, Errno, Refusal, Refused};
pub use fd::{FdTable, FileId, NewFile, OpenFile};
use interrupt::{Interrupts, Members};
pub use node::Node;
use parking_lot::RwLock;
use tsg::Tsg;

use crate::config::{Config, Injection};
use crate::engine::MachineCode;
use crate::finding::Reporter;
use crate::gpu::{Gpu, GpuConfig};
use crate::memory::{DmaBuf, Ram};
use crate::profile::{Calibration, Hardware};
use crate::quirks;
use crate::trace::{Event, Trace};

/// Tables that [`ERRNOS`] concatenates.
static REFUSALS: &[&[Refused]] = &[
    errno::REFUSALS,
    node::REFUSALS,
    nvmap::REFUSALS,
    nvmap::import::REFUSALS,
    nvmap::access::REFUSALS,
    dispatch::REFUSALS,
    ctrl::REFUSALS,
    ctrl::facts::REFUSALS,
    ctrl::buffer::REFUSALS,
    ctrl::clocks::REFUSALS,
    address_space::REFUSALS,
    address_space::mapping::REFUSALS,
    address_space::remap::REFUSALS,
    tsg::REFUSALS,
    channel::REFUSALS,
    channel::setup::REFUSALS,
    channel::wait::REFUSALS,
    device::REFUSALS,
    release::REFUSALS,
];

/// All refusals, by node.
pub static ERRNOS: LazyLock<Vec<Refused>> =
    LazyLock::new(|| REFUSALS.iter().flat_map(|table| table.iter().copied()).collect());

/// RAM of a 64 GB module as Linux reports it, in bytes.
const RAM: u64 = 62_800 << 20;

/// Numbers of live objects, for leak checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub handles: usize,
    /// dma-bufs referenced by a handle, an fd or a mapping.
    pub dma_bufs: usize,
    /// GPU mappings made by the program.
    pub mappings: usize,
    pub address_spaces: usize,
    pub tsgs: usize,
    pub channels: usize,
    /// Open file descriptions, without events.
    pub files: usize,
    pub events: usize,
}

/// Object of an open file description.
#[derive(Clone)]
enum File {
    Nvmap,
    Ctrl(Arc<Ctrl>),
    Space(Arc<AddressSpace>),
    Tsg(Arc<Tsg>),
    Channel(Arc<Channel>),
    /// An event of a TSG; it does not keep the TSG alive.
    Event(Arc<Members>),
    /// A node that opens but answers no ioctl here.
    Silent,
}

impl File {
    /// Returns the node's name and its requests.
    fn requests(&self) -> (&'static str, &'static [Request]) {
        match self {
            Self::Nvmap => ("nvmap", abi::nvmap::REQUESTS),
            Self::Ctrl(_) => ("ctrl", abi::ctrl::REQUESTS),
            Self::Space(_) => ("as", abi::address_space::REQUESTS),
            Self::Tsg(_) => ("tsg", abi::tsg::REQUESTS),
            Self::Channel(_) => ("channel", abi::channel::REQUESTS),
            Self::Event(_) => ("event", &[]),
            Self::Silent => ("other", &[]),
        }
    }
}

/// The table of open file descriptions.
#[derive(Default)]
struct Files {
    open: RwLock<HashMap<FileId, File>>,
    next: AtomicU64,
}

impl Files {
    fn add(&self, file: File) -> FileId {
        let id = FileId(self.next.fetch_add(1, Ordering::Relaxed));
        self.open.write().insert(id, file);
        id
    }

    fn get(&self, id: FileId) -> Option<File> {
        self.open.read().get(&id).cloned()
    }

    fn remove(&self, id: FileId) -> Option<File> {
        self.open.write().remove(&id)
    }

    fn count(&self, wanted: impl Fn(&File) -> bool) -> usize {
        let open = self.open.read();
        open.values().filter(|file| wanted(file)).count()
    }
}

/// The simulated device of one process.
pub struct Orin {
    device: Arc<Device>,
    nvmap: nvmap::Client,
    files: Files,
    trace: Trace,
    reporter: Arc<dyn Reporter>,
}

impl Orin {
    /// Creates the device that a configuration describes, for a program with the descriptor table
    /// `fds`. Fails if the trace file cannot be written, the profile is invalid, or the GPU's
    /// thread cannot be started.
    pub fn new(config: &Config, fds: Arc<dyn FdTable>) -> io::Result<Arc<Self>> {
        let trace = match &config.trace {
            Some(path) => Trace::to_file(path)?,
            None => Trace::off(),
        };
        let injection = Arc::new(Injection::new(config));
        let calibration = match &config.profile {
            Some(path) => Calibration::read(path).map_err(io::Error::other)?,
            None => Calibration::default(),
        };
        let gpu = GpuConfig {
            latency: calibration.latency,
            sms: calibration.hardware.shape().sms(),
            ..GpuConfig::new(config, trace.clone(), Arc::clone(&injection))
        };
        Self::assemble(config, gpu, calibration.hardware, fds)
    }

    /// Like [`Orin::new`], with a GPU configuration of the caller; tests pass one that collects
    /// findings. Fails if the GPU's thread cannot be started.
    pub fn with_gpu(
        config: &Config,
        gpu: GpuConfig,
        fds: Arc<dyn FdTable>,
    ) -> io::Result<Arc<Self>> {
        Self::assemble(config, gpu, Hardware::default(), fds)
    }

    fn assemble(
        config: &Config,
        gpu: GpuConfig,
        hardware: Hardware,
        fds: Arc<dyn FdTable>,
    ) -> io::Result<Arc<Self>> {
        let interrupts = Arc::new(Interrupts::default());
        let (trace, injection) = (gpu.trace.clone(), Arc::clone(&gpu.injection));
        let reporter = Arc::clone(&gpu.reporter);
        let engine = MachineCode::new(gpu.checks).with_sms(hardware.shape().sms());
        let engine = Box::new(engine.with_quirks(gpu.quirks));
        let gpu = Gpu::new(gpu, Arc::clone(&interrupts) as Arc<_>)?;
        gpu.set_compute_engine(engine);
        let ram = Ram::new(config.memory.or(hardware.memory).unwrap_or(RAM));
        let device = Device::new(fds, gpu, ram, interrupts, injection, hardware, config);
        let (nvmap, files) = (nvmap::Client::new(), Files::default());
        Ok(Arc::new(Self { device, nvmap, files, trace, reporter }))
    }

    /// Returns the summary of findings at the end of the program; none if there are none.
    pub fn summary(&self) -> Option<String> {
        self.reporter.summary()
    }

    /// Returns the GPU, for its doorbell, timer and compute engine.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.device.gpu
    }

    /// Opens a node. Refused as by the node's `open`: a node of root, no big pages for `as`, no
    /// free channel or TSG.
    pub fn open(&self, node: Node) -> Result<FileId, Refused> {
        node.check_access()?;
        Ok(self.files.add(match node {
            Node::Nvmap => File::Nvmap,
            Node::Ctrl => File::Ctrl(Arc::default()),
            Node::As => return Err(&node::NO_BIG_PAGES),
            Node::Tsg => File::Tsg(Tsg::new(&self.device).ok_or(&node::NO_TSG)?),
            Node::Channel => File::Channel(Channel::new(&self.device, 0).ok_or(&node::NO_CHANNEL)?),
            _ => File::Silent,
        }))
    }

    /// Closes a description after its last reference was dropped.
    pub fn close(&self, file: FileId) {
        match self.files.remove(file) {
            Some(File::Channel(channel)) => channel.close(),
            Some(File::Event(members)) => members.remove_event(file),
            Some(File::Nvmap) if self.files.count(|file| matches!(file, File::Nvmap)) == 0 => {
                self.nvmap.clear();
            }
            _ => {}
        }
    }

    /// Executes an ioctl. `arg` is its third argument, usually an address in the program's memory.
    /// A refusal contains the errno and the deciding function of the driver.
    pub fn ioctl(&self, file: FileId, request: u32, arg: u64) -> Answer {
        let file = self.files.get(file).ok_or(&errno::CLOSED)?;
        let (node, known) = file.requests();
        let Device { quirks, release, .. } = &*self.device;
        let code = release.translate(request);
        let name = known.iter().find(|known| known.code == code).map(|known| known.name);
        if let (Some(freeze), Some(name)) = (quirks.freeze, name)
            && freeze.is_at(name)
        {
            let what = Event::Injected { what: format!("freeze at {name}").into() };
            self.trace.record(self.device.gpu.now_ns(), || what);
            quirks::never_return();
        }
        let answer = name
            .map_or(Ok(()), |name| {
                self.device.inject(name).and_then(|()| release.check(request, name, quirks))
            })
            .and_then(|()| {
                release.adapt(request, arg, |request, arg| self.answer(&file, request, arg))
            });
        self.trace.record(self.device.gpu.now_ns(), || Event::Ioctl {
            node: node.into(),
            request: name.map_or_else(|| format!("{request:#010x}").into(), Into::into),
            result: answer.unwrap_or_else(|refused| -refused.errno.code()),
            detail: answer.err().map_or_else(String::new, ToString::to_string),
        });
        answer
    }

    fn answer(&self, file: &File, request: u32, arg: u64) -> Answer {
        match file {
            File::Nvmap => self.nvmap.ioctl(&self.device, request, arg),
            File::Ctrl(_) => ctrl::ioctl(&self.device, request, arg, self),
            File::Space(space) => space
                .ioctl(request, arg, |fd, space| Some(self.channel(fd)?.bind_address_space(space))),
            File::Tsg(tsg) => tsg.ioctl(request, arg, self),
            File::Channel(channel) => channel.ioctl(request, arg, || {
                ctrl::open_channel(&self.device, ctrl::GRAPHICS_RUNLIST, self)
            }),
            File::Event(_) | File::Silent => Err(&errno::NOT_MODELLED),
        }
    }

    /// Maps a description that is no dma-buf: returns the number of bytes of the doorbell and timer
    /// page, at most 64 KiB. The caller reports the unmap through [`Orin::unmapped`].
    pub fn mmap(&self, file: FileId, bytes: u64, offset: u64) -> Result<u64, Refused> {
        match self.files.get(file).ok_or(&errno::CLOSED)? {
            File::Ctrl(ctrl) => ctrl.mmap(bytes, offset),
            File::Nvmap => Err(&nvmap::NODE_MMAP),
            _ => Err(&errno::NO_MMAP),
        }
    }

    /// Records that the doorbell page of a description was unmapped.
    pub fn unmapped(&self, file: FileId) {
        if let Some(File::Ctrl(ctrl)) = self.files.get(file) {
            ctrl.unmapped();
        }
    }

    /// Checks whether the kernel would map a dma-buf into the program; the caller then maps the fd,
    /// a real memfd. `EPERM`: no pages yet, secure pages, or a writable mapping of read-only pages.
    /// `EINVAL`: beyond the buffer.
    pub fn check_dma_buf_mmap(
        &self,
        buffer: &DmaBuf,
        bytes: u64,
        prot: i32,
        offset: u64,
    ) -> Result<(), Refused> {
        self.nvmap.check_mmap(buffer, bytes, prot & libc::PROT_WRITE != 0, offset)
    }

    /// Returns the numbers of live objects.
    pub fn live(&self) -> Live {
        let (handles, dma_bufs) = self.nvmap.live();
        let census = &self.device.census;
        Live {
            handles,
            dma_bufs,
            mappings: census.mappings.now(),
            address_spaces: census.address_spaces.now(),
            tsgs: census.tsgs.now(),
            channels: census.channels.now(),
            files: self.files.count(|file| !matches!(file, File::Event(_))),
            events: census.events.now(),
        }
    }

    /// Returns the description of an fd.
    fn by_fd(&self, fd: i32) -> Option<File> {
        match self.device.fds.lookup(fd)? {
            OpenFile::File(id) => self.files.get(id),
            OpenFile::DmaBuf(_) => None,
        }
    }

    fn channel(&self, fd: i32) -> Option<Arc<Channel>> {
        match self.by_fd(fd)? {
            File::Channel(channel) => Some(channel),
            _ => None,
        }
    }
}

impl ctrl::Files for Orin {
    fn open(&self, opened: Opened) -> Result<i32, NoFd> {
        let id = self.files.add(match opened {
            Opened::Space(space) => File::Space(space),
            Opened::Tsg(tsg) => File::Tsg(tsg),
            Opened::Channel(channel) => File::Channel(channel),
        });
        self.device.fds.install(NewFile::Placeholder(id)).map_err(|_| {
            self.close(id);
            NoFd
        })
    }

    fn channel(&self, fd: i32) -> Option<Arc<Channel>> {
        self.channel(fd)
    }
}

impl tsg::Find for Orin {
    fn bind_channel(&self, fd: i32, tsg: &Arc<Tsg>, veid: Option<u32>) -> Result<(), Refused> {
        let channel = self.channel(fd).ok_or(&tsg::BAD_CHANNEL)?;
        match veid {
            Some(tsg::SUBCONTEXTS..) => Err(&tsg::BAD_VEID),
            veid => channel.bind_tsg(tsg, veid),
        }
    }

    fn unbind_channel(&self, fd: i32, tsg: &Arc<Tsg>) -> bool {
        self.channel(fd).is_some_and(|channel| channel.unbind_tsg(tsg))
    }

    fn address_space(&self, fd: i32) -> Option<Arc<AddressSpace>> {
        match self.by_fd(fd)? {
            File::Space(space) => Some(space),
            _ => None,
        }
    }

    fn add_event(&self, members: &Arc<Members>) -> FileId {
        self.files.add(File::Event(Arc::clone(members)))
    }

    fn drop_event(&self, file: FileId) {
        self.files.remove(file);
    }
}

impl std::fmt::Debug for Orin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Orin").field("live", &self.live()).finish_non_exhaustive()
    }
}
