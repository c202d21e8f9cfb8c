//! SETUP_BIND, which creates the ring and USERD of a channel, and SUBMIT_GPFIFO (kernel-mode
//! submission).

use std::sync::Arc;

use super::queue::Queue;
use super::{Channel, State};
use crate::driver::abi::channel::{ALLOC_GPFIFO_EX, SETUP_BIND, SUBMIT_GPFIFO};
use crate::driver::address_space::{AddressSpace, KERNEL_BYTES};
use crate::driver::device::NotDmaBuf;
use crate::driver::dispatch::{Args, Done, Handled};
use crate::driver::errno::{Refused, refusals};
use crate::finding::Rule;
use crate::gpu::ChannelSetup;
use crate::memory::{Caching, DmaBuf, PAGE, Pages};
use crate::user;

refusals! { "channel";
    ENTRIES = "SETUP_BIND", EINVAL,
        "entries: below 2 (4 without USERMODE), no power of two, or above 2^29 - 1",
        "os/linux/ioctl_channel.c:gk20a_channel_ioctl";
    NO_SPACE = "SETUP_BIND", EINVAL, "no address space",
        "common/fifo/channel.c:channel_setup_bind_prechecks";
    NO_TSG = "SETUP_BIND", EINVAL, "no TSG", "common/fifo/channel.c:channel_setup_bind_prechecks";
    TWICE = "SETUP_BIND", EEXIST, "the channel has a ring already",
        "common/fifo/channel.c:channel_setup_bind_prechecks";
    WATCHDOG = "SETUP_BIND", EINVAL, "DETERMINISTIC while the watchdog is on",
        "common/fifo/channel.c:channel_setup_bind_prechecks";
    NOT_DETERMINISTIC = "SETUP_BIND", EINVAL, "USERMODE without DETERMINISTIC",
        "common/fifo/channel.c:channel_setup_bind_prechecks";
    FD_ZERO = "SETUP_BIND", EINVAL, "an fd of 0",
        "os/linux/linux-channel.c:nvgpu_channel_alloc_usermode_buffers";
    OFFSET = "SETUP_BIND", EINVAL, "an offset other than 0",
        "os/linux/linux-channel.c:nvgpu_channel_alloc_usermode_buffers";
    CLOSED_FD = "SETUP_BIND", EBADF, "an fd that is not open",
        "os/linux/linux-channel.c:nvgpu_usermode_buf_from_dmabuf";
    NOT_DMA_BUF = "SETUP_BIND", EINVAL, "an fd that is no dma-buf",
        "os/linux/linux-channel.c:nvgpu_usermode_buf_from_dmabuf";
    NO_PAGES = "SETUP_BIND", ENOMEM, "a handle without pages, or no address for the ring",
        "os/linux/linux-channel.c:nvgpu_channel_alloc_usermode_buffers";
    RING_SIZE = "SETUP_BIND", EINVAL, "a ring dma-buf below 4096 bytes or 8 bytes an entry",
        "os/linux/linux-channel.c:nvgpu_channel_alloc_usermode_buffers";
    NO_MEMORY = "SETUP_BIND", ENOMEM, "no memory for a kernel-mode ring",
        "common/fifo/channel.c:channel_setup_kernelmode";
    UNSERVICEABLE = "SUBMIT_GPFIFO", ETIMEDOUT, "the channel is unserviceable",
        "os/linux/ioctl_channel.c:gk20a_ioctl_channel_submit_gpfifo";
    USERMODE_ONLY = "SUBMIT_GPFIFO", EINVAL, "the channel submits in user mode",
        "common/fifo/submit.c:check_submit_allowed";
    NO_RING = "SUBMIT_GPFIFO", ENOMEM, "before SETUP_BIND",
        "common/fifo/submit.c:check_submit_allowed";
    TOO_MANY = "SUBMIT_GPFIFO", ENOMEM, "more entries than the ring can take",
        "common/fifo/submit.c:nvgpu_submit_channel_gpfifo";
    FULL = "SUBMIT_GPFIFO", EAGAIN, "the ring has no room now",
        "common/fifo/submit.c:nvgpu_submit_prepare_gpfifo_space";
    FENCES = "SUBMIT_GPFIFO", EINVAL, "fences; they are not simulated", "not the driver's answer";
    BAD_ENTRIES = "SUBMIT_GPFIFO", EFAULT, "the entries cannot be read",
        "common/fifo/submit.c:nvgpu_submit_append_gpfifo_user_direct";
}

const DETERMINISTIC: u32 = 1 << 1;
const USERMODE: u32 = 1 << 3;
/// Size of a ring entry in bytes.
const ENTRY: u64 = 8;
/// USERD words that the driver uses for kernel-mode submission.
const GP_GET: u64 = 0x88;
const GP_PUT: u64 = 0x8c;
/// End of the addresses that Host can reach.
const HOST_END: u64 = 1 << 40;

/// Arguments of SETUP_BIND or ALLOC_GPFIFO_EX.
struct Request {
    entries: u32,
    flags: u32,
    userd_fd: i32,
    ring_fd: i32,
    offsets: bool,
}

