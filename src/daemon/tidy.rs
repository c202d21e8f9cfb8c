//! Gives memory back to the system that requests have freed: the C library's allocator keeps it.

use telemetry::memory;

/// Bytes that may be kept, and by which the resident set may grow before it is looked at again.
const KEPT: u64 = 4 << 20;

/// Looks after the resident set of this process.
#[derive(Default)]
pub(super) struct Tidy {
    /// What was left the last time.
    resident: u64,
}

impl Tidy {
    /// Gives back what is free, if that may be much. Takes a millisecond or so then.
    pub(super) fn tick(&mut self) {
        let resident = || memory::resident().unwrap_or(0);
        if resident() > self.resident + KEPT && free() > KEPT {
            trim();
            self.resident = resident();
        }
    }
}

/// Bytes that the allocator has and nobody uses; pages that were given back count too.
#[cfg(target_env = "gnu")]
fn free() -> u64 {
    // SAFETY: takes nothing, touches no memory of ours, returns a struct of numbers.
    unsafe { libc::mallinfo2() }.fordblks as u64
}

#[cfg(target_env = "gnu")]
fn trim() {
    // SAFETY: takes a number, and releases pages that nobody has allocated.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators are left to themselves.
#[cfg(not(target_env = "gnu"))]
const fn free() -> u64 {
    0
}

#[cfg(not(target_env = "gnu"))]
const fn trim() {}
