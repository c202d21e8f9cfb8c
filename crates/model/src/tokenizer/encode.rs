//! Encodes text to ids, within limits.
//!
//! Text is split at special tokens ([`super::special`]). The vocabulary's algorithm ([`super::bpe`],
//! [`super::greedy`], [`super::sentencepiece`]) encodes the text between them word by word. So memory is
//! proportional to the longest word, not to the text. [`super::word`] merges the parts of each word.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use super::bounds::{Bounds, Work};
use super::build::{Algorithm, Tokenizer};
use super::chat::Rendered;
use super::error::Error;
use super::run::Run;
use super::special::Match;

/// Treatment of the names of control tokens in a text.
///
/// User-defined tokens (`<think>`) are always parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// `<|eot_id|>` becomes the control token.
    Parse,
    /// `<|eot_id|>` is ten characters of text.
    Plain,
}

impl Tokenizer {
    /// The ids of `text`. With `add_special`, adds BOS and EOS if the model needs them and the text does not have
    /// them.
    ///
    /// # Errors
    /// [`Error::NoToken`] if the vocabulary has no token for a byte of the text.
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
    /// Any text is safe. Time is proportional to its length, times the logarithm of its longest word. Memory is at
    /// most 9 bytes for each byte of the longest word, and 8 for each id within the bounds. In addition, the
    /// automata of each pre-tokeniser pattern take 4 MiB for each text encoded concurrently; later texts reuse them.
    /// SentencePiece has no automata, but longer words, which end only at spaces: each byte of the longest takes 10
    /// bytes, a space counts as three.
    ///
    /// # Errors
    /// [`Error::TooManyTokens`] as soon as the text certainly exceeds the limit, [`Error::Cancelled`], and those of
    /// [`Self::encode`].
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

    /// The ids of a prompt that a chat template rendered, with BOS and EOS as in [`Self::encode`]. Control tokens
    /// come only from the template, never from the text of a message.
    ///
    /// # Errors
    /// As for [`Self::encode_within`]; the memory bounds apply too.
    pub fn encode_rendered(
        &self,
        rendered: &Rendered,
        bounds: &Bounds<'_>,
    ) -> Result<Vec<u32>, Error> {
        let find = |from, work: &mut Work<'_>| self.find_in_template(rendered, from, work);
        self.encode_around(rendered.text(), find, true, bounds)
    }

    /// The first special token after `from` that is user-defined or lies outside of message text.
    fn find_in_template(
        &self,
        rendered: &Rendered,
        mut from: usize,
        work: &mut Work<'_>,
    ) -> Result<Option<Match>, Error> {
        let (text, plain) = (rendered.text(), rendered.plain());
        while let Some(found) = self.parsed.find(text, from..text.len()) {
            let Match { start, end, .. } = found;
            let next = plain.partition_point(|&at| at < start);
            let Some(spoken) = plain.get(next).copied().filter(|&at| at < end) else {
                return Ok(Some(found));
            };
            // A shorter token may begin at the same place, or any token after it.
            let from_template = self.parsed.find_at_start(text, start..spoken);
            let always = self.user_defined.find_at_start(text, start..end);
            let longest = from_template.into_iter().chain(always).max_by_key(|found| found.end);
            if longest.is_some() {
                return Ok(longest);
            }
            from = text.ceil_char_boundary(start + 1);
            work.add(end - start)?;
        }
        Ok(None)
    }

    /// The ids of `text`, split at the special tokens that `find` returns, given the place to search from.
    fn encode_around(
        &self,
        text: &str,
        find: impl Fn(usize, &mut Work<'_>) -> Result<Option<Match>, Error>,
        add_special: bool,
        bounds: &Bounds<'_>,
    ) -> Result<Vec<u32>, Error> {
        let mut run = Run::new(bounds, &self.kinds, self.longest);
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

    /// Appends the ids of `text[range]`, which contains no special token and begins at the start or after a special
    /// token.
    fn encode_text(&self, text: &str, range: Range<usize>, run: &mut Run<'_>) -> Result<(), Error> {
        match &self.algorithm {
            _ if range.is_empty() => Ok(()),
            Algorithm::ByteLevel(bpe) => bpe.encode(text, range, run),
            Algorithm::Greedy(tokens) => tokens.encode(text, range, run),
            Algorithm::SentencePiece(pieces) => pieces.encode(text, range, self.prefix, run),
        }
    }
}