impl Channel {
    pub(super) fn setup_bind(&self, args: &mut Args) -> Handled {
        let request = Request {
            entries: args.get(SETUP_BIND::NUM_GPFIFO_ENTRIES),
            flags: args.get(SETUP_BIND::FLAGS),
            userd_fd: args.get(SETUP_BIND::USERD_DMABUF_FD),
            ring_fd: args.get(SETUP_BIND::GPFIFO_DMABUF_FD),
            offsets: args.get(SETUP_BIND::USERD_DMABUF_OFFSET) != 0
                || args.get(SETUP_BIND::GPFIFO_DMABUF_OFFSET) != 0,
        };
        let token = self.setup(&request)?;
        // Kernel mode returns no token: the driver's structure stays zero.
        args.set(
            SETUP_BIND::WORK_SUBMIT_TOKEN,
            if request.flags & USERMODE != 0 { token } else { 0 },
        );
        // The GPU cannot ring doorbells on this system, so these three addresses are 0.
        args.set(SETUP_BIND::GPFIFO_GPU_VA, 0);
        args.set(SETUP_BIND::USERD_GPU_VA, 0);
        args.set(SETUP_BIND::USERMODE_MMIO_GPU_VA, 0);
        Ok(Done::Ok)
    }

    pub(super) fn alloc_gpfifo(&self, args: &Args) -> Handled {
        let (entries, flags) =
            (args.get(ALLOC_GPFIFO_EX::NUM_ENTRIES), args.get(ALLOC_GPFIFO_EX::FLAGS));
        let request = Request { entries, flags, userd_fd: 0, ring_fd: 0, offsets: false };
        self.setup(&request)?;
        Ok(Done::Ok)
    }

    /// Checks in the driver's order, then creates the ring. Returns the doorbell token.
    fn setup(&self, request: &Request) -> Result<u32, Refused> {
        let usermode = request.flags & USERMODE != 0;
        let deterministic = request.flags & DETERMINISTIC != 0;
        let least = if usermode { 2 } else { 4 };
        let entries = request.entries;
        if entries < least || !entries.is_power_of_two() || entries > u32::MAX / ENTRY as u32 {
            return Err(&ENTRIES);
        }
        let mut state = self.state();
        let space = state.space.clone().ok_or(&NO_SPACE)?;
        if state.tsg.is_none() {
            return Err(&NO_TSG);
        }
        if state.queue.is_some() {
            return Err(&TWICE);
        }
        if deterministic && state.watchdog {
            return Err(&WATCHDOG);
        }
        if usermode && !deterministic {
            return Err(&NOT_DETERMINISTIC);
        }
        let (ring, userd, ring_va) = if usermode {
            self.program_buffers(request, &space)?
        } else {
            self.kernel_buffers(entries, &space)?
        };
        self.check_reach(&space, ring_va, ring.bytes());
        let token = u32::from(self.id) | self.runlist << 16;
        let queue =
            Queue { usermode, entries, token, ring, userd, ring_va, running: false, put: 0 };
        state.deterministic = deterministic;
        self.start(&mut state, queue, &space);
        Ok(token)
    }

    /// Checks whether Host's 40 address bits reach the driver's range above the program's. The
    /// driver maps the ring's whole dma-buf there, and with the first object the buffers of a
    /// context.
    fn check_reach(&self, space: &AddressSpace, ring_va: u64, bytes: u64) {
        let (channel, start) = (self.id, space.end());
        let advice = format!(
            "end the address space (va_range_end of ALLOC_AS, {start:#x} here) at {:#x} or below",
            HOST_END - KERNEL_BYTES
        );
        let end = ring_va + bytes;
        if end > HOST_END {
            let message = format!(
                "SETUP_BIND maps the ring's dma-buf of {bytes:#x} bytes at {ring_va:#x}, so that it ends at {end:#x}, \
                 beyond the 40 bits of GP_BASE; with 3 MiB from 0xffffe00000 on a whole Orin froze in the \
                 ALLOC_OBJ_CTX that followed; {advice}, or give the ring a dma-buf of its own size"
            );
            self.device.gpu.find(Rule::RingBeyondHost, channel, message);
        } else if start + KERNEL_BYTES > HOST_END {
            let message = format!(
                "SETUP_BIND: the driver's range is {start:#x} to {:#x}, and what it keeps beyond {HOST_END:#x} is out \
                 of reach of pointers with 40 bits; the driver of an Orin warns in its log \
                 (tu104_gr_init_commit_rtv_cb); {advice}",
                start + KERNEL_BYTES
            );
            self.device.gpu.find(Rule::DriverBeyondHost, channel, message);
        }
    }

