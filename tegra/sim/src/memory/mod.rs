//! Memory shared by CPU and GPU: dma-bufs, and the RAM that backs them.
//!
//! A [`DmaBuf`] is a memfd: the program maps it with the real `mmap`, and the simulated GPU
//! accesses the same pages through its own mapping. The memfd is not in the program's descriptor
//! table. [`crate::driver`] owns handles and GPU addresses, [`crate::mmu`] translations.
//!
//! The pages may change at any time through other mappings, so every access is atomic (relaxed for
//! bulk copies) and no reference into the pages is created.

mod memfd;
mod ram;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use crate::user;
use memfd::{Memfd, NewMemfd};
pub use ram::{Charge, Ram};

/// Page size, the unit of every buffer.
pub const PAGE: u64 = 4096;

/// Largest size of a buffer: the GPU address range.
const LARGEST: u64 = 1 << 40;

/// CPU caching of a buffer: the two low bits of the flags of nvmap's ALLOC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// 0: device-like.
    Uncached,
    /// 1: stores are combined in a write buffer until a barrier.
    WriteCombined,
    /// 2: ordinary cached memory, snooped by the GPU.
    InnerCacheable,
    /// 3: equal to inner cacheable on arm64.
    Cacheable,
}

/// Properties of a buffer's pages, fixed by ALLOC or FROM_VA.
#[derive(Debug)]
pub struct Pages {
    /// CPU caching.
    pub caching: Caching,
    /// Devices may only read them.
    pub read_only: bool,
    /// Charge against [`Ram`]; none for pages of the program itself.
    pub charge: Option<Charge>,
}

/// Metadata that programs attach to a buffer with nvgpu's REGISTER_BUFFER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Contents.
    pub blob: Vec<u8>,
    /// Replacement is allowed.
    pub mutable: bool,
}

/// Error of accessing a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The range is not within the buffer.
    #[error("{len} bytes at offset {offset:#x} lie beyond a buffer of {bytes:#x} bytes")]
    OutOfRange { offset: u64, len: u64, bytes: u64 },
    /// An atomic access must be aligned to its size.
    #[error("offset {offset:#x} is not a multiple of {align}")]
    Misaligned { offset: u64, align: u64 },
    /// The program has unmapped or protected pages that it lent with FROM_VA. The real driver pins
    /// them; the simulator cannot.
    #[error("the program's own page at {va:#x}, lent with FROM_VA, is no longer accessible")]
    LentPageGone { va: u64 },
}

/// Storage of a buffer.
#[derive(Debug)]
enum Backing {
    /// A mapping of the memfd.
    Memfd { base: NonNull<u8>, present: Box<[AtomicU64]> },
    /// Pages of the program, from this CPU address on.
    Lent { va: u64 },
}

/// A dma-buf: memory in whole pages with its own identity.
#[derive(Debug)]
pub struct DmaBuf {
    file: Memfd,
    inode: u64,
    bytes: u64,
    backing: Backing,
    pages: OnceLock<Pages>,
    metadata: Mutex<Option<Metadata>>,
}

// SAFETY: `base` is a mapping that lives as long as the value and is accessed by atomics only.
unsafe impl Send for DmaBuf {}
// SAFETY: as above.
unsafe impl Sync for DmaBuf {}

impl DmaBuf {
    /// Creates a zeroed buffer of `bytes`, rounded up to whole pages. Untouched pages use no
    /// memory. `InvalidInput` for a size of 0 or above 2^40.
    pub fn new(bytes: u64) -> io::Result<Arc<Self>> {
        let bytes = whole_pages(bytes)?;
        let NewMemfd { file, inode, base } = memfd::create(bytes)?;
        let base = NonNull::new(base as *mut u8).ok_or(io::ErrorKind::OutOfMemory)?;
        let present = Box::new_zeroed_slice((bytes / PAGE).div_ceil(64) as usize);
        // SAFETY: all zero is a valid AtomicU64.
        let present = unsafe { present.assume_init() };
        Ok(Self::over(Backing::Memfd { base, present }, file, inode, bytes))
    }

