//! Returns freed memory to the system: the C library's allocator caches it.

#[cfg(target_env = "gnu")]
use telemetry::memory;

/// Free bytes that the allocator may cache before they are trimmed.
const MAX_CACHED: i64 = 4 << 20;

/// Allocations of this size or more get their own mapping and are returned when freed; an arena's
/// free end of this size is trimmed. By default the allocator raises both limits dynamically, to 32
/// and 64 MiB, and [`trim`] only trims the end of the main arena.
const TRIM_THRESHOLD: i32 = 1 << 20;

/// Trims the heap of this process when much of it is unused.
pub(super) struct HeapTrimmer {
    /// Smallest value of [`unused`] since the last trim: memory that cannot be returned.
    floor: Option<i64>,
}

impl HeapTrimmer {
    pub(super) fn new() -> Self {
        set_thresholds();
        Self { floor: None }
    }

    /// Trims the heap if much of it may be free; that takes about a millisecond.
    pub(super) fn tick(&mut self) {
        let unused = unused();
        let floor = self.floor.unwrap_or(0);
        if unused > floor.saturating_add(MAX_CACHED) {
            trim();
            self.floor = Some(self::unused());
        } else {
            self.floor = Some(floor.min(unused));
        }
    }
}

/// Anonymous memory that is not allocated, in bytes: the allocator's cache and memory outside it.
/// The allocator's own count of free bytes includes pages that were already returned.
#[cfg(target_env = "gnu")]
fn unused() -> i64 {
    // SAFETY: takes no arguments, touches no memory of ours, returns a struct of numbers.
    let used = unsafe { libc::mallinfo2() };
    memory::anonymous().unwrap_or(0).cast_signed() - (used.uordblks + used.hblkhd) as i64
}

#[cfg(target_env = "gnu")]
fn set_thresholds() {
    // SAFETY: takes two numbers, and sets a limit of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, TRIM_THRESHOLD);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD);
    }
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: takes a number, and releases pages that are not allocated.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators are not managed.
#[cfg(not(target_env = "gnu"))]
const fn unused() -> i64 {
    0
}

#[cfg(not(target_env = "gnu"))]
const fn set_thresholds() {}

#[cfg(not(target_env = "gnu"))]
const fn trim() {}