    /// Opens the channel on the GPU. Host has 40 address bits and never fetches from a ring beyond
    /// them, so such a channel is not opened.
    fn start(&self, state: &mut State, mut queue: Queue, space: &Arc<AddressSpace>) {
        if let Some(tsg) = &state.tsg {
            self.device.interrupts.bind(self.id, &self.service, tsg.members());
            if queue.ring_va + queue.ring.bytes() <= HOST_END {
                let opened = self.device.gpu.open_channel(ChannelSetup {
                    id: self.id,
                    token: queue.token,
                    tsg: tsg.gpu(),
                    veid: state.veid,
                    ring: Arc::clone(&queue.ring),
                    entries: queue.entries,
                    userd: Arc::clone(&queue.userd),
                    mmu: Arc::clone(space.mmu()),
                    usermode: queue.usermode,
                    switch_limit_ms: state.switch_limit_ms,
                });
                // The checks above exclude every error of the GPU.
                debug_assert!(opened.is_ok(), "{opened:?}");
                queue.running = opened.is_ok();
            }
        }
        state.queue = Some(queue);
    }

    /// Source: os/linux/linux-channel.c:nvgpu_channel_alloc_usermode_buffers.
    fn program_buffers(
        &self,
        request: &Request,
        space: &AddressSpace,
    ) -> Result<(Arc<DmaBuf>, Arc<DmaBuf>, u64), Refused> {
        if request.ring_fd == 0 || request.userd_fd == 0 {
            return Err(&FD_ZERO);
        }
        if request.offsets {
            return Err(&OFFSET);
        }
        let ring = self.pinned(request.ring_fd)?;
        if ring.bytes() < (u64::from(request.entries) * ENTRY).max(PAGE) {
            return Err(&RING_SIZE);
        }
        let ring_va = space.map_ring(&ring).ok_or(&NO_PAGES)?;
        match self.pinned(request.userd_fd) {
            Ok(userd) => Ok((ring, userd, ring_va)),
            Err(refused) => {
                space.unmap_kernel(ring_va, ring.bytes());
                Err(refused)
            }
        }
    }

    fn pinned(&self, fd: i32) -> Result<Arc<DmaBuf>, Refused> {
        let found = self.device.dma_buf(fd);
        let buffer = found.map_err(|error: NotDmaBuf| error.refused(&CLOSED_FD, &NOT_DMA_BUF))?;
        if buffer.pages().is_some() { Ok(buffer) } else { Err(&NO_PAGES) }
    }

    /// Allocates the ring and USERD of kernel mode.
    fn kernel_buffers(
        &self,
        entries: u32,
        space: &AddressSpace,
    ) -> Result<(Arc<DmaBuf>, Arc<DmaBuf>, u64), Refused> {
        let make = |bytes| {
            let buffer = DmaBuf::new(bytes).ok()?;
            let charge = Some(self.device.ram.charge(buffer.bytes())?);
            let caching = Caching::WriteCombined;
            buffer.allocate(Pages { caching, read_only: false, charge }).ok()?;
            Some(buffer)
        };
        let ring = make(u64::from(entries) * ENTRY).ok_or(&NO_MEMORY)?;
        let userd = make(PAGE).ok_or(&NO_MEMORY)?;
        let ring_va = space.map_ring(&ring).ok_or(&NO_MEMORY)?;
        Ok((ring, userd, ring_va))
    }

    /// Kernel-mode submission, without fences. Source: common/fifo/submit.c.
    pub(super) fn submit(&self, args: &Args) -> Handled {
        const FENCE_WAIT: u32 = 1 << 0;
        const FENCE_GET: u32 = 1 << 1;
        /// Entries that the driver reserves for its waits and increments.
        const EXTRA: u32 = 2;
        let (address, count, flags) = (
            args.get(SUBMIT_GPFIFO::GPFIFO),
            args.get(SUBMIT_GPFIFO::NUM_ENTRIES),
            args.get(SUBMIT_GPFIFO::FLAGS),
        );
        let mut state = self.state();
        if self.service.unserviceable() {
            return Err(&UNSERVICEABLE);
        }
        let queue = state.queue.as_mut().ok_or(&NO_RING)?;
        if queue.usermode {
            return Err(&USERMODE_ONLY);
        }
        let ring_entries = queue.entries;
        if count.checked_add(EXTRA).is_none_or(|count| count > ring_entries - 1) {
            return Err(&TOO_MANY);
        }
        if flags & (FENCE_WAIT | FENCE_GET) != 0 {
            return Err(&FENCES);
        }
        let get = queue.userd.load_u32(GP_GET).unwrap_or(0) % ring_entries;
        let used = queue.put.wrapping_sub(get) % ring_entries;
        if count > ring_entries - 1 - used {
            return Err(&FULL);
        }
        let mut entries = vec![0; count as usize * ENTRY as usize];
        user::read(address, &mut entries).map_err(|_| &BAD_ENTRIES)?;
        for entry in entries.chunks_exact(ENTRY as usize) {
            // The driver owns ring and USERD, and every index is within the ring.
            let written = queue.ring.write(u64::from(queue.put) * ENTRY, entry);
            debug_assert!(written.is_ok(), "{written:?}");
            queue.put = (queue.put + 1) % ring_entries;
        }
        let written = queue.userd.store_u32(GP_PUT, queue.put);
        debug_assert!(written.is_ok(), "{written:?}");
        self.device.gpu.doorbell(queue.token);
        Ok(Done::Ok)
    }
}
