//! The tokeniser: text to ids by byte-level BPE, ids to bytes.
//!
//! The merge loop is the `tokenizers` crate's. Its surrounding pipeline is not used: cutting text
//! ([`super::split`]) and finding special tokens ([`super::special`]) are done here, in linear time
//! and with the choice of specials per call.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use tokenizers::Model;
use tokenizers::models::bpe::{self, BPE, Vocab};

use super::special::{self, Kind, Matcher};
use super::split::{PreTokeniser, Splitter};
use super::{Error, Vocabulary, alphabet};

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
    bpe: BPE,
    splitter: Splitter,
    parsed: Matcher,
    user_defined: Matcher,
    pieces: Pieces,
    kinds: Vec<Kind>,
    /// Bytes without a token of their own.
    missing: BTreeSet<u8>,
    ends: BTreeSet<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
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
        let ids = unique_ids(vocabulary.tokens)?;
        let missing = (0..=255)
            .filter(|&byte| {
                !ids.contains_key(alphabet::char_of(byte).encode_utf8(&mut [0; 4]) as &str)
            })
            .collect();
        Ok(Self {
            bpe: merger(ids, &vocabulary.merges, llama3)?,
            splitter: family.splitter()?,
            parsed,
            user_defined,
            pieces,
            kinds,
            missing,
            ends,
            bos: vocabulary.bos,
            eos: vocabulary.eos,
            pad: vocabulary.pad,
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
        // The crate drops characters without a token in silence.
        if !self.missing.is_empty() {
            let mut bytes = range.zip(words.bytes());
            if let Some((offset, byte)) = bytes.find(|(_, byte)| self.missing.contains(byte)) {
                return Err(Error::NoToken { byte, offset });
            }
        }
        let mut word = String::new();
        for piece in self.splitter.split(words) {
            word.clear();
            word.extend(piece.bytes().map(alphabet::char_of));
            let tokens = self.bpe.tokenize(&word).map_err(Error::Bpe)?;
            ids.extend(tokens.iter().map(|token| token.id));
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

    /// Begin of text, where the model has one.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of text, where the model names one.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Padding, where the model names it.
    #[must_use]
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }
}

/// The ids of tokens by their text; tokens without text have no entry.
fn unique_ids(tokens: Vec<String>) -> Result<Vocab, Error> {
    let mut ids = Vocab::default();
    ids.reserve(tokens.len());
    for (second, text) in (0u32..).zip(tokens) {
        if text.is_empty() {
            continue;
        }
        if let Some(&first) = ids.get(&text) {
            return Err(Error::DuplicateToken { text, first, second });
        }
        ids.insert(text, second);
    }
    Ok(ids)
}

/// The merge loop over `ids`. With `ignore_merges` a word that is a token is not built from parts.
fn merger(ids: Vocab, merges: &[String], ignore_merges: bool) -> Result<BPE, Error> {
    let mut pairs = Vec::with_capacity(merges.len());
    for (index, merge) in merges.iter().enumerate() {
        match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => {
                pairs.push((left.to_owned(), right.to_owned()));
            }
            _ => return Err(Error::MergeSyntax { index, merge: merge.clone() }),
        }
    }
    let builder = BPE::builder().vocab_and_merges(ids, pairs).ignore_merges(ignore_merges);
    builder.build().map_err(|error| match error.downcast_ref() {
        Some(bpe::Error::MergeTokenOutOfVocabulary(token)) => {
            let needs = |merge: &String| {
                merge.split_once(' ').is_some_and(|(left, right)| {
                    left == token || right == token || format!("{left}{right}") == *token
                })
            };
            let found = merges.iter().enumerate().find(|(_, merge)| needs(merge));
            let (index, merge) = found.map_or((0, String::new()), |(i, merge)| (i, merge.clone()));
            Error::MergeToken { index, merge, token: token.clone() }
        }
        _ => Error::Bpe(error),
    })
}

/// The bytes of every token, in one allocation.
#[derive(Debug)]
struct Pieces {
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    ends: Vec<usize>,
}

impl Pieces {
    fn new(tokens: &[String], kinds: &[Kind]) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(tokens.iter().map(String::len).sum());
        let mut ends = Vec::with_capacity(tokens.len());
        for (id, (text, kind)) in (0u32..).zip(tokens.iter().zip(kinds)) {
            if *kind == Kind::Normal {
                for character in text.chars() {
                    bytes.push(alphabet::byte_of(character).ok_or_else(|| Error::Alphabet {
                        id,
                        text: text.clone(),
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
