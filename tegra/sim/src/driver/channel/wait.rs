//! WAIT: sleeps until memory meets a condition, which is checked only at interrupts, as in the
//! driver.

use std::time::Duration;

use super::Channel;
use crate::driver::abi::channel::WAIT;
use crate::driver::dispatch::{Args, Done, Handled};
use crate::driver::errno::refusals;
use crate::gpu::TICK;
use crate::memory::DmaBuf;

refusals! { "channel";
    UNSERVICEABLE = "WAIT", ETIMEDOUT, "the channel is unserviceable when the call begins",
        "os/linux/ioctl_channel.c:gk20a_channel_wait";
    KIND = "WAIT", EINVAL, "type is neither 0 nor 1", "os/linux/ioctl_channel.c:gk20a_channel_wait";
    ALIGNMENT = "WAIT", EINVAL, "a semaphore offset that is no multiple of 4",
        "os/linux/ioctl_channel.c:gk20a_channel_wait_semaphore";
    NOT_DMA_BUF = "WAIT", EINVAL, "dmabuf_fd is no dma-buf",
        "os/linux/ioctl_channel.c:gk20a_channel_wait";
    OFFSET = "WAIT", EINVAL, "the offset lies beyond the dma-buf",
        "os/linux/ioctl_channel.c:gk20a_channel_wait";
    SEMAPHORE_PAGES = "WAIT", EINVAL, "a semaphore's handle has no pages yet",
        "os/linux/ioctl_channel.c:gk20a_channel_wait_semaphore";
    NOTIFIER_PAGES = "WAIT", ENOMEM, "a notifier's handle has no pages yet",
        "os/linux/ioctl_channel.c:gk20a_channel_wait";
    TIMEOUT = "WAIT", ETIMEDOUT, "the semaphore did not get the payload in time",
        "os/linux/ioctl_channel.c:gk20a_channel_wait_semaphore";
    NOTIFIER_TIMEOUT = "WAIT", EINTR, "the notifier did not become 0 in time",
        "os/linux/ioctl_channel.c:gk20a_channel_wait";
    NOTIFIER_FAULT = "WAIT", ETIMEDOUT, "a fault during a wait for a notifier",
        "os/linux/ioctl_channel.c:gk20a_channel_wait";
}

const NOTIFIER: u32 = 0;
const SEMAPHORE: u32 = 1;
/// Size of `struct notification`; its last two bytes are the status.
const NOTIFIER_BYTES: u64 = 16;
/// Value that the driver writes in place of an object name.
const NOTIFIER_INFO: u32 = 0xdead_beef;

impl Channel {
    /// Waits for a notifier or semaphore. A fault ends a wait for a semaphore with success. Source:
    /// os/linux/ioctl_channel.c:gk20a_channel_wait.
    pub(super) fn wait(&self, args: &Args) -> Handled {
        if self.service.unserviceable() {
            return Err(&UNSERVICEABLE);
        }
        let limit = match args.get(WAIT::TIMEOUT) {
            // The timeout is signed; values up to 0 mean no limit.
            ..=0 => None,
            ms => Some(Duration::from_millis(ms as u64)),
        };
        let (fd, offset) = (args.get(WAIT::DMABUF_FD), args.get(WAIT::OFFSET));
        self.device.gpu.hurry();
        match args.get(WAIT::TYPE) {
            NOTIFIER => {
                let buffer = self.device.dma_buf(fd).map_err(|_| &NOT_DMA_BUF)?;
                let offset = u64::from(offset);
                if offset + NOTIFIER_BYTES > buffer.bytes() {
                    return Err(&OFFSET);
                }
                if buffer.pages().is_none() {
                    return Err(&NOTIFIER_PAGES);
                }
                self.wait_notifier(&buffer, offset, limit)
            }
            SEMAPHORE => {
                if !offset.is_multiple_of(4) {
                    return Err(&ALIGNMENT);
                }
                let buffer = self.device.dma_buf(fd).map_err(|_| &NOT_DMA_BUF)?;
                if u64::from(offset) > buffer.bytes() - 4 {
                    return Err(&OFFSET);
                }
                if buffer.pages().is_none() {
                    return Err(&SEMAPHORE_PAGES);
                }
                let payload = args.get(WAIT::PAYLOAD);
                let reached = || buffer.load_u32(u64::from(offset)) == Ok(payload);
                let done = || reached() || self.service.unserviceable();
                if self.service.wait(limit, done) { Ok(Done::Ok) } else { Err(&TIMEOUT) }
            }
            _ => Err(&KIND),
        }
    }

    fn wait_notifier(&self, buffer: &DmaBuf, offset: u64, limit: Option<Duration>) -> Handled {
        let cleared = || {
            let mut status = [0; 2];
            buffer.read(offset + 14, &mut status).is_ok() && status == [0; 2]
        };
        if !self.service.wait(limit, || cleared() || self.service.unserviceable()) {
            return Err(&NOTIFIER_TIMEOUT);
        }
        if !cleared() {
            return Err(&NOTIFIER_FAULT);
        }
        let time = self.device.gpu.time_ns() / TICK * TICK;
        let (seconds, nanoseconds) = (time / 1_000_000_000, time % 1_000_000_000);
        let mut record = [0; 14];
        record[..4].copy_from_slice(&(nanoseconds as u32).to_le_bytes());
        record[4..8].copy_from_slice(&(seconds as u32).to_le_bytes());
        record[8..12].copy_from_slice(&NOTIFIER_INFO.to_le_bytes());
        record[12..].copy_from_slice(&self.id().to_le_bytes());
        // Nothing can observe lent pages that the program has unmapped.
        let _ = buffer.write(offset, &record);
        Ok(Done::Ok)
    }
}
