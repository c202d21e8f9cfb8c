//! The memory in which the driver records that a channel is dead.

use std::os::fd::{AsFd, AsRawFd};

use crate::abi::channel::{ErrorCode, NOTIFICATION_SET, Notification, SetErrorNotifier};
use crate::abi::nvmap::Caching;
use crate::barrier;
use crate::cpu_map::CpuMap;
use crate::error::Error;
use crate::memory::Handle;
use crate::orin::Orin;

const WHAT: &str = "an error notifier";

/// The driver's record of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The error.
    pub code: ErrorCode,
    /// Time, in nanoseconds of the system's clock.
    pub time: u64,
}

/// One record, in memory that the driver writes.
#[derive(Debug)]
pub struct Notifier {
    cpu: CpuMap,
    handle: Handle,
}

impl Notifier {
    /// An empty record.
    pub fn new(orin: &Orin) -> Result<Self, Error> {
        let bytes = size_of::<Notification>() as u64;
        let handle = Handle::allocate(orin, WHAT, bytes, Caching::InnerCacheable)?;
        Ok(Self { cpu: handle.map()?, handle })
    }

    /// The record, if it is complete. No system call.
    #[must_use]
    pub fn read(&self) -> Option<Notice> {
        let record = self.cpu.base().cast::<Notification>();
        // SAFETY: the mapping begins with the record and is aligned to a page; volatile since the
        // driver writes, the status last.
        let record = unsafe {
            if (&raw const (*record).status).read_volatile() != NOTIFICATION_SET {
                return None;
            }
            barrier::loads();
            record.read_volatile()
        };
        let [low, high] = record.time_stamp;
        Some(Notice {
            code: ErrorCode::from_info32(record.info32),
            time: u64::from(high) << 32 | u64::from(low),
        })
    }

    /// Calls `set` with the arguments that name the record; the driver zeroes it.
    pub(super) fn register(
        &self,
        set: impl FnOnce(&mut SetErrorNotifier) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let dma_buf = self.handle.export()?;
        set(&mut SetErrorNotifier {
            offset: 0,
            size: size_of::<Notification>() as u64,
            mem: dma_buf.as_fd().as_raw_fd() as u32,
            padding: 0,
        })
    }
}