    /// Creates a buffer over existing pages of the program at the CPU address `va`. Accesses are
    /// checked, because the program may unmap the pages. `InvalidInput` for a size of 0.
    pub fn over_user_pages(va: u64, bytes: u64) -> io::Result<Arc<Self>> {
        let bytes = whole_pages(bytes)?;
        // An empty file provides the fd's identity, and a CPU mapping of it faults as nvmap's does.
        let NewMemfd { file, inode, .. } = memfd::create(0)?;
        Ok(Self::over(Backing::Lent { va }, file, inode, bytes))
    }

    fn over(backing: Backing, file: Memfd, inode: u64, bytes: u64) -> Arc<Self> {
        let (pages, metadata) = (OnceLock::new(), Mutex::new(None));
        Arc::new(Self { file, inode, bytes, backing, pages, metadata })
    }

    /// Returns the size, a multiple of [`PAGE`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the inode of the buffer's fds (`st_ino` of `fstat`).
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Opens an fd of the buffer in the program's table, at the lowest free number. Fails if the
    /// table is full.
    pub fn open(&self) -> io::Result<OwnedFd> {
        self.file.open()
    }

    /// Returns the properties of the pages; none before ALLOC.
    pub fn pages(&self) -> Option<&Pages> {
        self.pages.get()
    }

    /// Returns the CPU caching of the pages; none before ALLOC.
    pub fn caching(&self) -> Option<Caching> {
        self.pages.get().map(|pages| pages.caching)
    }

    /// Sets the properties of the pages, once. Returns `pages` if they are set already.
    pub fn allocate(&self, pages: Pages) -> Result<(), Pages> {
        self.pages.set(pages)
    }

