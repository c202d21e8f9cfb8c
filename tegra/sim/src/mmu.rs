//! Page tables: which memory a GPU virtual address means.
//!
//! Holds translations only. Which addresses are handed out, and the errnos of wrong requests, are
//! the driver's business.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::memory::DmaBuf;

/// Size of a GPU page: the only one on this system.
pub const PAGE: u64 = 4096;

/// Rights of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAccess {
    /// The GPU may only read.
    ReadOnly,
    /// The GPU may read and write.
    ReadWrite,
    /// The GPU may do nothing: read-only entries on a machine that takes them for invalid ones.
    Nothing,
}

/// How a range is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapFlags {
    /// L2 may keep lines (`MAP_BUFFER_EX` flag 4); otherwise every access goes to memory.
    pub cacheable: bool,
    pub access: MapAccess,
    /// Page-table entries exist but are not valid (flag 0x20).
    pub unmapped_pte: bool,
}

impl Default for MapFlags {
    /// What flags of 0 give.
    fn default() -> Self {
        Self { cacheable: false, access: MapAccess::ReadWrite, unmapped_pte: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// It reads and writes at once.
    Atomic,
}

/// Fault types, as the MMU numbers them (`hal/mm/mmu_fault` of nvgpu r36.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MmuFaultKind {
    /// Nothing near the address is mapped.
    InvalidPde = 0,
    /// The page is not mapped.
    InvalidPte = 2,
    /// The address is beyond what the unit can name.
    LimitViolation = 3,
    /// A write through a read-only mapping.
    WriteToReadOnly = 6,
}

/// A failed translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?} at GPU address {va:#x} ({access:?})")]
pub struct MmuFault {
    /// The first address that failed.
    pub va: u64,
    pub access: Access,
    pub kind: MmuFaultKind,
}

/// A part of a translated range that lies in one buffer.
#[derive(Clone, Debug)]
pub struct Piece {
    pub buffer: Arc<DmaBuf>,
    pub offset: u64,
    pub bytes: u64,
    /// Whether L2 may keep it.
    pub cacheable: bool,
}

#[derive(Debug)]
struct Mapping {
    end: u64,
    buffer: Arc<DmaBuf>,
    /// Offset in the buffer of the mapping's first byte.
    offset: u64,
    flags: MapFlags,
}

/// A mapping as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) va: u64,
    pub(crate) piece: Piece,
    pub(crate) flags: MapFlags,
}

/// The translations of one address space.
#[derive(Debug, Default)]
pub struct Mmu {
    mappings: RwLock<BTreeMap<u64, Mapping>>,
    /// What was unmapped last, oldest first.
    gone: Mutex<VecDeque<Gone>>,
}

/// Why a range cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Addresses, offsets and lengths are in pages.
    #[error("{what} {value:#x} is no multiple of 4096")]
    Misaligned { what: &'static str, value: u64 },
    /// The range leaves the buffer.
    #[error("{bytes:#x} bytes at offset {offset:#x} leave a buffer of {size:#x} bytes")]
    OutsideBuffer { offset: u64, bytes: u64, size: u64 },
    /// A part of the range is mapped already, or the range leaves the page tables.
    #[error("GPU addresses {va:#x} and {bytes:#x} bytes on are not free")]
    NotFree { va: u64, bytes: u64 },
}

/// Mappings that are remembered when they are gone.
const REMEMBERED: usize = 4096;

/// A mapping that there was.
#[derive(Debug)]
struct Gone {
    va: u64,
    bytes: u64,
    time: u64,
}

/// The page tables' reach: 49 bits.
const REACH: u64 = 1 << 49;
/// What one page directory entry covers.
const PDE_COVERAGE: u64 = 1 << 21;

