//! SentencePiece: starts from characters, with U+2581 for a space, and repeatedly merges the two neighbours with the
//! best resulting token. Characters without a token become byte tokens.
//!
//! Scores (`llama`) or merges (`gemma4`) define the best token. SentencePiece has no words. Text is split where no
//! token can span the split, so that a long text needs no more memory than a short one.

use std::collections::BTreeSet;
use std::ops::Range;

use super::error::Error;
use super::merges::{Ids, Merges};
use super::run::Run;
use super::special::TokenKind;
use super::vocabulary::Vocabulary;
use super::word::{MergeRule, NEVER};

/// The character that replaces a space in tokens.
const SPACE: char = '\u{2581}';

/// The id of a character that has no token.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct SentencePiece {
    ids: Ids,
    order: Order,
    /// The token of each byte, if there is one.
    bytes: Vec<Option<u32>>,
    /// The characters that precede a space inside of a token.
    before_space: BTreeSet<char>,
    /// Bytes of the longest token.
    longest: usize,
}

#[derive(Debug)]
enum Order {
    /// The rank of each token, by id: the number of different higher scores. [`NEVER`] for tokens that are not text.
    Scores(Vec<u32>),
    /// Merges. Line ends are split from lines, and line ends that are a token are not merged from characters.
    Merges(Merges),
}

impl SentencePiece {
    pub(super) fn with_scores(vocabulary: Vocabulary, kinds: &[TokenKind]) -> Result<Self, Error> {
        let Vocabulary { scores, tokens, .. } = vocabulary;
        if scores.len() != kinds.len() {
            return Err(Error::ScoreCount { tokens: kinds.len(), scores: scores.len() });
        }
        if let Some((id, _)) = (0..).zip(&scores).find(|(_, score)| score.is_nan()) {
            return Err(Error::Score { id });
        }
        let mut ranks = vec![NEVER; scores.len()];
        let mut sorted: Vec<usize> = (0..scores.len()).filter(|&id| kinds[id].is_text()).collect();
        sorted.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        for (rank, same) in (0..).zip(sorted.chunk_by(|&a, &b| scores[a] == scores[b])) {
            for &id in same {
                ranks[id] = rank;
            }
        }
        Self::new(Ids::new(tokens)?, kinds, Order::Scores(ranks))
    }

    pub(super) fn with_merges(vocabulary: Vocabulary, kinds: &[TokenKind]) -> Result<Self, Error> {
        let ids = Ids::new(vocabulary.tokens)?;
        let merges = Merges::new(&vocabulary.merges, &ids, kinds)?;
        Self::new(ids, kinds, Order::Merges(merges))
    }

    fn new(ids: Ids, kinds: &[TokenKind], order: Order) -> Result<Self, Error> {
        let mut bytes = vec![None; 256];
        let mut before_space = BTreeSet::new();
        let mut longest = 0;
        for ((id, text), kind) in (0u32..).zip(ids.texts()).zip(kinds) {
            if *kind == TokenKind::Byte {
                bytes[usize::from(byte_of(id, text)?)] = Some(id);
            } else if kind.is_text() {
                longest = longest.max(text.len());
                let inner = text.match_indices(SPACE);
                before_space.extend(inner.filter_map(|(at, _)| text[..at].chars().next_back()));
            }
        }
        Ok(Self { ids, order, bytes, before_space, longest })
    }

    /// Appends the ids of `text[range]`, which is not empty and contains no special token, after a space if
    /// `prefixed`.
    pub(super) fn encode(
        &self,
        text: &str,
        range: Range<usize>,
        mut prefixed: bool,
        run: &mut Run<'_>,
    ) -> Result<(), Error> {
        let mut start = range.start;
        while start < range.end || prefixed {
            let rest = &text[start..range.end];
            let length = self.word(rest, prefixed);
            run.work.add(length)?;
            run.out.expect((text.len() - start).div_ceil(run.longest))?;
            let raw = &rest[..length];
            run.spell(prefixed.then_some(SPACE).into_iter().chain(raw.chars().map(escaped)));
            self.encode_word(run).map_err(|error| match error {
                Error::NoToken { byte, offset } => {
                    let spelt = run.letters[..offset].chars().count();
                    let at = raw.char_indices().nth(spelt.saturating_sub(prefixed.into()));
                    Error::NoToken { byte, offset: start + at.map_or(0, |(at, _)| at) }
                }
                error => error,
            })?;
            start += length;
            prefixed = false;
        }
        Ok(())
    }

