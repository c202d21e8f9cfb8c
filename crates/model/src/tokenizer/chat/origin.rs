//! Choice of a template: the file's own, or the format that the tokens of the vocabulary show.

use crate::tokenizer::vocabulary::Vocabulary;

const LLAMA3: &str = include_str!("llama3.jinja");
const CHATML: &str = include_str!("chatml.jinja");
const GEMMA: &str = include_str!("gemma.jinja");
const GEMMA4: &str = include_str!("gemma4.jinja");
const WORLD: &str = include_str!("world.jinja");
/// Name in RWKV's files in place of a template; llama.cpp has the template by that name (`llama-chat.cpp`).
const WORLD_NAME: &str = "rwkv-world";

/// Built-in formats, each with the tokens that show it.
const SHOWN: [(&str, &[&str], &str); 4] = [
    ("Gemma", &["<start_of_turn>", "<end_of_turn>"], GEMMA),
    ("Gemma 4", &["<|turn>", "<turn|>"], GEMMA4),
    ("Llama 3", &["<|start_header_id|>"], LLAMA3),
    ("ChatML", &["<|im_start|>", "<|im_end|>"], CHATML),
];

/// Source of a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The model's file.
    File,
    /// A built-in format of this name, which the vocabulary shows.
    Vocabulary(&'static str),
    /// No template, and no format is known.
    Unknown,
}

/// The template of a model and its origin; an empty one without a known format.
pub(super) fn template(vocabulary: &Vocabulary) -> (&str, Origin) {
    match vocabulary.chat_template.as_deref() {
        Some(WORLD_NAME) => return (WORLD, Origin::Vocabulary("RWKV World")),
        Some(source) => return (source, Origin::File),
        None if vocabulary.model == "rwkv" => return (WORLD, Origin::Vocabulary("RWKV World")),
        None => {}
    }
    let has = |name: &&str| vocabulary.tokens.iter().any(|token| token == *name);
    match SHOWN.into_iter().find(|(_, tokens, _)| tokens.iter().all(has)) {
        Some((name, _, source)) => (source, Origin::Vocabulary(name)),
        None => ("", Origin::Unknown),
    }
}
