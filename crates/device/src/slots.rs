//! Where slots lie in the states of an instance: to be copied, or kept elsewhere part by part.

use std::ops::Range;

use crate::ledger::invalid;
use crate::{Part, Request, Result, SLOT_BLOCK};

/// A state that keeps something for each position: `[slot][head][position]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Positions {
    /// Where it begins, in bytes.
    pub(crate) begin: usize,
    pub(crate) slots: usize,
    pub(crate) heads: usize,
    /// Positions of a slot.
    pub(crate) count: usize,
    /// Bytes from a head's positions to the next one's.
    pub(crate) head_bytes: usize,
    /// Bytes of a position.
    pub(crate) bytes: usize,
    /// So many positions lie together, in whatever order; a block is a multiple.
    pub(crate) tile: usize,
}

impl Positions {
    /// Where positions of a slot lie, whole tiles, head by head.
    fn ranges(
        &self,
        slot: usize,
        positions: &Range<usize>,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let Self { begin, heads, head_bytes, bytes, tile, .. } = *self;
        let first = begin + slot * heads * head_bytes;
        let part = positions.start * bytes..positions.end.next_multiple_of(tile) * bytes;
        (0..heads).map(move |head| {
            let start = first + head * head_bytes;
            start + part.start..start + part.end
        })
    }
}

/// All states of an instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct States {
    pub(crate) by_position: Vec<Positions>,
    /// Of those that keep something else: where they begin, how many slots they have, the bytes of one.
    pub(crate) whole: Vec<(usize, usize, usize)>,
    /// Positions of a state that keeps every one: one with fewer is a ring.
    context: usize,
}

impl States {
    /// Those of the plans of a request, none yet.
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let context = request.plans.iter().map(|plan| plan.bucket.context).max().unwrap_or(0);
        Self { context, ..Self::default() }
    }

    fn is_ring(&self, state: &Positions) -> bool {
        state.count < self.context
    }

    /// Bytes of a part of a slot.
    pub(crate) fn part_bytes(&self, part: Part) -> usize {
        match part {
            Part::Block(_) => {
                let whole = self.by_position.iter().filter(|state| !self.is_ring(state));
                whole.map(|state| state.heads * SLOT_BLOCK * state.bytes).sum()
            }
            Part::Rest => self.rest(0).map(|range| range.len()).sum(),
        }
    }

    /// Where a part of a slot lies, `len` bytes in all.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a slot or a block that is not there, or another length.
    pub(crate) fn part(&self, slot: u32, part: Part, len: usize) -> Result<Vec<Range<usize>>> {
        let bytes = self.part_bytes(part);
        if bytes != len {
            return invalid(format!("{len} bytes for {part:?}, which has {bytes}"));
        }
        let slots = self.by_position.iter().map(|state| state.slots);
        for slots in slots.chain(self.whole.iter().map(|(_, slots, _)| *slots)) {
            exist([slot, slot], slots)?;
        }
        let Part::Block(block) = part else { return Ok(self.rest(slot as usize).collect()) };
        let mut ranges = Vec::new();
        for state in self.by_position.iter().filter(|state| !self.is_ring(state)) {
            let blocks = state.count / SLOT_BLOCK;
            if block >= blocks {
                return invalid(format!("block {block} of slot {slot}, which has {blocks}"));
            }
            let positions = block * SLOT_BLOCK..(block + 1) * SLOT_BLOCK;
            ranges.extend(state.ranges(slot as usize, &positions));
        }
        Ok(ranges)
    }

    /// Where a slot's rings lie, and what it keeps that does not lie by positions.
    fn rest(&self, slot: usize) -> impl Iterator<Item = Range<usize>> {
        let rings = self.by_position.iter().filter(|state| self.is_ring(state));
        let rings = rings.flat_map(move |state| state.ranges(slot, &(0..state.count)));
        let whole = self.whole.iter().map(move |&(begin, _, bytes)| {
            let start = begin + slot * bytes;
            start..start + bytes
        });
        rings.chain(whole)
    }

    /// What has to be copied so that a slot has the first positions of another, and all else that it keeps: where from,
    /// where to, how many bytes.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a slot that is not there.
    pub(crate) fn copies(&self, from: u32, to: u32, positions: usize) -> Result<Vec<[usize; 3]>> {
        let mut copies = Vec::new();
        for state in &self.by_position {
            let [from, to] = exist([from, to], state.slots)?;
            let positions = 0..positions.min(state.count);
            let pairs = state.ranges(from, &positions).zip(state.ranges(to, &positions));
            copies.extend(pairs.map(|(from, to)| [from.start, to.start, from.len()]));
        }
        for &(begin, slots, bytes) in &self.whole {
            let [from, to] = exist([from, to], slots)?;
            copies.push([begin + from * bytes, begin + to * bytes, bytes]);
        }
        copies.retain(|[from, to, bytes]| from != to && *bytes > 0);
        Ok(copies)
    }
}

/// Refuses slots of which there are not so many.
pub(crate) fn exist(which: [u32; 2], slots: usize) -> Result<[usize; 2]> {
    for slot in which {
        if slot as usize >= slots {
            return invalid(format!("slot {slot} of {slots}"));
        }
    }
    Ok(which.map(|slot| slot as usize))
}
