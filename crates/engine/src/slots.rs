//! The cache: who has its slots and blocks, and what finished requests have left there, so that one that begins like them
//! does not evaluate that beginning again. Sequences share the blocks that they begin with, and each writes only to
//! blocks that are its own; what was left for longest makes room. Who is begun when is decided in the scheduler.

use std::collections::VecDeque;

use super::Scales;
use device::{BLOCK, Part};

/// Tokens for whose sake files are read, or all that a slot has beside blocks is copied: to evaluate fewer takes no
/// longer.
pub(super) const WORTH_A_COPY: usize = 32;
/// Likewise, of one block.
const WORTH_A_BLOCK: usize = 8;

/// How a cache is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Division {
    /// Sequences that can run at once.
    pub(super) slots: u32,
    /// Blocks of each, of [`BLOCK`] positions; 0 where a device keeps them with the rest.
    pub(super) of_slot: u32,
    /// Whether a slot has something beside blocks, which is that of its sequence's end.
    pub(super) rest: bool,
}

/// The place of a sequence in the cache.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) number: u32,
    /// Where its positions lie, block after block.
    pub(super) blocks: Vec<u32>,
}

/// What is left of a sequence.
#[derive(Debug, PartialEq)]
pub(super) struct Held {
    /// Tokens whose keys and values it holds, from position 0 on.
    pub(super) tokens: Vec<u32>,
    /// The adapters that they were evaluated with.
    pub(super) adapters: Scales,
    /// Positions that were written since it was begun at 0, whether what they have is still held or not: in a ring
    /// they have taken the places of those before.
    pub(super) written: usize,
    /// Whether all that it holds is on disk, as far as it can be.
    pub(super) kept: bool,
    pub(super) blocks: Vec<u32>,
    /// The slot that has the rest, where there is one.
    number: Option<u32>,
    /// Whether it is where sequences part, and stays there for the next one.
    fork: bool,
}

/// A sequence that runs: whose beginning another one can have.
pub(super) struct Running<'a> {
    pub(super) slot: &'a Slot,
    pub(super) tokens: &'a [u32],
    pub(super) adapters: Scales,
    pub(super) written: usize,
}

/// A prompt that is begun.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) slot: Slot,
    /// Its tokens that need not be evaluated.
    pub(super) cached: usize,
    /// See [`Held::written`].
    pub(super) written: usize,
    /// What has to be copied first, from where to where.
    pub(super) copies: Vec<[Part; 2]>,
}

/// All slots and blocks of a model.
#[derive(Debug, Default)]
pub(super) struct Slots {
    division: Division,
    /// Slots that nobody has.
    numbers: Vec<u32>,
    /// How many sequences have each block, finished ones too; and those that nobody has.
    users: Vec<u32>,
    free: Vec<u32>,
    /// Whoever was last used is last.
    held: VecDeque<Held>,
}

impl Slots {
    pub(super) fn new(division: Division) -> Self {
        let Division { slots, of_slot, .. } = division;
        let numbers = (0..slots).rev().collect();
        let free: Vec<u32> = (0..slots * of_slot).rev().collect();
        Self { division, numbers, users: vec![0; free.len()], free, held: VecDeque::new() }
    }

