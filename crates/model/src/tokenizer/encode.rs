//! Text to ids, within bounds.
//!
//! Text is cut at special tokens ([`super::special`]); what lies between them is for the algorithm
//! ([`super::bpe`], [`super::greedy`], [`super::sentencepiece`]), which takes one word after the other, so that memory
//! goes by the longest of them, not by the text. The parts of each word are merged
//! ([`super::word`]) as the vocabulary says.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use super::bounds::Work;
use super::build::Algorithm;
use super::chat::Rendered;
use super::special::Match;
use super::word::Word;
use super::{Bounds, Error, Tokenizer};

/// How control tokens written out in a text are taken.
///
/// User-defined tokens (`<think>`) are found either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// `<|eot_id|>` becomes the control token.
    Parse,
    /// `<|eot_id|>` is ten characters of text.
    Plain,
}

impl Tokenizer {
    /// The ids of `text`. With `add_special`, BOS in front and EOS behind where the model wants
    /// them and the text does not already have them.
    ///
    /// # Errors
    /// [`Error::NoToken`] when the vocabulary lacks a token for a byte of the text.
    pub fn encode(
        &self,
        text: &str,
        specials: Specials,
        add_special: bool,
    ) -> Result<Vec<u32>, Error> {
        let bounds = Bounds { tokens: usize::MAX, cancelled: &AtomicBool::new(false) };
        self.encode_within(text, specials, add_special, &bounds)
    }

    /// [`Self::encode`] within bounds.
    ///
    /// Any text is safe. Time grows with its length, times the logarithm of its longest word.
    /// Memory is at most 9 bytes for each byte of the longest word, 8 for each id that the text
    /// has and the bounds allow, and for each text that is encoded at the same time 4 MiB for each
    /// pattern of the pre-tokeniser: automata, which are kept for later texts. With SentencePiece
    /// words are longer (they end at most spaces, and nowhere else), each byte of the longest takes
    /// 10 bytes, a space counts for three, and there are no automata.
    ///
    /// # Errors
    /// [`Error::TooManyTokens`] as soon as more ids than that are certain, [`Error::Cancelled`],
    /// and those of [`Self::encode`].
    pub fn encode_within(
        &self,
        text: &str,
        specials: Specials,
        add_special: bool,
        bounds: &Bounds<'_>,
    ) -> Result<Vec<u32>, Error> {
        let matcher = match specials {
            Specials::Parse => &self.parsed,
            Specials::Plain => &self.user_defined,
        };
        let find = |from, _: &mut Work<'_>| Ok(matcher.find(text, from..text.len()));
        self.encode_around(text, find, add_special, bounds)
    }

    /// The ids of what a chat template made of messages, BOS and EOS as [`Self::encode`] adds them.
    /// Control tokens are what the template wrote, and never what a message says.
    ///
    /// # Errors
    /// Those of [`Self::encode_within`], whose memory it takes.
    pub fn encode_rendered(
        &self,
        rendered: &Rendered,
        bounds: &Bounds<'_>,
    ) -> Result<Vec<u32>, Error> {
        let find = |from, work: &mut Work<'_>| self.find_written(rendered, from, work);
        self.encode_around(rendered.text(), find, true, bounds)
    }

    /// The first special token from `from` on that has no part in a message's own text, unless it
    /// is user-defined.
    fn find_written(
        &self,
        rendered: &Rendered,
        mut from: usize,
        work: &mut Work<'_>,
    ) -> Result<Option<Match>, Error> {
        let (text, plain) = (rendered.text(), rendered.plain());
        while let Some(found) = self.parsed.find(text, from..text.len()) {
            let Match { start, end, .. } = found;
            let next = plain.partition_point(|&at| at < start);
            let Some(said) = plain.get(next).copied().filter(|&at| at < end) else {
                return Ok(Some(found));
            };
            // Something shorter may begin at the same place, or anything behind it.
            let written = self.parsed.find_at_start(text, start..said);
            let always = self.user_defined.find_at_start(text, start..end);
            let longest = written.into_iter().chain(always).max_by_key(|found| found.end);
            if longest.is_some() {
                return Ok(longest);
            }
            from = text.ceil_char_boundary(start + 1);
            work.add(end - start)?;
        }
        Ok(None)
    }

    /// The ids of `text`, with the special tokens that `find` finds from some place on.
    fn encode_around(
        &self,
        text: &str,
        find: impl Fn(usize, &mut Work<'_>) -> Result<Option<Match>, Error>,
        add_special: bool,
        bounds: &Bounds<'_>,
    ) -> Result<Vec<u32>, Error> {
        let mut run = Run::new(bounds);
        let mut end = 0;
        while let Some(found) = find(end, &mut run.work)? {
            self.encode_text(text, end..found.start, &mut run)?;
            run.work.add(found.end - found.start)?;
            run.out.push(found.id)?;
            end = found.end;
            if self.strips.contains(&found.id) {
                let white = |b: &u8| b.is_ascii_whitespace() || *b == b'\x0b';
                end += text.as_bytes()[end..].iter().take_while(|b| white(b)).count();
            }
        }
        self.encode_text(text, end..text.len(), &mut run)?;
        let mut out = run.out;
        if add_special {
            if let Some(bos) = self.add_bos.filter(|bos| out.ids.first() != Some(bos)) {
                out.push(bos)?;
                out.ids.rotate_right(1);
            }
            if let Some(eos) = self.add_eos.filter(|eos| out.ids.last() != Some(eos)) {
                out.push(eos)?;
            }
        }
        Ok(out.ids)
    }

    /// Appends the ids of `text[range]`, which holds no special token and begins behind one or at
    /// the start.
    fn encode_text(&self, text: &str, range: Range<usize>, run: &mut Run<'_>) -> Result<(), Error> {
        match &self.algorithm {
            _ if range.is_empty() => Ok(()),
            Algorithm::ByteLevel(bpe) => bpe.encode(text, range, self, run),
            Algorithm::Greedy(tokens) => tokens.encode(text, range, self, run),
            Algorithm::SentencePiece(pieces) => pieces.encode(text, range, self.prefix, self, run),
        }
    }
}

/// What encoding one text takes along.
pub(super) struct Run<'a> {
    pub(super) out: Output,
    pub(super) work: Work<'a>,
    pub(super) word: Word,
    /// A word as the vocabulary spells it.
    pub(super) letters: String,
}

impl<'a> Run<'a> {
    fn new(bounds: &Bounds<'a>) -> Self {
        Self {
            out: Output { ids: Vec::new(), limit: bounds.tokens },
            work: Work::new(bounds.cancelled),
            word: Word::default(),
            letters: String::new(),
        }
    }

    /// Makes `letters` of `word`, with room for them and no more.
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

/// Ids, up to a number of them.
pub(super) struct Output {
    ids: Vec<u32>,
    limit: usize,
}

impl Output {
    pub(super) fn push(&mut self, id: u32) -> Result<(), Error> {
        self.expect(1)?;
        if self.ids.len() == self.ids.capacity() {
            // Twice the room, but never more than can be used.
            self.ids.reserve_exact(self.ids.len().max(16).min(self.limit - self.ids.len()));
        }
        self.ids.push(id);
        Ok(())
    }

    /// Whether `more` ids may be added.
    pub(super) fn expect(&self, more: usize) -> Result<(), Error> {
        let limit = self.limit;
        if more > limit - self.ids.len() { Err(Error::TooManyTokens { limit }) } else { Ok(()) }
    }
}
