//! KV cache slots and blocks: allocates them, and caches those of finished sequences for prompts with a common prefix.
//!
//! Sequences share the blocks of a common prefix; each writes only to blocks of its own. The least recently used sequence
//! is evicted first. The scheduler decides when a prompt starts.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::Scales;
use device::{BLOCK, Part};

/// Smallest number of tokens for which files are read, or the recurrent state of a slot is copied: evaluating fewer is
/// at least as fast.
pub(super) const WORTH_A_COPY: usize = 32;
/// Smallest number of tokens for which a block is copied.
const WORTH_A_BLOCK: usize = 8;

/// Division of a cache into slots and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Division {
    /// Number of sequences that can run at once.
    pub(super) slots: u32,
    /// Number of blocks of a slot, of [`BLOCK`] positions each; 0 if the device stores them with the recurrent part.
    pub(super) blocks_per_slot: u32,
    /// True if a slot has state besides blocks (recurrent states, ring caches), which is valid only at the sequence's end.
    pub(super) recurrent: bool,
}

/// The place of a sequence in the cache.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) number: u32,
    /// Block table.
    pub(super) blocks: Vec<u32>,
}

/// Cached part of a finished sequence, or of a fork.
#[derive(Debug, PartialEq)]
pub(super) struct CachedSequence {
    /// Tokens whose keys and values are cached, from position 0 on.
    pub(super) tokens: Vec<u32>,
    /// The adapters that they were evaluated with.
    pub(super) adapters: Scales,
    /// Number of positions written since the sequence started at 0, including positions that are not cached any more. In a
    /// ring cache they have overwritten earlier ones.
    pub(super) written: usize,
    /// True if some of it may be missing on disk.
    pub(super) dirty: bool,
    pub(super) blocks: Vec<u32>,
    /// Slot with the recurrent state, if the model has one.
    number: Option<u32>,
    /// True if it is a fork: the common prefix of several sequences, which stays for the next one.
    fork: bool,
}

/// A running sequence, whose prefix another one can share.
pub(super) struct Running<'a> {
    pub(super) slot: &'a Slot,
    pub(super) tokens: &'a [u32],
    pub(super) adapters: Scales,
    pub(super) written: usize,
}

/// Start of a prompt.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) slot: Slot,
    /// Number of its tokens that are cached.
    pub(super) cached: usize,
    /// See [`CachedSequence::written`].
    pub(super) written: usize,
    /// Pairs of source and destination to copy first.
    pub(super) copies: Vec<[Part; 2]>,
}

/// All slots and blocks of a model.
#[derive(Debug, Default)]
pub(super) struct Slots {
    division: Division,
    /// Free slots.
    numbers: Vec<u32>,
    /// Number of sequences that refer to each block, finished ones included.
    users: Vec<u32>,
    free: Vec<u32>,
    /// Cached sequences, the least recently used first.
    cached: VecDeque<CachedSequence>,
}

impl Slots {
    pub(super) fn new(division: Division) -> Self {
        let Division { slots, blocks_per_slot, .. } = division;
        let numbers = (0..slots).rev().collect();
        let free: Vec<u32> = (0..slots * blocks_per_slot).rev().collect();
        Self { division, numbers, users: vec![0; free.len()], free, cached: VecDeque::new() }
    }

    /// Least recently used sequence that may be missing on disk.
    pub(super) fn oldest_dirty(&mut self) -> Option<&mut CachedSequence> {
        self.cached.iter_mut().find(|one| one.dirty)
    }

    pub(super) fn has_dirty(&self) -> bool {
        self.cached.iter().any(|one| one.dirty)
    }

