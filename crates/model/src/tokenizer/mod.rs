//! Text to token ids and back, and chat messages to text.
//!
//! This room owns the tokeniser built from a GGUF vocabulary ([`Tokenizer`]: byte-level BPE,
//! SentencePiece and RWKV's), the streaming side of text ([`Detokeniser`], [`StopMatcher`]) and chat templates
//! ([`ChatTemplate`]). It knows nothing of models, devices or sampling, and it does not read
//! files: a [`Vocabulary`] is its only input.
//!
//! Meaning follows llama.cpp, whose ids a GGUF's users expect: the same pre-tokeniser patterns,
//! special tokens by token type, end-of-generation tokens by metadata key and by name.

pub(crate) mod alphabet;
mod bounds;
mod bpe;
mod build;
mod chat;
mod decode;
mod encode;
mod error;
mod greedy;
mod merges;
mod patterns;
mod sentencepiece;
mod special;
mod split;
mod stream;
mod vocabulary;
mod word;

pub use bounds::Bounds;
pub use build::Tokenizer;
pub use chat::{
    AnswerParser, Call, Calls, ChatTemplate, Format, Message, Piece, RenderOptions, Rendered,
};
pub use encode::Specials;
pub use error::Error;
pub use stream::{Detokeniser, Emitted, StopMatcher};
pub use vocabulary::Vocabulary;
