//! Text to ids, within bounds.
//!
//! Text is cut at special tokens ([`super::special`]) and into words ([`super::split`]); the bytes of
//! each word are merged ([`super::word`]) as the vocabulary says ([`super::merges`]). Words come one
//! by one, so that memory goes by the longest of them, not by the text.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use super::bounds::Work;
use super::chat::Rendered;
use super::special::Match;
use super::word::Word;
use super::{Bounds, Error, Tokenizer, alphabet};

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
    /// has and the bounds allow, and 4 MiB for each text that is encoded at the same time: the
    /// pre-tokeniser's automata, which are kept for later texts.
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
            self.encode_words(text, end..found.start, &mut run)?;
            run.work.add(found.end - found.start)?;
            run.out.push(found.id)?;
            end = found.end;
        }
        self.encode_words(text, end..text.len(), &mut run)?;
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

    /// Appends the ids of `text[range]`, which holds no special token.
    fn encode_words(
        &self,
        text: &str,
        range: Range<usize>,
        run: &mut Run<'_>,
    ) -> Result<(), Error> {
        let Run { out, work, word, letters } = run;
        let mut left = text.len() - range.start;
        let words = &text[range.clone()];
        let id = |byte: u8| self.bytes.get(usize::from(byte)).copied().flatten();
        if let Some((offset, byte)) = range.zip(words.bytes()).find(|(_, b)| id(*b).is_none()) {
            return Err(Error::NoToken { byte, offset });
        }
        self.splitter.split(words, &mut |piece| {
            work.add(piece.len())?;
            out.expect(left.div_ceil(self.longest))?;
            left -= piece.len();
            if self.whole_words && piece.len() <= self.longest {
                letters.clear();
                letters.extend(piece.bytes().map(alphabet::char_of));
                let whole = self.ids.get(letters);
                if let Some(id) = whole.filter(|&id| self.is_text(id)) {
                    return out.push(id);
                }
            }
            let bytes = piece.bytes().map(|byte| id(byte).unwrap_or_default());
            word.merge(bytes, &self.merges, work, |id| out.push(id))
        })
    }
}

/// What encoding one text takes along.
struct Run<'a> {
    out: Output,
    work: Work<'a>,
    word: Word,
    /// A word in the byte-level alphabet.
    letters: String,
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
}

/// Ids, up to a number of them.
struct Output {
    ids: Vec<u32>,
    limit: usize,
}

impl Output {
    fn push(&mut self, id: u32) -> Result<(), Error> {
        self.expect(1)?;
        if self.ids.len() == self.ids.capacity() {
            // Twice the room, but never more than can be used.
            self.ids.reserve_exact(self.ids.len().max(16).min(self.limit - self.ids.len()));
        }
        self.ids.push(id);
        Ok(())
    }

    /// Whether `more` ids may be added.
    fn expect(&self, more: usize) -> Result<(), Error> {
        let limit = self.limit;
        if more > limit - self.ids.len() { Err(Error::TooManyTokens { limit }) } else { Ok(()) }
    }
}
