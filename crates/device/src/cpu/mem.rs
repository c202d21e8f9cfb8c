//! Page-backed memory for weights, KV cache and scratch: zeroed, aligned, advised to be huge.

use std::io;
use std::num::NonZeroUsize;
use std::os::raw::c_void;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

/// Size and alignment of the huge pages that a large buffer is aligned for.
const HUGE: usize = 2 << 20;

/// A private anonymous mapping, zeroed, aligned to at least 64 bytes (to 2 MiB when it is that
/// large). Pages take memory only once written.
#[derive(Debug)]
pub struct AlignedBuf {
    base: NonNull<c_void>,
    mapped: usize,
    offset: usize,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone; access follows the borrow of the value.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` gives only shared slices.
unsafe impl Sync for AlignedBuf {}

/// Plain numbers: any bytes are a value, and there is no padding.
///
/// # Safety
///
/// Implementors promise just that, and an alignment of at most 64.
pub unsafe trait Plain: Copy {}

// SAFETY: integers and floats have no invalid bit patterns and no padding.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for u16 {}
// SAFETY: as above.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}

impl AlignedBuf {
    /// Reserves `len` zeroed bytes. Asks for huge pages where that helps; a refusal is ignored.
    ///
    /// # Errors
    ///
    /// The kernel refuses the mapping, or `len` overflows.
    pub fn new(len: usize) -> io::Result<Self> {
        let slack = if len >= HUGE { HUGE } else { 0 };
        let mapped =
            len.max(1).checked_add(slack).and_then(NonZeroUsize::new).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::OutOfMemory,
                    format!("{len} bytes overflow the address"),
                )
            })?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping aliases nothing.
        let base = unsafe { mmap_anonymous(None, mapped, prot, flags) }?;
        let offset = if slack > 0 { base.as_ptr().align_offset(HUGE).min(slack) } else { 0 };
        let buf = Self { base, mapped: mapped.get(), offset, len };
        if slack > 0 {
            // SAFETY: the range is this mapping. Without huge pages everything still works.
            let _ = unsafe { madvise(base, buf.mapped, MmapAdvise::MADV_HUGEPAGE) };
        }
        Ok(buf)
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
        // SAFETY: `offset + len` is within the mapping.
        unsafe { self.base.cast::<u8>().add(self.offset) }
    }

    /// The bytes as values of `T`; a remainder smaller than one is left out.
    #[must_use]
    pub fn as_slice<T: Plain>(&self) -> &[T] {
        // SAFETY: in the mapping, aligned to 64, initialised (zeroed by the kernel), borrowed.
        unsafe {
            std::slice::from_raw_parts(self.start().cast().as_ptr(), self.len / size_of::<T>())
        }
    }

    /// The bytes as values of `T`, to write; a remainder smaller than one is left out.
    #[must_use]
    pub fn as_mut_slice<T: Plain>(&mut self) -> &mut [T] {
        // SAFETY: as above, borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(self.start().cast().as_ptr(), self.len / size_of::<T>())
        }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, borrowed by nobody any more.
        let result = unsafe { munmap(self.base, self.mapped) };
        debug_assert!(result.is_ok(), "munmap of an own mapping: {result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
