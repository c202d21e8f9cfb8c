//! Where what slots hold lies in the states of an instance: positions in blocks, which a table gives to slots, and
//! beside them what each slot has of its own. What is held is read, written and copied piece by piece.

use std::collections::HashSet;
use std::ops::Range;

use crate::ledger::invalid;
use crate::{BLOCK, Part, Request, Result};
use plan::{Caches, Op};

/// The entry of a slot's positions that lie nowhere.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// A state as pieces of one size: of blocks, or of slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    /// Where the first begins, in bytes.
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
    /// Those that keep every position: a piece for each block.
    pub(crate) blocks: Vec<Pieces>,
    /// The others, rings and what does not lie by positions: a piece for each slot.
    pub(crate) rest: Vec<Pieces>,
}

impl States {
    fn of(&self, part: Part) -> (&[Pieces], u32, &'static str) {
        match part {
            Part::Block(number) => (&self.blocks, number, "block"),
            Part::Rest(slot) => (&self.rest, slot, "slot"),
        }
    }

    /// Bytes of a part.
    pub(crate) fn part_bytes(&self, part: Part) -> usize {
        self.of(part).0.iter().map(|pieces| pieces.bytes).sum()
    }

    /// Where a part lies, `len` bytes in all.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a block or slot that is not there, or another length.
    pub(crate) fn part(&self, part: Part, len: usize) -> Result<Vec<Range<usize>>> {
        let bytes = self.part_bytes(part);
        if bytes != len {
            return invalid(format!("{len} bytes for {part:?}, which has {bytes}"));
        }
        let (states, number, what) = self.of(part);
        states.iter().map(|pieces| pieces.piece(number, what)).collect()
    }

    /// What has to be copied to make one part what another is: where from, where to, how many bytes.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a block or slot that is not there, or parts of two kinds.
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

/// Which states are rings: as steps use them, or since they have fewer positions than there are.
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

/// Which blocks hold the positions of each slot: `[slot][entries]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) slots: usize,
    /// Of a slot: as many as its positions fill.
    pub(crate) entries: usize,
}

impl Table {
    /// That of states whose positions lie in blocks: each `[slots, positions, ..]`.
    pub(crate) fn grow(&mut self, slots: usize, positions: usize) {
        self.slots = self.slots.max(slots);
        self.entries = self.entries.max(positions.div_ceil(BLOCK));
    }

    pub(crate) const fn blocks(&self) -> usize {
        self.slots * self.entries
    }

    /// What it says at first: each slot has blocks of its own, in order.
    pub(crate) fn first(&self) -> Vec<u32> {
        (0..self.blocks() as u32).collect()
    }

    /// The entries of a slot that has these blocks.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for a slot or block that is not there, or too many of them.
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
