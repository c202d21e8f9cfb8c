//! Earlier contents of memory, for findings about rewritten memory and stale caches.
//!
//! Stores of the CPU are invisible, so contents are recorded and compared. The GPU's own writes are
//! counted for each page, to distinguish the two.

use std::collections::hash_map::Entry;
use std::hash::Hasher;

use rustc_hash::{FxHashMap, FxHasher};

use crate::mmu::{Access, Mmu, PAGE, Piece};

/// Bytes of a cache line.
const LINE: u64 = 128;
/// Number of lines in a cache: more than on hardware, because a longer-lived line finds more.
const LINES: usize = 1 << 15;
/// Largest number of bytes in a snapshot; of longer ranges it covers both ends.
pub(crate) const WATCHED: u64 = 256 << 10;

type Map<V> = FxHashMap<(u64, u64), V>;

/// Writes of the GPU, and the contents of its caches.
#[derive(Default)]
pub(crate) struct Shadow {
    now: u64,
    /// Last write of the GPU, by buffer and page.
    writes: Map<u64>,
    pub(crate) l2: Cache,
    pub(crate) data: Cache,
    /// L1 on a machine on which invalidates get lost.
    pub(crate) stale: Option<Cache>,
    pub(crate) constants: Cache,
    pub(crate) instructions: Cache,
}

impl Shadow {
    /// Creates the state; `stale` selects a machine on which L1 invalidates get lost.
    pub(crate) fn new(stale: bool) -> Self {
        Self { stale: stale.then(Cache::default), ..Self::default() }
    }

    /// Records a write of the GPU.
    pub(crate) fn wrote(&mut self, piece: &Piece) {
        self.now += 1;
        let first = piece.offset / PAGE;
        for page in first..(piece.offset + piece.bytes).div_ceil(PAGE) {
            self.writes.insert((piece.buffer.inode(), page), self.now);
        }
    }

    /// Forgets written pages, because no snapshot is in use.
    pub(crate) fn settle(&mut self) {
        self.writes.clear();
    }

    /// Returns the number of writes of the GPU.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Returns whether the GPU has written to the pages of a range since `then`.
    pub(crate) fn has_written(&self, mmu: &Mmu, va: u64, bytes: u64, then: u64) -> bool {
        let pieces = mmu.resolve(va, bytes, Access::Read).unwrap_or_default();
        pieces.iter().any(|piece| self.written_since(piece, then))
    }

    fn written_since(&self, piece: &Piece, then: u64) -> bool {
        let first = piece.offset / PAGE;
        let mut pages = first..(piece.offset + piece.bytes).div_ceil(PAGE);
        pages
            .any(|page| self.writes.get(&(piece.buffer.inode(), page)).is_some_and(|at| *at > then))
    }
}

/// A cache: lines and their contents.
#[derive(Default)]
pub(crate) struct Cache {
    lines: Map<[u8; LINE as usize]>,
}

impl Cache {
    /// Invalidates every line.
    pub(crate) fn invalidate(&mut self) {
        self.lines.clear();
    }

    /// Invalidates the lines of a range.
    pub(crate) fn invalidate_range(&mut self, piece: &Piece) {
        for line in lines(piece) {
            self.lines.remove(&(piece.buffer.inode(), line));
        }
    }

    /// Reads a range through the cache; returns the offset of the first byte that differs from
    /// memory.
    pub(crate) fn read(&mut self, piece: &Piece) -> Option<u64> {
        let mut stale = None;
        for line in lines(piece) {
            let mut now = [0; LINE as usize];
            if piece.buffer.read(line * LINE, &mut now).is_err() {
                continue;
            }
            if self.lines.len() >= LINES {
                self.lines.clear();
            }
            match self.lines.entry((piece.buffer.inode(), line)) {
                Entry::Vacant(entry) => {
                    entry.insert(now);
                }
                Entry::Occupied(mut entry) => {
                    let start = piece.offset.max(line * LINE);
                    let end = (piece.offset + piece.bytes).min((line + 1) * LINE);
                    let asked = (start - line * LINE) as usize..(end - line * LINE) as usize;
                    let (held, found) = (&entry.get()[asked.clone()], &now[asked]);
                    if held != found {
                        let same = held.iter().zip(found).take_while(|(a, b)| a == b).count();
                        stale = stale.or(Some(start + same as u64));
                        entry.insert(now);
                    }
                }
            }
        }
        stale
    }