    /// Assigns a slot with the longest reusable prefix to a prompt. `usable` returns the number of prompt tokens that can be
    /// reused from cached tokens and a number of written positions. The caller copies before anything is written.
    pub(super) fn start<'a>(
        &mut self,
        adapters: Scales,
        running: impl Iterator<Item = Running<'a>>,
        usable: impl Fn(&[u32], usize) -> usize,
    ) -> Start {
        let reusable = |one: &CachedSequence| match one.adapters == adapters {
            true => usable(&one.tokens, one.written),
            false => 0,
        };
        // A prompt that continues a cached sequence takes it over; a prefix of another sequence is shared.
        let continues = |(_, one, usable): &(usize, &CachedSequence, usize)| {
            *usable > 0 && *usable + 1 >= one.tokens.len() && !one.fork
        };
        let all = || self.cached.iter().enumerate().map(|(at, one)| (at, one, reusable(one)));
        let own = all().filter(continues).map(|(at, _, usable)| (usable, at)).max();
        let running = running.filter(|running| running.adapters == adapters);
        let running = running.map(|r| Prefix {
            cached: self.worth(usable(r.tokens, r.written)),
            written: r.written,
            blocks: &r.slot.blocks,
            number: Some(r.slot.number),
            at: None,
        });
        let others = all().filter(|one| !continues(one)).map(|(at, one, usable)| Prefix {
            cached: self.worth(usable),
            written: one.written,
            blocks: &one.blocks,
            number: one.number,
            at: Some(at),
        });
        let least = own.map_or(1, |(cached, _)| cached + self.least());
        let other = running.chain(others).filter(|shared| shared.cached >= least);
        let other = other.max_by_key(|shared| shared.cached).map(Prefix::owned);
        let full = self.division.recurrent && self.numbers.is_empty();
        let oldest = self.cached.front().filter(|_| full).map_or(0, reusable);
        match (other, own) {
            // No other slot is left: the shared sequence itself is evicted.
            (Some(Prefix { cached, at: Some(at), .. }), _) if full && self.cached.len() == 1 => {
                self.take_over(cached, at)
            }
            (Some(shared), _) => self.share(&shared),
            (None, Some((cached, at))) => self.take_over(cached, at),
            // If the oldest sequence must be evicted, reuse its common prefix with the prompt.
            (None, None) if oldest > 0 => self.take_over(oldest, 0),
            (None, None) => {
                let slot = Slot { number: self.number(), blocks: Vec::new() };
                Start { slot, cached: 0, written: 0, copies: Vec::new() }
            }
        }
    }

    /// Smallest number of tokens for which something is copied.
    const fn least(&self) -> usize {
        if self.division.recurrent { WORTH_A_COPY } else { WORTH_A_BLOCK }
    }

    /// Reduces a number of reusable tokens to those that are worth copying. Whole blocks are shared without a copy if the
    /// model has no recurrent state.
    fn worth(&self, usable: usize) -> usize {
        let behind = if self.division.recurrent { usable } else { usable % BLOCK };
        if behind < self.least() { usable - behind } else { usable }
    }

    /// Starts with the first tokens of another sequence.
    fn share(&mut self, shared: &Prefix<Vec<u32>>) -> Start {
        let Prefix { cached, written, ref blocks, number, at } = *shared;
        if let Some(used) = at.and_then(|at| self.cached.remove(at)) {
            self.cached.push_back(used);
        }
        let mut copies = Vec::new();
        let mut slot = Slot { number: self.number(), blocks: Vec::new() };
        if let Some(number) = number.filter(|_| self.division.recurrent) {
            copies.push([Part::Recurrent(number), Part::Recurrent(slot.number)]);
        }
        let whole = (cached / BLOCK).min(blocks.len());
        for &block in &blocks[..whole] {
            self.users[block as usize] += 1;
            slot.blocks.push(block);
        }
        if let Some(&from) = blocks.get(whole).filter(|_| !cached.is_multiple_of(BLOCK)) {
            // Protects the source until it has been copied.
            self.users[from as usize] += 1;
            if let Some(to) = self.allocate() {
                self.release(from);
                copies.push([Part::Block(from), Part::Block(to)]);
                slot.blocks.push(to);
            } else {
                // No other sequence refers to it any more.
                slot.blocks.push(from);
            }
        }
        Start { slot, cached, written, copies }
    }

    /// Takes over the cached sequence at an index.
    fn take_over(&mut self, cached: usize, at: usize) -> Start {
        let Some(CachedSequence { mut blocks, written, number, .. }) = self.cached.remove(at)
        else {
            unreachable!("found there");
        };
        let number = number.unwrap_or_else(|| self.number());
        let (next, mut copies) = (cached / BLOCK, Vec::new());
        // The blocks behind are written again.
        for block in blocks.split_off(blocks.len().min(next + 1)) {
            self.release(block);
        }
        if let Some(from) = blocks.get(next).copied()
            && self.users[from as usize] > 1
        {
            blocks.pop();
            if !cached.is_multiple_of(BLOCK) {
                let to = self.allocated();
                copies.push([Part::Block(from), Part::Block(to)]);
                blocks.push(to);
            }
            self.release(from);
        }
        Start { slot: Slot { number, blocks }, cached, written, copies }
    }

    /// Allocates blocks of a sequence for a number of positions, up to the size of a slot.
    pub(super) fn grow(&mut self, slot: &mut Slot, positions: usize) {
        while !self.covers(slot, positions) {
            let block = self.allocated();
            slot.blocks.push(block);
        }
    }

    /// True if a slot has blocks for a number of positions, up to its size.
    pub(super) fn covers(&self, slot: &Slot, positions: usize) -> bool {
        slot.blocks.len() >= positions.div_ceil(BLOCK).min(self.division.blocks_per_slot as usize)
    }

    /// Takes a free slot; evicts the oldest sequence if there is none.
    fn number(&mut self) -> u32 {
        loop {
            if let Some(number) = self.numbers.pop() {
                return number;
            }
            let Some(one) = self.cached.pop_front() else {
                unreachable!("no more sequences run than there are slots");
            };
            self.evict(one);
        }
    }

    fn allocated(&mut self) -> u32 {
        self.allocate().unwrap_or_else(|| {
            unreachable!("the blocks of all slots suffice, and cached ones can be evicted")
        })
    }

    /// Takes a free block. If there is none, evicts the last block of the oldest sequence, or the whole sequence if it has
    /// recurrent state.
    fn allocate(&mut self) -> Option<u32> {
        loop {
            if let Some(block) = self.free.pop() {
                self.users[block as usize] = 1;
                return Some(block);
            }
            let mut oldest = self.cached.pop_front()?;
            if self.division.recurrent {
                self.evict(oldest);
                continue;
            }
            let last = oldest.blocks.pop();
            oldest.tokens.truncate(oldest.blocks.len() * BLOCK);
            if !oldest.tokens.is_empty() {
                self.cached.push_front(oldest);
            }
            if let Some(block) = last {
                self.release(block);
            }
        }
    }

    fn release(&mut self, block: u32) {
        let users = &mut self.users[block as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(block);
        }
    }

    fn evict(&mut self, one: CachedSequence) {
        self.numbers.extend(one.number);
        one.blocks.into_iter().for_each(|block| self.release(block));
    }

    /// Returns the slot of a finished sequence, and caches its tokens.
    pub(super) fn end(&mut self, slot: Slot, tokens: Vec<u32>, adapters: Scales, written: usize) {
        let Slot { number, mut blocks } = slot;
        let filled = tokens.len().div_ceil(BLOCK).min(blocks.len());
        for block in blocks.split_off(filled) {
            self.release(block);
        }
        let recurrent = self.division.recurrent && !tokens.is_empty();
        if !recurrent {
            self.numbers.push(number);
        }
        if !tokens.is_empty() {
            let (number, dirty, fork) = (recurrent.then_some(number), true, false);
            self.cached.push_back(CachedSequence {
                tokens,
                adapters,
                written,
                dirty,
                blocks,
                number,
                fork,
            });
        }
    }

    /// Length of the longest common prefix of a prompt with any other sequence, in whole blocks. Without a fork there, the
    /// next prompt with this prefix could not reuse the recurrent state either.
    pub(super) fn fork_position<'a>(
        &self,
        prompt: &[u32],
        adapters: Scales,
        running: impl Iterator<Item = Running<'a>>,
    ) -> usize {
        if !self.division.recurrent {
            return 0;
        }
        let most = self.longest_prefix(prompt, adapters, running);
        most.min(prompt.len().saturating_sub(1)) / BLOCK * BLOCK
    }

    /// Number of first tokens of a prompt that a cached or running sequence has too.
    pub(super) fn longest_prefix<'a>(
        &self,
        prompt: &[u32],
        adapters: Scales,
        running: impl Iterator<Item = Running<'a>>,
    ) -> usize {
        let cached = self.cached.iter().map(|one| (&one.tokens[..], one.adapters));
        let all = cached.chain(running.map(|running| (running.tokens, running.adapters)));
        let all = all.filter(|(_, theirs)| *theirs == adapters);
        all.map(|(tokens, _)| common_prefix(tokens, prompt)).max().unwrap_or(0)
    }

    /// Position of the first token of a prompt that differs from the most similar sequence; `None` if the prompt
    /// continues that one, or has nothing in common with any.
    pub(super) fn divergence<'a>(
        &self,
        prompt: &[u32],
        adapters: Scales,
        running: impl Iterator<Item = Running<'a>>,
    ) -> Option<usize> {
        let cached = self.cached.iter().map(|one| (&one.tokens[..], one.adapters));
        let all = cached.chain(running.map(|running| (running.tokens, running.adapters)));
        let all = all.filter(|(_, theirs)| *theirs == adapters);
        let all = all.map(|(tokens, _)| (common_prefix(tokens, prompt), tokens.len()));
        // A sequence that the prompt continues wins a tie.
        let (common, length) = all.max_by_key(|(common, length)| (*common, Reverse(*length)))?;
        (common > 0 && common < length.min(prompt.len())).then_some(common)
    }

    /// Caches the current state of a sequence for others with its prefix. Returns the copy of the recurrent state to make;
    /// `None` if fewer than three slots could be used, which two alternating conversations need.
    pub(super) fn fork(
        &mut self,
        slot: &Slot,
        tokens: &[u32],
        adapters: Scales,
    ) -> Option<[Part; 2]> {
        if self.numbers.is_empty() && self.cached.len() < 3 {
            return None;
        }
        let number = self.number();
        let filled = tokens.len().div_ceil(BLOCK).min(slot.blocks.len());
        let blocks = slot.blocks[..filled].to_vec();
        blocks.iter().for_each(|block| self.users[*block as usize] += 1);
        let (tokens, written) = (tokens.to_vec(), tokens.len());
        let (number, fork, dirty) = (Some(number), true, true);
        self.cached.push_back(CachedSequence {
            tokens,
            adapters,
            written,
            dirty,
            blocks,
            number,
            fork,
        });
        number.map(|number| [Part::Recurrent(slot.number), Part::Recurrent(number)])
    }

    /// Drops all cached sequences.
    pub(super) fn forget(&mut self) {
        for one in std::mem::take(&mut self.cached) {
            self.evict(one);
        }
    }
}

