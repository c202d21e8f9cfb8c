//! What can go wrong between text and tokens.

/// Why a vocabulary, a text or a chat template was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `tokenizer.ggml.model` names an algorithm that is not byte-level BPE.
    #[error(
        "tokeniser model `{model}` (tokenizer.ggml.model) is not supported; supported: `gpt2` (byte-level BPE)"
    )]
    Model {
        /// The name in the file.
        model: String,
    },
    /// `tokenizer.ggml.pre` names an unknown pre-tokeniser.
    #[error("pre-tokeniser `{pre}` (tokenizer.ggml.pre) is not supported; supported: {supported}")]
    PreTokeniser {
        /// The name in the file.
        pre: String,
        /// The names that are known.
        supported: String,
    },
    /// There are no tokens, or more than a `u32` id can name.
    #[error(
        "the vocabulary has {count} tokens (tokenizer.ggml.tokens); 1 to 4294967295 are possible"
    )]
    TokenCount {
        /// The number of tokens in the file.
        count: usize,
    },
    /// The arrays of tokens and of token types differ in length.
    #[error(
        "the vocabulary has {tokens} tokens but {types} token types (tokenizer.ggml.token_type); the file is damaged"
    )]
    TokenTypeCount {
        tokens: usize,
        /// The number of token types.
        types: usize,
    },
    /// A token type outside the six that GGUF defines.
    #[error("token {id} has type {value} (tokenizer.ggml.token_type); 1 to 6 are defined")]
    TokenType {
        id: u32,
        /// Its type in the file.
        value: i32,
    },
    /// Two ids with the same text: encoding would be ambiguous.
    #[error("tokens {first} and {second} have the same text {text:?} (tokenizer.ggml.tokens)")]
    DuplicateToken { text: String, first: u32, second: u32 },
    /// A normal token with a character that stands for no byte.
    #[error(
        "token {id} {text:?} has the character {character:?}, which stands for no byte; tokens of a `gpt2` vocabulary use the byte-level alphabet"
    )]
    Alphabet {
        id: u32,
        /// Its text in the file.
        text: String,
        /// The first character outside the alphabet.
        character: char,
    },
    /// A merge that is not two tokens separated by a space.
    #[error(
        "merge {index} {merge:?} (tokenizer.ggml.merges) is not two tokens separated by a space"
    )]
    MergeSyntax {
        /// Its position in the list.
        index: usize,
        merge: String,
    },
    /// A merge whose part or product is not a token.
    #[error(
        "merge {index} {merge:?} (tokenizer.ggml.merges) needs the token {token:?}, which the vocabulary lacks"
    )]
    MergeToken {
        /// Its position in the list.
        index: usize,
        merge: String,
        /// The token that is missing.
        token: String,
    },
    /// A key that names a token outside the vocabulary.
    #[error("{key} is {id}, but the vocabulary has only {size} tokens")]
    TokenId { key: &'static str, id: u32, size: usize },
    /// The model wants a token around every prompt but does not say which.
    #[error("{flag} is true, but {key} is missing: there is no token to add")]
    MissingTokenId {
        /// The key that asks for the token.
        flag: &'static str,
        /// The key that should name it.
        key: &'static str,
    },
    /// The matcher for special tokens could not be built.
    #[error("the special tokens cannot be searched for: {0}")]
    Specials(#[source] aho_corasick::BuildError),
    /// A pre-tokeniser pattern did not compile: a bug here, not in the file.
    #[error("the pattern of a pre-tokeniser did not compile")]
    Pattern(#[source] Box<regex::Error>),
    /// A text with a byte that the vocabulary has no token for.
    #[error(
        "the text has the byte {byte:#04x} at {offset}, and the vocabulary has no token for it"
    )]
    NoToken {
        /// The byte.
        byte: u8,
        /// Where it stands in the text.
        offset: usize,
    },
    /// A chat template longer than any in use.
    #[error("the chat template has {bytes} bytes; at most {limit} are accepted")]
    TemplateLength { bytes: usize, limit: usize },
    /// The thread for chat templates could not be started.
    #[error("no thread for the chat template")]
    TemplateThread(#[source] std::io::Error),
    /// A chat template that does not parse.
    #[error("chat template, line {line}: {message}")]
    TemplateSyntax {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// A chat template that failed on these messages, or refused them.
    #[error("chat template, line {line}: {message}")]
    TemplateRender {
        /// The line, from 1.
        line: usize,
        /// What went wrong, or what the template said.
        message: String,
    },
    /// A chat template that did not come to an end in time.
    #[error(
        "chat template, line {line}: stopped after {fuel} instructions; the template does not end, or not soon enough"
    )]
    TemplateFuel {
        /// The line, from 1.
        line: usize,
        fuel: u64,
    },
    /// A chat template that wrote more than any prompt can be.
    #[error("chat template: stopped after {limit} bytes of output")]
    TemplateOutput {
        /// The limit in bytes.
        limit: usize,
    },
}