    /// Fills missing lines of a range.
    pub(crate) fn fill(&mut self, piece: &Piece) {
        for line in lines(piece) {
            if self.lines.len() >= LINES {
                self.lines.clear();
            }
            let mut now = [0; LINE as usize];
            if piece.buffer.read(line * LINE, &mut now).is_ok() {
                self.lines.entry((piece.buffer.inode(), line)).or_insert(now);
            }
        }
    }

    /// Returns a range as cached; none if it equals memory.
    pub(crate) fn differing(&self, piece: &Piece) -> Option<Vec<u8>> {
        let mut memory = vec![0; piece.bytes as usize];
        piece.buffer.read(piece.offset, &mut memory).ok()?;
        let mut seen = memory.clone();
        for line in lines(piece) {
            let Some(held) = self.lines.get(&(piece.buffer.inode(), line)) else { continue };
            let start = piece.offset.max(line * LINE);
            let end = (piece.offset + piece.bytes).min((line + 1) * LINE);
            let within = (start - line * LINE) as usize..(end - line * LINE) as usize;
            let at = (start - piece.offset) as usize;
            seen[at..at + within.len()].copy_from_slice(&held[within]);
        }
        (seen != memory).then_some(seen)
    }

    /// Updates cached lines of a range that was written through the cache.
    pub(crate) fn wrote(&mut self, piece: &Piece) {
        for line in lines(piece) {
            let Some(held) = self.lines.get_mut(&(piece.buffer.inode(), line)) else { continue };
            let start = piece.offset.max(line * LINE);
            let end = (piece.offset + piece.bytes).min((line + 1) * LINE);
            let within = (start - line * LINE) as usize..(end - line * LINE) as usize;
            // The line was read before, so it is within the buffer.
            let _ = piece.buffer.read(start, &mut held[within]);
        }
    }
}

fn lines(piece: &Piece) -> std::ops::Range<u64> {
    piece.offset / LINE..(piece.offset + piece.bytes).div_ceil(LINE)
}

/// Hash of the contents of a range at some time.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    va: u64,
    taken: u64,
    pages: Vec<Page>,
}

#[derive(Clone, Debug)]
struct Page {
    va: u64,
    bytes: u64,
    inode: u64,
    hash: u64,
}

/// Difference of a range from its snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The CPU wrote near this address.
    ByCpu(u64),
    /// The GPU wrote near this address.
    ByGpu(u64),
}

impl Snapshot {
    /// Takes a snapshot of a range, without unmapped pages.
    pub(crate) fn take(mmu: &Mmu, shadow: &Shadow, va: u64, bytes: u64) -> Self {
        let mut pages = Vec::new();
        let parts = if bytes <= WATCHED {
            [(va, bytes), (va, 0)]
        } else {
            [(va, WATCHED / 2), (va.saturating_add(bytes - WATCHED / 2), WATCHED / 2)]
        };
        for (va, bytes) in parts {
            each_page(va, bytes, |va, bytes| {
                if let Some((piece, hash)) = contents(mmu, va, bytes) {
                    pages.push(Page { va, bytes, inode: piece.buffer.inode(), hash });
                }
            });
        }
        Self { va, taken: shadow.now, pages }
    }

    /// Returns the first address of the range.
    pub(crate) fn va(&self) -> u64 {
        self.va
    }

    /// Compares the range with memory. Pages that are now mapped to other memory count as
    /// unchanged.
    pub(crate) fn change(&self, mmu: &Mmu, shadow: &Shadow) -> Option<Change> {
        self.pages.iter().find_map(|page| {
            let (piece, hash) = contents(mmu, page.va, page.bytes)?;
            if hash == page.hash || piece.buffer.inode() != page.inode {
                None
            } else if shadow.written_since(&piece, self.taken) {
                Some(Change::ByGpu(page.va))
            } else {
                Some(Change::ByCpu(page.va))
            }
        })
    }
}

pub(crate) fn each_page(va: u64, bytes: u64, mut each: impl FnMut(u64, u64)) {
    let end = va.saturating_add(bytes);
    let mut at = va;
    while at < end {
        let until = end.min((at / PAGE + 1).saturating_mul(PAGE));
        each(at, until - at);
        at = until;
    }
}

fn contents(mmu: &Mmu, va: u64, bytes: u64) -> Option<(Piece, u64)> {
    let piece = mmu.resolve(va, bytes, Access::Read).ok()?.pop()?;
    let mut page = [0; PAGE as usize];
    let page = page.get_mut(..bytes as usize)?;
    piece.buffer.read(piece.offset, page).ok()?;
    let mut hash = FxHasher::default();
    hash.write(page);
    Some((piece, hash.finish()))
}