/// A reusable prefix of another sequence.
struct Prefix<B> {
    cached: usize,
    written: usize,
    blocks: B,
    /// The slot that has the rest.
    number: Option<u32>,
    /// Index among the cached sequences; `None` if it runs.
    at: Option<usize>,
}

impl Prefix<&Vec<u32>> {
    fn owned(self) -> Prefix<Vec<u32>> {
        let Self { cached, written, blocks, number, at } = self;
        Prefix { cached, written, blocks: blocks.clone(), number, at }
    }
}

/// Part of a sequence's block. If a model has no blocks, all parts are empty.
pub(super) fn part(blocks: &[u32], number: usize) -> Part {
    Part::Block(blocks.get(number).copied().unwrap_or(0))
}

/// Length of the common prefix of two sequences. Compares whole blocks first, because each prompt is compared with all
/// cached sequences.
pub(super) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let whole = blocks.take_while(|(a, b)| a == b).count() * BLOCK;
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const BLOCKS_PER_SLOT: u32 = 4;

    /// Simulated cache contents: the tokens of each block and of each recurrent part, and the running
    /// sequences.
    struct Device {
        slots: Slots,
        memory: HashMap<u32, Vec<u32>>,
        rests: HashMap<u32, Vec<u32>>,
        running: Vec<(Slot, Vec<u32>)>,
    }

    /// Prefixes of running sequences.
    fn running(all: &[(Slot, Vec<u32>)]) -> impl Iterator<Item = Running<'_>> {
        all.iter().map(|(slot, tokens)| Running {
            slot,
            tokens,
            adapters: Scales::NONE,
            written: tokens.len(),
        })
    }

    impl Device {
        fn new(slots: u32, rest: bool) -> Self {
            let slots =
                Slots::new(Division { slots, blocks_per_slot: BLOCKS_PER_SLOT, recurrent: rest });
            let (memory, rests) = (HashMap::new(), HashMap::new());
            Self { slots, memory, rests, running: Vec::new() }
        }

        fn copy(&mut self, [from, to]: [Part; 2]) {
            match (from, to) {
                (Part::Block(from), Part::Block(to)) => {
                    let copy = self.memory[&from].clone();
                    self.memory.insert(to, copy);
                }
                (Part::Recurrent(from), Part::Recurrent(to)) => {
                    let copy = self.rests[&from].clone();
                    self.rests.insert(to, copy);
                }
                _ => panic!("{from:?} to {to:?}"),
            }
        }

        /// Evaluates a prompt and returns the number of cached tokens. A recurrent part is valid only at its
        /// end.
        fn begin(&mut self, prompt: &[u32]) -> usize {
            let rest = self.slots.division.recurrent;
            let usable = |held: &[u32], _| match common_prefix(held, prompt).min(prompt.len() - 1) {
                part if rest && part < held.len() => 0,
                all => all,
            };
            let start = self.slots.start(Scales::NONE, running(&self.running), usable);
            let Start { mut slot, cached, copies, .. } = start;
            copies.into_iter().for_each(|copy| self.copy(copy));
            self.slots.grow(&mut slot, prompt.len());
            let there: Vec<u32> = (0..cached).map(|p| self.at(&slot, p)).collect();
            assert_eq!(there, prompt[..cached], "what was to be there is");
            assert!(self.running.iter().all(|(other, _)| other.number != slot.number));
            if rest && cached > 0 {
                assert_eq!(self.rests[&slot.number], prompt[..cached], "the rest is of there");
            }
            self.rests.insert(slot.number, prompt[..cached].to_vec());
            let fork = self.slots.fork_position(prompt, Scales::NONE, running(&self.running));
            self.running.push((slot, prompt[..cached].to_vec()));
            for (at, &token) in prompt.iter().enumerate().skip(cached) {
                let (slot, tokens) = self.running.last().unwrap();
                if fork == at && fork > cached {
                    let copy = self.slots.fork(slot, tokens, Scales::NONE);
                    copy.into_iter().for_each(|copy| self.copy(copy));
                }
                self.step(self.running.len() - 1, token);
            }
            cached
        }

        fn at(&self, slot: &Slot, position: usize) -> u32 {
            self.memory[&slot.blocks[position / BLOCK]][position % BLOCK]
        }

        /// Evaluates one more token of a running sequence, in a block that no other sequence refers to.
        fn step(&mut self, who: usize, token: u32) {
            let (slot, tokens) = &mut self.running[who];
            self.slots.grow(slot, tokens.len() + 1);
            let block = slot.blocks[tokens.len() / BLOCK];
            assert_eq!(self.slots.users[block as usize], 1, "block {block} is somebody else's too");
            let memory = self.memory.entry(block).or_insert_with(|| vec![u32::MAX; BLOCK]);
            memory[tokens.len() % BLOCK] = token;
            tokens.push(token);
            self.rests.insert(slot.number, tokens.clone());
        }

        fn end(&mut self, who: usize) {
            let (slot, tokens) = self.running.remove(who);
            let written = tokens.len();
            self.slots.end(slot, tokens, Scales::NONE, written);
        }

        /// Checks reference counts, unique slots, and the contents of cached sequences.
        fn check(&self) {
            let mut users = vec![0; self.slots.users.len()];
            let held = self.slots.cached.iter();
            let running = self.running.iter().map(|(slot, _)| &slot.blocks);
            for blocks in running.chain(held.clone().map(|held| &held.blocks)) {
                blocks.iter().for_each(|block| users[*block as usize] += 1);
            }
            assert_eq!(users, self.slots.users);
            let free = users.iter().filter(|users| **users == 0).count();
            assert_eq!(free, self.slots.free.len());
            let mut numbers = self.slots.numbers.clone();
            numbers.extend(held.clone().filter_map(|held| held.number));
            numbers.extend(self.running.iter().map(|(slot, _)| slot.number));
            numbers.sort_unstable();
            assert_eq!(numbers, (0..self.slots.division.slots).collect::<Vec<_>>());
            for held in held {
                let slot = Slot { number: 0, blocks: held.blocks.clone() };
                let there: Vec<u32> = (0..held.tokens.len()).map(|p| self.at(&slot, p)).collect();
                assert_eq!(there, held.tokens);
                if let Some(number) = held.number {
                    assert_eq!(self.rests[&number], held.tokens);
                }
            }
        }
    }

    /// Any length, often whole blocks.
    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![1_usize..512, (1_usize..4).prop_map(|blocks| blocks * BLOCK)]
    }

    /// Tokens of a conversation in a tree: `path` selects the branch of each block.
    fn tokens(path: &[u32], len: usize) -> Vec<u32> {
        let way = |i: usize| path[..=i / BLOCK].iter().fold(0, |sum, way| sum * 3 + way + 1);
        (0..len).map(|i| way(i) * 1000 + i as u32 % 7).collect()
    }

    proptest! {
        #[test]
        fn blocks_are_shared_and_written_only_by_their_owner(
            slots in 1_u32..5,
            rest: bool,
            steps in proptest::collection::vec(
                (0_u8..4, proptest::collection::vec(0_u32..3, 4), lengths()), 1..60),
        ) {
            let mut device = Device::new(slots, rest);
            for (what, path, len) in steps {
                let running = device.running.len();
                match what {
                    0 | 1 if running < slots as usize => {
                        device.begin(&tokens(&path, len));
                    }
                    2 if running > 0 => {
                        let who = len % running;
                        let end = device.running[who].1.len();
                        for token in 0..(len % 150).min(512 - end) {
                            device.step(who, token as u32);
                        }
                    }
                    _ if running > 0 => device.end(len % running),
                    _ => device.slots.forget(),
                }
                device.check();
            }
        }
    }

    #[test]
    fn a_prefix_is_stored_once() {
        // Three blocks for each of 33 conversations; the recurrent part of each has one block.
        let mut device = Device::new(9, false);
        let said = |i: u32| [tokens(&[0; 3], 3 * BLOCK), vec![i; 40]].concat();
        assert_eq!(device.begin(&said(0)), 0);
        device.end(0);
        for i in 1..33 {
            assert_eq!(device.begin(&said(i)), 3 * BLOCK);
            device.end(0);
        }
        assert_eq!(device.slots.users.iter().filter(|users| **users > 0).count(), 3 + 33);
        // Each conversation continues at its end.
        for i in 0..33 {
            assert_eq!(device.begin(&[said(i), vec![9]].concat()), 3 * BLOCK + 40);
            device.end(0);
        }
        device.check();
    }

    #[test]
    fn the_oldest_sequence_is_evicted_from_its_end() {
        let mut device = Device::new(2, false);
        let said = [[1; 4], [2; 4], [3; 4]].map(|path| tokens(&path, 3 * BLOCK + 1));
        for said in &said[..2] {
            device.begin(said);
            device.end(0);
        }
        device.begin(&said[2][..2 * BLOCK]);
        device.end(0);
        device.check();
        assert_eq!(device.begin(&said[1]), 3 * BLOCK);
        device.end(0);
        assert_eq!(device.begin(&[&said[0][..], &[7]].concat()), 2 * BLOCK);
    }

    #[test]
    fn prefixes_of_running_sequences_are_shared() {
        for rest in [true, false] {
            let mut device = Device::new(2, rest);
            let said = tokens(&[1; 4], 300);
            device.begin(&said);
            assert_eq!(device.begin(&[&said[..], &[7; 9]].concat()), 300);
            device.check();
        }
    }

    #[test]
    fn a_shared_block_is_copied_before_its_last_position_is_evaluated_again() {
        let mut device = Device::new(3, false);
        let said = tokens(&[1; 4], 2 * BLOCK);
        device.begin(&said);
        assert_eq!(device.begin(&[&said[..], &[7; 9]].concat()), 2 * BLOCK);
        device.end(0);
        assert_eq!(device.begin(&said), 2 * BLOCK - 1);
        device.check();
    }

    #[test]
    fn forks_are_cached_for_the_next_sequence() {
        let mut device = Device::new(3, true);
        let said = |i: u32| [tokens(&[1; 4], 300), vec![7 + i; 20]].concat();
        // The second prompt shows the fork.
        for (i, cached) in [0, 0, 2 * BLOCK, 2 * BLOCK].into_iter().enumerate() {
            assert_eq!(device.begin(&said(i as u32)), cached, "{i}");
            device.end(0);
            device.check();
        }
        assert_eq!(device.begin(&[&said(3)[..], &[9]].concat()), 320);
    }

    #[test]
    fn few_tokens_are_evaluated_instead_of_copied() {
        let mut device = Device::new(2, false);
        let said = tokens(&[1; 4], 300);
        device.begin(&said);
        let parts = 2 * BLOCK + WORTH_A_BLOCK - 1;
        assert_eq!(device.begin(&[&said[..parts], &[7; 9]].concat()), 2 * BLOCK);
    }

    #[test]
    fn sequences_with_other_adapters_are_not_reused() {
        let mut device = Device::new(2, false);
        let said = tokens(&[1; 4], 300);
        device.begin(&said);
        let (slot, tokens) = device.running.remove(0);
        device.slots.end(slot, tokens, Scales([0.5; model::MAX_ADAPTERS]), 300);
        assert_eq!(device.begin(&said), 0);
    }
}
