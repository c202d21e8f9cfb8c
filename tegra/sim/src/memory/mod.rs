//! Memory that CPU and GPU share: dma-bufs, and the RAM that they take their pages from.
//!
//! A [`DmaBuf`] is a memfd: the program maps it with the real `mmap`, the simulated GPU reads and
//! writes the same pages through a mapping of its own. The memfd is kept where the program's
//! descriptors are not. Handles and GPU addresses belong to [`crate::driver`] and [`crate::gpu`];
//! here is only what they refer to.
//!
//! Other mappings of the same pages may change at any time, so every access here is an atomic one
//! (relaxed for bulk copies) and no reference into the pages is ever made.

mod kept;
mod ram;

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use crate::user;
use kept::{Kept, Made};
pub use ram::{Charge, Ram};

/// Bytes of a page, the granule of every buffer.
pub const PAGE: u64 = 4096;

/// Bytes of the largest buffer: as many as GPU addresses.
const LARGEST: u64 = 1 << 40;

/// How the CPU maps a buffer: the two low bits of the flags of nvmap's ALLOC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// 0: device-like.
    Uncached,
    /// 1: stores gather in a write buffer until a barrier.
    WriteCombined,
    /// 2: ordinary cached memory, snooped by the GPU.
    InnerCacheable,
    /// 3: the same as inner cacheable on arm64.
    Cacheable,
}

/// What ALLOC or FROM_VA decided about a buffer's pages, for good.
#[derive(Debug)]
pub struct Pages {
    /// How the CPU sees them.
    pub caching: Caching,
    /// Whether devices may only read them.
    pub read_only: bool,
    /// The part of [`Ram`] that they take; none for pages that were the program's own.
    pub charge: Option<Charge>,
}

/// Bytes that programs attach to a buffer for each other, with nvgpu's REGISTER_BUFFER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The bytes.
    pub blob: Vec<u8>,
    /// Whether they may be replaced.
    pub mutable: bool,
}

/// An access that a buffer cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// The range does not lie within the buffer.
    #[error("{len} bytes at offset {offset:#x} lie beyond a buffer of {bytes:#x} bytes")]
    OutOfRange { offset: u64, len: u64, bytes: u64 },
    /// An atomic access must be aligned to its size.
    #[error("offset {offset:#x} is not a multiple of {align}")]
    Misaligned { offset: u64, align: u64 },
    /// The program has unmapped or protected the pages that it had lent with FROM_VA. The real
    /// driver pins them; the simulator cannot.
    #[error("the program's own page at {va:#x}, lent with FROM_VA, is no longer accessible")]
    LentPageGone { va: u64 },
}

/// Where the bytes are.
#[derive(Debug)]
enum Backing {
    /// A mapping of the memfd.
    Memfd { base: NonNull<u8>, present: Box<[AtomicU64]> },
    /// Pages of the program itself, from this CPU address on.
    Lent { va: u64 },
}

/// One dma-buf: page-rounded memory with an identity of its own.
#[derive(Debug)]
pub struct DmaBuf {
    file: Kept,
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
    /// Makes a zeroed buffer of `bytes`, rounded up to whole pages. Pages that nobody touches cost
    /// nothing. `InvalidInput` for a size of 0 or above 2^40.
    pub fn new(bytes: u64) -> io::Result<Arc<Self>> {
        let bytes = whole_pages(bytes)?;
        let Made { file, inode, base } = kept::memfd(bytes)?;
        let base = NonNull::new(base as *mut u8).ok_or(io::ErrorKind::OutOfMemory)?;
        let present = Box::new_zeroed_slice((bytes / PAGE).div_ceil(64) as usize);
        // SAFETY: all zero is a valid AtomicU64.
        let present = unsafe { present.assume_init() };
        Ok(Self::over(Backing::Memfd { base, present }, file, inode, bytes))
    }

    /// Makes a buffer over pages that the program already has at the CPU address `va`. Accesses are
    /// checked: the program may take the pages away. `InvalidInput` for a size of 0.
    pub fn over_user_pages(va: u64, bytes: u64) -> io::Result<Arc<Self>> {
        let bytes = whole_pages(bytes)?;
        // An empty file: its fd has an identity, and a CPU mapping of it faults as nvmap's does.
        let Made { file, inode, .. } = kept::memfd(0)?;
        Ok(Self::over(Backing::Lent { va }, file, inode, bytes))
    }

    fn over(backing: Backing, file: Kept, inode: u64, bytes: u64) -> Arc<Self> {
        let (pages, metadata) = (OnceLock::new(), Mutex::new(None));
        Arc::new(Self { file, inode, bytes, backing, pages, metadata })
    }

    /// Size, a multiple of [`PAGE`].
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number that every fd of this buffer has in common: `st_ino` of an `fstat`.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// A new fd of the buffer for the program, at the lowest free number. Fails when its table is
    /// full.
    pub fn open(&self) -> io::Result<OwnedFd> {
        self.file.open()
    }

    /// What was decided about the pages; none before ALLOC.
    pub fn pages(&self) -> Option<&Pages> {
        self.pages.get()
    }

    /// How the CPU maps the pages; none before ALLOC.
    pub fn caching(&self) -> Option<Caching> {
        self.pages.get().map(|pages| pages.caching)
    }

    /// Gives the buffer its pages, once. Gives `pages` back when the buffer has some already.
    pub fn allocate(&self, pages: Pages) -> Result<(), Pages> {
        self.pages.set(pages)
    }

