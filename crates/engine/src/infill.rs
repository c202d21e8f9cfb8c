//! Infill (fill-in-the-middle) tokens of a model.

use model::gguf::Gguf;
use model::tokenizer::{Specials, Tokenizer};

/// Ids of the tokens before the prefix, before the suffix, and before the generated middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infill {
    prefix: u32,
    suffix: u32,
    middle: u32,
}

/// Metadata keys of llama.cpp's converter.
const KEYS: [&str; 3] = ["fim_pre", "fim_suf", "fim_mid"];

/// Token names of model families: Qwen, StarCoder, SmolLM and Granite, CodeLlama, DeepSeek.
const NAMES: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<PRE>", "<SUF>", "<MID>"],
    [
        "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
        "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
        "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
    ],
];

impl Infill {
    /// Finds the tokens in a model's file by key or by name; `None` if there are none.
    ///
    /// # Errors
    /// A number that is no token's.
    pub(super) fn of(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<Self>, String> {
        let mut numbers = [None; 3];
        for (number, name) in numbers.iter_mut().zip(KEYS) {
            let key = format!("tokenizer.ggml.{name}_token_id");
            *number = gguf.metadata().u32_opt(&key).map_err(|error| error.to_string())?;
            if let Some(id) = number.filter(|id| *id as usize >= tokenizer.vocab_size()) {
                let size = tokenizer.vocab_size();
                return Err(format!("`{key}` is {id}, below {size} expected"));
            }
        }
        let named = |name: &str| match *tokenizer.encode(name, Specials::Parse, false).ok()? {
            [id] => Some(id),
            _ => None,
        };
        let all = |[prefix, suffix, middle]: [Option<u32>; 3]| {
            Some(Self { prefix: prefix?, suffix: suffix?, middle: middle? })
        };
        Ok(all(numbers).or_else(|| NAMES.iter().find_map(|names| all(names.map(named)))))
    }

    /// Prompt for the text between a prefix and a suffix; `begin` is the BOS token.
    #[must_use]
    pub fn prompt(self, begin: Option<u32>, prefix: &[u32], suffix: &[u32]) -> Vec<u32> {
        let begin = begin.as_slice();
        [begin, &[self.prefix], prefix, &[self.suffix], suffix, &[self.middle]].concat()
    }
}
