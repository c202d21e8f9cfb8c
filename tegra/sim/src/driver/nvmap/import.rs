//! FROM_VA: creates a handle over existing pages of the program.

use super::{Client, FLAG_READ_ONLY, HEAP_IOVMM, Heap, caching, read};
use crate::driver::abi::nvmap::FROM_VA;
use crate::driver::device::Device;
use crate::driver::errno::{Refused, refusals};
use crate::driver::vma;
use crate::memory::{DmaBuf, PAGE, Pages};

refusals! { "nvmap";
    ALIGNMENT = "FROM_VA", EINVAL, "va is not page-aligned",
        "nvmap_handle.c:nvmap_create_handle_from_va";
    NO_MAPPING = "FROM_VA", EINVAL, "no mapping there, or not as long as asked for",
        "nvmap_handle.c:nvmap_create_handle_from_va, nvmap_alloc.c:nvmap_alloc_handle_from_va";
    TOO_LARGE = "FROM_VA", ENOMEM, "a size above all of RAM",
        "nvmap_handle.c:nvmap_create_handle_from_va";
    NOT_WRITABLE = "FROM_VA", EINVAL, "a writable handle over read-only pages",
        "nvmap_handle.c:nvmap_create_handle_from_va";
    NO_MEMORY = "FROM_VA", ENOMEM, "no memory for the handle", "nvmap_handle.c:nvmap_create_handle";
}

impl Client {
    /// Creates an allocated handle. The pages remain the program's: they are not charged, and the
    /// simulator accesses them in place.
    pub(super) fn import_va(&self, device: &Device, arg: u64) -> Result<(), Refused> {
        let mut args = read(arg, FROM_VA)?;
        let (va, flags) = (args.get(FROM_VA::VA), args.get(FROM_VA::FLAGS));
        if !va.is_multiple_of(PAGE) {
            return Err(&ALIGNMENT);
        }
        let first = vma::containing(va).ok_or(&NO_MAPPING)?;
        let bytes = match (args.get(FROM_VA::SIZE), args.get(FROM_VA::SIZE64)) {
            (0, 0) => first.end - va,
            (0, wide) => wide,
            (narrow, _) => u64::from(narrow),
        };
        if bytes > device.ram.total() {
            return Err(&TOO_LARGE);
        }
        let read_only = flags & FLAG_READ_ONLY != 0;
        let end = va.checked_add(bytes).ok_or(&NO_MAPPING)?;
        let mut at = first;
        loop {
            // Pinning for writing fails on any read-only page.
            if !at.writable && !read_only {
                return Err(&NOT_WRITABLE);
            }
            if at.end >= end {
                break;
            }
            at = vma::containing(at.end).ok_or(&NO_MAPPING)?;
        }
        let buffer = DmaBuf::over_user_pages(va, bytes).map_err(|_| &NO_MEMORY)?;
        let pages = Pages { caching: caching(flags), read_only, charge: None };
        buffer.allocate(pages).map_err(|_| &NO_MEMORY)?;
        let heap = Heap { kind: HEAP_IOVMM, flags, align: PAGE };
        let id = self.insert(buffer, read_only, Some(heap));
        args.set(FROM_VA::HANDLE, id);
        self.return_id(id, arg, &args)
    }
}
