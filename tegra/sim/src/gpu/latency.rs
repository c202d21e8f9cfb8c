//! Durations on the virtual clock.

use super::qmd::Launch;
use crate::trace::Work;

/// Durations in ticks of the GPU's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Ticks from a doorbell until the host unit reads the ring.
    pub doorbell: u64,
    pub entry: u64,
    pub method: u64,
    pub release: u64,
    /// Switch of the graphics engine between TSGs.
    pub switch: u64,
    /// A launch sent by a stream.
    pub launch: u64,
    /// A launch started by the completion of another.
    pub dependent: u64,
    /// Fixed part of a copy.
    pub copy_start: u64,
    /// Bytes copied per tick; not 0.
    pub copy_bytes: u64,
    /// Bytes of global memory that a kernel accesses per tick; not 0.
    pub kernel_bytes: u64,
    /// Instructions of a warp per tick; not 0.
    pub warp_instructions: u64,
    /// Instructions of all warps of an SM per tick.
    pub sm_instructions: u64,
}

impl Latency {
    /// Ticks of a launch: `least`, or the time of its memory accesses or of its SMs, whichever is
    /// longest. A block runs on one SM.
    pub(crate) fn launch_of(&self, least: u64, work: &Work, launch: &Launch, sms: u32) -> u64 {
        let memory = work.bytes_touched / self.kernel_bytes;
        let (blocks, warps) = launch.blocks_and_warps();
        let of_sms = self.sm_instructions * blocks.clamp(1, sms.max(1).into());
        let of_warps = self.warp_instructions.saturating_mul(warps.max(1));
        least.max(memory).max(work.warp_instructions() / of_sms.min(of_warps))
    }
}

impl Default for Latency {
    /// About 5 microseconds per launch, copies at 18 GB/s and kernels at 45 GB/s, as observed on
    /// hardware; 4 ns per instruction, as measured by the clock of shaders; the rest is invented.
    fn default() -> Self {
        Self {
            doorbell: 4,
            entry: 2,
            method: 1,
            release: 1,
            switch: 1600,
            launch: 160,
            dependent: 160,
            copy_start: 1,
            copy_bytes: 576,
            kernel_bytes: 1440,
            warp_instructions: 8,
            sm_instructions: 40,
        }
    }
}