    /// Returns the attached metadata.
    pub(crate) fn metadata(&self) -> MutexGuard<'_, Option<Metadata>> {
        self.metadata.lock()
    }

    /// Returns whether the CPU or GPU has ever written to a page of the range. A CPU read through a
    /// mapping counts as a write, because the kernel allocates the page for it too.
    pub fn ever_written(&self, offset: u64, len: u64) -> bool {
        if len == 0 || self.check(offset, len).is_err() {
            return false;
        }
        self.is_written(offset)
            || self.written_after(offset).is_some_and(|written| written.start < offset + len)
    }

    /// Returns quickly whether a page is known to be written; may be false for one written since
    /// the last survey.
    pub(crate) fn is_written(&self, offset: u64) -> bool {
        let Backing::Memfd { present, .. } = &self.backing else { return true };
        let page = offset / PAGE;
        let bits = present.get((page / 64) as usize);
        bits.is_some_and(|bits| bits.load(Ordering::Relaxed) >> (page % 64) & 1 == 1)
    }

    /// Returns the first run of written pages at or after `offset`, as byte offsets. All lent pages
    /// count as written.
    pub(crate) fn written_after(&self, offset: u64) -> Option<Range<u64>> {
        let Backing::Memfd { .. } = &self.backing else {
            return (offset < self.bytes).then_some(offset..self.bytes);
        };
        let written = self.file.data_after(offset / PAGE * PAGE)?;
        let written = written.start / PAGE * PAGE..written.end.next_multiple_of(PAGE);
        self.note_written(written.start, written.end - written.start);
        Some(written)
    }

    /// Updates which pages of a range are known to be written, for [`DmaBuf::is_written`].
    pub(crate) fn survey(&self, offset: u64, len: u64) {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            if self.is_written(at) {
                at += PAGE;
            } else {
                at = self.written_after(at).map_or(end, |written| written.end);
            }
        }
    }

    /// Records written pages of a range, which stay allocated.
    pub(crate) fn note_written(&self, offset: u64, len: u64) {
        let Backing::Memfd { present, .. } = &self.backing else { return };
        for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
            if let Some(bits) = present.get((page / 64) as usize) {
                bits.fetch_or(1 << (page % 64), Ordering::Relaxed);
            }
        }
    }

    /// Reads bytes; an unwritten page reads as zeros and stays unwritten. Fails if the range is not
    /// within the buffer, or lent pages are unmapped.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        self.check(offset, out.len() as u64)?;
        let base = match &self.backing {
            Backing::Memfd { base, .. } => base,
            Backing::Lent { va } => {
                let va = va + offset;
                return user::read(va, out).map_err(|_| MemoryError::LentPageGone { va });
            }
        };
        let mut at = offset;
        let mut rest = out;
        while !rest.is_empty() {
            let in_page = (PAGE - at % PAGE).min(rest.len() as u64) as usize;
            let (piece, tail) = rest.split_at_mut(in_page);
            // Reading an unallocated page through the mapping would allocate it.
            if self.ever_written(at, 1) {
                // SAFETY: `check` verified that the range is within the mapping.
                unsafe { copy_out(base.as_ptr().add(at as usize), piece) };
            } else {
                piece.fill(0);
            }
            at += in_page as u64;
            rest = tail;
        }
        Ok(())
    }

    /// Writes bytes. Fails if the range is not within the buffer, or lent pages are unmapped.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, data.len() as u64)?;
        match &self.backing {
            Backing::Memfd { base, .. } => {
                // SAFETY: `check` verified that the range is within the mapping.
                unsafe { copy_in(data, base.as_ptr().add(offset as usize)) };
                Ok(())
            }
            Backing::Lent { va } => {
                let va = va + offset;
                user::write(va, data).map_err(|_| MemoryError::LentPageGone { va })
            }
        }
    }

    /// Loads a word in a signal handler, without checking whether its page was written; this
    /// allocates the page. None over lent pages, or if [`DmaBuf::load_u32`] would fail.
    pub(crate) fn peek_u32(&self, offset: u64) -> Option<u32> {
        Some(self.word_u32(offset).ok()??.load(Ordering::Acquire))
    }

    /// Returns the words of a range for individual accesses; none over lent pages, or if the range
    /// is not made of whole words of the buffer. Reading an unwritten page allocates it.
    pub(crate) fn words(&self, offset: u64, bytes: u64) -> Option<&[AtomicU32]> {
        self.check(offset, bytes).ok()?;
        let Backing::Memfd { base, .. } = &self.backing else { return None };
        if !offset.is_multiple_of(4) || !bytes.is_multiple_of(4) {
            return None;
        }
        // SAFETY: in range and aligned, as checked above; the mapping outlives the borrow, and
        // words are only accessed as atomics.
        Some(unsafe {
            std::slice::from_raw_parts(
                base.as_ptr().add(offset as usize).cast::<AtomicU32>(),
                (bytes / 4) as usize,
            )
        })
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(MemoryError::OutOfRange { offset, len, bytes: self.bytes }),
        }
    }
}

/// Declares atomic accesses to aligned words of one size. They fail if out of range, misaligned, or
/// if lent pages are unmapped.
macro_rules! words {
    ($( $ty:ty, $Atomic:ty: $word:ident $load:ident $store:ident $update:ident; )+) => {$(
        impl DmaBuf {
            /// Returns the word at `offset`; none over lent pages.
            fn $word(&self, offset: u64) -> Result<Option<&$Atomic>, MemoryError> {
                let align = size_of::<$ty>() as u64;
                self.check(offset, align)?;
                if !offset.is_multiple_of(align) {
                    return Err(MemoryError::Misaligned { offset, align });
                }
                Ok(match &self.backing {
                    // SAFETY: in range and aligned, as checked above; the mapping outlives the
                    // borrow.
                    Backing::Memfd { base, .. } => Some(unsafe {
                        <$Atomic>::from_ptr(base.as_ptr().add(offset as usize).cast::<$ty>())
                    }),
                    Backing::Lent { .. } => None,
                })
            }

            /// Loads a word, with acquire order.
            pub fn $load(&self, offset: u64) -> Result<$ty, MemoryError> {
                let Some(word) = self.$word(offset)? else {
                    let mut bytes = [0; size_of::<$ty>()];
                    return self.read(offset, &mut bytes).map(|()| <$ty>::from_le_bytes(bytes));
                };
                Ok(if self.ever_written(offset, 1) { word.load(Ordering::Acquire) } else { 0 })
            }

            /// Stores a word, with release order.
            pub fn $store(&self, offset: u64, value: $ty) -> Result<(), MemoryError> {
                match self.$word(offset)? {
                    Some(word) => word.store(value, Ordering::Release),
                    None => self.write(offset, &value.to_le_bytes())?,
                }
                Ok(())
            }

            /// Replaces a word by a function of it, atomically (in two steps over lent pages), and
            /// returns the previous word.
            pub fn $update(
                &self,
                offset: u64,
                mut new: impl FnMut($ty) -> $ty,
            ) -> Result<$ty, MemoryError> {
                let Some(word) = self.$word(offset)? else {
                    let before = self.$load(offset)?;
                    return self.$store(offset, new(before)).map(|()| before);
                };
                let mut seen = word.load(Ordering::Acquire);
                loop {
                    match word.compare_exchange(seen, new(seen), Ordering::AcqRel, Ordering::Acquire) {
                        Ok(before) => return Ok(before),
                        Err(now) => seen = now,
                    }
                }
            }
        }
    )+};
}

