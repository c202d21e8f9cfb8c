//! The tokeniser: text to ids by byte-level BPE, ids to bytes.
//!
//! Text is cut at special tokens ([`super::special`]) and into words ([`super::split`]); the bytes of
//! each word are merged ([`super::merges`]).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use super::merges::{Ids, Merges, Word};
use super::special::{self, Kind, Matcher};
use super::split::{PreTokeniser, Splitter};
use super::{Error, Vocabulary, alphabet};
use crate::gguf::Strings;

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

/// A byte-level BPE tokeniser. Immutable: one serves all threads.
#[derive(Debug)]
pub struct Tokenizer {
    ids: Ids,
    merges: Merges,
    /// A word that is a token is not built from parts.
    whole_words: bool,
    splitter: Splitter,
    parsed: Matcher,
    user_defined: Matcher,
    pieces: Pieces,
    kinds: Vec<Kind>,
    /// The token of every byte, where it has one.
    bytes: Vec<Option<u32>>,
    ends: BTreeSet<u32>,
    add_bos: Option<u32>,
    add_eos: Option<u32>,
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
            matches!(kind, Kind::UserDefined | Kind::Control | Kind::Unknown)
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
        let of_byte = |byte| ids.get(alphabet::char_of(byte).encode_utf8(&mut [0; 4]));
        let bytes = (0..=255).map(of_byte).collect();
        Ok(Self {
            merges: Merges::new(&vocabulary.merges, &ids)?,
            ids,
            whole_words: llama3,
            splitter: family.splitter()?,
            parsed,
            user_defined,
            pieces,
            kinds,
            bytes,
            ends,
            add_bos,
            add_eos,
        })
    }

    /// The ids of `text`. With `add_special`, BOS in front and EOS behind where the model wants
    /// them and the text does not already have them.
    ///
    /// Any text is safe; time and memory grow with its length only (times the logarithm of its
    /// longest word).
    ///
    /// # Errors
    /// [`Error::NoToken`] when the vocabulary lacks a token for a byte of the text.
    pub fn encode(
        &self,
        text: &str,
        specials: Specials,
        add_special: bool,
    ) -> Result<Vec<u32>, Error> {
        // Text of most languages has two bytes or more per token.
        let mut ids = Vec::with_capacity(text.len() / 2 + 2);
        let matcher = match specials {
            Specials::Parse => &self.parsed,
            Specials::Plain => &self.user_defined,
        };
        let mut end = 0;
        for (from, to, id) in matcher.find(text) {
            self.encode_words(text, end..from, &mut ids)?;
            ids.push(id);
            end = to;
        }
        self.encode_words(text, end..text.len(), &mut ids)?;
        if add_special {
            if let Some(bos) = self.add_bos.filter(|bos| ids.first() != Some(bos)) {
                ids.insert(0, bos);
            }
            ids.extend(self.add_eos.filter(|eos| ids.last() != Some(eos)));
        }
        Ok(ids)
    }

    /// Appends the ids of `text[range]`, which holds no special token.
    fn encode_words(
        &self,
        text: &str,
        range: Range<usize>,
        ids: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let words = &text[range.clone()];
        let id = |byte: u8| self.bytes.get(usize::from(byte)).copied().flatten();
        if let Some((offset, byte)) = range.zip(words.bytes()).find(|(_, b)| id(*b).is_none()) {
            return Err(Error::NoToken { byte, offset });
        }
        let (mut text, mut word) = (String::new(), Word::default());
        for piece in self.splitter.split(words) {
            if self.whole_words {
                text.clear();
                text.extend(piece.bytes().map(alphabet::char_of));
                if let Some(id) = self.ids.get(&text) {
                    ids.push(id);
                    continue;
                }
            }
            word.merge(piece.bytes().filter_map(id), &self.merges, ids);
        }
        Ok(())
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
