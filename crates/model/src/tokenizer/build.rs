//! Builds a tokeniser from a vocabulary.

use std::collections::BTreeSet;

use super::bpe::{self, ByteLevel};
use super::error::Error;
use super::greedy::{self, Greedy};
use super::patterns::PreTokeniser;
use super::sentencepiece::{self, SentencePiece};
use super::special::{self, Matcher, TokenKind};
use super::token_bytes::TokenBytes;
use super::vocabulary::Vocabulary;
use crate::gguf::Strings;

/// A tokeniser. It is immutable, so all threads can share one.
#[derive(Debug)]
pub struct Tokenizer {
    pub(super) algorithm: Algorithm,
    /// Text is encoded as if it began with a space.
    pub(super) prefix: bool,
    /// Finds user-defined tokens and control tokens.
    pub(super) parsed: Matcher,
    pub(super) user_defined: Matcher,
    /// Special tokens that swallow the white space after them.
    pub(super) strips: BTreeSet<u32>,
    /// Bytes of the longest token that encoding can produce; at least 1.
    pub(super) longest: usize,
    pub(super) token_bytes: TokenBytes,
    pub(super) kinds: Vec<TokenKind>,
    pub(super) ends: BTreeSet<u32>,
    pub(super) add_bos: Option<u32>,
    pub(super) add_eos: Option<u32>,
}

/// Algorithm that encodes text without special tokens.
#[derive(Debug)]
pub(super) enum Algorithm {
    ByteLevel(ByteLevel),
    Greedy(Greedy),
    SentencePiece(SentencePiece),
}

/// Algorithm that a vocabulary names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AlgorithmName {
    ByteLevel(PreTokeniser),
    Longest,
    Scores,
    Merges,
}

impl AlgorithmName {
    fn new(vocabulary: &Vocabulary) -> Result<Self, Error> {
        match (vocabulary.model.as_str(), vocabulary.pre.as_deref()) {
            ("llama", _) => Ok(Self::Scores),
            ("gemma4", _) | ("gpt2", Some("gemma4")) => Ok(Self::Merges),
            ("rwkv", _) => Ok(Self::Longest),
            ("gpt2", pre) => PreTokeniser::named(pre).map(Self::ByteLevel),
            (model, _) => Err(Error::Model { model: model.to_owned() }),
        }
    }

    /// True if texts begin with BOS, in a vocabulary that has one.
    fn adds_bos(self, asked: Option<bool>) -> bool {
        match self {
            Self::ByteLevel(family) => asked.unwrap_or(family.adds_bos),
            // llama.cpp ignores the flag.
            Self::Longest => false,
            Self::Scores => asked.unwrap_or(true),
            // Some files disable it although the model needs it (llama.cpp).
            Self::Merges => true,
        }
    }

    /// The bytes of every token, from the notation that the algorithm's vocabularies use.
    fn token_bytes(self, tokens: &Strings, kinds: &[TokenKind]) -> Result<TokenBytes, Error> {
        TokenBytes::new(tokens, kinds, |id, text, kind, bytes| {
            match (kind, self) {
                (TokenKind::Normal, Self::ByteLevel(_)) => bpe::spell_out(text, bytes),
                (TokenKind::Normal, Self::Longest) => greedy::spell_out(id, text, bytes)?,
                (TokenKind::Normal, Self::Scores | Self::Merges) => {
                    sentencepiece::spell_out(text, bytes);
                }
                (TokenKind::Byte, Self::Scores | Self::Merges) => {
                    bytes.push(sentencepiece::byte_of(id, text)?);
                }
                _ => bytes.extend_from_slice(text.as_bytes()),
            }
            Ok(())
        })
    }
}

impl Tokenizer {
    /// Builds the tokeniser of a model.
    ///
    /// # Errors
    /// If the algorithm or the pre-tokeniser is not supported, or the vocabulary contradicts itself.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, Error> {
        let named = AlgorithmName::new(&vocabulary)?;
        let (kinds, ends) = special::classify(&vocabulary)?;
        let token_bytes = named.token_bytes(&vocabulary.tokens, &kinds)?;
        let user_defined =
            Matcher::new(&vocabulary.tokens, &kinds, |kind| kind == TokenKind::UserDefined)?;
        let parsed = Matcher::new(&vocabulary.tokens, &kinds, TokenKind::is_special)?;
        let add = |wanted: bool, id: Option<u32>, flag, key| match (wanted, id) {
            (true, None) => Err(Error::MissingTokenId { flag, key }),
            (wanted, id) => Ok(id.filter(|_| wanted)),
        };
        let adds_bos = named.adds_bos(vocabulary.add_bos);
        let add_bos = add(
            // Files with neither the flag nor the id have no BOS.
            adds_bos && (vocabulary.bos.is_some() || vocabulary.add_bos.is_some()),
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
        let longest = found.filter_map(|(id, _)| Some(token_bytes.get(id)?.len())).max();
        Ok(Self {
            prefix: named == AlgorithmName::Scores && vocabulary.add_space_prefix.unwrap_or(true),
            strips: special::strips(&vocabulary, &kinds),
            algorithm: match named {
                AlgorithmName::ByteLevel(family) => {
                    Algorithm::ByteLevel(ByteLevel::new(family, vocabulary, &kinds)?)
                }
                AlgorithmName::Longest => Algorithm::Greedy(Greedy::new(&token_bytes, &kinds)?),
                AlgorithmName::Scores => {
                    Algorithm::SentencePiece(SentencePiece::with_scores(vocabulary, &kinds)?)
                }
                AlgorithmName::Merges => {
                    Algorithm::SentencePiece(SentencePiece::with_merges(vocabulary, &kinds)?)
                }
            },
            parsed,
            user_defined,
            longest: longest.unwrap_or(0).max(1),
            token_bytes,
            kinds,
            ends,
            add_bos,
            add_eos,
        })
    }

    /// Bytes of the longest token that encoding can produce. The number of tokens in a text is at least its length
    /// divided by this, except for white space that Phi-3's special tokens swallow.
    #[must_use]
    pub const fn longest_token(&self) -> usize {
        self.longest
    }

    /// The token that every text begins with, if the model needs one.
    #[must_use]
    pub const fn begin_id(&self) -> Option<u32> {
        self.add_bos
    }

    /// Kind of a token; `None` outside the vocabulary.
    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// True if `id` ends a generation: end of text, turn or message, by metadata key or by name.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// True if `id` is a control token, which [`Self::decode`] omits.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id) == Some(TokenKind::Control)
    }

    /// The ids that end a generation, ascending.
    pub fn end_ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter().copied()
    }

    /// The same as [`Self::begin_id`].
    #[must_use]
    pub const fn begin(&self) -> Option<u32> {
        self.add_bos
    }

    /// Number of tokens; all ids are below it.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }
}
