//! A text as token ids, cut into chunks: each starts with an empty context, and its second half is
//! scored.

use model::tokenizer::{Specials, Tokenizer, Vocabulary};
use model::{Model, gguf, tokenizer};

/// Smallest context: one token is scored in it.
pub const LEAST_CONTEXT: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the model's tokeniser is not supported: {0}")]
    Metadata(#[from] gguf::Error),
    #[error("the model's tokeniser: {0}")]
    Tokenizer(#[from] tokenizer::Error),
    #[error("the text is empty")]
    Empty,
    #[error(
        "the text has {tokens} tokens, but a chunk needs {context}: use a longer text or a smaller --context"
    )]
    Short { tokens: usize, context: usize },
    #[error(
        "--context is {context}, must be {LEAST_CONTEXT} to {limit}, the trained context of the model"
    )]
    Context { context: usize, limit: usize },
    #[error(
        "the text contains token {id}, but the model has {rows} tokens: its vocabulary and its embedding do not match"
    )]
    Token { id: u32, rows: usize },
}

/// Chunks of `context` tokens.
#[derive(Clone, Debug)]
pub struct Text {
    ids: Vec<u32>,
    /// Token that replaces the first token of each chunk.
    bos: Option<u32>,
    context: usize,
}

impl Text {
    /// Tokenises a text for a model, with the BOS token in front if the model uses one. Control
    /// tokens written in the text are plain text. Tokens after the last whole chunk, or after
    /// `chunks` chunks, are ignored.
    ///
    /// # Errors
    /// [`Error`]: the model cannot process the text, or it is too short.
    pub fn new(
        model: &Model,
        text: &str,
        context: usize,
        chunks: Option<usize>,
    ) -> Result<Self, Error> {
        let tokenizer = Tokenizer::new(Vocabulary::from_metadata(model.gguf().metadata())?)?;
        if text.is_empty() {
            return Err(Error::Empty);
        }
        let ids = tokenizer.encode(text, Specials::Plain, true)?;
        Self::of(model, ids, tokenizer.begin_id(), context, chunks)
    }

    /// Cuts token ids into chunks.
    ///
    /// # Errors
    /// As [`Text::new`].
    pub fn of(
        model: &Model,
        mut ids: Vec<u32>,
        bos: Option<u32>,
        context: usize,
        chunks: Option<usize>,
    ) -> Result<Self, Error> {
        let (limit, rows) = (model.hyperparameters().context, model.hyperparameters().vocabulary);
        if !(LEAST_CONTEXT..=limit).contains(&context) {
            return Err(Error::Context { context, limit });
        }
        let tokens = ids.len();
        ids.truncate(chunks.unwrap_or(usize::MAX).saturating_mul(context));
        ids.truncate(ids.len() / context * context);
        if ids.is_empty() {
            return Err(Error::Short { tokens, context });
        }
        match ids.iter().chain(&bos).find(|id| **id as usize >= rows) {
            Some(&id) => Err(Error::Token { id, rows }),
            None => Ok(Self { ids, bos, context }),
        }
    }

    #[must_use]
    pub const fn context(&self) -> usize {
        self.context
    }

    #[must_use]
    pub const fn chunks(&self) -> usize {
        self.ids.len() / self.context
    }

    /// Returns the tokens of a chunk as the model sees them.
    #[must_use]
    pub fn chunk(&self, index: usize) -> Vec<u32> {
        let mut chunk = self.ids[index * self.context..][..self.context].to_vec();
        if let Some(bos) = self.bos {
            chunk[0] = bos;
        }
        chunk
    }

    /// First position whose prediction of the next token is scored.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.context / 2
    }
}

/// Describes how another model's vocabulary differs from that of `base`; `None` if it does not.
#[must_use]
pub fn difference(base: &Model, other: &Model) -> Option<String> {
    let rows = |model: &Model| model.hyperparameters().vocabulary;
    if rows(base) != rows(other) {
        return Some(format!("it has {} tokens, the base has {}", rows(other), rows(base)));
    }
    let tokens = |model: &Model| {
        let tokens = model.gguf().metadata().str_array("tokenizer.ggml.tokens").ok().cloned();
        tokens.unwrap_or_default()
    };
    let (base, other) = (tokens(base), tokens(other));
    let count = base.iter().len().max(other.iter().len());
    let at = (0..count).find(|&id| base.get(id) != other.get(id))?;
    let quoted = |token: Option<&str>| token.map_or("missing".into(), |text| format!("{text:?}"));
    Some(format!(
        "token {at} is {}, in the base it is {}",
        quoted(other.get(at)),
        quoted(base.get(at))
    ))
}
