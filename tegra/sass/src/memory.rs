//! Global memory as the code sees it: whoever runs it translates addresses.
//!
//! Memory is words that other blocks, and other processors, may change at any time: all accesses
//! are relaxed atomics of 32 bits, so that a program with a race is wrong and nothing worse.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What an access wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read.
    Read,
    /// To write.
    Write,
    /// Both at once.
    Atomic,
}

/// An address that memory refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// Nothing is mapped there.
    #[error("global address {address:#x} is not mapped ({access:?})")]
    Unmapped {
        /// The address.
        address: u64,
        /// What was wanted.
        access: Access,
    },
    /// The mapping does not allow it.
    #[error("global address {address:#x} does not allow access ({access:?})")]
    Forbidden {
        /// The address.
        address: u64,
        /// What was wanted.
        access: Access,
    },
}

/// Consecutive addresses that are mapped together.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// The first address, a multiple of 4.
    pub start: u64,
    /// What lies there.
    pub words: &'a [AtomicU32],
    /// Whether it may be written.
    pub writable: bool,
    /// Two bits a word in which accesses are noted, [`READ`] and [`WRITTEN`], from the lowest on; none when nobody
    /// asks.
    pub marks: Option<&'a [AtomicU64]>,
}

/// Bit of a mark: the word was read.
pub const READ: u8 = 1;
/// Bit of a mark: the word was written, in part at least.
pub const WRITTEN: u8 = 2;
/// Words whose marks lie together.
pub const MARKED: usize = 32;
/// The mark that says [`READ`] of each word.
pub const ALL_READ: u64 = 0x5555_5555_5555_5555;

impl Region<'_> {
    /// Says that a word may be wanted soon, if the region has it. Other processors are told nothing.
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

    /// Notes an access to words.
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
    /// The region that an address lies in; larger regions are asked for less often. The mapping
    /// holds until the launch ends. [`MemoryFault`] when the address is not mapped for the access.
    fn region(&self, address: u64, access: Access) -> Result<Region<'_>, MemoryFault>;
}
