//! Ids to bytes and text.

use std::borrow::Cow;

use super::build::{Algorithm, Named, Tokenizer};
use super::special::Kind;
use super::{Error, bpe, greedy, sentencepiece};
use crate::gguf::Strings;

impl Tokenizer {
    /// The text of `ids`: their bytes joined, control tokens left out, invalid UTF-8 replaced by
    /// U+FFFD, ids outside the vocabulary skipped. A space that [`Self::encode`] puts in front is
    /// left out too.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut begins = true;
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.text_bytes(id, &mut begins));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that `id` adds to generated text: none for control tokens and unknown ids.
    /// `begins` says, and learns, whether text begins here, which it does behind a special token.
    pub(super) fn text_bytes(&self, id: u32, begins: &mut bool) -> &[u8] {
        let bytes = self.pieces.get(id).unwrap_or_default();
        match self.kind(id) {
            Some(Kind::Normal) if !bytes.is_empty() => {
                let first = std::mem::take(begins);
                let spaced = bytes.strip_prefix(b" ").filter(|_| first && self.prefix);
                spaced.unwrap_or(bytes)
            }
            Some(Kind::Byte) if matches!(self.algorithm, Algorithm::SentencePiece(_)) => {
                *begins = false;
                bytes
            }
            Some(Kind::UserDefined) => {
                *begins = true;
                bytes
            }
            Some(Kind::Control | Kind::Unknown) => {
                *begins = true;
                &[]
            }
            _ => &[],
        }
    }

    /// Whether text begins behind `ids`, so that [`Self::encode`] puts a space in front of it.
    pub(super) fn begins_after(&self, ids: &[u32]) -> bool {
        ids.last().is_none_or(|&id| self.kind(id).is_some_and(Kind::is_special))
    }

    /// The bytes that `id` stands for, which may be part of a character; a control token's are its
    /// name. `None` outside the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// [`Self::token_bytes`] for showing, with U+FFFD for what is not UTF-8.
    #[must_use]
    pub fn token_text(&self, id: u32) -> Option<Cow<'_, str>> {
        self.pieces.get(id).map(String::from_utf8_lossy)
    }
}

/// The bytes of every token, in one allocation.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    /// Reads `tokens` as the algorithm writes them.
    pub(super) fn new(tokens: &Strings, kinds: &[Kind], written: Named) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(tokens.text_len());
        let mut ends = Vec::with_capacity(tokens.len());
        for (id, (text, kind)) in (0u32..).zip(tokens.iter().zip(kinds)) {
            match (kind, written) {
                (Kind::Normal, Named::ByteLevel(_)) => bpe::spell_out(text, &mut bytes),
                (Kind::Normal, Named::Longest) => greedy::spell_out(id, text, &mut bytes)?,
                (Kind::Normal, Named::Scores | Named::Merges) => {
                    sentencepiece::spell_out(text, &mut bytes);
                }
                (Kind::Byte, Named::Scores | Named::Merges) => {
                    bytes.push(sentencepiece::byte_of(id, text)?);
                }
                _ => bytes.extend_from_slice(text.as_bytes()),
            }
            ends.push(bytes.len());
        }
        Ok(Self { bytes, ends })
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start..end)
    }
}
