//! Layout of states: KV cache blocks assigned to slots by a block table, and per-slot states. Both
//! are read, written and copied in pieces.

use std::collections::HashSet;
use std::ops::Range;

use crate::ledger::invalid;
use crate::{BLOCK, Part, Request, Result};
use plan::{Caches, Op};

/// Block table entry without a block.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// A state as equally sized pieces, one per block or per slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    /// Offset of the first piece in bytes.
    pub(crate) begin: usize,
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

impl Pieces {
    fn piece(&self, number: u32, what: &str) -> Result<Range<usize>> {
        let Self { begin, count, bytes } = *self;
        let at = number as usize;
        if at >= count {
            return invalid(format!("{what} {number} of {count}"));
        }
        let start = begin + at * bytes;
        Ok(start..start + bytes)
    }
}

/// All states of an instance.
#[derive(Clone, Debug, Default)]
pub(crate) struct States {
    /// States that store every position: a piece per block.
    pub(crate) blocks: Vec<Pieces>,
    /// Rings and other states: a piece per slot.
    pub(crate) rest: Vec<Pieces>,
}

impl States {
    fn of(&self, part: Part) -> (&[Pieces], u32, &'static str) {
        match part {
            Part::Block(number) => (&self.blocks, number, "block"),
            Part::Recurrent(slot) => (&self.rest, slot, "slot"),
        }
    }

    /// Size of a part in bytes.
    pub(crate) fn part_bytes(&self, part: Part) -> usize {
        self.of(part).0.iter().map(|pieces| pieces.bytes).sum()
    }

    /// Byte ranges of a part, `len` bytes in total.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Invalid`] for a block or slot that does not exist, or another length.
    pub(crate) fn part(&self, part: Part, len: usize) -> Result<Vec<Range<usize>>> {
        let bytes = self.part_bytes(part);
        if bytes != len {
            return invalid(format!("{len} bytes for {part:?}, which has {bytes}"));
        }
        let (states, number, what) = self.of(part);
        states.iter().map(|pieces| pieces.piece(number, what)).collect()
    }

    /// Copies that make one part equal to another: source, destination, bytes.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Invalid`] for a block or slot that does not exist, or parts of different
    /// kinds.
    pub(crate) fn copies(&self, from: Part, to: Part) -> Result<Vec<[usize; 3]>> {
        if std::mem::discriminant(&from) != std::mem::discriminant(&to) {
            return invalid(format!("a copy of {from:?} to {to:?}"));
        }
        let bytes = self.part_bytes(from);
        let (from, to) = (self.part(from, bytes)?, self.part(to, bytes)?);
        let pairs = from.into_iter().zip(to).filter(|(from, to)| from != to);
        Ok(pairs.map(|(from, to)| [from.start, to.start, from.len()]).collect())
    }
}

/// Names of states that are rings: declared by steps, or with fewer positions than the context.
pub(crate) fn rings<'a>(request: &Request<'a>) -> HashSet<&'a str> {
    let context = request.plans.iter().map(|plan| plan.bucket.context).max().unwrap_or(0);
    let short = |shape: &[usize]| matches!(shape, [_, positions, _, _] if *positions < context);
    let states = request.states.iter().filter(|state| short(&state.shape));
    let mut rings: HashSet<&str> = states.map(|state| state.name.as_str()).collect();
    for plan in request.plans {
        for step in &plan.steps {
            let caches = match &step.op {
                Op::KvWrite { cache, ring: true, .. } => vec![cache],
                Op::Attention(plan::Attention { caches, .. })
                | Op::RopeKv(plan::RopeKv { caches, .. }) => match caches {
                    Caches { keys, values, ring: true } => vec![keys, values],
                    Caches { .. } => vec![],
                },
                _ => vec![],
            };
            rings.extend(caches.iter().map(|view| plan.buffer(view.buffer).name.as_str()));
        }
    }
    rings
}

/// Block table, `[slot][entries]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) slots: usize,
    /// Entries per slot: enough for all its positions.
    pub(crate) entries: usize,
}

impl Table {
    /// Extends the table for states `[slots, positions, ..]` in blocks.
    pub(crate) fn grow(&mut self, slots: usize, positions: usize) {
        self.slots = self.slots.max(slots);
        self.entries = self.entries.max(positions.div_ceil(BLOCK));
    }

    pub(crate) const fn blocks(&self) -> usize {
        self.slots * self.entries
    }

    /// Initial table: each slot has its own blocks, in order.
    pub(crate) fn first(&self) -> Vec<u32> {
        (0..self.blocks() as u32).collect()
    }

    /// Entries of a slot with these blocks.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Invalid`] for a slot or block that does not exist, or too many blocks.
    pub(crate) fn row(&self, slot: u32, blocks: &[u32]) -> Result<Vec<u32>> {
        let Self { slots, entries } = *self;
        if slot as usize >= slots {
            return invalid(format!("slot {slot} of {slots}"));
        }
        if blocks.len() > entries {
            return invalid(format!("{} blocks for a slot, which has {entries}", blocks.len()));
        }
        if let Some(block) = blocks.iter().find(|block| **block as usize >= self.blocks()) {
            return invalid(format!("block {block} of {}", self.blocks()));
        }
        let mut row = blocks.to_vec();
        row.resize(entries, NOWHERE);
        Ok(row)
    }
}
