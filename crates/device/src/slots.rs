//! Where slots lie in the states of an instance: to be copied, or kept elsewhere in blocks of their positions.

use std::ops::Range;

use crate::ledger::invalid;
use crate::{Result, SLOT_BLOCK};

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
    fn ranges(&self, slot: usize, positions: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
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
}

impl States {
    /// Bytes of a block, where every state lies by positions.
    pub(crate) fn block_bytes(&self) -> Option<usize> {
        let bytes = |state: &Positions| state.heads * SLOT_BLOCK * state.bytes;
        self.whole.is_empty().then(|| self.by_position.iter().map(bytes).sum())
    }

    /// Where a block of a slot lies, `len` bytes in all.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a slot or a block that is not there, or another length.
    pub(crate) fn block(&self, slot: u32, block: usize, len: usize) -> Result<Vec<Range<usize>>> {
        if self.block_bytes() != Some(len) {
            return invalid(format!("{len} bytes for a block, which has {:?}", self.block_bytes()));
        }
        let mut ranges = Vec::new();
        for state in &self.by_position {
            if slot as usize >= state.slots || block >= state.count / SLOT_BLOCK {
                let (blocks, slots) = (state.count / SLOT_BLOCK, state.slots);
                return invalid(format!("block {block} of slot {slot}: {slots} have {blocks}"));
            }
            let positions = block * SLOT_BLOCK..(block + 1) * SLOT_BLOCK;
            ranges.extend(state.ranges(slot as usize, &positions));
        }
        Ok(ranges)
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
