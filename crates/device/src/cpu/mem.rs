//! Page-backed memory for weights, KV cache and scratch: zeroed, aligned, with huge pages where possible. Counts
//! reserved pages that are not resident yet.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw};
use parking_lot::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of huge pages, and alignment of large buffers.
const HUGE: usize = 2 << 20;

/// Address and length of every large mapping.
static MAPPINGS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Reserved bytes of this process that are not resident yet: the system still reports them as available.
#[must_use]
pub fn promised() -> u64 {
    // The lock prevents other threads from unmapping one of them.
    let mappings = MAPPINGS.lock();
    mappings.iter().map(|(address, len)| (len - resident(*address, *len)) as u64).sum()
}

/// Resident bytes of a mapping.
fn resident(address: usize, len: usize) -> usize {
    // SAFETY: returns a number, and accesses no memory.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut pages = vec![0_u8; len.div_ceil(page)];
    // SAFETY: the range is mapped and begins at a page; there is a byte for each of its pages.
    let status = unsafe { libc::mincore(address as *mut libc::c_void, len, pages.as_mut_ptr()) };
    match status {
        0 => len.min(page * pages.iter().filter(|page| **page & 1 == 1).count()),
        // Without `mincore`, the mapping counts as resident.
        _ => len,
    }
}

/// A private anonymous mapping, zeroed, aligned to at least 64 bytes (2 MiB for large ones). Pages become resident
/// when they are written.
#[derive(Debug)]
pub struct AlignedBuf {
    map: MmapRaw,
    offset: usize,
    len: usize,
}

impl AlignedBuf {
    /// Reserves `len` zeroed bytes, with huge pages for large buffers if the kernel allows them.
    ///
    /// # Errors
    ///
    /// The kernel rejects the mapping, or `len` overflows.
    pub fn new(len: usize) -> io::Result<Self> {
        let slack = if len >= HUGE { HUGE } else { 0 };
        let mapped = len.max(1).checked_add(slack).ok_or_else(|| {
            let message = format!("{len} bytes overflow the address");
            io::Error::new(io::ErrorKind::OutOfMemory, message)
        })?;
        let map = MmapOptions::new().len(mapped).no_reserve_swap().map_anon()?;
        let offset = if slack > 0 { map.as_ptr().align_offset(HUGE).min(slack) } else { 0 };
        if slack > 0 {
            // Huge pages are optional.
            let _ = map.advise(Advice::HugePage);
        }
        let map = MmapRaw::from(map);
        if mapped >= HUGE {
            MAPPINGS.lock().push((map.as_ptr() as usize, mapped));
        }
        Ok(Self { map, offset, len })
    }

    /// Makes pages of a range resident, so that no step pays for clearing them. Kernels before Linux 5.14 and systems
    /// short of memory leave that to the first write.
    pub(super) fn populate(&self, range: Range<usize>) {
        let Range { start, end } = range;
        debug_assert!(start <= end && end <= self.len, "{start}..{end} of {}", self.len);
        let _ = self.map.advise_range(Advice::PopulateWrite, self.offset + start, end - start);
    }

    /// Bytes reserved.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if the length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, for threads that divide the buffer among themselves.
    pub(super) fn start(&self) -> NonNull<u8> {
        // SAFETY: `offset + len` is within the mapping, which does not begin at address 0.
        unsafe { NonNull::new_unchecked(self.map.as_mut_ptr().add(self.offset)) }
    }

    /// The bytes as numbers, without an incomplete last one.
    #[must_use]
    pub fn as_slice<T: FromBytes + KnownLayout + Immutable>(&self) -> &[T] {
        // SAFETY: inside the mapping, initialised (zeroed by the kernel), borrowed.
        let bytes = unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len) };
        let Ok((values, _)) = <[T]>::ref_from_prefix(bytes) else { unreachable!("{ALIGNED}") };
        values
    }

    /// The bytes as mutable numbers, without an incomplete last one.
    #[must_use]
    pub fn as_mut_slice<T: FromBytes + IntoBytes + KnownLayout>(&mut self) -> &mut [T] {
        // SAFETY: as above, borrowed mutably.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len) };
        let Ok((values, _)) = <[T]>::mut_from_prefix(bytes) else { unreachable!("{ALIGNED}") };
        values
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        let address = self.map.as_ptr() as usize;
        MAPPINGS.lock().retain(|(other, _)| *other != address);
    }
}

/// Reason why a buffer's start is aligned for every type.
const ALIGNED: &str = "no value is aligned to more than a page";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_pages_are_resident_and_the_rest_is_promised() {
        let len = 64 * HUGE;
        let mut buf = AlignedBuf::new(len).unwrap();
        let (address, mapped) = (buf.map.as_ptr() as usize, len + HUGE);
        assert_eq!(resident(address, mapped), 0);
        buf.as_mut_slice::<u8>()[..len / 2].fill(1);
        let half = resident(address, mapped);
        assert!((len / 2..len / 2 + 2 * HUGE).contains(&half), "{half}");
        assert!(promised() >= (mapped - half) as u64);
    }

    #[test]
    fn populated_pages_are_resident_and_zeroed() {
        let buf = AlignedBuf::new(16 * HUGE).unwrap();
        let (address, mapped) = (buf.map.as_ptr() as usize, 17 * HUGE);
        buf.populate(2 * HUGE + 100..4 * HUGE + 1);
        let bytes = resident(address, mapped);
        // Linux 5.14 or later populates the pages; others change nothing.
        assert!(bytes == 0 || (2 * HUGE - 100..=4 * HUGE).contains(&bytes), "{bytes}");
        assert!(buf.as_slice::<u8>().iter().all(|&b| b == 0));
    }

    #[test]
    fn buffers_are_zeroed_aligned_and_writable_to_the_last_byte() {
        for len in [0, 1, 64, 4097, HUGE, HUGE + 12_345] {
            let mut buf = AlignedBuf::new(len).unwrap();
            assert_eq!(buf.len(), len);
            assert_eq!(buf.as_slice::<u8>().as_ptr().align_offset(64), 0);
            assert!(buf.as_slice::<u8>().iter().all(|&b| b == 0));
            buf.as_mut_slice::<u8>().fill(7);
            assert_eq!(buf.as_slice::<u32>().len(), len / 4);
            assert!(buf.as_slice::<u32>().iter().all(|&w| w == 0x0707_0707));
        }
    }

    #[test]
    fn sizes_beyond_the_address_space_are_errors() {
        assert!(AlignedBuf::new(usize::MAX).is_err());
        assert!(AlignedBuf::new(usize::MAX / 2).is_err());
    }
}
