//! What ends a launch.

use crate::memory::MemoryFault;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// No operation has these bits.
    #[error("illegal instruction {bits:#034x}")]
    IllegalInstruction {
        /// The instruction, as one little-endian number.
        bits: u128,
    },
    /// Execution left the code.
    #[error("program counter {pc:#x} is outside the code of {bytes:#x} bytes")]
    ProgramCounter {
        /// Where it went.
        pc: u64,
        /// The code's size.
        bytes: usize,
    },
    /// `BPT.TRAP`.
    #[error("trap")]
    Trap,
    /// An address that is no multiple of the access.
    #[error("misaligned access of {bytes} bytes at {address:#x}")]
    Misaligned {
        /// The address.
        address: u64,
        /// The size of the access.
        bytes: u8,
    },
    /// Global memory.
    #[error(transparent)]
    Memory(#[from] MemoryFault),
    /// Shared memory.
    #[error("access of {bytes} bytes at {address:#x} of shared memory, which has {limit:#x}")]
    Shared {
        /// The address.
        address: u64,
        /// The size of the access.
        bytes: u8,
        /// The block's shared memory.
        limit: u32,
    },
    /// Local memory, which ends at 2^24.
    #[error(
        "access of {bytes} bytes at {address:#x} of local memory, {limit:#x} bytes below 0x1000000"
    )]
    Local {
        /// The address.
        address: u64,
        /// The size of the access.
        bytes: u8,
        /// The lane's local memory.
        limit: u32,
    },
    /// A constant bank.
    #[error("read of {bytes} bytes at {offset:#x} of constant bank {bank}, which has {limit:#x}")]
    Constant {
        /// The bank.
        bank: u8,
        /// The offset.
        offset: i64,
        /// The size of the access.
        bytes: u8,
        /// The bank's size.
        limit: usize,
    },
    /// Lanes of a warp wait at different block barriers, or at one and never come to it.
    #[error(
        "divergent barrier: lanes {here:#010x} wait at barrier {id}, lanes {missing:#010x} do not"
    )]
    DivergentBarrier {
        /// The barrier.
        id: u32,
        /// Lanes that wait.
        here: u32,
        /// Lanes that went elsewhere.
        missing: u32,
    },
    /// A barrier's number or count is impossible.
    #[error(
        "barrier {id} with {threads} threads: there are 16 barriers, threads are counted in warps"
    )]
    BarrierOperand {
        /// The barrier.
        id: u32,
        /// The count.
        threads: u32,
    },
    /// Nothing of the block can run any more.
    #[error("deadlock: {waiting} warps wait for what nobody does")]
    Deadlock {
        /// Warps that wait.
        waiting: u32,
    },
    /// A register without a value reached an address, a branch or a store.
    #[error("{register} has no value")]
    Uninitialised {
        /// The register or predicate.
        register: String,
    },
    /// Two warps touched shared memory with no barrier between, one of them writing.
    #[error("race on shared memory at {address:#x}: warp {warp} against warp {other}")]
    Race {
        /// The address.
        address: u32,
        /// The warp that came second.
        warp: u8,
        /// The warp that came first.
        other: u8,
    },
    /// The launch gives lanes fewer registers than the code names.
    #[error("the code names {needed} registers, the launch gives {given}")]
    Registers {
        /// What the code names.
        needed: u32,
        /// What the launch gives.
        given: u32,
    },
    /// A launch that the hardware refuses.
    #[error("{what} of the launch is {value}, limit {limit}")]
    Launch {
        /// The quantity.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The launch took longer than the limit given.
    #[error("no end after {steps} instructions of a block's warps")]
    Timeout {
        /// Instructions executed by one worker.
        steps: u64,
    },
}

impl FaultKind {
    /// Whether hardware would go on, not knowing.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Self::Uninitialised { .. } | Self::Race { .. })
    }
}

/// A fault, and where it happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kind} in {kernel}+{offset:#x} ({instruction}), block {block:?}, warp {warp}, lane {lane}"
)]
pub struct Fault {
    /// What went wrong.
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
    /// The lane in the warp; the first of those concerned.
    pub lane: u32,
    /// The lane's registers; empty when no lane was running.
    pub registers: Vec<u32>,
}
