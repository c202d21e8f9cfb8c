//! A launch: sizes and constant banks.

use crate::fault::FaultKind;

/// Number of constant banks.
pub const BANKS: usize = 18;
/// Size of the window through which generic addresses reach shared or local memory.
pub const WINDOW_BYTES: u64 = 1 << 24;
/// Largest addressable shared memory of a block in this generation.
const SHARED_LIMIT: u32 = 227 << 10;

/// A launch.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The kernel's name, for messages.
    pub name: &'a str,
    /// Number of blocks in x, y, z.
    pub grid: [u32; 3],
    /// Number of threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Registers per thread.
    pub registers: u32,
    /// Shared memory of a block in bytes, static and dynamic, without the part reserved for the
    /// system.
    pub shared_bytes: u32,
    /// Shared memory reserved for the system; only `SR_SMEMSZ` includes it.
    pub shared_reserved: u32,
    /// Local memory per thread: the bytes below 2^24.
    pub local_bytes: u32,
    /// Constant banks; an empty one is not bound.
    pub banks: [&'a [u8]; BANKS],
    /// Start of the shared window in the generic address space.
    pub shared_window: u64,
    /// Start of the local window in the generic address space.
    pub local_window: u64,
    /// Byte offset of the first instruction.
    pub entry: usize,
    /// Start value of the timer that code reads, in nanoseconds.
    pub time_ns: u64,
    /// Number of SMs that `SR_VIRTUALSMID` reports.
    pub sms: u32,
}

impl Launch<'_> {
    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().fold(1, |all, &threads| all.saturating_mul(threads))
    }

    /// Warps of a block.
    pub fn warps(&self) -> u32 {
        self.threads().div_ceil(32)
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().fold(1, |all, &blocks| all.saturating_mul(u64::from(blocks)))
    }

    /// Returns the position of a block in the grid.
    pub(crate) fn block_index(&self, number: u64) -> [u32; 3] {
        let [x, y, _] = self.grid.map(u64::from);
        [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
    }

    pub(crate) fn validate(&self, needed: u32) -> Result<(), FaultKind> {
        let limits = [
            ("grid in x", self.grid[0], i32::MAX as u32),
            ("grid in y", self.grid[1], 0xffff),
            ("grid in z", self.grid[2], 0xffff),
            ("block in x", self.block[0], 1024),
            ("block in y", self.block[1], 1024),
            ("block in z", self.block[2], 64),
        ];
        for (what, value, limit) in limits {
            if value == 0 || value > limit {
                let (value, limit) = (u64::from(value), u64::from(limit));
                return Err(FaultKind::Launch { what, value, limit });
            }
        }
        let threads = u64::from(self.threads());
        if threads > 1024 {
            return Err(FaultKind::Launch {
                what: "threads of a block",
                value: threads,
                limit: 1024,
            });
        }
        for (what, value, limit) in [
            ("shared memory", self.shared_bytes, SHARED_LIMIT),
            ("local memory", self.local_bytes, WINDOW_BYTES as u32),
            ("registers", self.registers, 255),
        ] {
            if value > limit {
                let (value, limit) = (u64::from(value), u64::from(limit));
                return Err(FaultKind::Launch { what, value, limit });
            }
        }
        if !self.entry.is_multiple_of(16) {
            let value = self.entry as u64;
            return Err(FaultKind::ProgramCounter { pc: value, bytes: 0 });
        }
        if needed > self.registers {
            return Err(FaultKind::Registers { needed, given: self.registers });
        }
        Ok(())
    }
}
