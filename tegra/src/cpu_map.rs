//! CPU mappings of driver memory, and the range check for accesses through them.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

use crate::error::Error;
use crate::node::errno_of;

/// Driver memory mapped into this process, shared with the GPU.
///
/// Not a slice: the GPU may change it at any time. Unmapped when dropped.
#[derive(Debug)]
pub(crate) struct CpuMap(MmapRaw);

impl CpuMap {
    /// Maps the first `bytes` of `fd`, for reading and writing.
    pub(crate) fn new(fd: BorrowedFd<'_>, what: &'static str, bytes: u64) -> Result<Self, Error> {
        let refuse = |errno| Error::Map { what, bytes, errno };
        let length = usize::try_from(bytes).map_err(|_| refuse(Errno::ENOMEM))?;
        let map = MmapOptions::new().len(length).map_raw(&fd);
        map.map(Self).map_err(|error| refuse(errno_of(&error)))
    }

    /// The first byte; valid for [`CpuMap::bytes`] bytes while `self` lives.
    pub(crate) fn base(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Copies bytes out, without ordering: the caller must have seen the GPU finish with them.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        within(offset, into.len() as u64, self.bytes() as u64)?;
        let base = self.base().wrapping_add(offset as usize);
        let head = base.align_offset(size_of::<u64>()).min(into.len());
        let (first, rest) = into.split_at_mut(head);
        let (longs, last) = rest.as_chunks_mut::<8>();
        let tail = base.wrapping_add(head + size_of_val(longs));
        // SAFETY: `within` has checked the range, which the mapping covers, and `longs` begin at an
        // aligned address. All access of the CPU is atomic.
        unsafe {
            load_bytes(base, first);
            for (index, long) in longs.iter_mut().enumerate() {
                let place = base.add(head + index * 8).cast();
                *long = AtomicU64::from_ptr(place).load(Ordering::Relaxed).to_ne_bytes();
            }
            load_bytes(tail, last);
        }
        Ok(())
    }
}

/// # Safety
/// `from` is valid for the length of `into`, for atomic access.
unsafe fn load_bytes(from: *mut u8, into: &mut [u8]) {
    for (index, byte) in into.iter_mut().enumerate() {
        // SAFETY: the caller's.
        *byte = unsafe { AtomicU8::from_ptr(from.add(index)) }.load(Ordering::Relaxed);
    }
}

/// Checks that `bytes` at `offset` are within `size`.
pub(crate) fn within(offset: u64, bytes: u64, size: u64) -> Result<(), Error> {
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::Range { offset, bytes, size }),
    }
}

#[cfg(test)]
mod tests {
    use super::within;

    #[test]
    fn ranges() {
        assert!(within(0, 0, 0).is_ok());
        assert!(within(4, 4, 8).is_ok());
        assert!(within(5, 4, 8).is_err());
        assert!(within(9, 0, 8).is_err());
        assert!(within(u64::MAX, 2, 8).is_err());
    }
}
