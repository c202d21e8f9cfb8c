//! Byte-pair merges, and the ids of token texts.
//!
//! A vocabulary has hundreds of thousands of tokens and even more merges, and every load builds these tables. So the
//! hash table of texts contains only ids, whose keys are looked up in the texts, and a merge is a pair of ids.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable, hash_table};

use super::error::Error;
use super::special::TokenKind;
use super::word::{MergeRule, NEVER};
use crate::gguf::Strings;

#[derive(Debug)]
pub(super) struct Ids {
    texts: Strings,
    table: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Ids {
    /// Indexes `texts`, whose ids are their indices. Empty texts are not found.
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

    /// The texts, by id.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.iter()
    }

    pub(super) fn get(&self, text: &str) -> Option<u32> {
        let same = |&id: &u32| self.texts[id as usize] == *text;
        self.table.find(self.hasher.hash_one(text), same).copied()
    }
}

#[derive(Debug)]
pub(super) struct Merges {
    ranks: HashMap<(u32, u32), u32>,
    /// Resulting token of each merge, by rank.
    products: Vec<u32>,
}

impl Merges {
    /// The merges of a file, each two tokens separated by a space. Merges whose result is not a normal token are
    /// ignored.
    pub(super) fn new(merges: &Strings, ids: &Ids, kinds: &[TokenKind]) -> Result<Self, Error> {
        let mut ranks = HashMap::with_capacity(merges.len());
        let mut products = Vec::with_capacity(merges.len());
        let mut text = String::new();
        for (rank, merge) in (0u32..).zip(merges.iter()) {
            let index = rank as usize;
            let Some((left, right)) =
                merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty())
            else {
                return Err(Error::MergeSyntax { index, merge: merge.to_owned() });
            };
            text.clear();
            text.extend([left, right]);
            let id = |token: &str| {
                let (merge, missing) = (|| merge.to_owned(), || token.to_owned());
                let error = || Error::MergeToken { index, merge: merge(), token: missing() };
                ids.get(token).ok_or_else(error)
            };
            let (pair, product) = ((id(left)?, id(right)?), id(&text)?);
            if kinds.get(product as usize) == Some(&TokenKind::Normal) {
                ranks.insert(pair, rank);
            }
            products.push(product);
        }
        Ok(Self { ranks, products })
    }
}

impl MergeRule for Merges {
    fn rank(&self, left: u32, right: u32, _: Range<usize>) -> u32 {
        self.ranks.get(&(left, right)).copied().unwrap_or(NEVER)
    }

    fn product(&self, rank: u32, _: Range<usize>) -> u32 {
        self.products[rank as usize]
    }
}
