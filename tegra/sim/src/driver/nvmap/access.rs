//! Requests that touch a handle's memory on behalf of the CPU.

use super::{Args, BAD_ARGUMENT, Client, Handle, read};
use crate::driver::errno::{Refused, refusals};
use crate::driver::{user, vma};

refusals! { "nvmap";
    COPY_EMPTY = "READ, WRITE", EINVAL, "addr, count or elem_size is 0",
        "nvmap_ioctl.c:nvmap_ioctl_rw_handle";
    COPY_UNKNOWN = "READ, WRITE", EINVAL, "an unknown handle",
        "nvmap_ioctl.c:nvmap_ioctl_rw_handle";
    COPY_READ_ONLY = "WRITE", EPERM, "a read-only handle", "nvmap_ioctl.c:nvmap_ioctl_rw_handle";
    COPY_NO_PAGES = "READ, WRITE", EPERM, "a handle without pages", "nvmap_ioctl.c:rw_handle";
    COPY_RANGE = "READ, WRITE", EINVAL, "elements or strides beyond the handle",
        "nvmap_ioctl.c:rw_handle";
    COPY_FAULT = "READ, WRITE", EINTR,
        "the program's memory is not accessible; count tells how much was left of the element",
        "nvmap_ioctl.c:nvmap_ioctl_rw_handle";
    CACHE_OP = "CACHE", EINVAL, "addr 0, op above 2, or an unknown handle",
        "nvmap_cache.c:__nvmap_cache_maint";
    CACHE_MAPPING = "CACHE", EADDRNOTAVAIL, "the range is not within one mapping of a dma-buf",
        "nvmap_cache.c:__nvmap_cache_maint";
    CACHE_OTHER = "CACHE", EFAULT, "the mapping is of another handle",
        "nvmap_cache.c:__nvmap_cache_maint";
    LIST = "CACHE_LIST", EINVAL, "no handles, a null array, or an unknown handle",
        "nvmap_ioctl.c:nvmap_ioctl_cache_maint_list";
    LIST_NO_PAGES = "CACHE_LIST", EPERM, "a handle without pages",
        "nvmap_ioctl.c:nvmap_ioctl_cache_maint_list";
    LIST_MEMORY = "CACHE_LIST", ENOMEM, "more handles than the driver can allocate room for",
        "nvmap_ioctl.c:nvmap_ioctl_cache_maint_list";
    LIST_FAULT = "CACHE_LIST", EFAULT, "an array is not accessible",
        "nvmap_ioctl.c:nvmap_ioctl_cache_maint_list";
    GUP = "GUP_TEST", EINVAL, "no mapping of the handle's size there, or an unknown handle",
        "nvmap_ioctl.c:nvmap_ioctl_gup_test";
}

/// Copies elements between a handle and the program, and tells how many bytes. Source:
/// nvmap_ioctl.c: nvmap_ioctl_rw_handle, rw_handle.
pub(super) fn copy(client: &Client, reads: bool, arg: u64) -> Result<(), Refused> {
    const COUNT: u64 = 48;
    let args = read(arg, 56)?;
    let (address, id, offset, element) = (args.u64(0), args.u32(8), args.u64(16), args.u64(24));
    let (stride, user_stride, count) = (args.u64(32), args.u64(40), args.u64(COUNT as usize));
    if address == 0 || count == 0 || element == 0 {
        return Err(&COPY_EMPTY);
    }
    let handle = client.get(id).ok_or(&COPY_UNKNOWN)?;
    if !reads && handle.read_only {
        return Err(&COPY_READ_ONLY);
    }
    let tell = |bytes: u64| {
        // Whether the count could be told is not looked at.
        let _ = user::write(arg.wrapping_add(COUNT), &bytes.to_le_bytes());
    };
    let checked = check(&handle, offset, element, stride, user_stride, count);
    checked.inspect_err(|_| tell(0))?;
    // Only the elements themselves are moved; one may be large, so it is done in parts.
    const PART: u64 = 1 << 16;
    let mut part = vec![0; element.min(PART) as usize];
    for i in 0..count {
        let (from, to) = (offset + i * stride, address.wrapping_add(i.wrapping_mul(user_stride)));
        let mut done = 0;
        while done < element {
            let bytes = (element - done).min(PART) as usize;
            let part = &mut part[..bytes];
            let va = to.wrapping_add(done);
            let copied = if reads {
                handle.buffer.read(from + done, part).is_ok() && user::write(va, part).is_ok()
            } else {
                user::read(va, part).is_ok() && handle.buffer.write(from + done, part).is_ok()
            };
            if !copied {
                tell(element - done);
                return Err(&COPY_FAULT);
            }
            done += bytes as u64;
        }
    }
    tell(count.saturating_mul(element));
    Ok(())
}

