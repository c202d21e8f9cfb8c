//! Text to token ids and back, and chat messages to text.
//!
//! Owns tokenisers ([`Tokenizer`]: byte-level BPE, SentencePiece, RWKV), streaming text ([`Detokeniser`],
//! [`StopMatcher`]) and chat templates ([`ChatTemplate`]). The only input is a [`Vocabulary`]; nothing here depends
//! on models, devices, sampling or files.
//!
//! Ids are those of llama.cpp, as users of GGUF files expect: the same pre-tokeniser patterns, special tokens by
//! token type, end-of-generation tokens by metadata key and by name.

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
mod run;
mod sentencepiece;
mod special;
mod split;
mod stream;
mod token_bytes;
mod vocabulary;
mod word;

pub use bounds::Bounds;
pub use build::Tokenizer;
pub use chat::{
    AnswerParser, Call, Calls, ChatTemplate, Format, Message, Origin, Piece, RenderOptions,
    Rendered,
};
pub use encode::Specials;
pub use error::Error;
pub use stream::{Detokeniser, Emitted, StopMatcher};
pub use vocabulary::Vocabulary;