    /// The length of the first word of `text`, which follows a space if `prefixed`.
    fn word(&self, text: &str, prefixed: bool) -> usize {
        let lines = matches!(self.order, Order::Merges(_));
        let mut before = prefixed.then_some(SPACE);
        for (at, character) in text.char_indices() {
            let character = escaped(character);
            if let Some(before) = before.replace(character) {
                let no_token = character == SPACE && !self.before_space.contains(&before);
                if no_token || lines && (before == '\n') != (character == '\n') {
                    return at;
                }
            }
        }
        text.len()
    }

    /// Appends the ids of the word in `run`. The error for a byte without a token has the offset of its character.
    fn encode_word(&self, run: &mut Run<'_>) -> Result<(), Error> {
        let Run { out, work, word, letters, kinds, .. } = run;
        let text = letters.as_str();
        let token = |part: &str| {
            let is_text = |id: &u32| kinds.get(*id as usize).is_some_and(|kind| kind.is_text());
            self.ids.get(part).filter(is_text)
        };
        let characters = text.char_indices().map(|(at, character)| {
            let length = character.len_utf8();
            (token(&text[at..at + length]).unwrap_or(NONE), length)
        });
        let mut out = |id, span: Range<usize>| {
            if id != NONE {
                return out.push(id);
            }
            let offset = span.start;
            for byte in text[span].bytes() {
                let id = self.bytes.get(usize::from(byte)).copied().flatten();
                out.push(id.ok_or(Error::NoToken { byte, offset })?)?;
            }
            Ok(())
        };
        match &self.order {
            Order::Scores(ranks) => {
                let joins = ByScore { text, ids: &self.ids, ranks, longest: self.longest };
                word.merge(text.len(), characters, &joins, work, out)
            }
            Order::Merges(merges) => match token(text).filter(|_| text.starts_with('\n')) {
                Some(id) => out(id, 0..text.len()),
                None => word.merge(text.len(), characters, merges, work, out),
            },
        }
    }
}

/// Merges two neighbours to the token of their text.
struct ByScore<'a> {
    text: &'a str,
    ids: &'a Ids,
    ranks: &'a [u32],
    /// Bytes of the longest token.
    longest: usize,
}

impl MergeRule for ByScore<'_> {
    fn rank(&self, _: u32, _: u32, span: Range<usize>) -> u32 {
        let id = if span.len() > self.longest { None } else { self.ids.get(&self.text[span]) };
        id.map_or(NEVER, |id| self.ranks[id as usize])
    }

    fn product(&self, _: u32, span: Range<usize>) -> u32 {
        self.ids.get(&self.text[span]).unwrap_or(NONE)
    }
}

const fn escaped(character: char) -> char {
    if character == ' ' { SPACE } else { character }
}

/// The byte of a byte token.
pub(super) fn byte_of(id: u32, text: &str) -> Result<u8, Error> {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    let digits = digits.filter(|digits| digits.len() == 2 && !digits.starts_with('+'));
    let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
    byte.ok_or_else(|| Error::ByteToken { id, text: text.to_owned() })
}

/// Appends the bytes of the token `text`.
pub(super) fn spell_out(text: &str, bytes: &mut Vec<u8>) {
    for (place, part) in text.split(SPACE).enumerate() {
        if place > 0 {
            bytes.push(b' ');
        }
        bytes.extend_from_slice(part.as_bytes());
    }
}
