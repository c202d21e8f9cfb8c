//! Prevents message text from becoming control tokens.
//!
//! A template joins its own control tokens and the messages' text to one string. To distinguish the two afterwards,
//! a *sentinel* is inserted into the messages after each character that must not be part of a control token. The
//! sentinel is a Unicode noncharacter that occurs neither in the messages nor in the template. Sentinels are removed
//! from the rendered string and their positions recorded.
//!
//! Templates search messages (`'</think>' in content`), so as little as possible is marked: names of control tokens,
//! and ends of a message that could form one together with the template's text around it. There the sentinel is
//! never next to white space, so that `trim` has its usual effect. There is no protection against a template that
//! removes or changes letters in the middle of a message such that the rest is the name of a control token.

use std::borrow::Cow;

use crate::tokenizer::error::Error;
use crate::tokenizer::special::{Matcher, TokenKind};
use crate::tokenizer::vocabulary::Vocabulary;

/// A rendered prompt that records which characters are message text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Start of each character that cannot be part of a control token; ascending.
    plain: Vec<usize>,
}

impl Rendered {
    /// `text` without its sentinels.
    pub(super) fn new(mut text: String, sentinel: char) -> Self {
        let mut plain = Vec::new();
        let (mut end, mut last) = (0, None);
        text.retain(|character| {
            if character == sentinel {
                // Adjacent sentinels mark the same character.
                plain.extend(last.take());
                return false;
            }
            last = Some(end);
            end += character.len_utf8();
            true
        });
        Self { text, plain }
    }

    /// The prompt's text, for display. Encode the prompt with [`crate::tokenizer::Tokenizer::encode_rendered`],
    /// because the text does not distinguish the template's control tokens from message text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn plain(&self) -> &[usize] {
        &self.plain
    }
}

/// The characters that Unicode will never assign: U+FDD0 to U+FDEF, then the last two of each plane.
pub(super) fn noncharacters() -> impl Iterator<Item = char> {
    let ends = (0..=0x10).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]);
    (0xfdd0..=0xfdef).chain(ends).filter_map(char::from_u32)
}

/// The names of a vocabulary's control tokens, which messages may contain.
#[derive(Debug)]
pub(super) struct Control {
    tokens: Matcher,
    /// All names, sorted.
    texts: Vec<String>,
    /// All names reversed, sorted.
    backwards: Vec<String>,
    /// Characters of the longest name.
    longest: usize,
}

impl Control {
    pub(super) fn new(vocabulary: &Vocabulary, kinds: &[TokenKind]) -> Result<Self, Error> {
        let tokens = Matcher::new(&vocabulary.tokens, kinds, TokenKind::is_control)?;
        let control = |(text, kind): (_, &TokenKind)| kind.is_control().then_some(text);
        let texts = || vocabulary.tokens.iter().zip(kinds).filter_map(control);
        let mut backwards: Vec<String> = texts().map(|text| text.chars().rev().collect()).collect();
        let mut texts: Vec<String> = texts().map(str::to_owned).collect();
        texts.sort_unstable();
        backwards.sort_unstable();
        let longest = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        Ok(Self { tokens, texts, backwards, longest })
    }

    /// `text` with the sentinel after the first character of each control token in it. With `ends`, also after the
    /// first character that is not white space, if `text` may begin with the end of a control token, and after the
    /// last one, if `text` may end with the start of a control token.
    pub(super) fn mark<'t>(&self, text: &'t str, sentinel: char, ends: bool) -> Cow<'t, str> {
        let mut marks = Vec::new();
        let mut from = 0;
        while let Some(found) = self.tokens.find(text, from..text.len()) {
            from = character_end(text, found.start);
            marks.push(from);
        }
        let trimmed = text.trim();
        if ends && !trimmed.is_empty() {
            let start = text.len() - text.trim_start().len();
            let end = start + trimmed.len();
            let backwards: String = trimmed.chars().take(self.longest).collect();
            let backwards: String = backwards.chars().rev().collect();
            if self.ends_with_prefix(&backwards, &self.backwards) {
                marks.push(character_end(text, start));
            }
            if self.ends_with_prefix(trimmed, &self.texts) {
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

    /// True if `text` ends with a proper prefix of one of the sorted `tokens`.
    fn ends_with_prefix(&self, text: &str, tokens: &[String]) -> bool {
        text.char_indices().rev().take(self.longest).any(|(at, _)| {
            // Strings with a prefix directly follow that prefix in sorted order.
            let next = tokens.partition_point(|token| token.as_str() <= &text[at..]);
            tokens.get(next).is_some_and(|token| token.starts_with(&text[at..]))
        })
    }
}

/// The end of the character that begins at `at`.
fn character_end(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(0, char::len_utf8)
}
