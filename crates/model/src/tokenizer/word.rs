//! Merging one word, which may be megabytes long.
//!
//! The tokens of a word lie where their bytes were, so that they need no links: a token's length
//! says where the next one begins. The ranks of all possible merges stand beside them, under a tree
//! of minima. What may be merged, and into what, is for [`Joins`] to say.

use std::ops::Range;

use super::Error;
use super::bounds::Work;

/// Ranks under one minimum of the level above.
const FAN: usize = 16;
const BITS: usize = u64::BITS as usize;

/// The rank of two neighbours that never become one.
pub(super) const NEVER: u32 = u32::MAX;

/// Which two neighbours become one token. `span` is where both lie in the word.
pub(super) trait Joins {
    /// The lowest goes first. [`NEVER`] if they do not.
    fn rank(&self, left: u32, right: u32, span: Range<usize>) -> u32;

    /// What becomes of two neighbours of `rank`.
    fn product(&self, rank: u32, span: Range<usize>) -> u32;
}

/// Room for merging one word after the other, about 8.4 bytes for each byte of the longest one.
#[derive(Debug, Default)]
pub(super) struct Word {
    tokens: Tokens,
    ranks: Ranks,
}

impl Word {
    /// Begins with `tokens`, ids and lengths, which have `length` bytes together. Merges the
    /// neighbours of lowest rank, leftmost first, until there are none, and gives what is left to
    /// `out`, each with its place.
    pub(super) fn merge(
        &mut self,
        length: usize,
        tokens: impl Iterator<Item = (u32, usize)>,
        joins: &impl Joins,
        work: &mut Work<'_>,
        mut out: impl FnMut(u32, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.tokens.fill(length, tokens, work)?;
        let Self { tokens, ranks } = self;
        ranks.fill(length, |at| tokens.rank(at, joins), work)?;
        while let Some((rank, at)) = ranks.first() {
            let right = tokens.end(at);
            let end = tokens.end(right);
            work.add(end - at)?;
            tokens.join(at..end, right, joins.product(rank, at..end));
            ranks.set(right, NEVER);
            ranks.set(at, tokens.rank(at, joins));
            if let Some(before) = tokens.before(at) {
                ranks.set(before, tokens.rank(before, joins));
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
    /// A token's id at its first place; its length at its second and at its last, if it has more
    /// than one.
    places: Vec<u32>,
    /// One bit for each place: whether a token begins there.
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

    /// Where the token that begins at `at` ends.
    fn end(&self, at: usize) -> usize {
        let next = at + 1;
        if next == self.places.len() || self.begins(next) {
            next
        } else {
            at + self.places[next] as usize
        }
    }

    /// Where the token begins that ends at `at`.
    fn before(&self, at: usize) -> Option<usize> {
        let last = at.checked_sub(1)?;
        Some(if self.begins(last) { last } else { at - self.places[last] as usize })
    }

    /// The rank of the token at `at` and the next one; [`NEVER`] where none begins.
    fn rank(&self, at: usize, joins: &impl Joins) -> u32 {
        if !self.begins(at) {
            return NEVER;
        }
        let right = self.end(at);
        match self.places.get(right) {
            Some(&id) => joins.rank(self.places[at], id, at..self.end(right)),
            None => NEVER,
        }
    }

    /// Makes `id` of the two tokens in `span`, the second of which begins at `right`.
    fn join(&mut self, span: Range<usize>, right: usize, id: u32) {
        self.begins[right / BITS] &= !(1 << (right % BITS));
        self.places[span.start] = id;
        let length = short(span.len());
        self.places[span.start + 1] = length;
        self.places[span.end - 1] = length;
    }
}

/// Texts of vocabularies are shorter than 4 GiB, and so are their tokens.
fn short(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Ranks by place, and the least of all.
#[derive(Debug, Default)]
struct Ranks {
    /// All ranks, then the least of every [`FAN`] of the level before, until few are left.
    levels: Vec<Vec<u32>>,
    /// How many levels are in use.
    height: usize,
}

impl Ranks {
    /// Sets the rank of every place below `length`, of which there is at least one.
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

    /// The least rank and the first place that has it; `None` when no merge is left.
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

/// Empties `list` and makes room for `length` items, and no more; what was there is given back first.
fn empty<T>(list: &mut Vec<T>, length: usize) {
    list.clear();
    if list.capacity() < length {
        *list = Vec::new();
        list.reserve_exact(length);
    }
}
