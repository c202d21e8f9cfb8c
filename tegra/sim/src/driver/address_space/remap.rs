//! REMAP: maps and unmaps pages of buffers in sparse areas, by page number.
//!
//! Source: common/mm/vm_remap.c and os/linux/vm_remap.c of r36.4.3. All operations are translated,
//! then checked against the area of the first, then executed in order.

use std::sync::Arc;

use super::{AddressSpace, Area, KIND_INVALID, LIMIT};
use crate::driver::abi::address_space::REMAP;
use crate::driver::dispatch::{Args, BAD_NESTED, Done, Handled, layout};
use crate::driver::errno::{Refused, refusals};
use crate::gpu::MapFlags;
use crate::memory::{DmaBuf, PAGE};
use crate::user;

refusals! { "as";
    BAD_OP = "REMAP", EINVAL,
        "unknown flags, no single page size, no pages, or an unmap with kinds or an offset",
        "os/linux/vm_remap.c:nvgpu_vm_remap_translate_as_op";
    NO_AREA = "REMAP", EINVAL, "the range is not within one sparse area",
        "common/mm/vm_remap.c:nvgpu_vm_remap_locked";
    NO_BUFFER = "REMAP", EINVAL,
        "mem_handle is no dma-buf, read-only without ACCESS_NO_WRITE, or smaller than the range",
        "os/linux/vm_remap.c:nvgpu_vm_remap_os_buf_get";
    NO_PAGES = "REMAP", ENOMEM, "the handle has no pages yet",
        "os/linux/vm_remap.c:nvgpu_vm_remap_os_buf_get";
    TOO_MANY = "REMAP", ENOMEM, "more operations than the driver can allocate room for",
        "os/linux/ioctl_as.c:nvgpu_as_ioctl_remap";
}

layout! { OP, 40 {
    0 => FLAGS: u32, 4 => COMPR_KIND: i16, 6 => INCOMPR_KIND: i16, 8 => MEM_HANDLE: i32,
    16 => MEM_OFFSET_IN_PAGES: u64, 24 => VIRT_OFFSET_IN_PAGES: u64, 32 => NUM_PAGES: u64,
} }

/// Largest number of operations: the kernel has at most 4 MiB of contiguous memory for them.
const MOST_OPS: u32 = 100_000;

const CACHEABLE: u32 = 1 << 2;
const NO_WRITE: u32 = 1 << 10;
const SMALL_PAGES: u32 = 1 << 15;
const BIG_PAGES: [u32; 2] = [1 << 16, 1 << 17];
const PAGE_SIZES: u32 = SMALL_PAGES | BIG_PAGES[0] | BIG_PAGES[1];

struct Op {
    flags: u32,
    fd: i32,
    buffer_page: u64,
    page: u64,
    pages: u64,
}

impl Op {
    fn translate(raw: &Args) -> Result<Self, Refused> {
        let op = Self {
            flags: raw.get(OP::FLAGS),
            fd: raw.get(OP::MEM_HANDLE),
            buffer_page: raw.get(OP::MEM_OFFSET_IN_PAGES),
            page: raw.get(OP::VIRT_OFFSET_IN_PAGES),
            pages: raw.get(OP::NUM_PAGES),
        };
        let known = if op.unmaps() { PAGE_SIZES } else { PAGE_SIZES | CACHEABLE | NO_WRITE };
        let kinds =
            (raw.get(OP::COMPR_KIND), raw.get(OP::INCOMPR_KIND)) == (KIND_INVALID, KIND_INVALID);
        let limit = LIMIT / PAGE;
        let fits = op.pages <= limit && op.buffer_page <= limit && op.page <= limit;
        let wrong = op.flags & !known != 0
            || (op.flags & PAGE_SIZES).count_ones() != 1
            || op.unmaps() && (!kinds || op.buffer_page != 0)
            || op.pages == 0
            || !fits;
        if wrong { Err(&BAD_OP) } else { Ok(op) }
    }

    fn unmaps(&self) -> bool {
        self.fd == 0
    }

    /// Returns whether the range is within a sparse area with the operation's page size.
    fn within(&self, area: &Area) -> bool {
        let first = area.start / PAGE;
        self.flags & SMALL_PAGES != 0
            && area.sparse
            && self.page >= first
            && self.page + self.pages <= first + area.bytes / PAGE
    }
}

impl AddressSpace {
    /// Executes the operations of the program's array; on failure none of them.
    pub(super) fn remap(&self, args: &mut Args) -> Handled {
        let (address, count) = (args.get(REMAP::OPS), args.get(REMAP::NUM_OPS));
        if count == 0 {
            return Ok(Done::Ok);
        }
        if count > MOST_OPS {
            return Err(&TOO_MANY);
        }
        let mut raw = Vec::new();
        let mut ops = Vec::new();
        for i in 0..u64::from(count) {
            let from = address.wrapping_add(i * OP::BYTES as u64);
            let op = Args::read(from, OP::BYTES).map_err(|_| &BAD_NESTED)?;
            ops.push(Op::translate(&op).inspect_err(|_| args.set(REMAP::NUM_OPS, 0))?);
            raw.push(op);
        }
        let inner = self.space();
        let first = ops.first().map_or(0, |op| op.page * PAGE);
        let area = inner.areas.iter().find(|area| area.contains(first));
        let buffers = area
            .filter(|area| area.sparse)
            .ok_or(&NO_AREA)
            .and_then(|area| {
                ops.iter().map(|op| check(self, area, op)).collect::<Result<Vec<_>, _>>()
            })
            .inspect_err(|_| args.set(REMAP::NUM_OPS, 0))?;
        for (op, buffer) in ops.iter().zip(buffers) {
            let (va, bytes) = (op.page * PAGE, op.pages * PAGE);
            self.mmu.unmap(va, bytes);
            if let Some(buffer) = buffer {
                let access = self.map_access(op.flags & NO_WRITE != 0 || read_only(&buffer));
                let cacheable = op.flags & CACHEABLE != 0;
                let flags = MapFlags { cacheable, access, unmapped_pte: false };
                // Range and offset are whole pages within the buffer, and the range was unmapped
                // above.
                let mapped = self.mmu.map(va, buffer, op.buffer_page * PAGE, bytes, flags);
                debug_assert!(mapped.is_ok(), "{mapped:?}");
            }
        }
        drop(inner);
        for (i, op) in raw.iter().enumerate() {
            let to = address.wrapping_add((i * OP::BYTES) as u64);
            if user::write(to, op.bytes()).is_err() {
                args.set(REMAP::NUM_OPS, i as u32);
                return Err(&BAD_NESTED);
            }
        }
        Ok(Done::Ok)
    }
}

fn read_only(buffer: &DmaBuf) -> bool {
    buffer.pages().is_some_and(|pages| pages.read_only)
}

/// Returns the buffer that an operation maps; none for an unmap.
fn check(space: &AddressSpace, area: &Area, op: &Op) -> Result<Option<Arc<DmaBuf>>, Refused> {
    let buffer = if op.unmaps() {
        None
    } else {
        let buffer = space.device.dma_buf(op.fd).map_err(|_| &NO_BUFFER)?;
        if read_only(&buffer) && op.flags & NO_WRITE == 0 {
            return Err(&NO_BUFFER);
        }
        if buffer.pages().is_none() {
            return Err(&NO_PAGES);
        }
        if (op.buffer_page + op.pages) * PAGE > buffer.bytes() {
            return Err(&NO_BUFFER);
        }
        Some(buffer)
    };
    if op.within(area) { Ok(buffer) } else { Err(&NO_AREA) }
}
