//! Interface to global memory: the caller of the machine translates addresses.
//!
//! Memory consists of words that other blocks and processors may change at any time. Every access
//! is a relaxed 32-bit atomic, so that a racy program computes wrong results but causes no
//! undefined behaviour here.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Read,
    /// A write.
    Write,
    /// An atomic read and write.
    Atomic,
}

/// An address that cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// The address is not mapped.
    #[error("global address {address:#x} is not mapped ({access:?})")]
    Unmapped {
        /// The address.
        address: u64,
        /// Kind of access.
        access: Access,
    },
    /// The mapping does not allow the access.
    #[error("global address {address:#x} does not allow access ({access:?})")]
    Forbidden {
        /// The address.
        address: u64,
        /// Kind of access.
        access: Access,
    },
}

/// A contiguous mapped range.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// The first address, a multiple of 4.
    pub start: u64,
    /// Words of the region.
    pub words: &'a [AtomicU32],
    /// Writes are allowed.
    pub writable: bool,
    /// Marks of accesses, two bits for each word from the lowest on: [`READ`] and [`WRITTEN`]. None
    /// if accesses are not recorded.
    pub marks: Option<&'a [AtomicU64]>,
}

/// Bit of a mark: the word was read.
pub const READ: u8 = 1;
/// Bit of a mark: at least part of the word was written.
pub const WRITTEN: u8 = 2;
/// Number of words whose marks share an element.
pub const MARKED: usize = 32;
/// Marks with [`READ`] set for each word.
pub const ALL_READ: u64 = 0x5555_5555_5555_5555;

impl Region<'_> {
    /// Prefetches a word, if the region contains it. Does nothing on processors other than x86-64
    /// and aarch64.
    #[inline(always)]
    pub(crate) fn expect(&self, word: usize) {
        let Some(word) = self.words.get(word) else { return };
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: the address is not accessed; it is a hint.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: `PRFM` accesses nothing and faults on no address; it is a hint.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) std::ptr::from_ref(word), options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = word;
    }

    /// Records an access to words.
    #[inline(always)]
    pub(crate) fn note(&self, first: usize, words: usize, access: Access) {
        let Some(marks) = self.marks else { return };
        let each = ALL_READ
            * match access {
                Access::Read => u64::from(READ),
                Access::Write => u64::from(WRITTEN),
                Access::Atomic => u64::from(READ | WRITTEN),
            };
        let set = |at: usize, words: usize| {
            let bits = each >> (2 * (MARKED - words)) << (2 * (at % MARKED));
            if let Some(mark) = marks.get(at / MARKED)
                && mark.load(Ordering::Relaxed) & bits != bits
            {
                mark.fetch_or(bits, Ordering::Relaxed);
            }
        };
        if first % MARKED + words <= MARKED {
            return set(first, words);
        }
        let (mut at, end) = (first, first + words);
        while at < end {
            let until = end.min((at / MARKED + 1) * MARKED);
            set(at, until - at);
            at = until;
        }
    }
}

/// Global memory.
pub trait Memory: Sync {
    /// Returns the region that contains an address. Larger regions are requested less often. The
    /// mapping remains valid until the launch ends. [`MemoryFault`] if the address is not mapped
    /// for the access.
    fn region(&self, address: u64, access: Access) -> Result<Region<'_>, MemoryFault>;
}
