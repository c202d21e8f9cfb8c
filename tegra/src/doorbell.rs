//! The doorbell page: notifies the host unit of new work, and reads the GPU's timer.
//!
//! The page exists while the GPU is powered: touching it otherwise is `SIGBUS`. A
//! [`crate::channel::Channel`] is deterministic and keeps the GPU powered, so only code that has
//! one may use the page.

use std::os::fd::BorrowedFd;

use crate::class::usermode;
use crate::cpu_map::CpuMap;
use crate::error::Error;

/// The mapped page.
#[derive(Debug)]
pub struct Doorbell(CpuMap);

impl Doorbell {
    pub(crate) fn map(ctrl: BorrowedFd<'_>) -> Result<Self, Error> {
        CpuMap::new(ctrl, "the doorbell page", usermode::SIZE as u64).map(Self)
    }

    /// The doorbell register.
    pub(crate) fn bell(&self) -> *mut u32 {
        self.register(usermode::NOTIFY_CHANNEL_PENDING)
    }

    /// Nanoseconds of the GPU's timer, in steps of 32. `SIGBUS` if the GPU is not powered, which
    /// [`crate::context::Context::gpu_time`] checks.
    #[must_use]
    pub fn time(&self) -> u64 {
        let read = |register| {
            // SAFETY: an aligned register inside the page, which may change at any time.
            unsafe { self.register(register).read_volatile() }
        };
        loop {
            let high = read(usermode::TIME_1);
            let low = read(usermode::TIME_0);
            if read(usermode::TIME_1) == high {
                return u64::from(high) << 32 | u64::from(low);
            }
        }
    }

    fn register(&self, offset: usize) -> *mut u32 {
        debug_assert!(offset + 4 <= self.0.bytes(), "registers lie within the page");
        self.0.base().wrapping_add(offset).cast()
    }
}
