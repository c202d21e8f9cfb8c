//! Compiler of grammars and parser states in this process, without limits of time and memory.

use std::sync::Arc;

use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use model::tokenizer::Tokenizer;

use crate::source::{Grammar, SOURCE};

/// Tokens of a tokenizer as grammars see them.
#[derive(Debug, PartialEq)]
pub(crate) struct Tokens {
    /// Bytes of each token. Those of a control token begin with a marker: grammars refer to it by
    /// number only, not by text.
    bytes: Vec<Vec<u8>>,
    /// End-of-sequence token.
    end: Option<u32>,
}

impl Tokens {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Self {
        let token = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            let mark = tokenizer.is_control(id) || tokenizer.is_end(id);
            let mark = mark.then_some(TokTrie::SPECIAL_TOKEN_MARKER);
            mark.into_iter().chain(bytes.iter().copied()).collect()
        };
        let bytes = (0..tokenizer.vocab_size() as u32).map(token).collect();
        Self { bytes, end: tokenizer.end_ids().next() }
    }

    /// Form for a worker: the end-of-sequence token or `u32::MAX`, then length and bytes of each token.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut all = self.end.unwrap_or(u32::MAX).to_le_bytes().to_vec();
        for token in &self.bytes {
            all.extend_from_slice(&(token.len() as u32).to_le_bytes());
            all.extend_from_slice(token);
        }
        all
    }

    /// Reads the form of [`Self::to_bytes`]; `None` if it is cut short.
    pub(crate) fn read(mut all: &[u8]) -> Option<Self> {
        let number = |all: &mut &[u8]| {
            let (number, rest) = all.split_first_chunk()?;
            *all = rest;
            Some(u32::from_le_bytes(*number))
        };
        let end = Some(number(&mut all)?).filter(|end| *end != u32::MAX);
        let mut bytes = Vec::new();
        while !all.is_empty() {
            let length = number(&mut all)? as usize;
            let (token, rest) = all.split_at_checked(length)?;
            bytes.push(token.to_vec());
            all = rest;
        }
        Some(Self { bytes, end })
    }
}

/// Compiler of grammars for one tokenizer.
pub struct Compiler {
    factory: ParserFactory,
}

impl Compiler {
    /// Creates the compiler of a tokenizer. It contains a trie of all tokens.
    ///
    /// # Errors
    /// The tokenizer has no end-of-sequence token.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, String> {
        Self::of(&Tokens::new(tokenizer))
    }

    pub(crate) fn of(tokens: &Tokens) -> Result<Self, String> {
        let end = tokens.end.ok_or("the model has no end-of-sequence token")?;
        let size = tokens.bytes.len() as u32;
        let trie = TokTrie::from(&TokRxInfo::new(size, end), &tokens.bytes);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: 500_000,
            step_lexer_fuel: 100_000,
            max_lexer_states: 15_000,
            max_grammar_size: 100_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// The grammar is invalid, or exceeds the limits of its size.
    pub fn compile(&self, grammar: &Grammar) -> Result<State, String> {
        let size = grammar.size();
        if size > SOURCE {
            return Err(format!("has {size} bytes, limit {SOURCE}"));
        }
        let matcher = Matcher::new(self.factory.create_parser(grammar.translated()?));
        if let Some(error) = matcher.get_error() {
            return Err(first_lines(&error));
        }
        Ok(State { matcher })
    }
}

/// First lines of an error, without the grammar and the parser state that follow.
fn first_lines(error: &str) -> String {
    let keywords = error.lines().next().and_then(|line| line.strip_prefix("Unimplemented keys: "));
    if let Some(keywords) = keywords {
        let keywords = keywords.trim_matches(['[', ']']).replace('"', "`");
        let keywords: String = keywords.chars().take(400).collect();
        return format!("the schema's {keywords} cannot be enforced");
    }
    let lines: Vec<&str> = error.lines().take(3).map(str::trim).collect();
    lines.join(" ").chars().take(500).collect()
}

/// Parser state of one answer in its grammar.
pub struct State {
    matcher: Matcher,
}

impl State {
    /// Bits of the tokens that may follow, 32 in a word.
    ///
    /// # Errors
    /// Computing them exceeds the limits of the grammar.
    pub(crate) fn mask(&mut self) -> Result<Vec<u32>, String> {
        let allowed =
            self.matcher.compute_mask_or_eos().map_err(|e| first_lines(&e.to_string()))?;
        let mut words = allowed.as_slice().to_vec();
        words.truncate(allowed.len().div_ceil(32));
        if let (Some(last), odd @ 1..) = (words.last_mut(), allowed.len() % 32) {
            *last &= (1 << odd) - 1;
        }
        Ok(words)
    }

    /// Appends a token. True if nothing may follow.
    ///
    /// # Errors
    /// The grammar rejects the token.
    pub(crate) fn accept(&mut self, id: u32) -> Result<bool, String> {
        self.matcher.consume_token(id).map_err(|e| first_lines(&e.to_string()))?;
        Ok(self.matcher.is_stopped())
    }

    /// Returns a second state that shares nothing with this one.
    pub(crate) fn duplicate(&self) -> Self {
        Self { matcher: self.matcher.deep_clone() }
    }
}
