//! Gives memory back to the system that requests have freed: the C library's allocator keeps it.

#[cfg(target_env = "gnu")]
use telemetry::memory;

/// Bytes that may be kept before they are given back.
const KEPT: i64 = 4 << 20;

/// Blocks of so many bytes or more are mapped by themselves, and go back when they are freed; an arena's end goes back
/// when it is as long. The allocator raises both with what it sees, to 32 and 64 MiB, and [`trim`] leaves the ends of all
/// arenas but the first alone.
const LARGE: i32 = 1 << 20;

/// Looks after the memory of this process that nobody uses.
pub(super) struct Tidy {
    /// The least that [`unused`] was since something was given back: what cannot be.
    floor: Option<i64>,
}

impl Tidy {
    pub(super) fn new() -> Self {
        bound();
        Self { floor: None }
    }

    /// Gives back what is free, if that may be much. Takes a millisecond or so then.
    pub(super) fn tick(&mut self) {
        let unused = unused();
        let floor = self.floor.unwrap_or(0);
        if unused > floor.saturating_add(KEPT) {
            trim();
            self.floor = Some(self::unused());
        } else {
            self.floor = Some(floor.min(unused));
        }
    }
}

/// Bytes of anonymous memory that nobody has allocated: what the allocator keeps, and what it does not know of. Its own
/// count of what is free does not tell: pages that were given back are in it.
#[cfg(target_env = "gnu")]
fn unused() -> i64 {
    // SAFETY: takes nothing, touches no memory of ours, returns a struct of numbers.
    let used = unsafe { libc::mallinfo2() };
    memory::anonymous().unwrap_or(0).cast_signed() - (used.uordblks + used.hblkhd) as i64
}

#[cfg(target_env = "gnu")]
fn bound() {
    // SAFETY: takes two numbers, and sets a limit of the allocator's.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE);
    }
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: takes a number, and releases pages that nobody has allocated.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators are left to themselves.
#[cfg(not(target_env = "gnu"))]
const fn unused() -> i64 {
    0
}

#[cfg(not(target_env = "gnu"))]
const fn bound() {}

#[cfg(not(target_env = "gnu"))]
const fn trim() {}
