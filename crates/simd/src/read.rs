//! Memory read loops: the bandwidth limit that benches compare with.

use crate::isa::{Isa, Vectors};

/// Bytes summed at once: a multiple of the cache line, with enough accumulators to hide the latency of additions at
/// any vector width.
const BLOCK: usize = 512;

/// Divisor of part sizes: with such a size, every pattern reads the whole part.
pub const PARTS_OF: usize = 4 * BLOCK;

/// Prefetch distance in bytes of [`Pattern::Prefetched`].
const AHEAD: usize = 2048;

/// Order in which one thread reads its part of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Ascending addresses.
    Linear,
    /// Four streams at once, a quarter of the part each.
    FourFold,
    /// Ascending addresses, with software prefetch.
    Prefetched,
}

impl Pattern {
    pub const ALL: [Self; 3] = [Self::Linear, Self::FourFold, Self::Prefetched];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear read",
            Self::FourFold => "read in 4 streams",
            Self::Prefetched => "read with prefetch",
        }
    }
}

/// Reads a part of a buffer. Returns a sum of its words, so that the compiler cannot remove a read.
#[must_use]
pub fn read(isa: Isa, part: &[u8], pattern: Pattern) -> u64 {
    match isa.vectors {
        // SAFETY: an `Isa` exists only for a set that this machine supports.
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx512 => unsafe { read_avx512(part, pattern) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Vectors::Avx2 => unsafe { read_avx2(part, pattern) },
        #[cfg(target_arch = "aarch64")]
        Vectors::Neon => read_any(part, pattern),
        Vectors::Scalar => read_any(part, pattern),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_avx512(part: &[u8], pattern: Pattern) -> u64 {
    read_any(part, pattern)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_avx2(part: &[u8], pattern: Pattern) -> u64 {
    read_any(part, pattern)
}

#[inline(always)]
fn read_any(part: &[u8], pattern: Pattern) -> u64 {
    let mut sums = [0u64; BLOCK / 8];
    match pattern {
        Pattern::Linear => {
            for block in part.as_chunks::<BLOCK>().0 {
                add(&mut sums, block);
            }
        }
        Pattern::FourFold => {
            let blocks = part.as_chunks::<BLOCK>().0;
            let (front, back) = blocks.split_at(blocks.len() / 2);
            let (a, b) = front.split_at(front.len() / 2);
            let (c, d) = back.split_at(back.len() / 2);
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                add(&mut sums, a);
                add(&mut sums, b);
                add(&mut sums, c);
                add(&mut sums, d);
            }
        }
        Pattern::Prefetched => {
            for block in part.as_chunks::<BLOCK>().0 {
                for line in block.as_chunks::<64>().0 {
                    prefetch(line.as_ptr().wrapping_add(AHEAD));
                }
                add(&mut sums, block);
            }
        }
    }
    sums.iter().fold(0, |sum, x| sum.wrapping_add(*x))
}

#[inline(always)]
fn add(sums: &mut [u64; BLOCK / 8], block: &[u8; BLOCK]) {
    for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
        *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
    }
}

/// Prefetches the line at `address`, which need not be valid.
#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM never faults, whatever the address, and changes no register or memory.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
