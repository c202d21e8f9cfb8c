//! Text is text: what a message says becomes no control token, whatever it says.
//!
//! A template makes one string of its own control tokens and of the messages' text. To tell the two
//! apart afterwards, a *sentinel* is put into the messages: a Unicode noncharacter, which occurs in
//! none of them nor in the template, behind a character from which a control token must not be
//! made. Sentinels are taken out of what the template wrote, and their places remembered.
//!
//! Templates look into messages (`'</think>' in content`), so nothing else is touched: only whole
//! texts of control tokens, and the ends of a message that would make one together with what the
//! template writes around it. There the sentinel's neighbour is no white space, so that `trim` does
//! what it did. A template that takes letters out of the middle of a message, or changes them, and
//! so makes a control token of the rest, is not kept from it.

use std::borrow::Cow;

use crate::tokenizer::special::{Kind, Matcher};
use crate::tokenizer::{Error, Vocabulary};

/// What a template made of messages: a prompt that knows which of it is text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Where the characters begin that are no part of a control token; ascending.
    plain: Vec<usize>,
}

impl Rendered {
    /// `text` without its sentinels.
    pub(super) fn new(mut text: String, sentinel: char) -> Self {
        let mut plain = Vec::new();
        let (mut end, mut last) = (0, None);
        text.retain(|character| {
            if character == sentinel {
                // A second one in a row says nothing new.
                plain.extend(last.take());
                return false;
            }
            last = Some(end);
            end += character.len_utf8();
            true
        });
        Self { text, plain }
    }

    /// The prompt, for reading. [`crate::tokenizer::Tokenizer::encode_rendered`] encodes it: this
    /// text alone does not tell the template's control tokens from a message's words.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(in crate::tokenizer) fn plain(&self) -> &[usize] {
        &self.plain
    }
}

/// The characters that Unicode promises never to assign: U+FDD0 to U+FDEF, then the last two of
/// each plane.
pub(super) fn noncharacters() -> impl Iterator<Item = char> {
    let ends = (0..=0x10).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]);
    (0xfdd0..=0xfdef).chain(ends).filter_map(char::from_u32)
}

/// The control tokens of a vocabulary, as messages may contain them.
#[derive(Debug)]
pub(super) struct Control {
    tokens: Matcher,
    /// The texts of all, sorted.
    texts: Vec<String>,
    /// The same read backwards, sorted.
    backwards: Vec<String>,
    /// Characters of the longest.
    longest: usize,
}

impl Control {
    pub(super) fn new(vocabulary: &Vocabulary, kinds: &[Kind]) -> Result<Self, Error> {
        let tokens = Matcher::new(&vocabulary.tokens, kinds, Kind::is_control)?;
        let control = |(text, kind): (_, &Kind)| kind.is_control().then_some(text);
        let texts = || vocabulary.tokens.iter().zip(kinds).filter_map(control);
        let mut backwards: Vec<String> = texts().map(|text| text.chars().rev().collect()).collect();
        let mut texts: Vec<String> = texts().map(str::to_owned).collect();
        texts.sort_unstable();
        backwards.sort_unstable();
        let longest = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        Ok(Self { tokens, texts, backwards, longest })
    }

    /// `text` with the sentinel behind the first character of each control token in it. With
    /// `ends`, also behind the first character that is no white space if the text may be the end of
    /// a control token, and behind the last one if it may be the beginning of one.
    pub(super) fn mark<'t>(&self, text: &'t str, sentinel: char, ends: bool) -> Cow<'t, str> {
        let mut marks = Vec::new();
        let mut from = 0;
        while let Some(found) = self.tokens.find(text, from..text.len()) {
            from = behind(text, found.start);
            marks.push(from);
        }
        let trimmed = text.trim();
        if ends && !trimmed.is_empty() {
            let start = text.len() - text.trim_start().len();
            let end = start + trimmed.len();
            let backwards: String = trimmed.chars().take(self.longest).collect();
            let backwards: String = backwards.chars().rev().collect();
            if self.ends_in_beginning(&backwards, &self.backwards) {
                marks.push(behind(text, start));
            }
            if self.ends_in_beginning(trimmed, &self.texts) {
                marks.push(end);
            }
        }
        if marks.is_empty() {
            return Cow::Borrowed(text);
        }
        marks.sort_unstable();
        marks.dedup();
        let mut marked = String::with_capacity(text.len() + marks.len() * sentinel.len_utf8());
        let mut from = 0;
        for mark in marks {
            marked.push_str(&text[from..mark]);
            marked.push(sentinel);
            from = mark;
        }
        marked.push_str(&text[from..]);
        Cow::Owned(marked)
    }
    /// Whether the end of `text` is a part, not the whole, of the beginning of one of the sorted
    /// `tokens`.
    fn ends_in_beginning(&self, text: &str, tokens: &[String]) -> bool {
        text.char_indices().rev().take(self.longest).any(|(at, _)| {
            // What begins with a text stands right behind it.
            let behind = tokens.partition_point(|token| token.as_str() <= &text[at..]);
            tokens.get(behind).is_some_and(|token| token.starts_with(&text[at..]))
        })
    }
}

/// Where the character that begins at `at` ends.
fn behind(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(0, char::len_utf8)
}
