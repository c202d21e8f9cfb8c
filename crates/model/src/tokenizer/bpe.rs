//! The tokeniser: what it is made of, and ids to bytes. Text to ids is in [`super::encode`].

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::merges::{Ids, Merges};
use super::special::{self, Kind, Matcher};
use super::split::{PreTokeniser, Splitter};
use super::{Error, Vocabulary, alphabet};
use crate::gguf::Strings;

/// A byte-level BPE tokeniser. Immutable: one serves all threads.
#[derive(Debug)]
pub struct Tokenizer {
    pub(super) ids: Ids,
    pub(super) merges: Merges,
    /// A word that is a token is not built from parts.
    pub(super) whole_words: bool,
    pub(super) splitter: Splitter,
    /// Finds user-defined and control tokens.
    pub(super) parsed: Matcher,
    pub(super) user_defined: Matcher,
    /// Bytes of the longest token that a text can turn into; at least 1.
    pub(super) longest: usize,
    pieces: Pieces,
    kinds: Vec<Kind>,
    /// The token of every byte as text, where it has one.
    pub(super) bytes: Vec<Option<u32>>,
    ends: BTreeSet<u32>,
    pub(super) add_bos: Option<u32>,
    pub(super) add_eos: Option<u32>,
}

impl Tokenizer {
    /// Builds the tokeniser of a model.
    ///
    /// # Errors
    /// When the algorithm or the pre-tokeniser is not supported, or the vocabulary contradicts
    /// itself: each check is a variant of [`Error`].
    pub fn new(vocabulary: Vocabulary) -> Result<Self, Error> {
        if vocabulary.model != "gpt2" {
            return Err(Error::Model { model: vocabulary.model });
        }
        let family = PreTokeniser::named(vocabulary.pre.as_deref())?;
        let (kinds, ends) = special::classify(&vocabulary)?;
        let pieces = Pieces::new(&vocabulary.tokens, &kinds)?;
        let user_defined =
            Matcher::new(&vocabulary.tokens, &kinds, |kind| kind == Kind::UserDefined)?;
        let parsed = Matcher::new(&vocabulary.tokens, &kinds, |kind| {
            kind == Kind::UserDefined || kind.is_control()
        })?;
        let llama3 = family == PreTokeniser::Llama3;
        let add = |wanted: bool, id: Option<u32>, flag, key| match (wanted, id) {
            (true, None) => Err(Error::MissingTokenId { flag, key }),
            (wanted, id) => Ok(id.filter(|_| wanted)),
        };
        let add_bos = add(
            // Llama 3 adds it unless told otherwise; a file that says nothing of either has none.
            vocabulary.add_bos.unwrap_or(llama3 && vocabulary.bos.is_some()),
            vocabulary.bos,
            "tokenizer.ggml.add_bos_token",
            "tokenizer.ggml.bos_token_id",
        )?;
        let add_eos = add(
            vocabulary.add_eos.unwrap_or(false),
            vocabulary.eos,
            "tokenizer.ggml.add_eos_token",
            "tokenizer.ggml.eos_token_id",
        )?;
        let ids = Ids::new(vocabulary.tokens)?;
        let is_text = |id: &u32| kinds[*id as usize] == Kind::Normal;
        let of_byte = |byte| ids.get(alphabet::char_of(byte).encode_utf8(&mut [0; 4]));
        let bytes = (0..=255).map(|byte| of_byte(byte).filter(is_text)).collect();
        let found = (0..).zip(&kinds).filter(|(_, kind)| kind.is_found());
        let longest = found.filter_map(|(id, _)| Some(pieces.get(id)?.len())).max();
        Ok(Self {
            merges: Merges::new(&vocabulary.merges, &ids, &kinds)?,
            ids,
            whole_words: llama3,
            splitter: family.splitter()?,
            parsed,
            user_defined,
            longest: longest.unwrap_or(0).max(1),
            pieces,
            kinds,
            bytes,
            ends,
            add_bos,
            add_eos,
        })
    }

    /// Bytes of the longest token that a text can turn into: a text has at least its length
    /// divided by this many tokens.
    #[must_use]
    pub const fn longest_token(&self) -> usize {
        self.longest
    }

    /// The token that every text begins with, where the model wants one.
    #[must_use]
    pub const fn begin_id(&self) -> Option<u32> {
        self.add_bos
    }

    /// Whether `id` is a piece of text, neither special nor a place holder.
    pub(super) fn is_text(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Normal)
    }

    /// The text of `ids`: their bytes joined, control tokens left out, invalid UTF-8 replaced by
    /// U+FFFD, ids outside the vocabulary skipped.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.text_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that `id` adds to generated text: none for control tokens and unknown ids.
    pub(super) fn text_bytes(&self, id: u32) -> &[u8] {
        match self.kinds.get(id as usize) {
            Some(Kind::Normal | Kind::UserDefined) => self.pieces.get(id).unwrap_or_default(),
            _ => &[],
        }
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

    /// Whether `id` ends a generation: end of text, of turn, of message, by key or by name.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Whether `id` is a control token, which [`Self::decode`] leaves out.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.kinds.get(id as usize) == Some(&Kind::Control)
    }

    /// The ids that end a generation, ascending.
    pub fn end_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter().copied()
    }

    /// The number of tokens; ids are below it.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }
}

/// The bytes of every token, in one allocation.
#[derive(Debug)]
struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Pieces {
    fn new(tokens: &Strings, kinds: &[Kind]) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(tokens.text_len());
        let mut ends = Vec::with_capacity(tokens.len());
        for (id, (text, kind)) in (0u32..).zip(tokens.iter().zip(kinds)) {
            if *kind == Kind::Normal {
                for character in text.chars() {
                    bytes.push(alphabet::byte_of(character).ok_or_else(|| Error::Alphabet {
                        id,
                        text: text.to_owned(),
                        character,
                    })?);
                }
            } else {
                bytes.extend_from_slice(text.as_bytes());
            }
            ends.push(bytes.len());
        }
        Ok(Self { bytes, ends })
    }

    fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start..end)
    }
}
