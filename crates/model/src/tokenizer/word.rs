//! Merges the tokens of one word, which may be megabytes long.
//!
//! Each token is stored at the offset of its bytes. So tokens need no links: a token's length gives the offset of
//! the next one. A tree of minima over the ranks of all possible merges finds the next merge. [`MergeRule`] defines
//! ranks and results.

use std::ops::Range;

use super::bounds::Work;
use super::error::Error;

/// Ranks under each minimum of the next level.
const FAN: usize = 16;
const BITS: usize = u64::BITS as usize;

/// The rank of two neighbours that cannot be merged.
pub(super) const NEVER: u32 = u32::MAX;

/// Ranks and results of merges. `span` is the range of both tokens in the word.
pub(super) trait MergeRule {
    /// The rank of a merge, lowest first; [`NEVER`] if there is none.
    fn rank(&self, left: u32, right: u32, span: Range<usize>) -> u32;

    /// The resulting token of a merge with this rank.
    fn product(&self, rank: u32, span: Range<usize>) -> u32;
}

/// Buffers for merging words one by one, about 8.4 bytes for each byte of the longest.
#[derive(Debug, Default)]
pub(super) struct Word {
    tokens: Tokens,
    ranks: Ranks,
}

impl Word {
    /// Merges `tokens` (ids and lengths, `length` bytes in total): the neighbours of the lowest rank, leftmost
    /// first, until no merge is left. Calls `out` with each resulting token and its range.
    pub(super) fn merge(
        &mut self,
        length: usize,
        tokens: impl Iterator<Item = (u32, usize)>,
        rule: &impl MergeRule,
        work: &mut Work<'_>,
        mut out: impl FnMut(u32, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.tokens.fill(length, tokens, work)?;
        let Self { tokens, ranks } = self;
        ranks.fill(length, |at| tokens.rank(at, rule), work)?;
        while let Some((rank, at)) = ranks.first() {
            let right = tokens.end(at);
            let end = tokens.end(right);
            work.add(end - at)?;
            tokens.join(at..end, right, rule.product(rank, at..end));
            ranks.set(right, NEVER);
            ranks.set(at, tokens.rank(at, rule));
            if let Some(before) = tokens.before(at) {
                ranks.set(before, tokens.rank(before, rule));
            }
        }
        let mut at = 0;
        while at < length {
            let end = tokens.end(at);
            out(tokens.places[at], at..end)?;
            at = end;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Tokens {
    /// Each token's id at its first byte. Its length at its second and its last byte, if it has more than one.
    places: Vec<u32>,
    /// One bit for each byte, set if a token begins there.
    begins: Vec<u64>,
}

impl Tokens {
    fn fill(
        &mut self,
        length: usize,
        tokens: impl Iterator<Item = (u32, usize)>,
        work: &mut Work<'_>,
    ) -> Result<(), Error> {
        empty(&mut self.places, length);
        let words = length.div_ceil(BITS);
        empty(&mut self.begins, words);
        self.begins.resize(words, 0);
        for (id, length) in tokens {
            work.add(length)?;
            let at = self.places.len();
            self.begins[at / BITS] |= 1 << (at % BITS);
            self.places.push(id);
            self.places.resize(at + length, short(length));
        }
        Ok(())
    }

    fn begins(&self, at: usize) -> bool {
        self.begins[at / BITS] >> (at % BITS) & 1 == 1
    }

    /// The end of the token that begins at `at`.
    fn end(&self, at: usize) -> usize {
        let next = at + 1;
        if next == self.places.len() || self.begins(next) {
            next
        } else {
            at + self.places[next] as usize
        }
    }

    /// The start of the token that ends at `at`.
    fn before(&self, at: usize) -> Option<usize> {
        let last = at.checked_sub(1)?;
        Some(if self.begins(last) { last } else { at - self.places[last] as usize })
    }

    /// The rank of the token at `at` with the next one; [`NEVER`] if no token begins there.
    fn rank(&self, at: usize, rule: &impl MergeRule) -> u32 {
        if !self.begins(at) {
            return NEVER;
        }
        let right = self.end(at);
        match self.places.get(right) {
            Some(&id) => rule.rank(self.places[at], id, at..self.end(right)),
            None => NEVER,
        }
    }

    /// Replaces the two tokens in `span`, the second of which begins at `right`, by `id`.
    fn join(&mut self, span: Range<usize>, right: usize, id: u32) {
        self.begins[right / BITS] &= !(1 << (right % BITS));
        self.places[span.start] = id;
        let length = short(span.len());
        self.places[span.start + 1] = length;
        self.places[span.end - 1] = length;
    }
}

/// Token lengths fit, because a vocabulary is shorter than 4 GiB.
fn short(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The rank at each byte, and a tree of minima.
#[derive(Debug, Default)]
struct Ranks {
    /// All ranks, then the minimum of every [`FAN`] entries of the previous level, down to at most [`FAN`].
    levels: Vec<Vec<u32>>,
    /// Number of levels in use.
    height: usize,
}

impl Ranks {
    /// Sets the ranks of all bytes below `length`, which is at least 1.
    fn fill(
        &mut self,
        length: usize,
        rank: impl Fn(usize) -> u32,
        work: &mut Work<'_>,
    ) -> Result<(), Error> {
        self.height = 0;
        let mut room = length;
        loop {
            if self.levels.len() == self.height {
                self.levels.push(Vec::new());
            }
            let (below, level) = self.levels.split_at_mut(self.height);
            let Some(level) = level.first_mut() else { break };
            empty(level, room);
            self.height += 1;
            match below.last() {
                Some(below) => level.extend(below.chunks(FAN).map(least)),
                None => {
                    for at in 0..length {
                        work.add(1)?;
                        level.push(rank(at));
                    }
                }
            }
            if room <= FAN {
                break;
            }
            room = room.div_ceil(FAN);
        }
        Ok(())
    }

    fn set(&mut self, at: usize, rank: u32) {
        let (mut at, mut rank) = (at, rank);
        for level in &mut self.levels[..self.height] {
            if level[at] == rank {
                break;
            }
            level[at] = rank;
            at /= FAN;
            rank = least(chunk(level, at));
        }
    }

    /// The lowest rank and its first byte; `None` if no merge is left.
    fn first(&self) -> Option<(u32, usize)> {
        let levels = &self.levels[..self.height];
        let rank = Some(least(levels.last()?)).filter(|&rank| rank != NEVER)?;
        let within = |at: usize, level: &Vec<u32>| {
            let offset = chunk(level, at).iter().position(|&other| other == rank)?;
            Some(at * FAN + offset)
        };
        Some((rank, levels.iter().rev().try_fold(0, within)?))
    }
}

fn chunk(level: &[u32], at: usize) -> &[u32] {
    let rest = &level[at * FAN..];
    &rest[..rest.len().min(FAN)]
}

fn least(ranks: &[u32]) -> u32 {
    ranks.iter().copied().min().unwrap_or(NEVER)
}

/// Empties `list` and allocates exactly `length` items if it is smaller, after freeing the old memory.
fn empty<T>(list: &mut Vec<T>, length: usize) {
    list.clear();
    if list.capacity() < length {
        *list = Vec::new();
        list.reserve_exact(length);
    }
}