impl Mmu {
    /// An address space with nothing mapped.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps `bytes` of `buffer` from `offset` on at `va`. The driver has checked the same before,
    /// with errnos.
    pub fn map(
        &self,
        va: u64,
        buffer: Arc<DmaBuf>,
        offset: u64,
        bytes: u64,
        flags: MapFlags,
    ) -> Result<(), MapError> {
        for (what, value) in [("address", va), ("offset", offset), ("length", bytes)] {
            if !value.is_multiple_of(PAGE) {
                return Err(MapError::Misaligned { what, value });
            }
        }
        let size = buffer.bytes();
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > size) {
            return Err(MapError::OutsideBuffer { offset, bytes, size });
        }
        let end = va.checked_add(bytes).filter(|end| *end <= REACH);
        let end = end.ok_or(MapError::NotFree { va, bytes })?;
        let mut mappings = self.mappings.write();
        if overlapping(&mappings, va, end).next().is_some() {
            return Err(MapError::NotFree { va, bytes });
        }
        mappings.insert(va, Mapping { end, buffer, offset, flags });
        Ok(())
    }

    /// Drops every translation within `bytes` from `va` on, cutting mappings that reach further.
    pub fn unmap(&self, va: u64, bytes: u64) {
        let end = va.saturating_add(bytes);
        let mut mappings = self.mappings.write();
        let starts: Vec<u64> = overlapping(&mappings, va, end).map(|(start, _)| start).collect();
        for start in starts {
            let Some(Mapping { end: old_end, buffer, offset, flags }) = mappings.remove(&start)
            else {
                continue;
            };
            if old_end > end {
                let offset = offset + (end - start);
                let buffer = Arc::clone(&buffer);
                mappings.insert(end, Mapping { end: old_end, buffer, offset, flags });
            }
            if start < va {
                mappings.insert(start, Mapping { end: va, buffer, offset, flags });
            }
        }
    }

    /// The memory behind `bytes` from `va` on, in pieces of one buffer each. [`MmuFault`] at the
    /// first address that cannot be reached so.
    pub fn resolve(&self, va: u64, bytes: u64, access: Access) -> Result<Vec<Piece>, MmuFault> {
        let mut pieces = Vec::with_capacity(1);
        self.visit(va, bytes, access, |piece| pieces.push(piece))?;
        Ok(pieces)
    }

    /// Calls `each` for every piece of `bytes` from `va` on.
    fn visit(
        &self,
        va: u64,
        bytes: u64,
        access: Access,
        mut each: impl FnMut(Piece),
    ) -> Result<(), MmuFault> {
        let limit = MmuFault { va, access, kind: MmuFaultKind::LimitViolation };
        let end = va.checked_add(bytes).filter(|end| *end <= REACH).ok_or(limit)?;
        let mappings = self.mappings.read();
        let mut at = va;
        while at < end {
            let found = mappings.range(..=at).next_back().filter(|(_, found)| at < found.end);
            let Some((start, mapping)) = found else {
                let granule = at / PDE_COVERAGE * PDE_COVERAGE;
                let near = overlapping(&mappings, granule, granule + PDE_COVERAGE).next();
                let kind = if near.is_some() {
                    MmuFaultKind::InvalidPte
                } else {
                    MmuFaultKind::InvalidPde
                };
                return Err(MmuFault { va: at, access, kind });
            };
            if mapping.flags.unmapped_pte {
                return Err(MmuFault { va: at, access, kind: MmuFaultKind::InvalidPte });
            }
            let fault = |kind| Err(MmuFault { va: at, access, kind });
            match mapping.flags.access {
                MapAccess::ReadOnly if access != Access::Read => {
                    return fault(MmuFaultKind::WriteToReadOnly);
                }
                MapAccess::Nothing => return fault(MmuFaultKind::InvalidPte),
                MapAccess::ReadOnly | MapAccess::ReadWrite => {}
            }
            let until = end.min(mapping.end);
            each(Piece {
                buffer: Arc::clone(&mapping.buffer),
                offset: mapping.offset + (at - start),
                bytes: until - at,
                cacheable: mapping.flags.cacheable,
            });
            at = until;
        }
        Ok(())
    }

    /// Every mapping, by address.
    pub(crate) fn mappings(&self) -> Vec<Mapped> {
        let mappings = self.mappings.read();
        let mapped = mappings.iter().map(|(va, mapping)| Mapped {
            va: *va,
            piece: Piece {
                buffer: Arc::clone(&mapping.buffer),
                offset: mapping.offset,
                bytes: mapping.end - va,
                cacheable: mapping.flags.cacheable,
            },
            flags: mapping.flags,
        });
        mapped.collect()
    }

    /// Whether the page-table entry of an address exists, but is not valid.
    pub fn has_unmapped_pte(&self, va: u64) -> bool {
        let mappings = self.mappings.read();
        let found = mappings.range(..=va).next_back();
        found.is_some_and(|(_, mapping)| va < mapping.end && mapping.flags.unmapped_pte)
    }

    /// A mapping of the program's is gone, at a time in nanoseconds.
    pub(crate) fn remember(&self, va: u64, bytes: u64, time: u64) {
        let mut gone = self.gone.lock();
        if gone.len() == REMEMBERED {
            gone.pop_front();
        }
        gone.push_back(Gone { va, bytes, time });
    }

    /// What an address belonged to that is not mapped any more, for messages.
    pub(crate) fn past(&self, va: u64) -> Option<String> {
        if self.first_mapped(va, 1).is_some() {
            return None;
        }
        let gone = self.gone.lock();
        let last = gone.iter().rev().find(|gone| (gone.va..gone.va + gone.bytes).contains(&va))?;
        let Gone { va: start, bytes, time } = last;
        Some(format!(
            "; it was mapped until {time} ns, {:#x} bytes into the {bytes:#x} at {start:#x} that were unmapped then: \
             unmap when the work that uses a buffer has completed",
            va - start
        ))
    }

    /// The first mapped address within `bytes` from `va` on.
    pub fn first_mapped(&self, va: u64, bytes: u64) -> Option<u64> {
        let mappings = self.mappings.read();
        let first = overlapping(&mappings, va, va.saturating_add(bytes)).map(|(start, _)| start);
        first.min().map(|start| start.max(va))
    }
}

/// Mappings that share an address with `start..end`, by falling address.
fn overlapping(
    mappings: &BTreeMap<u64, Mapping>,
    start: u64,
    end: u64,
) -> impl Iterator<Item = (u64, &Mapping)> {
    let found = mappings.range(..end.max(start)).rev().map(|(va, mapping)| (*va, mapping));
    // Mappings do not overlap each other, so none before the first that ends earlier reaches here.
    found.take_while(move |(_, mapping)| mapping.end > start)
}
