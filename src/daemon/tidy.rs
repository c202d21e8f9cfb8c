//! Gives memory back to the system that requests have freed: the C library's allocator keeps it.

use telemetry::memory;

/// Bytes that may be kept, and by which the resident set or what is free may grow before that is looked at again.
const KEPT: u64 = 4 << 20;

/// Looks after the resident set of this process. What was left the last time, or less since then:
#[derive(Default)]
pub(super) struct Tidy {
    resident: u64,
    free: u64,
}

impl Tidy {
    /// Gives back what is free, if that may be much. Takes a millisecond or so then.
    pub(super) fn tick(&mut self) {
        let look = || (memory::resident().unwrap_or(0), free());
        let (resident, free) = look();
        // What was in use the last time and is free now has not made the resident set larger.
        if free > KEPT && (resident > self.resident + KEPT || free > self.free + KEPT) {
            trim();
            (self.resident, self.free) = look();
        } else {
            (self.resident, self.free) = (self.resident.min(resident), self.free.min(free));
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
