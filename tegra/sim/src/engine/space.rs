//! Global memory of a launch, accessed directly in the mapped buffers.
//!
//! The machine receives regions of up to 1 MiB, which the accesses of a warp rarely leave, and
//! marks the words that it reads and writes. After the launch, [`Space::finish`] reports the marked
//! words to the simulator, so that all checks see every accessed word once.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use sass::memory::{ALL_READ, Access, MARKED, Memory, MemoryFault, READ, Region, WRITTEN};

use crate::gpu::{self, GpuMemory, PAGE, Piece};
use crate::memory::DmaBuf;

/// Bytes of a chunk, the unit of translation.
const CHUNK: u64 = 1 << 20;
/// Address bits decoded by each table level. Three levels and a chunk cover the 49 bits of the page
/// tables.
const LEVEL: u32 = 10;
const WORD: u64 = 4;
/// Bytes whose marks share an element.
const MARK: u64 = MARKED as u64 * WORD;

type Table<T> = Box<[OnceLock<T>]>;

fn table<T>() -> Table<T> {
    (0..1 << LEVEL).map(|_| OnceLock::new()).collect()
}

/// Memory as a launch sees it.
pub(super) struct Space<'a> {
    memory: &'a dyn GpuMemory,
    /// Chunks by address, in three levels; they do not move while the launch runs.
    chunks: Table<Table<Table<Vec<Part>>>>,
}

/// A part of a chunk within one buffer.
struct Part {
    start: u64,
    bytes: u64,
    writable: bool,
    buffer: Arc<DmaBuf>,
    offset: u64,
    /// Copy of the words if the buffer's pages are lent and cannot be accessed in place, or if L1
    /// is stale; written back at the end.
    copy: Option<Box<[AtomicU32]>>,
    marks: Box<[AtomicU64]>,
}

impl<'a> Space<'a> {
    pub(super) fn new(memory: &'a dyn GpuMemory) -> Self {
        Self { memory, chunks: table() }
    }

    fn chunk(&self, address: u64) -> &[Part] {
        let number = address / CHUNK;
        let index = |level: u32| (number >> (LEVEL * level)) as usize & ((1 << LEVEL) - 1);
        if number >> (3 * LEVEL) != 0 {
            return &[];
        }
        let branch = self.chunks[index(2)].get_or_init(table);
        let leaf = branch[index(1)].get_or_init(table);
        leaf[index(0)].get_or_init(|| self.translate(number * CHUNK))
    }

    /// Returns the mapped parts of a chunk.
    fn translate(&self, base: u64) -> Vec<Part> {
        let (mut parts, mut at, end) = (Vec::new(), base, base + CHUNK);
        while at < end
            && let Some(start) = self.memory.next_mapped(at, end - at)
        {
            let refused = self.memory.resolve(start, end - start, gpu::Access::Read).err();
            at = refused.map_or(end, |fault| fault.va);
            match self.memory.resolve(start, at.saturating_sub(start), gpu::Access::Read) {
                Ok(pieces) if at > start => parts.extend(self.parts(start, pieces)),
                // Mapped without access rights.
                _ => at = start / PAGE * PAGE + PAGE,
            }
        }
        parts
    }

    fn parts(&self, base: u64, pieces: Vec<Piece>) -> Vec<Part> {
        let mut start = base;
        pieces
            .into_iter()
            .filter_map(|piece| {
                let va = start;
                start += piece.bytes;
                let stale = self.memory.stale(&piece).map(|bytes| words(&bytes));
                let Piece { buffer, offset, bytes, .. } = piece;
                buffer.survey(offset, bytes);
                let writable = self.memory.resolve(va, bytes, gpu::Access::Write).is_ok();
                let copy = match buffer.words(offset, bytes) {
                    Some(_) => stale,
                    None => Some(copy(&buffer, offset, bytes)?),
                };
                let marks = (0..bytes / MARK).map(|_| AtomicU64::new(0)).collect();
                Some(Part { start: va, bytes, writable, buffer, offset, copy, marks })
            })
            .collect()
    }

    /// Reports accessed words and writes back copies. Returns the number of accessed bytes.
    pub(super) fn finish(&self) -> u64 {
        let mut bytes_touched = 0;
        let leaves = self.chunks.iter().filter_map(OnceLock::get).flatten();
        let chunks = leaves.filter_map(OnceLock::get).flatten().filter_map(OnceLock::get);
        for part in chunks.flatten() {
            part.write_back();
            part.each_run(|range, marks| {
                let (va, bytes) = (part.start + range.start, range.end - range.start);
                bytes_touched += bytes;
                // Words that the launch wrote itself are not stale.
                if marks & WRITTEN != 0 {
                    part.buffer.note_written(part.offset + range.start, bytes);
                    self.memory.touched(va, bytes, gpu::Access::Write);
                }
                if marks & READ != 0 {
                    self.memory.touched(va, bytes, gpu::Access::Read);
                }
            });
        }
        bytes_touched
    }
}

