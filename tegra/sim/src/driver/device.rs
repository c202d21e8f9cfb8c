//! State shared by all objects of the device: GPU, RAM, ids, counts.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::census::Census;
use super::errno::{Errno, Refused, refusals};
use super::fd::{FdTable, OpenFile};
use super::interrupt::Interrupts;
use crate::config::{Config, Injection};
use crate::gpu::Gpu;
use crate::memory::{DmaBuf, Ram};
use crate::profile::Hardware;
use crate::quirks::{Quirks, Release};

refusals! { "injected";
    EPERM = "any", EPERM, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EINTR = "any", EINTR, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EIO = "any", EIO, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EBADF = "any", EBADF, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EAGAIN = "any", EAGAIN, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    ENOMEM = "any", ENOMEM, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EACCES = "any", EACCES, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EFAULT = "any", EFAULT, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EBUSY = "any", EBUSY, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    ENODEV = "any", ENODEV, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EINVAL = "any", EINVAL, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    EMFILE = "any", EMFILE, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    ENOTTY = "any", ENOTTY, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
    ETIMEDOUT = "any", ETIMEDOUT, "asked for with TEGRA_SIM_FAULTS", "not the driver's answer";
}

/// Number of channels, and of TSGs.
pub(super) const CHANNELS: u16 = 512;
/// Bytes of one syncpoint in the shim mapped to the GPU.
pub(super) const SYNCPOINT_BYTES: u64 = 0x1_0000;
/// Number of syncpoints.
pub(super) const SYNCPOINTS: u32 = 1024;
/// First user-managed syncpoint, as observed on hardware.
const FIRST_SYNCPOINT: u32 = 17;

/// State shared by all objects.
pub(super) struct Device {
    pub(super) fds: Arc<dyn FdTable>,
    pub(super) gpu: Arc<Gpu>,
    pub(super) ram: Arc<Ram>,
    pub(super) interrupts: Arc<Interrupts>,
    pub(super) injection: Arc<Injection>,
    /// Facts of a profile that replace the simulator's own.
    pub(super) hardware: Hardware,
    pub(super) quirks: Quirks,
    pub(super) release: Release,
    pub(super) census: Census,
    /// The golden context exists; the first compute object of the process creates it.
    pub(super) golden_context: AtomicBool,
    channel_ids: Mutex<Vec<u16>>,
    tsg_ids: Mutex<BTreeSet<u16>>,
    syncpoint_ids: Mutex<BTreeSet<u32>>,
    syncpoints: OnceLock<Option<Arc<DmaBuf>>>,
    serial: AtomicU64,
}

impl Device {
    pub(super) fn new(
        fds: Arc<dyn FdTable>,
        gpu: Arc<Gpu>,
        ram: Arc<Ram>,
        interrupts: Arc<Interrupts>,
        injection: Arc<Injection>,
        hardware: Hardware,
        config: &Config,
    ) -> Arc<Self> {
        Arc::new(Self {
            quirks: config.quirks,
            release: config.release.clone(),
            fds,
            gpu,
            ram,
            interrupts,
            injection,
            hardware,
            census: Census::default(),
            golden_context: AtomicBool::new(false),
            channel_ids: Mutex::new((0..CHANNELS).collect()),
            tsg_ids: Mutex::new((0..CHANNELS).collect()),
            syncpoint_ids: Mutex::new((FIRST_SYNCPOINT..SYNCPOINTS).collect()),
            syncpoints: OnceLock::new(),
            serial: AtomicU64::new(1),
        })
    }

    /// Returns a unique number.
    pub(super) fn serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes the most recently freed channel id, or the highest unused one. Source: free_channel
    /// adds to the head of the list that allocate_channel takes from (common/fifo/channel.c).
    pub(super) fn take_channel_id(&self) -> Option<u16> {
        self.channel_ids.lock().pop()
    }

    pub(super) fn give_channel_id(&self, id: u16) {
        self.channel_ids.lock().push(id);
    }

    /// Takes the lowest free TSG id. Source: common/fifo/tsg.c:nvgpu_tsg_acquire_unused_tsg.
    pub(super) fn take_tsg_id(&self) -> Option<u16> {
        self.tsg_ids.lock().pop_first()
    }

    pub(super) fn give_tsg_id(&self, id: u16) {
        self.tsg_ids.lock().insert(id);
    }

    pub(super) fn take_syncpoint(&self) -> Option<u32> {
        self.syncpoint_ids.lock().pop_first()
    }

    pub(super) fn give_syncpoint(&self, id: u32) {
        self.syncpoint_ids.lock().insert(id);
    }

    /// Returns the shim of all syncpoints, memory that releases write to. The host1x counters
    /// behind it, shared with other engines, are not simulated.
    pub(super) fn syncpoints(&self) -> Option<&Arc<DmaBuf>> {
        let make = || DmaBuf::new(u64::from(SYNCPOINTS) * SYNCPOINT_BYTES).ok();
        self.syncpoints.get_or_init(make).as_ref()
    }

    /// Returns the dma-buf of an fd. Source of the errors: dma_buf_get of the kernel.
    pub(super) fn dma_buf(&self, fd: i32) -> Result<Arc<DmaBuf>, NotDmaBuf> {
        match self.fds.lookup(fd) {
            Some(OpenFile::DmaBuf(buffer)) => Ok(buffer),
            Some(OpenFile::File(_)) => Err(NotDmaBuf::OtherFile),
            None if is_open(fd) => Err(NotDmaBuf::OtherFile),
            None => Err(NotDmaBuf::Closed),
        }
    }

    /// Refuses a request that `TEGRA_SIM_FAULTS` selects.
    pub(super) fn inject(&self, name: &str) -> Result<(), Refused> {
        let Some(errno) = self.injection.ioctl(name) else { return Ok(()) };
        let refused = REFUSALS.iter().find(|refused| refused.errno.code() == errno);
        refused.map_or(Ok(()), |refused| Err(*refused))
    }
}

/// Error of an fd that is no dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotDmaBuf {
    /// `EBADF`.
    Closed,
    /// `EINVAL`.
    OtherFile,
}

impl NotDmaBuf {
    /// Returns the refusal with the errno of this error.
    pub(super) fn refused(self, closed: Refused, other: Refused) -> Refused {
        debug_assert_eq!((closed.errno, other.errno), (Errno::EBADF, Errno::EINVAL));
        match self {
            Self::Closed => closed,
            Self::OtherFile => other,
        }
    }
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GETFD) != -1 }
}
