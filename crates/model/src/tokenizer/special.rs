//! Kinds of tokens, a search for special tokens in text, and the tokens that end a generation.

use std::collections::BTreeSet;
use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};

use super::error::Error;
use super::vocabulary::Vocabulary;
use crate::gguf::Strings;

/// Kind of a token, from `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A piece of text.
    Normal,
    /// Replaces text that has no token.
    Unknown,
    /// Steers the model (`<|eot_id|>`). Its name in a prompt is text, unless the caller parses special tokens.
    Control,
    /// Text that is always one token (`<think>`).
    UserDefined,
    /// A placeholder that never occurs.
    Unused,
    /// A byte of a SentencePiece vocabulary.
    Byte,
}

impl TokenKind {
    /// True if only a template or a raw prompt can contain it by name.
    pub(super) const fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }

    /// True if it is found in a prompt by name, not merged from parts.
    pub(super) const fn is_special(self) -> bool {
        self.is_control() || matches!(self, Self::UserDefined)
    }

    /// True if it is part of generated text, and encoding of text produces it.
    pub(super) const fn is_text(self) -> bool {
        matches!(self, Self::Normal | Self::UserDefined)
    }

    /// True if encoding of any kind can produce it from its text.
    pub(super) const fn is_found(self) -> bool {
        !matches!(self, Self::Unused | Self::Byte)
    }

    fn numbered(value: i32) -> Option<Self> {
        Some(match value {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Names of tokens that end a generation. llama.cpp has the same list, because metadata often names only one of
/// several.
const END_NAMES: [&str; 19] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
];

/// Names of [`END_NAMES`] that do not end a generation in vocabularies with these other tokens. In gpt-oss `<|end|>`
/// ends a message but not the turn; in Gemma 4 `</s>` is text.
const NO_END: [(&str, &[&str]); 2] =
    [("<|end|>", &["<|return|>", "<|call|>"]), ("</s>", &["<|tool_response>"])];

/// Names of fill-in-the-middle tokens that also end a generation, as in llama.cpp: the text before them is a
/// complete file.
const FILE_END_NAMES: [&str; 9] = [
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<fim_pad>",
    "<fim-pad>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
];

/// The kind of every token, and the ids that end a generation.
pub(super) fn classify(vocabulary: &Vocabulary) -> Result<(Vec<TokenKind>, BTreeSet<u32>), Error> {
    let size = vocabulary.tokens.len();
    if size == 0 || u32::try_from(size).is_err() {
        return Err(Error::TokenCount { count: size });
    }
    let types = &vocabulary.token_types;
    if !types.is_empty() && types.len() != size {
        return Err(Error::TokenTypeCount { tokens: size, types: types.len() });
    }
    let has = |name: &&str| vocabulary.tokens.iter().any(|text| text == *name);
    let no_end = NO_END.map(|(name, others)| others.iter().all(has).then_some(name));
    let mut kinds = Vec::with_capacity(size);
    let mut ends = BTreeSet::new();
    for (id, text) in (0u32..).zip(vocabulary.tokens.iter()) {
        let value = types.get(id as usize).copied().unwrap_or(1);
        let mut kind = TokenKind::numbered(value).ok_or(Error::TokenType { id, value })?;
        let names = END_NAMES.contains(&text) || FILE_END_NAMES.contains(&text);
        if names && !no_end.contains(&Some(text)) {
            // In some files these tokens have the type of text.
            kind = TokenKind::Control;
            ends.insert(id);
        }
        kinds.push(kind);
    }
    for (key, id) in vocabulary.named_ids() {
        let Some(id) = id else { continue };
        if id as usize >= size {
            return Err(Error::TokenId { key, id, size });
        }
    }
    ends.extend([vocabulary.eos, vocabulary.eot, vocabulary.eom].into_iter().flatten());
    Ok((kinds, ends))
}

/// The special tokens that swallow the white space after them: those of Phi-3, except for three.
pub(super) fn strips(vocabulary: &Vocabulary, kinds: &[TokenKind]) -> BTreeSet<u32> {
    let takes = vocabulary.model == "llama" && vocabulary.architecture.as_deref() == Some("phi3");
    let takes = |(id, (text, kind)): (u32, (&str, &TokenKind))| {
        let named = ["<unk>", "<s>", "<|endoftext|>"].contains(&text);
        (takes && kind.is_special() && !named).then_some(id)
    };
    (0..).zip(vocabulary.tokens.iter().zip(kinds)).filter_map(takes).collect()
}

/// A token found in a text, from `start` to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) id: u32,
}

/// Finds literal tokens in a text.
#[derive(Debug)]
pub(super) struct Matcher {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Matcher {
    /// A matcher for the tokens whose kind passes `wanted`.
    pub(super) fn new(
        tokens: &Strings,
        kinds: &[TokenKind],
        wanted: impl Fn(TokenKind) -> bool,
    ) -> Result<Self, Error> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = (0u32..)
            .zip(tokens.iter().zip(kinds))
            .filter(|(_, (text, kind))| wanted(**kind) && !text.is_empty())
            .map(|(id, (text, _))| (id, text))
            .unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(Error::Specials)?;
        Ok(Self { automaton, ids })
    }

    /// The first token in `text[range]`; the longest of those that begin at the same place.
    pub(super) fn find(&self, text: &str, range: Range<usize>) -> Option<Match> {
        let found = self.automaton.find(Input::new(text).range(range))?;
        let id = *self.ids.get(found.pattern().as_usize())?;
        Some(Match { start: found.start(), end: found.end(), id })
    }

    /// [`Self::find`], if the token begins at the start of `range`.
    pub(super) fn find_at_start(&self, text: &str, range: Range<usize>) -> Option<Match> {
        let start = range.start;
        self.find(text, range).filter(|found| found.start == start)
    }
}