    /// The one that has been left for longest of those that are not on disk.
    pub(super) fn unkept(&mut self) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| !held.kept)
    }

    pub(super) fn all_kept(&self) -> bool {
        self.held.iter().all(|held| held.kept)
    }

    /// A place for a prompt, of whose tokens `usable` says how many can be gone on behind in what holds some, with so
    /// many written. What is said to be copied has to be before anything is written.
    pub(super) fn begin<'a>(
        &mut self,
        adapters: Scales,
        running: impl Iterator<Item = Running<'a>>,
        usable: impl Fn(&[u32], usize) -> usize,
    ) -> Start {
        let of_held = |held: &Held| match held.adapters == adapters {
            true => usable(&held.tokens, held.written),
            false => 0,
        };
        // Who goes on is given what it has left; the beginning of another one is shared.
        let goes_on = |(_, held, usable): &(usize, &Held, usize)| {
            *usable > 0 && *usable + 1 >= held.tokens.len() && !held.fork
        };
        let all = || self.held.iter().enumerate().map(|(at, held)| (at, held, of_held(held)));
        let own = all().filter(goes_on).map(|(at, _, usable)| (usable, at)).max();
        let running = running.filter(|running| running.adapters == adapters);
        let running = running.map(|r| Shared {
            cached: self.worth(usable(r.tokens, r.written)),
            written: r.written,
            blocks: &r.slot.blocks,
            number: Some(r.slot.number),
            held: None,
        });
        let others = all().filter(|one| !goes_on(one)).map(|(at, held, usable)| Shared {
            cached: self.worth(usable),
            written: held.written,
            blocks: &held.blocks,
            number: held.number,
            held: Some(at),
        });
        let least = own.map_or(1, |(cached, _)| cached + self.least());
        let other = running.chain(others).filter(|shared| shared.cached >= least);
        let other = other.max_by_key(|shared| shared.cached).map(Shared::owned);
        let full = self.division.rest && self.numbers.is_empty();
        let oldest = self.held.front().filter(|_| full).map_or(0, of_held);
        match (other, own) {
            // There is no other place: its own makes room.
            (Some(Shared { cached, held: Some(at), .. }), _) if full && self.held.len() == 1 => {
                self.go_on(cached, at)
            }
            (Some(shared), _) => self.share(&shared),
            (None, Some((cached, at))) => self.go_on(cached, at),
            // Where all that was left for longest has to make room, what it has of the prompt stays.
            (None, None) if oldest > 0 => self.go_on(oldest, 0),
            (None, None) => {
                let slot = Slot { number: self.number(), blocks: Vec::new() };
                Start { slot, cached: 0, written: 0, copies: Vec::new() }
            }
        }
    }

    /// Tokens for whose sake something is copied.
    const fn least(&self) -> usize {
        if self.division.rest { WORTH_A_COPY } else { WORTH_A_BLOCK }
    }

    /// As many of the tokens that could be had as are worth it: where blocks are all there is, of those of a block that has
    /// to be copied enough.
    fn worth(&self, usable: usize) -> usize {
        let behind = if self.division.rest { usable } else { usable % BLOCK };
        if behind < self.least() { usable - behind } else { usable }
    }

    /// The first tokens of another sequence.
    fn share(&mut self, shared: &Shared<Vec<u32>>) -> Start {
        let Shared { cached, written, ref blocks, number, held } = *shared;
        if let Some(held) = held.and_then(|at| self.held.remove(at)) {
            self.held.push_back(held);
        }
        let mut copies = Vec::new();
        let mut slot = Slot { number: self.number(), blocks: Vec::new() };
        if let Some(number) = number.filter(|_| self.division.rest) {
            copies.push([Part::Rest(number), Part::Rest(slot.number)]);
        }
        let whole = (cached / BLOCK).min(blocks.len());
        for &block in &blocks[..whole] {
            self.users[block as usize] += 1;
            slot.blocks.push(block);
        }
        if let Some(&from) = blocks.get(whole).filter(|_| !cached.is_multiple_of(BLOCK)) {
            // It stays what it is until it has been copied.
            self.users[from as usize] += 1;
            if let Some(to) = self.allocate() {
                self.release(from);
                copies.push([Part::Block(from), Part::Block(to)]);
                slot.blocks.push(to);
            } else {
                // Nobody else has it any more.
                slot.blocks.push(from);
            }
        }
        Start { slot, cached, written, copies }
    }

    /// What was left at a place among the others.
    fn go_on(&mut self, cached: usize, at: usize) -> Start {
        let Some(Held { mut blocks, written, number, .. }) = self.held.remove(at) else {
            unreachable!("found there");
        };
        let number = number.unwrap_or_else(|| self.number());
        let (next, mut copies) = (cached / BLOCK, Vec::new());
        // From there on it is written to again.
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

    /// Gives a sequence blocks for so many positions, of those that there can be.
    pub(super) fn grow(&mut self, slot: &mut Slot, positions: usize) {
        while !self.covers(slot, positions) {
            let block = self.allocated();
            slot.blocks.push(block);
        }
    }

    /// Whether it has blocks for so many positions, of those that there can be.
    pub(super) fn covers(&self, slot: &Slot, positions: usize) -> bool {
        slot.blocks.len() >= positions.div_ceil(BLOCK).min(self.division.of_slot as usize)
    }

    /// A slot that nobody has: if need be that of what was left for longest.
    fn number(&mut self) -> u32 {
        loop {
            if let Some(number) = self.numbers.pop() {
                return number;
            }
            let Some(held) = self.held.pop_front() else {
                unreachable!("no more sequences run than there are slots");
            };
            self.drop_held(held);
        }
    }

    fn allocated(&mut self) -> u32 {
        self.allocate().unwrap_or_else(|| {
            unreachable!("there are as many blocks as all slots can fill, and some are only held")
        })
    }

    /// A block that nobody has: if need be the last one of what was left for longest, or all of it, where it is only good
    /// as a whole.
    fn allocate(&mut self) -> Option<u32> {
        loop {
            if let Some(block) = self.free.pop() {
                self.users[block as usize] = 1;
                return Some(block);
            }
            let mut oldest = self.held.pop_front()?;
            if self.division.rest {
                self.drop_held(oldest);
                continue;
            }
            let last = oldest.blocks.pop();
            oldest.tokens.truncate(oldest.blocks.len() * BLOCK);
            if !oldest.tokens.is_empty() {
                self.held.push_front(oldest);
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

    fn drop_held(&mut self, held: Held) {
        self.numbers.extend(held.number);
        held.blocks.into_iter().for_each(|block| self.release(block));
    }

    /// Takes back the place of a sequence, and what it has left there: tokens, adapters, positions written.
    pub(super) fn end(&mut self, slot: Slot, tokens: Vec<u32>, adapters: Scales, written: usize) {
        let Slot { number, mut blocks } = slot;
        let filled = tokens.len().div_ceil(BLOCK).min(blocks.len());
        for block in blocks.split_off(filled) {
            self.release(block);
        }
        let rest = self.division.rest && !tokens.is_empty();
        if !rest {
            self.numbers.push(number);
        }
        if !tokens.is_empty() {
            let (number, kept, fork) = (rest.then_some(number), false, false);
            self.held.push_back(Held { tokens, adapters, written, kept, blocks, number, fork });
        }
    }

    /// Tokens of a prompt behind which it parts from what another sequence has, whole blocks of them. Where it is begun
    /// behind fewer, and has something beside blocks, the next one that begins alike could not go on from there either.
    pub(super) fn parts<'a>(
        &self,
        prompt: &[u32],
        adapters: Scales,
        running: impl Iterator<Item = Running<'a>>,
    ) -> usize {
        let held = self.held.iter().map(|held| (&held.tokens[..], held.adapters));
        let all = held.chain(running.map(|running| (running.tokens, running.adapters)));
        let all = all.filter(|(_, theirs)| *theirs == adapters && self.division.rest);
        let most = all.map(|(tokens, _)| shared(tokens, prompt)).max().unwrap_or(0);
        most.min(prompt.len().saturating_sub(1)) / BLOCK * BLOCK
    }

    /// Holds what a sequence has by now for others that begin like it, if there is a slot for the rest that two
    /// conversations in turn do not need: what has to be copied for that.
    pub(super) fn fork(
        &mut self,
        slot: &Slot,
        tokens: &[u32],
        adapters: Scales,
    ) -> Option<[Part; 2]> {
        if self.numbers.is_empty() && self.held.len() < 3 {
            return None;
        }
        let number = self.number();
        let filled = tokens.len().div_ceil(BLOCK).min(slot.blocks.len());
        let blocks = slot.blocks[..filled].to_vec();
        blocks.iter().for_each(|block| self.users[*block as usize] += 1);
        let (tokens, written) = (tokens.to_vec(), tokens.len());
        let (number, fork, kept) = (Some(number), true, false);
        self.held.push_back(Held { tokens, adapters, written, kept, blocks, number, fork });
        number.map(|number| [Part::Rest(slot.number), Part::Rest(number)])
    }

    /// Nothing of what was left can be relied on any more.
    pub(super) fn forget(&mut self) {
        for held in std::mem::take(&mut self.held) {
            self.drop_held(held);
        }
    }
}

/// A beginning that another sequence has.
struct Shared<B> {
    cached: usize,
    written: usize,
    blocks: B,
    /// The slot that has the rest.
    number: Option<u32>,
    /// Where it is among what is held, if it does not run.
    held: Option<usize>,
}

impl Shared<&Vec<u32>> {
    fn owned(self) -> Shared<Vec<u32>> {
        let Self { cached, written, blocks, number, held } = self;
        Shared { cached, written, blocks: blocks.clone(), number, held }
    }
}

/// The part that is a sequence's block of that number. Where a model has no blocks its parts are empty, and any will do.
pub(super) fn part(blocks: &[u32], number: usize) -> Part {
    Part::Block(blocks.get(number).copied().unwrap_or(0))
}

/// Tokens that two sequences begin with alike. Asked of all that is held for each prompt, so whole blocks are compared at
/// once.
pub(super) fn shared(a: &[u32], b: &[u32]) -> usize {
    let blocks = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let whole = blocks.take_while(|(a, b)| a == b).count() * BLOCK;
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const OF_SLOT: u32 = 4;

    /// What a device has, block after block and of each slot's rest, and who runs.
    struct Device {
        slots: Slots,
        memory: HashMap<u32, Vec<u32>>,
        rests: HashMap<u32, Vec<u32>>,
        running: Vec<(Slot, Vec<u32>)>,
    }

    /// Who can be gone on from.
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
            let slots = Slots::new(Division { slots, of_slot: OF_SLOT, rest });
            let (memory, rests) = (HashMap::new(), HashMap::new());
            Self { slots, memory, rests, running: Vec::new() }
        }

        fn copy(&mut self, [from, to]: [Part; 2]) {
            match (from, to) {
                (Part::Block(from), Part::Block(to)) => {
                    let copy = self.memory[&from].clone();
                    self.memory.insert(to, copy);
                }
                (Part::Rest(from), Part::Rest(to)) => {
                    let copy = self.rests[&from].clone();
                    self.rests.insert(to, copy);
                }
                _ => panic!("{from:?} to {to:?}"),
            }
        }

        /// Evaluates a prompt; how many of its tokens were there. What a slot has beside blocks is of its end alone.
        fn begin(&mut self, prompt: &[u32]) -> usize {
            let rest = self.slots.division.rest;
            let usable = |held: &[u32], _| match shared(held, prompt).min(prompt.len() - 1) {
                part if rest && part < held.len() => 0,
                all => all,
            };
            let start = self.slots.begin(Scales::NONE, running(&self.running), usable);
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
            let fork = self.slots.parts(prompt, Scales::NONE, running(&self.running));
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

        /// Evaluates one token more of who runs, in a block that nobody else has.
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

        /// Each block is counted as often as somebody has it, each slot is one's, and what is held is there.
        fn check(&self) {
            let mut users = vec![0; self.slots.users.len()];
            let held = self.slots.held.iter();
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

    /// Any, and often whole blocks.
    fn lengths() -> impl Strategy<Value = usize> {
        prop_oneof![1_usize..512, (1_usize..4).prop_map(|blocks| blocks * BLOCK)]
    }

    /// Tokens of a tree of conversations: `path` says which way each of its blocks goes.
    fn tokens(path: &[u32], len: usize) -> Vec<u32> {
        let way = |i: usize| path[..=i / BLOCK].iter().fold(0, |sum, way| sum * 3 + way + 1);
        (0..len).map(|i| way(i) * 1000 + i as u32 % 7).collect()
    }

    proptest! {
        #[test]
        fn blocks_are_shared_and_nobody_writes_to_anothers(
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
    fn a_beginning_lies_there_once() {
        // Three blocks of 33 conversations; what they have beside is a block of each.
        let mut device = Device::new(9, false);
        let said = |i: u32| [tokens(&[0; 3], 3 * BLOCK), vec![i; 40]].concat();
        assert_eq!(device.begin(&said(0)), 0);
        device.end(0);
        for i in 1..33 {
            assert_eq!(device.begin(&said(i)), 3 * BLOCK);
            device.end(0);
        }
        assert_eq!(device.slots.users.iter().filter(|users| **users > 0).count(), 3 + 33);
        // Each of them goes on where it was.
        for i in 0..33 {
            assert_eq!(device.begin(&[said(i), vec![9]].concat()), 3 * BLOCK + 40);
            device.end(0);
        }
        device.check();
    }

    #[test]
    fn what_was_left_for_longest_makes_room_from_its_end() {
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
    fn who_runs_is_gone_on_from_too() {
        for rest in [true, false] {
            let mut device = Device::new(2, rest);
            let said = tokens(&[1; 4], 300);
            device.begin(&said);
            assert_eq!(device.begin(&[&said[..], &[7; 9]].concat()), 300);
            device.check();
        }
    }

    #[test]
    fn a_block_that_another_has_too_is_copied_before_its_last_position_is_evaluated_again() {
        let mut device = Device::new(3, false);
        let said = tokens(&[1; 4], 2 * BLOCK);
        device.begin(&said);
        assert_eq!(device.begin(&[&said[..], &[7; 9]].concat()), 2 * BLOCK);
        device.end(0);
        assert_eq!(device.begin(&said), 2 * BLOCK - 1);
        device.check();
    }

    #[test]
    fn where_sequences_part_is_held_for_the_next_one() {
        let mut device = Device::new(3, true);
        let said = |i: u32| [tokens(&[1; 4], 300), vec![7 + i; 20]].concat();
        // Only the second shows where they part.
        for (i, cached) in [0, 0, 2 * BLOCK, 2 * BLOCK].into_iter().enumerate() {
            assert_eq!(device.begin(&said(i as u32)), cached, "{i}");
            device.end(0);
            device.check();
        }
        assert_eq!(device.begin(&[&said(3)[..], &[9]].concat()), 320);
    }

    #[test]
    fn few_tokens_are_not_worth_a_copy() {
        let mut device = Device::new(2, false);
        let said = tokens(&[1; 4], 300);
        device.begin(&said);
        let parts = 2 * BLOCK + WORTH_A_BLOCK - 1;
        assert_eq!(device.begin(&[&said[..parts], &[7; 9]].concat()), 2 * BLOCK);
    }

    #[test]
    fn what_other_adapters_have_left_is_not_gone_on_with() {
        let mut device = Device::new(2, false);
        let said = tokens(&[1; 4], 300);
        device.begin(&said);
        let (slot, tokens) = device.running.remove(0);
        device.slots.end(slot, tokens, Scales([0.5; model::MAX_ADAPTERS]), 300);
        assert_eq!(device.begin(&said), 0);
    }
}