words! {
    u32, AtomicU32: word_u32 load_u32 store_u32 update_u32;
    u64, AtomicU64: word_u64 load_u64 store_u64 update_u64;
}

impl Drop for DmaBuf {
    fn drop(&mut self) {
        if let Backing::Memfd { base, .. } = &self.backing {
            // SAFETY: `map_shared` created the mapping with this length, and no access can follow
            // the drop.
            unsafe { libc::syscall(libc::SYS_munmap, base.as_ptr(), self.bytes as usize) };
        }
    }
}

fn whole_pages(bytes: u64) -> io::Result<u64> {
    bytes
        .checked_next_multiple_of(PAGE)
        .filter(|rounded| (PAGE..=LARGEST).contains(rounded))
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Copies out of shared pages: double words where the pages are aligned, bytes at both ends.
///
/// # Safety
/// `from` is mapped readable for as many bytes as `to` has.
unsafe fn copy_out(from: *mut u8, to: &mut [u8]) {
    let head = from.align_offset(8).min(to.len());
    let (head_bytes, rest) = to.split_at_mut(head);
    let (words, tail_bytes) = rest.as_chunks_mut::<8>();
    // SAFETY: every pointer stays within the range that the caller guarantees, and words are
    // aligned because `head` bytes were skipped.
    unsafe {
        for (i, byte) in head_bytes.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed);
        }
        let from = from.add(head);
        for (i, word) in words.iter_mut().enumerate() {
            let value = AtomicU64::from_ptr(from.add(i * 8).cast::<u64>()).load(Ordering::Relaxed);
            *word = value.to_ne_bytes();
        }
        let from = from.add(words.len() * 8);
        for (i, byte) in tail_bytes.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed);
        }
    }
}

/// Copies into shared pages, like [`copy_out`].
///
/// # Safety
/// `to` is mapped writable for as many bytes as `from` has.
unsafe fn copy_in(from: &[u8], to: *mut u8) {
    let head = to.align_offset(8).min(from.len());
    let (head_bytes, rest) = from.split_at(head);
    let (words, tail_bytes) = rest.as_chunks::<8>();
    // SAFETY: every pointer stays within the range that the caller guarantees, and words are
    // aligned because `head` bytes were skipped.
    unsafe {
        for (i, byte) in head_bytes.iter().enumerate() {
            AtomicU8::from_ptr(to.add(i)).store(*byte, Ordering::Relaxed);
        }
        let to = to.add(head);
        for (i, word) in words.iter().enumerate() {
            let value = u64::from_ne_bytes(*word);
            AtomicU64::from_ptr(to.add(i * 8).cast::<u64>()).store(value, Ordering::Relaxed);
        }
        let to = to.add(words.len() * 8);
        for (i, byte) in tail_bytes.iter().enumerate() {
            AtomicU8::from_ptr(to.add(i)).store(*byte, Ordering::Relaxed);
        }
    }
}
