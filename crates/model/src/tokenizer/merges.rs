//! Byte-pair merges: which two neighbours become one token, and doing so until none does.
//!
//! A vocabulary has up to some hundred thousand tokens and more merges, and every load builds this
//! anew: ids are found in a table of numbers whose keys stay where the texts are, and merges are
//! pairs of ids.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable, hash_table};

use super::Error;
use crate::gguf::Strings;

#[derive(Debug)]
pub(super) struct Ids {
    texts: Strings,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Ids {
    /// The ids of `texts`, which are their places. Tokens without text cannot be found.
    pub(super) fn new(texts: Strings) -> Result<Self, Error> {
        let hasher = DefaultHashBuilder::default();
        let mut table = HashTable::with_capacity(texts.len());
        for (second, text) in (0u32..).zip(texts.iter()).filter(|(_, text)| !text.is_empty()) {
            let same = |&first: &u32| texts[first as usize] == *text;
            let hash = |&id: &u32| hasher.hash_one(&texts[id as usize]);
            match table.entry(hasher.hash_one(text), same, hash) {
                hash_table::Entry::Vacant(place) => drop(place.insert(second)),
                hash_table::Entry::Occupied(place) => {
                    let (text, first) = (text.to_owned(), *place.get());
                    return Err(Error::DuplicateToken { text, first, second });
                }
            }
        }
        Ok(Self { texts, table, hasher })
    }

    pub(super) fn get(&self, text: &str) -> Option<u32> {
        let same = |&id: &u32| self.texts[id as usize] == *text;
        self.table.find(self.hasher.hash_one(text), same).copied()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Merge {
    rank: u32,
    id: u32,
}

#[derive(Debug)]
pub(super) struct Merges {
    pairs: HashMap<(u32, u32), Merge>,
}

impl Merges {
    /// The merges of a file, each two tokens separated by a space.
    pub(super) fn new(merges: &Strings, ids: &Ids) -> Result<Self, Error> {
        let mut pairs = HashMap::with_capacity(merges.len());
        let mut product = String::new();
        for (rank, merge) in (0u32..).zip(merges.iter()) {
            let index = rank as usize;
            let Some((left, right)) =
                merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())
            else {
                return Err(Error::MergeSyntax { index, merge: merge.to_owned() });
            };
            product.clear();
            product.extend([left, right]);
            let id = |token: &str| {
                let (merge, missing) = (|| merge.to_owned(), || token.to_owned());
                let error = || Error::MergeToken { index, merge: merge(), token: missing() };
                ids.get(token).ok_or_else(error)
            };
            pairs.insert((id(left)?, id(right)?), Merge { rank, id: id(&product)? });
        }
        Ok(Self { pairs })
    }

    fn of(&self, left: &Symbol, right: &Symbol) -> Option<Merge> {
        self.pairs.get(&(left.id, right.id)).copied()
    }
}

const NONE: u32 = u32::MAX;

/// A token of a word that is being merged, and its neighbours.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    id: u32,
    before: u32,
    after: u32,
    /// False once it has become part of the one before.
    there: bool,
}

/// Room for merging one word after the other.
#[derive(Debug, Default)]
pub(super) struct Word {
    symbols: Vec<Symbol>,
    /// Merges that may be next, by rank and then by place; some have become stale.
    queue: BinaryHeap<Reverse<(u32, u32)>>,
}

impl Word {
    /// Merges the neighbours of lowest rank, leftmost first, until there are none, and appends
    /// what is left of the word `ids` to `out`.
    pub(super) fn merge(
        &mut self,
        ids: impl IntoIterator<Item = u32>,
        merges: &Merges,
        out: &mut Vec<u32>,
    ) {
        let Self { symbols, queue } = self;
        symbols.clear();
        queue.clear();
        for (at, id) in (0u32..).zip(ids) {
            symbols.push(Symbol { id, before: at.wrapping_sub(1), after: at + 1, there: true });
        }
        let Some(last) = symbols.last_mut() else { return };
        last.after = NONE;
        for (at, pair) in (0u32..).zip(symbols.windows(2)) {
            if let Some(merge) = merges.of(&pair[0], &pair[1]) {
                queue.push(Reverse((merge.rank, at)));
            }
        }
        while let Some(Reverse((rank, at))) = queue.pop() {
            let left = symbols[at as usize];
            let Some(&right) = symbols.get(left.after as usize).filter(|_| left.there) else {
                continue;
            };
            let Some(merge) = merges.of(&left, &right).filter(|merge| merge.rank == rank) else {
                continue;
            };
            symbols[left.after as usize].there = false;
            let whole = Symbol { id: merge.id, after: right.after, ..left };
            symbols[at as usize] = whole;
            if let Some(next) = symbols.get_mut(whole.after as usize) {
                next.before = at;
                if let Some(merge) = merges.of(&whole, next) {
                    queue.push(Reverse((merge.rank, at)));
                }
            }
            if let Some(previous) = symbols.get(whole.before as usize)
                && let Some(merge) = merges.of(previous, &whole)
            {
                queue.push(Reverse((merge.rank, whole.before)));
            }
        }
        out.extend(symbols.iter().filter(|symbol| symbol.there).map(|symbol| symbol.id));
    }
}
