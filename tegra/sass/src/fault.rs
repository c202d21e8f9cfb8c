//! Faults that end a launch, or that it reports.

use crate::memory::MemoryFault;

/// Kind of fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The instruction cannot be decoded.
    #[error("illegal instruction {bits:#034x}")]
    IllegalInstruction {
        /// The instruction as a little-endian number.
        bits: u128,
    },
    /// Execution left the code.
    #[error("program counter {pc:#x} is outside the code of {bytes:#x} bytes")]
    ProgramCounter {
        /// Program counter.
        pc: u64,
        /// Size of the code.
        bytes: usize,
    },
    /// `BPT.TRAP`.
    #[error("trap")]
    Trap,
    /// An address that is not a multiple of the access size.
    #[error("misaligned access of {bytes} bytes at {address:#x}")]
    Misaligned {
        /// The address.
        address: u64,
        /// The size of the access.
        bytes: u8,
    },
    /// An access to global memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// An access beyond shared memory.
    #[error("access of {bytes} bytes at {address:#x} of shared memory, which has {limit:#x}")]
    Shared {
        /// The address.
        address: u64,
        /// The size of the access.
        bytes: u8,
        /// Size of the block's shared memory.
        limit: u32,
    },
    /// An access outside local memory, which ends at 2^24.
    #[error(
        "access of {bytes} bytes at {address:#x} of local memory, {limit:#x} bytes below 0x1000000"
    )]
    Local {
        /// The address.
        address: u64,
        /// The size of the access.
        bytes: u8,
        /// Size of the lane's local memory.
        limit: u32,
    },
    /// An access beyond a constant bank.
    #[error("read of {bytes} bytes at {offset:#x} of constant bank {bank}, which has {limit:#x}")]
    Constant {
        /// The bank.
        bank: u8,
        /// The offset.
        offset: i64,
        /// The size of the access.
        bytes: u8,
        /// Size of the bank.
        limit: usize,
    },
    /// Lanes of a warp wait at different block barriers, or some lanes never reach the one at which
    /// the others wait.
    #[error(
        "divergent barrier: lanes {here:#010x} wait at barrier {id}, lanes {missing:#010x} do not"
    )]
    DivergentBarrier {
        /// The barrier.
        id: u32,
        /// Lanes that wait.
        here: u32,
        /// Lanes that do not reach the barrier.
        missing: u32,
    },
    /// A barrier number or thread count is invalid.
    #[error(
        "barrier {id} with {threads} threads: there are 16 barriers, threads are counted in warps"
    )]
    BarrierOperand {
        /// The barrier.
        id: u32,
        /// Number of threads.
        threads: u32,
    },
    /// No warp of the block can make progress.
    #[error("deadlock: {waiting} warps wait, and none can continue")]
    Deadlock {
        /// Number of waiting warps.
        waiting: u32,
    },
    /// An uninitialised register or predicate was used as an address, in a branch or in a store.
    #[error("{register} has no value")]
    Uninitialised {
        /// The register or predicate.
        register: String,
    },
    /// Two warps accessed the same shared memory without a barrier between them, and one of them
    /// wrote.
    #[error("race on shared memory at {address:#x}: warp {warp} against warp {other}")]
    Race {
        /// The address.
        address: u32,
        /// Warp of the second access.
        warp: u8,
        /// Warp of the first access.
        other: u8,
    },
    /// The code uses more registers than the launch provides.
    #[error("the code names {needed} registers, the launch gives {given}")]
    Registers {
        /// Registers that the code uses.
        needed: u32,
        /// Registers that the launch provides.
        given: u32,
    },
    /// The hardware would reject the launch.
    #[error("{what} of the launch is {value}, limit {limit}")]
    Launch {
        /// The quantity.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Largest allowed value.
        limit: u64,
    },
    /// The launch exceeded the instruction limit.
    #[error("no end after {steps} instructions of a block's warps")]
    Timeout {
        /// Instructions that one host thread executed.
        steps: u64,
    },
}

impl FaultKind {
    /// Returns whether hardware would continue without noticing.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Self::Uninitialised { .. } | Self::Race { .. })
    }
}

/// A fault and its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} in {kernel}+{offset:#x} ({instruction}), block {block:?}, warp {warp}, lane {lane}"
)]
pub struct Fault {
    /// Kind of fault.
    pub kind: FaultKind,
    /// The launch's name.
    pub kernel: String,
    /// Byte offset of the instruction in the code.
    pub offset: usize,
    /// The instruction's text.
    pub instruction: String,
    /// The block.
    pub block: [u32; 3],
    /// The warp in the block.
    pub warp: u32,
    /// The first affected lane of the warp.
    pub lane: u32,
    /// Registers of the lane; empty if no lane was running.
    pub registers: Vec<u32>,
}
