//! System memory that instances may still reserve.

use crate::cpu;

/// Bytes of the machine's memory (or the cgroup's) that an instance may still reserve: available
/// memory, less what other instances have reserved but not touched. `None` if the system does not
/// report it.
#[must_use]
pub fn available() -> Option<u64> {
    telemetry::memory::available().map(|bytes| bytes.saturating_sub(cpu::promised()))
}
