//! State of encoding one text: ids so far, limits, buffers.

use super::bounds::{Bounds, Work};
use super::error::Error;
use super::special::TokenKind;
use super::word::Word;

/// State of encoding one text.
pub(super) struct Run<'a> {
    pub(super) out: Output,
    pub(super) work: Work<'a>,
    pub(super) word: Word,
    /// A word in the vocabulary's notation.
    pub(super) letters: String,
    pub(super) kinds: &'a [TokenKind],
    /// Bytes of the longest token that encoding can produce.
    pub(super) longest: usize,
}

impl<'a> Run<'a> {
    pub(super) fn new(bounds: &Bounds<'a>, kinds: &'a [TokenKind], longest: usize) -> Self {
        Self {
            out: Output { ids: Vec::new(), limit: bounds.tokens },
            work: Work::new(bounds.cancelled),
            word: Word::default(),
            letters: String::new(),
            kinds,
            longest,
        }
    }

    /// Sets `letters` to `word`, allocating no more than necessary.
    pub(super) fn spell(&mut self, word: impl Iterator<Item = char> + Clone) {
        let length = word.clone().map(char::len_utf8).sum();
        self.letters.clear();
        if self.letters.capacity() < length {
            self.letters = String::new();
            self.letters.reserve_exact(length);
        }
        self.letters.extend(word);
    }
}

/// Ids, up to a limit.
pub(super) struct Output {
    pub(super) ids: Vec<u32>,
    limit: usize,
}

impl Output {
    pub(super) fn push(&mut self, id: u32) -> Result<(), Error> {
        self.expect(1)?;
        if self.ids.len() == self.ids.capacity() {
            // Doubles the capacity, up to the limit.
            self.ids.reserve_exact(self.ids.len().max(16).min(self.limit - self.ids.len()));
        }
        self.ids.push(id);
        Ok(())
    }

    /// Fails if adding `more` ids would exceed the limit.
    pub(super) fn expect(&self, more: usize) -> Result<(), Error> {
        let limit = self.limit;
        if more > limit - self.ids.len() { Err(Error::TooManyTokens { limit }) } else { Ok(()) }
    }
}
