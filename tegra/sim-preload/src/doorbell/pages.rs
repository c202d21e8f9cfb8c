//! Addresses of the mapped doorbell pages. The signal handler reads them without a lock.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::files::Mapped;
use crate::real;

/// Maximum number of doorbell mappings of a process: one per open ctrl description.
const MAX: usize = 256;

/// A slot for a mapping. `bytes` is 0 while it is free.
struct Slot {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static SLOTS: [Slot; MAX] =
    [const { Slot { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; MAX];

/// The open file of each slot. Slots change under this lock.
static MAPPED: Mutex<[Option<Mapped>; MAX]> = Mutex::new([const { None }; MAX]);

/// Error of mapping a doorbell page.
pub(crate) enum MapError {
    /// An errno of `mmap`.
    Errno(i32),
    /// All slots are taken.
    Full,
}

/// The offset of `address` in its doorbell page; `None` outside of all pages.
pub(super) fn offset_of(address: usize) -> Option<usize> {
    SLOTS.iter().find_map(|slot| {
        let bytes = slot.bytes.load(Ordering::Acquire);
        let offset = address.wrapping_sub(slot.start.load(Ordering::Acquire));
        (offset < bytes).then_some(offset)
    })
}

/// Maps a doorbell page of `bytes` and traps it; `flags` are the program's. `file` is stored until
/// the page is unmapped, or returned with the error. Mapping libraries support neither a
/// program-chosen address nor a mapping without access.
pub(super) fn map(
    hint: *mut c_void,
    bytes: usize,
    flags: i32,
    file: Mapped,
) -> Result<*mut c_void, (MapError, Mapped)> {
    let mut all = MAPPED.lock();
    let Some(free) = all.iter().position(Option::is_none) else {
        return Err((MapError::Full, file));
    };
    let flags = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the program asked for a mapping here, with these placement flags.
    let page = unsafe { real::mmap(hint, bytes, libc::PROT_NONE, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err((MapError::Errno(real::errno()), file));
    }
    // SAFETY: the mapping was just made. Like the device's, it is not inherited by a forked child.
    unsafe { libc::madvise(page, bytes, libc::MADV_DONTFORK) };
    SLOTS[free].start.store(page as usize, Ordering::Release);
    SLOTS[free].bytes.store(bytes.next_multiple_of(PAGE), Ordering::Release);
    all[free] = Some(file);
    Ok(page)
}

const PAGE: usize = 4096;

/// Effect of an `munmap` on doorbell pages.
pub(crate) struct Unmap {
    /// The removed mappings.
    pub(crate) released: Vec<Mapped>,
}

/// Reports a range that was unmapped or mapped over. A partly unmapped page counts as unmapped.
pub(crate) fn unmap(address: usize, bytes: usize) -> Option<Unmap> {
    let touches = |slot: &Slot| {
        let start = slot.start.load(Ordering::Acquire);
        let end = start + slot.bytes.load(Ordering::Acquire);
        start < end && address < end && start < address.saturating_add(bytes)
    };
    if !SLOTS.iter().any(touches) {
        return None;
    }
    let mut all = MAPPED.lock();
    let mut released = Vec::new();
    for (slot, file) in SLOTS.iter().zip(all.iter_mut()) {
        if touches(slot) {
            slot.bytes.store(0, Ordering::Release);
            released.extend(file.take());
        }
    }
    Some(Unmap { released })
}
