//! Size of the memory that backs the threads' stacks and spills.
//!
//! The formulas are those of the proven code; the tests contain its numbers for the Orin's two
//! power modes. Growing the store requires draining the queues first.

use crate::address::{AddressError, GpuAddress};

/// Bytes between the end of a thread's local memory and its initial stack pointer.
///
/// The compiler's prologue loads the stack pointer 2^24 - 0x240 from constant bank 0.
pub const ABOVE_STACK_POINTER: u32 = 0x240;

/// Bits of a thread's local address: no thread has more local memory.
pub const THREAD_ADDRESS_BITS: u32 = 24;

const THREADS_PER_WARP: u64 = 32;
/// Warps per SM for sizing: all code that ran on an Orin reserved this number, which the driver's
/// characteristics report. An SM of compute capability 8.7 has half as many.
const WARPS_PER_SM: u64 = 96;
const SMS_PER_TPC: u64 = 2;
const THREAD_GRANULE: u32 = 32;
const WARP_GRANULE: u64 = 0x200;
const TPC_GRANULE: u64 = 0x8000;
const TOTAL_GRANULE: u64 = 0x2_0000;

/// Local memory needed by a thread, a TPC and the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalMemorySize {
    /// Bytes of a thread, for the QMD.
    pub per_thread: u32,
    /// Bytes of a TPC, for the channel.
    pub per_tpc: u64,
    /// Bytes of the whole store.
    pub total: u64,
}

impl LocalMemorySize {
    /// Sizes for a compiler's minimum stack of `stack` bytes a thread, on `tpcs` TPCs in all.
    ///
    /// `None` when a thread would need more than 2^24 bytes.
    #[must_use]
    pub fn new(stack: u32, tpcs: u32) -> Option<Self> {
        let per_thread =
            stack.checked_add(ABOVE_STACK_POINTER)?.checked_next_multiple_of(THREAD_GRANULE)?;
        if per_thread >= 1 << THREAD_ADDRESS_BITS {
            return None;
        }
        let per_warp = (u64::from(per_thread) * THREADS_PER_WARP).next_multiple_of(WARP_GRANULE);
        let per_tpc = (per_warp * WARPS_PER_SM * SMS_PER_TPC).next_multiple_of(TPC_GRANULE);
        let total = (per_tpc * u64::from(tpcs)).next_multiple_of(TOTAL_GRANULE);
        Some(Self { per_thread, per_tpc, total })
    }
}

/// The backing store, as configured in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalMemory {
    base: GpuAddress,
    per_tpc: u64,
}

impl LocalMemory {
    /// SMs that may use local memory: the proven limit, above any Orin's number.
    pub const MAX_SMS: u32 = 0xff;

    /// A store at `base` of `per_tpc` bytes for each TPC. [`AddressError::Misaligned`] unless
    /// `per_tpc` is a multiple of 32 KiB, [`AddressError::TooLong`] when not even one TPC's share
    /// fits the address space.
    pub const fn new(base: GpuAddress, per_tpc: u64) -> Result<Self, AddressError> {
        if !per_tpc.is_multiple_of(TPC_GRANULE) {
            return Err(AddressError::Misaligned { address: per_tpc, alignment: TPC_GRANULE });
        }
        match base.offset(per_tpc) {
            Ok(_) => Ok(Self { base, per_tpc }),
            Err(error) => Err(error),
        }
    }

    /// Address of the store.
    #[must_use]
    pub const fn base(self) -> GpuAddress {
        self.base
    }

    /// Bytes of each TPC's share.
    #[must_use]
    pub const fn per_tpc(self) -> u64 {
        self.per_tpc
    }
}
