//! Occupancy: how many blocks of a kernel fit on one SM of GA10B.
//!
//! Limits of GA10B: the device's characteristics (48 warps, 65536 registers, allocated in units of
//! 256 per warp) and NVIDIA's occupancy tables for compute capability 8.7 (16 blocks, 164 KiB of
//! shared memory, 1 KiB reserved per block, units of 128 bytes).

const WARPS: u32 = 48;
const BLOCKS: u32 = 16;
const REGISTERS: u32 = 65_536;
const REGISTER_UNIT: u32 = 256;
const SHARED: u32 = 164 << 10;
const SHARED_KEPT: u32 = 1 << 10;
const SHARED_UNIT: u32 = 128;
/// Partitions of an SM. Each has a quarter of the register file; warps are assigned round-robin.
const PARTITIONS: u32 = 4;

/// Number of blocks of `threads` threads, with `registers` registers per thread and `shared` bytes
/// of shared memory, that fit on an SM; 0 if none fits.
#[must_use]
pub fn blocks_per_sm(threads: u32, registers: u32, shared: u32) -> u32 {
    let warps = threads.div_ceil(32).max(1);
    let per_warp = (registers.max(1) * 32).next_multiple_of(REGISTER_UNIT);
    let warps_by_registers = REGISTERS / PARTITIONS / per_warp * PARTITIONS;
    let shared = (shared.saturating_add(SHARED_KEPT)).next_multiple_of(SHARED_UNIT);
    BLOCKS.min(WARPS / warps).min(warps_by_registers / warps).min(SHARED / shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_applies() {
        assert_eq!(blocks_per_sm(32, 16, 0), 16, "blocks");
        assert_eq!(blocks_per_sm(256, 32, 0), 6, "warps");
        assert_eq!(blocks_per_sm(256, 128, 0), 2, "registers");
        assert_eq!(blocks_per_sm(256, 129, 0), 1, "registers, in units");
        assert_eq!(blocks_per_sm(128, 32, 40 << 10), 4, "shared memory");
        assert_eq!(blocks_per_sm(1024, 128, 0), 0);
    }
}
