//! Page tables: translation of GPU virtual addresses to memory.
//!
//! Owns translations only. The driver allocates addresses and returns the errnos of invalid
//! requests.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::memory::DmaBuf;

/// GPU page size, the only one on this system.
pub const PAGE: u64 = 4096;

/// Rights of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAccess {
    /// The GPU may only read.
    ReadOnly,
    /// The GPU may read and write.
    ReadWrite,
    /// The GPU has no access: read-only entries on a machine that treats them as invalid.
    Nothing,
}

/// Properties of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapFlags {
    /// L2 may cache lines (`MAP_BUFFER_EX` flag 4); otherwise every access reaches memory.
    pub cacheable: bool,
    pub access: MapAccess,
    /// Page-table entries exist but are not valid (flag 0x20).
    pub unmapped_pte: bool,
}

impl Default for MapFlags {
    /// Properties of flags 0.
    fn default() -> Self {
        Self { cacheable: false, access: MapAccess::ReadWrite, unmapped_pte: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    /// An atomic read and write.
    Atomic,
}

/// MMU fault types (`hal/mm/mmu_fault` of nvgpu r36.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MmuFaultKind {
    /// Nothing near the address is mapped.
    InvalidPde = 0,
    /// The page is not mapped.
    InvalidPte = 2,
    /// The address is out of reach of the unit.
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

/// A part of a translated range within one buffer.
#[derive(Clone, Debug)]
pub struct Piece {
    pub buffer: Arc<DmaBuf>,
    pub offset: u64,
    pub bytes: u64,
    /// L2 may cache it.
    pub cacheable: bool,
}

#[derive(Debug)]
struct Mapping {
    end: u64,
    buffer: Arc<DmaBuf>,
    /// Offset of the mapping's first byte in the buffer.
    offset: u64,
    flags: MapFlags,
}

/// A whole mapping.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) va: u64,
    pub(crate) piece: Piece,
    pub(crate) flags: MapFlags,
}

/// Page tables of one address space.
#[derive(Debug, Default)]
pub struct Mmu {
    mappings: RwLock<BTreeMap<u64, Mapping>>,
    /// Most recently unmapped ranges, oldest first.
    gone: Mutex<VecDeque<Gone>>,
}

/// Error of mapping a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// An address, offset or length is not a multiple of the page size.
    #[error("{what} {value:#x} is no multiple of 4096")]
    Misaligned { what: &'static str, value: u64 },
    /// The range exceeds the buffer.
    #[error("{bytes:#x} bytes at offset {offset:#x} leave a buffer of {size:#x} bytes")]
    OutsideBuffer { offset: u64, bytes: u64, size: u64 },
    /// Part of the range is mapped already, or the range exceeds the page tables.
    #[error("GPU addresses {va:#x} and {bytes:#x} bytes on are not free")]
    NotFree { va: u64, bytes: u64 },
}

/// Number of remembered unmapped ranges.
const REMEMBERED: usize = 4096;

/// A former mapping.
#[derive(Debug)]
struct Gone {
    va: u64,
    bytes: u64,
    time: u64,
}

/// Address range of the page tables: 49 bits.
const REACH: u64 = 1 << 49;
/// Range of one page directory entry.
const PDE_COVERAGE: u64 = 1 << 21;

impl Mmu {
    /// Creates empty page tables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps `bytes` of `buffer` from `offset` on at `va`. The driver has made the same checks, with
    /// errnos.
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

    /// Unmaps `bytes` from `va` on, splitting mappings that extend further.
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

    /// Translates `bytes` from `va` on to pieces of one buffer each. [`MmuFault`] at the first
    /// address that does not permit the access.
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

    /// Returns every mapping by address.
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

    /// Returns whether the page-table entry of an address exists but is invalid.
    pub fn has_unmapped_pte(&self, va: u64) -> bool {
        let mappings = self.mappings.read();
        let found = mappings.range(..=va).next_back();
        found.is_some_and(|(_, mapping)| va < mapping.end && mapping.flags.unmapped_pte)
    }

    /// Remembers a mapping of the program that was removed at a time in nanoseconds.
    pub(crate) fn remember(&self, va: u64, bytes: u64, time: u64) {
        let mut gone = self.gone.lock();
        if gone.len() == REMEMBERED {
            gone.pop_front();
        }
        gone.push_back(Gone { va, bytes, time });
    }

    /// Describes the former mapping of an unmapped address, for messages.
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

    /// Returns the first mapped address within `bytes` from `va` on.
    pub fn first_mapped(&self, va: u64, bytes: u64) -> Option<u64> {
        let mappings = self.mappings.read();
        let first = overlapping(&mappings, va, va.saturating_add(bytes)).map(|(start, _)| start);
        first.min().map(|start| start.max(va))
    }
}

/// Returns the mappings that overlap `start..end`, by descending address.
fn overlapping(
    mappings: &BTreeMap<u64, Mapping>,
    start: u64,
    end: u64,
) -> impl Iterator<Item = (u64, &Mapping)> {
    let found = mappings.range(..end.max(start)).rev().map(|(va, mapping)| (*va, mapping));
    // Mappings do not overlap each other, so none before the first that ends earlier extends here.
    found.take_while(move |(_, mapping)| mapping.end > start)
}
