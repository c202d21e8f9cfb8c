//! Page-backed memory for weights, KV cache and scratch: zeroed, aligned, advised to be huge. Knows how much of it has
//! been promised and not been taken yet.

use std::io;
use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw};
use parking_lot::Mutex;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size and alignment of the huge pages that a large buffer is aligned for.
const HUGE: usize = 2 << 20;

/// Address and length of each large mapping there is.
static MAPPINGS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Bytes that were reserved in this process and have no memory yet: the system still calls them available, but they are
/// somebody's.
#[must_use]
pub fn promised() -> u64 {
    // Whoever unmaps one of them waits for the lock.
    let mappings = MAPPINGS.lock();
    mappings.iter().map(|(address, len)| (len - taken(*address, *len)) as u64).sum()
}

/// Bytes of a mapping that have memory.
fn taken(address: usize, len: usize) -> usize {
    // SAFETY: asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut pages = vec![0_u8; len.div_ceil(page)];
    // SAFETY: the range is mapped and begins at a page; there is a byte for each of its pages.
    let told = unsafe { libc::mincore(address as *mut libc::c_void, len, pages.as_mut_ptr()) };
    match told {
        0 => len.min(page * pages.iter().filter(|page| **page & 1 == 1).count()),
        // A system that does not tell promises nothing twice.
        _ => len,
    }
}

/// A private anonymous mapping, zeroed, aligned to at least 64 bytes (to 2 MiB when it is that
/// large). Pages take memory only once written.
#[derive(Debug)]
pub struct AlignedBuf {
    map: MmapRaw,
    offset: usize,
    len: usize,
}

impl AlignedBuf {
    /// Reserves `len` zeroed bytes. Asks for huge pages where that helps; a refusal is ignored.
    ///
    /// # Errors
    ///
    /// The kernel refuses the mapping, or `len` overflows.
    pub fn new(len: usize) -> io::Result<Self> {
        let slack = if len >= HUGE { HUGE } else { 0 };
        let mapped = len.max(1).checked_add(slack).ok_or_else(|| {
            let message = format!("{len} bytes overflow the address");
            io::Error::new(io::ErrorKind::OutOfMemory, message)
        })?;
        let map = MmapOptions::new().len(mapped).no_reserve_swap().map_anon()?;
        let offset = if slack > 0 { map.as_ptr().align_offset(HUGE).min(slack) } else { 0 };
        if slack > 0 {
            // Without huge pages everything still works.
            let _ = map.advise(Advice::HugePage);
        }
        let map = MmapRaw::from(map);
        if mapped >= HUGE {
            MAPPINGS.lock().push((map.as_ptr() as usize, mapped));
        }
        Ok(Self { map, offset, len })
    }

    /// Bytes reserved.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True when no bytes were asked for.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte, for access that several threads divide among themselves.
    pub(super) fn start(&self) -> NonNull<u8> {
        // SAFETY: `offset + len` is within the mapping, which does not lie at address 0.
        unsafe { NonNull::new_unchecked(self.map.as_mut_ptr().add(self.offset)) }
    }

    /// The bytes as numbers; a remainder smaller than one is left out.
    #[must_use]
    pub fn as_slice<T: FromBytes + KnownLayout + Immutable>(&self) -> &[T] {
        // SAFETY: in the mapping, initialised (zeroed by the kernel), borrowed.
        let bytes = unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.len) };
        let Ok((values, _)) = <[T]>::ref_from_prefix(bytes) else { unreachable!("{ALIGNED}") };
        values
    }

    /// The bytes as numbers, to write; a remainder smaller than one is left out.
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

/// Why any number of any values fits at the start of a buffer.
const ALIGNED: &str = "no value is aligned to more than a page";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_taken_and_the_rest_is_promised() {
        let len = 64 * HUGE;
        let mut buf = AlignedBuf::new(len).unwrap();
        let (address, mapped) = (buf.map.as_ptr() as usize, len + HUGE);
        assert_eq!(taken(address, mapped), 0);
        buf.as_mut_slice::<u8>()[..len / 2].fill(1);
        let half = taken(address, mapped);
        assert!((len / 2..len / 2 + 2 * HUGE).contains(&half), "{half}");
        assert!(promised() >= (mapped - half) as u64);
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
    fn an_absurd_size_is_an_error() {
        assert!(AlignedBuf::new(usize::MAX).is_err());
        assert!(AlignedBuf::new(usize::MAX / 2).is_err());
    }
}