    /// What programs have attached to the buffer.
    pub(crate) fn metadata(&self) -> MutexGuard<'_, Option<Metadata>> {
        self.metadata.lock()
    }

    /// Whether any page of the range has ever been written by CPU or GPU. Page granular, and a CPU
    /// read through a mapping counts as a write: the kernel gives such a page storage too.
    pub fn ever_written(&self, offset: u64, len: u64) -> bool {
        if len == 0 || self.check(offset, len).is_err() {
            return false;
        }
        self.is_written(offset)
            || self.written_after(offset).is_some_and(|written| written.start < offset + len)
    }

    /// Whether the page of an offset is one of those that were seen to be written: a quick answer,
    /// which may be no of one that has been written since.
    pub(crate) fn is_written(&self, offset: u64) -> bool {
        let Backing::Memfd { present, .. } = &self.backing else { return true };
        let page = offset / PAGE;
        let bits = present.get((page / 64) as usize);
        bits.is_some_and(|bits| bits.load(Ordering::Relaxed) >> (page % 64) & 1 == 1)
    }

    /// The first pages from that of `offset` on that were ever written, as far as they follow each
    /// other: byte offsets. Pages of a program's own all count.
    pub(crate) fn written_after(&self, offset: u64) -> Option<Range<u64>> {
        let Backing::Memfd { .. } = &self.backing else {
            return (offset < self.bytes).then_some(offset..self.bytes);
        };
        let written = self.file.data_after(offset / PAGE * PAGE)?;
        let written = written.start / PAGE * PAGE..written.end.next_multiple_of(PAGE);
        self.note_written(written.start, written.end - written.start);
        Some(written)
    }

    /// Looks which pages of a range were written, for [`DmaBuf::is_written`].
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

    /// Remembers that pages of a range were written: they never go away again.
    pub(crate) fn note_written(&self, offset: u64, len: u64) {
        let Backing::Memfd { present, .. } = &self.backing else { return };
        for page in offset / PAGE..(offset + len).div_ceil(PAGE) {
            if let Some(bits) = present.get((page / 64) as usize) {
                bits.fetch_or(1 << (page % 64), Ordering::Relaxed);
            }
        }
    }

    /// Reads bytes; a page never written reads as zeros and stays unwritten. Fails when the range
    /// is not within the buffer, or lent pages are gone.
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
            // Reading a page without storage through the mapping would give it some.
            if self.ever_written(at, 1) {
                // SAFETY: `check` has put the range within the mapping.
                unsafe { copy_out(base.as_ptr().add(at as usize), piece) };
            } else {
                piece.fill(0);
            }
            at += in_page as u64;
            rest = tail;
        }
        Ok(())
    }

    /// Writes bytes. Fails when the range is not within the buffer, or lent pages are gone.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), MemoryError> {
        self.check(offset, data.len() as u64)?;
        match &self.backing {
            Backing::Memfd { base, .. } => {
                // SAFETY: `check` has put the range within the mapping.
                unsafe { copy_in(data, base.as_ptr().add(offset as usize)) };
                Ok(())
            }
            Backing::Lent { va } => {
                let va = va + offset;
                user::write(va, data).map_err(|_| MemoryError::LentPageGone { va })
            }
        }
    }

    /// Loads a word for a signal handler, without asking whether its page was ever written: reading
    /// it makes the page exist. None over lent pages, and as of [`DmaBuf::load_u32`].
    pub(crate) fn peek_u32(&self, offset: u64) -> Option<u32> {
        Some(self.word_u32(offset).ok()??.load(Ordering::Acquire))
    }

    /// The words of a range, to be accessed one by one; none over lent pages, or when the range is
    /// not whole words of the buffer. Reading one of a page never written makes the page exist.
    pub(crate) fn words(&self, offset: u64, bytes: u64) -> Option<&[AtomicU32]> {
        self.check(offset, bytes).ok()?;
        let Backing::Memfd { base, .. } = &self.backing else { return None };
        if !offset.is_multiple_of(4) || !bytes.is_multiple_of(4) {
            return None;
        }
        // SAFETY: in range and aligned, as just checked; the mapping outlives the borrow, and words
        // are only ever accessed as atomics.
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

/// Atomic accesses to aligned words of one size. They fail out of range or misaligned, and when lent
/// pages are gone.
macro_rules! words {
    ($( $ty:ty, $Atomic:ty: $word:ident $load:ident $store:ident $update:ident; )+) => {$(
        impl DmaBuf {
            /// The word at `offset` of the mapping; none over lent pages.
            fn $word(&self, offset: u64) -> Result<Option<&$Atomic>, MemoryError> {
                let align = size_of::<$ty>() as u64;
                self.check(offset, align)?;
                if !offset.is_multiple_of(align) {
                    return Err(MemoryError::Misaligned { offset, align });
                }
                Ok(match &self.backing {
                    // SAFETY: in range and aligned, as just checked; the mapping outlives the borrow.
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

            /// Replaces a word by a function of it, in one step for every observer (in two over lent
            /// pages), and gives the word before.
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
            // SAFETY: the mapping was made by `map_shared` with this length, and no access can
            // follow the drop.
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
    // SAFETY: every pointer stays within the range that the caller vouches for, and words are
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

/// Copies into shared pages, as [`copy_out`].
///
/// # Safety
/// `to` is mapped writable for as many bytes as `from` has.
unsafe fn copy_in(from: &[u8], to: *mut u8) {
    let head = to.align_offset(8).min(from.len());
    let (head_bytes, rest) = from.split_at(head);
    let (words, tail_bytes) = rest.as_chunks::<8>();
    // SAFETY: every pointer stays within the range that the caller vouches for, and words are
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
