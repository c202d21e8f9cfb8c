//! Where in the address space doorbell pages lie. The signal handler asks without a lock.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::trap;
use crate::files::Mapped;
use crate::real;

/// Doorbell mappings that a process may have at a time: one per open ctrl description.
const MOST: usize = 256;

/// A place that a mapping may take. `bytes` is 0 while it is free.
struct Place {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static PLACES: [Place; MOST] =
    [const { Place { start: AtomicUsize::new(0), bytes: AtomicUsize::new(0) } }; MOST];

/// What each place holds open. Changes of places happen under this lock.
static HELD: Mutex<[Option<Mapped>; MOST]> = Mutex::new([const { None }; MOST]);

/// Why a doorbell page could not be mapped.
pub(crate) enum MapError {
    /// An errno of `mmap`.
    Errno(i32),
    /// All places are taken.
    Full,
}

/// The offset of `address` in the doorbell page that it lies in.
pub(super) fn offset_of(address: usize) -> Option<usize> {
    PLACES.iter().find_map(|place| {
        let bytes = place.bytes.load(Ordering::Acquire);
        let offset = address.wrapping_sub(place.start.load(Ordering::Acquire));
        (offset < bytes).then_some(offset)
    })
}

/// Maps a doorbell page of `bytes` and traps it; `flags` is what the program gave. `held` is kept
/// until the page is unmapped, or handed back with the error. The program may have said where, and
/// there is no access: what mapping libraries do not offer.
pub(crate) fn map(
    hint: *mut c_void,
    bytes: usize,
    flags: i32,
    held: Mapped,
) -> Result<*mut c_void, (MapError, Mapped)> {
    let mut all = HELD.lock();
    let Some(free) = all.iter().position(Option::is_none) else {
        return Err((MapError::Full, held));
    };
    let flags = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the program asked for a mapping here, with these placement flags.
    let page = unsafe { real::mmap(hint, bytes, libc::PROT_NONE, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err((MapError::Errno(real::errno()), held));
    }
    // SAFETY: the mapping was just made. As with the device, a forked child does not have it.
    unsafe { libc::madvise(page, bytes, libc::MADV_DONTFORK) };
    trap::install();
    PLACES[free].start.store(page as usize, Ordering::Release);
    PLACES[free].bytes.store(bytes.next_multiple_of(PAGE), Ordering::Release);
    all[free] = Some(held);
    Ok(page)
}

const PAGE: usize = 4096;

/// What an `munmap` did to doorbell pages.
pub(crate) struct Unmap {
    /// The mappings that are gone.
    pub(crate) released: Vec<Mapped>,
}

/// The range was unmapped or mapped over. A page of which a part is gone counts as gone.
pub(crate) fn unmap(address: usize, bytes: usize) -> Option<Unmap> {
    let touches = |place: &Place| {
        let start = place.start.load(Ordering::Acquire);
        let end = start + place.bytes.load(Ordering::Acquire);
        start < end && address < end && start < address.saturating_add(bytes)
    };
    if !PLACES.iter().any(touches) {
        return None;
    }
    let mut all = HELD.lock();
    let mut released = Vec::new();
    for (place, held) in PLACES.iter().zip(all.iter_mut()) {
        if touches(place) {
            place.bytes.store(0, Ordering::Release);
            released.extend(held.take());
        }
    }
    Some(Unmap { released })
}
