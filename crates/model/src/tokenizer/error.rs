//! Errors of vocabularies, encoding and chat templates.

/// Reason why a vocabulary, a text or a chat template was rejected. Lines count from 1, merges from 0.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error(
        "tokeniser model `{model}` (tokenizer.ggml.model) is not supported; supported: `gpt2` (byte-level BPE), `llama` (SentencePiece with scores), `gemma4` (SentencePiece with merges), `rwkv` (the longest token first)"
    )]
    Model { model: String },
    #[error("pre-tokeniser `{pre}` (tokenizer.ggml.pre) is not supported; supported: {supported}")]
    PreTokeniser { pre: String, supported: String },
    #[error(
        "the vocabulary has {count} tokens (tokenizer.ggml.tokens); 1 to 4294967295 are possible"
    )]
    TokenCount { count: usize },
    #[error(
        "the vocabulary has {tokens} tokens but {types} token types (tokenizer.ggml.token_type); the file is damaged"
    )]
    TokenTypeCount { tokens: usize, types: usize },
    #[error(
        "the vocabulary has {tokens} tokens but {scores} scores (tokenizer.ggml.scores); a `llama` vocabulary has one for each"
    )]
    ScoreCount { tokens: usize, scores: usize },
    #[error("the score of token {id} (tokenizer.ggml.scores) is not a number")]
    Score { id: u32 },
    #[error(
        "token {id} {text:?} stands for a byte, as its type says; such tokens are `<0x00>` to `<0xFF>`"
    )]
    ByteToken { id: u32, text: String },
    #[error(
        "token {id} {text:?} (tokenizer.ggml.tokens) ends in the middle of an escape, or has one that is none; `\\t`, `\\n`, `\\r` and `\\x00` to `\\xff` are"
    )]
    Escape { id: u32, text: String },
    #[error("token {id} has type {value} (tokenizer.ggml.token_type); 1 to 6 are defined")]
    TokenType { id: u32, value: i32 },
    /// Two ids with the same text: encoding would be ambiguous.
    #[error("tokens {first} and {second} have the same text {text:?} (tokenizer.ggml.tokens)")]
    DuplicateToken { text: String, first: u32, second: u32 },
    #[error(
        "merge {index} {merge:?} (tokenizer.ggml.merges) is not two tokens separated by a space"
    )]
    MergeSyntax { index: usize, merge: String },
    #[error(
        "merge {index} {merge:?} (tokenizer.ggml.merges) needs the token {token:?}, which the vocabulary lacks"
    )]
    MergeToken { index: usize, merge: String, token: String },
    #[error("{key} is {id}, but the vocabulary has only {size} tokens")]
    TokenId { key: &'static str, id: u32, size: usize },
    #[error("{flag} is true, but {key} is missing: there is no token to add")]
    MissingTokenId { flag: &'static str, key: &'static str },
    #[error("the special tokens cannot be searched for: {0}")]
    Specials(#[source] aho_corasick::BuildError),
    /// A pre-tokeniser pattern did not compile: a bug here, not in the file.
    #[error("the pattern of a pre-tokeniser did not compile")]
    Pattern(#[source] Box<regex::Error>),
    #[error(
        "the text has the byte {byte:#04x} at {offset}, and the vocabulary has no token for it or for its character"
    )]
    NoToken { byte: u8, offset: usize },
    #[error("the text has more than {limit} tokens, which are all that may be; shorten it")]
    TooManyTokens { limit: usize },
    /// Requested through [`super::Bounds::cancelled`].
    #[error("cancelled")]
    Cancelled,
    #[error(
        "the chat template (tokenizer.chat_template) has {bytes} bytes; at most {limit} are accepted"
    )]
    TemplateLength { bytes: usize, limit: usize },
    #[error("no thread for the chat template")]
    TemplateThread(#[source] std::io::Error),
    #[error("chat template (tokenizer.chat_template), line {line}: {message}")]
    TemplateSyntax { line: usize, message: String },
    /// The template failed on these messages or rejected them.
    #[error("chat template (tokenizer.chat_template), line {line}: {message}")]
    TemplateRender { line: usize, message: String },
    #[error(
        "chat template (tokenizer.chat_template), line {line}: stopped after {limit:?}; the template does not end, or not soon enough"
    )]
    TemplateTime { line: usize, limit: std::time::Duration },
    #[error(
        "chat template (tokenizer.chat_template), line {line}: its values need more than {limit} bytes"
    )]
    TemplateMemory { line: usize, limit: usize },
    #[error(
        "the model has no chat template (tokenizer.chat_template), and its tokens show no known format; complete texts instead"
    )]
    TemplateMissing,
    #[error("chat template (tokenizer.chat_template): stopped after {limit} bytes of output")]
    TemplateOutput { limit: usize },
    #[error(
        "the messages hold every Unicode noncharacter (U+FDD0 to U+FDEF, and the last two of each plane); leave one of them out"
    )]
    NoSentinel,
}
