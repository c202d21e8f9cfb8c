//! Requests that access a handle's memory on behalf of the CPU: READ, WRITE, CACHE, GUP_TEST.

use super::{BAD_ARGUMENT, Client, Handle, read};
use crate::driver::abi::nvmap::{CACHE, CACHE_64, CACHE_LIST, GUP_TEST, SET_TAG_LABEL, WRITE};
use crate::driver::dispatch::Args;
use crate::driver::errno::{Refused, refusals};
use crate::driver::vma;
use crate::user;

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

impl Client {
    /// Copies elements between a handle and the program, and reports the number of bytes. Source:
    /// nvmap_ioctl.c: nvmap_ioctl_rw_handle, rw_handle.
    pub(super) fn copy(&self, reads: bool, arg: u64) -> Result<(), Refused> {
        // READ has the same argument.
        use WRITE::{ADDR, COUNT, ELEM_SIZE, HANDLE, HMEM_STRIDE, OFFSET, USER_STRIDE};
        let args = read(arg, WRITE)?;
        let (address, id, offset) = (args.get(ADDR), args.get(HANDLE), args.get(OFFSET));
        let (element, count) = (args.get(ELEM_SIZE), args.get(COUNT));
        let (stride, user_stride) = (args.get(HMEM_STRIDE), args.get(USER_STRIDE));
        if address == 0 || count == 0 || element == 0 {
            return Err(&COPY_EMPTY);
        }
        let handle = self.get(id).ok_or(&COPY_UNKNOWN)?;
        if !reads && handle.read_only {
            return Err(&COPY_READ_ONLY);
        }
        let tell = |bytes: u64| {
            // The driver ignores a failure to write the count.
            let _ = user::write(arg.wrapping_add(COUNT.offset()), &bytes.to_le_bytes());
        };
        let checked = check(&handle, offset, element, stride, user_stride, count);
        checked.inspect_err(|_| tell(0))?;
        // Copies element by element, large ones in parts.
        const PART: u64 = 1 << 16;
        let mut part = vec![0; element.min(PART) as usize];
        for i in 0..count {
            let (from, to) =
                (offset + i * stride, address.wrapping_add(i.wrapping_mul(user_stride)));
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

impl Client {
    /// Only checks, because the GPU snoops the caches. Source: nvmap_cache.c:__nvmap_cache_maint.
    pub(super) fn cache(&self, wide: bool, arg: u64) -> Result<(), Refused> {
        let args = read(arg, if wide { CACHE_64 } else { CACHE })?;
        let (address, id) = (args.get(CACHE::ADDR), args.get(CACHE::HANDLE));
        let (bytes, op) = if wide {
            (args.get(CACHE_64::LEN), args.get(CACHE_64::OP))
        } else {
            (u64::from(args.get(CACHE::LEN)), args.get(CACHE::OP))
        };
        let handle = self.get(id).filter(|_| address != 0 && (0..=2).contains(&op));
        let handle = handle.ok_or(&CACHE_OP)?;
        let vma = vma::containing(address).filter(|vma| self.is_dma_buf(vma.inode));
        let vma = vma.filter(|vma| bytes <= vma.end - address).ok_or(&CACHE_MAPPING)?;
        if vma.inode == handle.buffer.inode() { Ok(()) } else { Err(&CACHE_OTHER) }
    }
}

impl Client {
    /// Source: nvmap_ioctl.c:nvmap_ioctl_cache_maint_list.
    pub(super) fn cache_list(&self, args: &Args) -> Result<(), Refused> {
        const WIDE: u32 = 1 << 31;
        const MOST: u64 = 1 << 16;
        let handles = args.get(CACHE_LIST::HANDLES);
        let (offsets, sizes) = (args.get(CACHE_LIST::OFFSETS), args.get(CACHE_LIST::SIZES));
        let count = u64::from(args.get(CACHE_LIST::NR));
        if count == 0 || count > u64::from(u32::MAX / 4) {
            return Err(&LIST);
        }
        if count > MOST {
            return Err(&LIST_MEMORY);
        }
        if handles == 0 || offsets == 0 || sizes == 0 {
            return Err(&LIST);
        }
        let element = if args.get(CACHE_LIST::OP) & WIDE != 0 { 8 } else { 4 };
        let mut ids = vec![0; 4 * count as usize];
        user::read(handles, &mut ids).map_err(|_| &LIST_FAULT)?;
        for array in [offsets, sizes] {
            let mut numbers = vec![0; element * count as usize];
            user::read(array, &mut numbers).map_err(|_| &LIST_FAULT)?;
        }
        for id in ids.as_chunks::<4>().0 {
            let handle = self.get(u32::from_le_bytes(*id)).ok_or(&LIST)?;
            if handle.buffer.pages().is_none() {
                return Err(&LIST_NO_PAGES);
            }
        }
        Ok(())
    }
}

impl Client {
    /// Reports whether a mapping shows the pages of a handle. Source:
    /// nvmap_ioctl.c:nvmap_ioctl_gup_test.
    pub(super) fn gup_test(&self, arg: u64) -> Result<(), Refused> {
        let mut args = read(arg, GUP_TEST)?;
        let vma = vma::containing(args.get(GUP_TEST::VA));
        let handle = self.get(args.get(GUP_TEST::HANDLE));
        let (Some(vma), Some(handle)) = (vma, handle) else { return Err(&GUP) };
        if vma.end - vma.start != handle.buffer.bytes() {
            return Err(&GUP);
        }
        let same = vma.inode == handle.buffer.inode();
        args.set(GUP_TEST::RESULT, u32::from(same));
        user::write(arg, args.bytes()).map_err(|_| &BAD_ARGUMENT)?;
        if same { Ok(()) } else { Err(&GUP) }
    }
}

impl Client {
    /// Only checks: labels appear in kernel statistics, which are not simulated. Source:
    /// nvmap_ioctl.c:nvmap_ioctl_set_tag_label.
    pub(super) fn set_tag_label(args: &Args) -> Result<(), Refused> {
        const LONGEST: usize = 63;
        let mut label = [0; LONGEST];
        let bytes = (args.get(SET_TAG_LABEL::LEN) as usize).min(LONGEST);
        user::read(args.get(SET_TAG_LABEL::ADDR), &mut label[..bytes])
            .map_err(|_| &BAD_ARGUMENT as Refused)
    }

    /// Returns whether an inode belongs to a dma-buf.
    fn is_dma_buf(&self, inode: u64) -> bool {
        self.table().heaps.contains_key(&inode)
    }
}