/// Copies the words of lent pages; none if the program has unmapped them.
fn copy(buffer: &DmaBuf, offset: u64, bytes: u64) -> Option<Box<[AtomicU32]>> {
    let mut data = vec![0; bytes as usize];
    buffer.read(offset, &mut data).ok()?;
    Some(words(&data))
}

fn words(bytes: &[u8]) -> Box<[AtomicU32]> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| AtomicU32::new(u32::from_le_bytes(*word))).collect()
}

impl Part {
    fn words(&self) -> &[AtomicU32] {
        let shared = || self.buffer.words(self.offset, self.bytes);
        self.copy.as_deref().or_else(shared).unwrap_or_default()
    }

    /// Returns the pages around an address that were all written before, or all not. Unwritten
    /// pages are returned one by one, because reading one allocates it. For writes the exact state
    /// is not needed: a page of unknown state counts as unwritten.
    fn alike(&self, address: u64, access: Access) -> (Range<u64>, bool) {
        let at = |page: u64| self.offset + page * PAGE;
        let known = |page: u64| self.copy.is_some() || self.buffer.is_written(at(page));
        let page = (address - self.start) / PAGE;
        let (mut first, mut end) = (page, page + 1);
        let written =
            known(page) || access != Access::Write && self.buffer.ever_written(at(page), PAGE);
        if written {
            while first > 0 && known(first - 1) {
                first -= 1;
            }
            while end < self.bytes / PAGE && known(end) {
                end += 1;
            }
        }
        (first * PAGE..end * PAGE, written)
    }

    fn write_back(&self) {
        let Some(words) = &self.copy else { return };
        self.each_run(|range, marks| {
            if marks & WRITTEN != 0 {
                let run = (range.start / WORD) as usize..(range.end / WORD) as usize;
                let words = words.get(run).unwrap_or_default();
                let data: Vec<u8> = words
                    .iter()
                    .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
                    .collect();
                // Fails if the program has unmapped the pages; nothing can observe the words then.
                let _ = self.buffer.write(self.offset + range.start, &data);
            }
        });
    }

    /// Calls `each` for runs of words with equal marks, with their byte range in the part.
    fn each_run(&self, mut each: impl FnMut(Range<u64>, u8)) {
        let together = |index: usize| self.marks[index / MARKED].load(Ordering::Relaxed);
        let mark = |index: usize| (together(index) >> (2 * (index % MARKED)) & 3) as u8;
        let (mut at, end) = (0, self.marks.len() * MARKED);
        while at < end {
            let marks = mark(at);
            let start = at;
            while at < end && mark(at) == marks {
                let alike = at % MARKED == 0 && together(at) == ALL_READ * u64::from(marks);
                at += if alike { MARKED } else { 1 };
            }
            if marks != 0 {
                each(start as u64 * WORD..at as u64 * WORD, marks);
            }
        }
    }
}

impl Memory for Space<'_> {
    fn region(&self, address: u64, access: Access) -> Result<Region<'_>, MemoryFault> {
        let within = |part: &&Part| (part.start..part.start + part.bytes).contains(&address);
        let part = self.chunk(address).iter().find(within);
        let part = part.ok_or(MemoryFault::Unmapped { address, access })?;
        if access != Access::Read && !part.writable {
            return Err(MemoryFault::Forbidden { address, access });
        }
        let (pages, written) = part.alike(address, access);
        if !written && access != Access::Write {
            // Reported immediately, because the page is allocated once the launch is over.
            self.memory.touched(address / WORD * WORD, WORD, gpu::Access::Read);
        }
        // Pages are multiples of a mark element.
        let run = (pages.start / WORD) as usize..(pages.end / WORD) as usize;
        Ok(Region {
            start: part.start + pages.start,
            words: part.words().get(run.clone()).unwrap_or_default(),
            writable: part.writable,
            marks: part.marks.get(run.start / MARKED..run.end / MARKED),
        })
    }
}

/// Returns the bytes of a range up to the first unmapped page. The start of the launch has already
/// read constants and code through their caches.
pub(super) fn mapped(memory: &dyn GpuMemory, va: u64, bytes: u64) -> Vec<u8> {
    let end = va.saturating_add(bytes);
    let mut found = Vec::new();
    let mut at = va;
    while at < end {
        let until = end.min((at / PAGE + 1).saturating_mul(PAGE));
        let Ok(pieces) = memory.resolve(at, until - at, gpu::Access::Read) else { break };
        for piece in pieces {
            let start = found.len();
            found.resize(start + piece.bytes as usize, 0);
            if piece.buffer.read(piece.offset, &mut found[start..]).is_err() {
                found.truncate(start);
                return found;
            }
        }
        at = until;
    }
    found
}
