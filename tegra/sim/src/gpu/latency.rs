//! What takes how long on the virtual clock.

use super::qmd::Launch;
use crate::trace::Work;

/// Ticks of the GPU's timer that work takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// From a doorbell until the host unit looks at the ring.
    pub doorbell: u64,
    pub entry: u64,
    pub method: u64,
    pub release: u64,
    /// From one group of channels to another on the graphics engine.
    pub switch: u64,
    /// A launch that a stream sends.
    pub launch: u64,
    /// A launch that completion of another starts.
    pub dependent: u64,
    /// A copy, however short.
    pub copy_start: u64,
    /// Bytes that the copy engine copies in a tick; not 0.
    pub copy_bytes: u64,
    /// Bytes of global memory that a kernel reads or writes in a tick; not 0.
    pub kernel_bytes: u64,
    /// Instructions that a warp executes in a tick; not 0.
    pub warp_instructions: u64,
    /// The same of all warps of an SM.
    pub sm_instructions: u64,
}

impl Latency {
    /// Ticks of a launch that takes `least` if it does next to nothing: the memory's or the SMs', whichever
    /// take longer. A block runs on one SM.
    pub(crate) fn launch_of(&self, least: u64, work: &Work, launch: &Launch, sms: u32) -> u64 {
        let memory = work.bytes_touched / self.kernel_bytes;
        let (blocks, warps) = launch.blocks_and_warps();
        let of_sms = self.sm_instructions * blocks.clamp(1, sms.max(1).into());
        let of_warps = self.warp_instructions.saturating_mul(warps.max(1));
        least.max(memory).max(work.warp_instructions() / of_sms.min(of_warps))
    }
}

impl Default for Latency {
    /// Launches of about 5 microseconds, copies of 18 GB/s and kernels of 45 GB/s, as seen on hardware; an
    /// instruction of 4 ns, as shaders' own clock has it; the rest is made up.
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
