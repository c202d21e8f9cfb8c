//! Merging one word, which may be megabytes long.
//!
//! The tokens of a word lie where their bytes were, so that they need no links: a token's length
//! says where the next one begins. The ranks of all possible merges stand beside them, under a tree
//! of minima.

use super::Error;
use super::bounds::Work;
use super::merges::{Merges, NEVER};

/// Ranks under one minimum of the level above.
const FAN: usize = 16;
const BITS: usize = u64::BITS as usize;

/// Room for merging one word after the other, about 8.4 bytes for each byte of the longest one.
#[derive(Debug, Default)]
pub(super) struct Word {
    /// A token's id at its first place; its length at its second and at its last, if it has more
    /// than one.
    places: Vec<u32>,
    /// One bit for each place: whether a token begins there.
    begins: Vec<u64>,
    ranks: Ranks,
}

impl Word {
    /// Merges the neighbours of lowest rank, leftmost first, until there are none, and gives what
    /// is left of the word `ids` to `out`.
    pub(super) fn merge(
        &mut self,
        ids: impl ExactSizeIterator<Item = u32>,
        merges: &Merges,
        work: &mut Work<'_>,
        mut out: impl FnMut(u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let length = ids.len();
        empty(&mut self.places, length);
        self.places.extend(ids);
        let words = length.div_ceil(BITS);
        empty(&mut self.begins, words);
        self.begins.resize(words, u64::MAX);
        let places = &self.places;
        let rank = |at: usize| match places.get(at + 1) {
            Some(&right) => merges.rank(places[at], right),
            None => NEVER,
        };
        self.ranks.fill(length, rank, work)?;
        while let Some((rank, at)) = self.ranks.first() {
            work.add(1)?;
            let right = at + self.len(at);
            let end = right + self.len(right);
            let id = merges.product(rank);
            self.begins[right / BITS] &= !(1 << (right % BITS));
            self.places[at] = id;
            // Texts of vocabularies are shorter than 4 GiB, and so are their tokens.
            let length = u32::try_from(end - at).unwrap_or(u32::MAX);
            self.places[at + 1] = length;
            self.places[end - 1] = length;
            self.ranks.set(right, NEVER);
            let after = self.places.get(end).map_or(NEVER, |&next| merges.rank(id, next));
            self.ranks.set(at, after);
            if let Some(last) = at.checked_sub(1) {
                let before = if self.begins(last) { last } else { at - self.places[last] as usize };
                self.ranks.set(before, merges.rank(self.places[before], id));
            }
        }
        let mut at = 0;
        while at < length {
            out(self.places[at])?;
            at += self.len(at);
        }
        Ok(())
    }

    fn begins(&self, at: usize) -> bool {
        self.begins[at / BITS] >> (at % BITS) & 1 == 1
    }

    /// The length of the token that begins at `at`.
    fn len(&self, at: usize) -> usize {
        let next = at + 1;
        if next == self.places.len() || self.begins(next) { 1 } else { self.places[next] as usize }
    }
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
