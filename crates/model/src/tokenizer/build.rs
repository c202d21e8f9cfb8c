//! The tokeniser: what it is made of, and which algorithm a vocabulary asks for.

use std::collections::BTreeSet;

use super::bpe::ByteLevel;
use super::decode::Pieces;
use super::greedy::Greedy;
use super::patterns::PreTokeniser;
use super::sentencepiece::SentencePiece;
use super::special::{self, Kind, Matcher};
use super::{Error, Vocabulary};

/// A tokeniser. Immutable: one serves all threads.
#[derive(Debug)]
pub struct Tokenizer {
    pub(super) algorithm: Algorithm,
    /// Text begins as if a space stood in front of it.
    pub(super) prefix: bool,
    /// Finds user-defined and control tokens.
    pub(super) parsed: Matcher,
    pub(super) user_defined: Matcher,
    /// Special tokens that take the white space behind them.
    pub(super) strips: BTreeSet<u32>,
    /// Bytes of the longest token that a text can turn into; at least 1.
    pub(super) longest: usize,
    pub(super) pieces: Pieces,
    pub(super) kinds: Vec<Kind>,
    pub(super) ends: BTreeSet<u32>,
    pub(super) add_bos: Option<u32>,
    pub(super) add_eos: Option<u32>,
}

/// How text without special tokens becomes ids.
#[derive(Debug)]
pub(super) enum Algorithm {
    ByteLevel(ByteLevel),
    Greedy(Greedy),
    SentencePiece(SentencePiece),
}

/// The algorithms by name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    ByteLevel(PreTokeniser),
    Longest,
    Scores,
    Merges,
}

impl Named {
    fn of(vocabulary: &Vocabulary) -> Result<Self, Error> {
        match (vocabulary.model.as_str(), vocabulary.pre.as_deref()) {
            ("llama", _) => Ok(Self::Scores),
            ("gemma4", _) | ("gpt2", Some("gemma4")) => Ok(Self::Merges),
            ("rwkv", _) => Ok(Self::Longest),
            ("gpt2", pre) => PreTokeniser::named(pre).map(Self::ByteLevel),
            (model, _) => Err(Error::Model { model: model.to_owned() }),
        }
    }

    /// Whether texts begin with BOS, if there is one.
    fn begins(self, asked: Option<bool>) -> bool {
        match self {
            Self::ByteLevel(family) => asked.unwrap_or(family.begins),
            // llama.cpp puts nothing in front, whatever a file says.
            Self::Longest => false,
            Self::Scores => asked.unwrap_or(true),
            // Files exist that say otherwise, and the model needs it all the same (llama.cpp).
            Self::Merges => true,
        }
    }
}

impl Tokenizer {
    /// Builds the tokeniser of a model.
    ///
    /// # Errors
    /// When the algorithm or the pre-tokeniser is not supported, or the vocabulary contradicts
    /// itself: each check is a variant of [`Error`].
    pub fn new(vocabulary: Vocabulary) -> Result<Self, Error> {
        let named = Named::of(&vocabulary)?;
        let (kinds, ends) = special::classify(&vocabulary)?;
        let pieces = Pieces::new(&vocabulary.tokens, &kinds, named)?;
        let user_defined =
            Matcher::new(&vocabulary.tokens, &kinds, |kind| kind == Kind::UserDefined)?;
        let parsed = Matcher::new(&vocabulary.tokens, &kinds, Kind::is_special)?;
        let add = |wanted: bool, id: Option<u32>, flag, key| match (wanted, id) {
            (true, None) => Err(Error::MissingTokenId { flag, key }),
            (wanted, id) => Ok(id.filter(|_| wanted)),
        };
        let begins = named.begins(vocabulary.add_bos);
        let add_bos = add(
            // A file that says nothing of either has none.
            begins && (vocabulary.bos.is_some() || vocabulary.add_bos.is_some()),
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
        let found = (0..).zip(&kinds).filter(|(_, kind)| kind.is_found());
        let longest = found.filter_map(|(id, _)| Some(pieces.get(id)?.len())).max();
        Ok(Self {
            prefix: named == Named::Scores && vocabulary.add_space_prefix.unwrap_or(true),
            strips: special::strips(&vocabulary, &kinds),
            algorithm: match named {
                Named::ByteLevel(family) => {
                    Algorithm::ByteLevel(ByteLevel::new(family, vocabulary, &kinds)?)
                }
                Named::Longest => Algorithm::Greedy(Greedy::new(&pieces, &kinds)?),
                Named::Scores => {
                    Algorithm::SentencePiece(SentencePiece::with_scores(vocabulary, &kinds)?)
                }
                Named::Merges => {
                    Algorithm::SentencePiece(SentencePiece::with_merges(vocabulary, &kinds)?)
                }
            },
            parsed,
            user_defined,
            longest: longest.unwrap_or(0).max(1),
            pieces,
            kinds,
            ends,
            add_bos,
            add_eos,
        })
    }

    /// Bytes of the longest token that a text can turn into: a text has at least its length
    /// divided by this many tokens, but for white space that a special token of Phi-3 takes.
    #[must_use]
    pub const fn longest_token(&self) -> usize {
        self.longest
    }

    /// The token that every text begins with, where the model wants one.
    #[must_use]
    pub const fn begin_id(&self) -> Option<u32> {
        self.add_bos
    }

    /// `None` outside the vocabulary.
    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }

    /// Whether `id` ends a generation: end of text, of turn, of message, by key or by name.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Whether `id` is a control token, which [`Self::decode`] leaves out.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id) == Some(Kind::Control)
    }

    /// The ids that end a generation, ascending.
    pub fn end_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter().copied()
    }

    /// The token that every text begins with, if texts do.
    #[must_use]
    pub const fn begin(&self) -> Option<u32> {
        self.add_bos
    }

    /// The number of tokens; ids are below it.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }
}