fn check(
    handle: &Handle,
    offset: u64,
    mut element: u64,
    mut stride: u64,
    mut user_stride: u64,
    mut count: u64,
) -> Result<(), Refused> {
    let size = handle.buffer.bytes();
    if handle.buffer.pages().is_none() {
        return Err(&COPY_NO_PAGES);
    }
    // Elements without gaps count as one.
    if element == stride && element == user_stride && offset.is_multiple_of(8) {
        element = element.checked_mul(count).ok_or(&COPY_RANGE)?;
        (stride, user_stride, count) = (element, element, 1);
    }
    let outside = element > size
        || offset >= size
        || element > user_stride
        || element > stride
        || user_stride > (size - offset) / count
        || stride
            .checked_mul(count - 1)
            .and_then(|last| last.checked_add(offset)?.checked_add(element))
            .is_none_or(|end| end > size);
    if outside { Err(&COPY_RANGE) } else { Ok(()) }
}

/// Nothing to do for caches, which the GPU snoops; only the checks remain. Source:
/// nvmap_cache.c:__nvmap_cache_maint.
pub(super) fn cache(client: &Client, wide: bool, arg: u64) -> Result<(), Refused> {
    let args = read(arg, if wide { 32 } else { 24 })?;
    let (address, id) = (args.u64(0), args.u32(8));
    let (bytes, op) =
        if wide { (args.u64(16), args.i32(24)) } else { (u64::from(args.u32(12)), args.i32(16)) };
    let handle = client.get(id).filter(|_| address != 0 && (0..=2).contains(&op));
    let handle = handle.ok_or(&CACHE_OP)?;
    let vma = vma::containing(address).filter(|vma| client.is_dma_buf(vma.inode));
    let vma = vma.filter(|vma| bytes <= vma.end - address).ok_or(&CACHE_MAPPING)?;
    if vma.inode == handle.buffer.inode() { Ok(()) } else { Err(&CACHE_OTHER) }
}

/// Source: nvmap_ioctl.c:nvmap_ioctl_cache_maint_list.
pub(super) fn cache_list(client: &Client, args: &Args) -> Result<(), Refused> {
    const WIDE: u32 = 1 << 31;
    const MOST: u64 = 1 << 16;
    let (handles, offsets, sizes) = (args.u64(0), args.u64(8), args.u64(16));
    let count = u64::from(args.u32(24));
    if count == 0 || count > u64::from(u32::MAX / 4) {
        return Err(&LIST);
    }
    if count > MOST {
        return Err(&LIST_MEMORY);
    }
    if handles == 0 || offsets == 0 || sizes == 0 {
        return Err(&LIST);
    }
    let element = if args.u32(28) & WIDE != 0 { 8 } else { 4 };
    let mut ids = vec![0; 4 * count as usize];
    user::read(handles, &mut ids).map_err(|_| &LIST_FAULT)?;
    for array in [offsets, sizes] {
        let mut numbers = vec![0; element * count as usize];
        user::read(array, &mut numbers).map_err(|_| &LIST_FAULT)?;
    }
    for id in ids.as_chunks::<4>().0 {
        let handle = client.get(u32::from_le_bytes(*id)).ok_or(&LIST)?;
        if handle.buffer.pages().is_none() {
            return Err(&LIST_NO_PAGES);
        }
    }
    Ok(())
}

/// Whether a mapping shows a handle's pages. Source: nvmap_ioctl.c:nvmap_ioctl_gup_test.
pub(super) fn gup_test(client: &Client, arg: u64) -> Result<(), Refused> {
    let mut args = read(arg, 16)?;
    let vma = vma::containing(args.u64(0));
    let handle = client.get(args.u32(8));
    let (Some(vma), Some(handle)) = (vma, handle) else { return Err(&GUP) };
    if vma.end - vma.start != handle.buffer.bytes() {
        return Err(&GUP);
    }
    let same = vma.inode == handle.buffer.inode();
    args.set_u32(12, u32::from(same));
    user::write(arg, args.bytes(16)).map_err(|_| &BAD_ARGUMENT)?;
    if same { Ok(()) } else { Err(&GUP) }
}

/// Labels are for the kernel's statistics, which are not simulated. Source:
/// nvmap_ioctl.c:nvmap_ioctl_set_tag_label.
pub(super) fn set_tag_label(args: &Args) -> Result<(), Refused> {
    const LONGEST: usize = 63;
    let mut label = [0; LONGEST];
    let bytes = (args.u32(4) as usize).min(LONGEST);
    user::read(args.u64(8), &mut label[..bytes]).map_err(|_| &BAD_ARGUMENT as Refused)
}

impl Client {
    /// Whether an inode is that of a dma-buf.
    fn is_dma_buf(&self, inode: u64) -> bool {
        self.table().heaps.contains_key(&inode)
    }
}
