//! Fuzzes the grammar compilers of all notations: each grammar compiles, with its first mask, or is
//! rejected with a reason, without panics.
//!
//! The first byte selects the notation. Run with `cargo +nightly fuzz run grammar --
//! -rss_limit_mb=512 -timeout=1`. `crates/grammar/src/constraint.rs` also replays the corpus.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use model::gguf::Gguf;
use model::tokenizer::{Tokenizer, Vocabulary};
use grammar::{Compiler, Grammar};

static GRAMMARS: LazyLock<Compiler> = LazyLock::new(|| {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/models/tiny-llama-Q8_0.gguf");
    let gguf = Gguf::open(file).expect("the file is there");
    let vocabulary = Vocabulary::from_metadata(gguf.metadata()).expect("it has a vocabulary");
    Compiler::new(&Tokenizer::new(vocabulary).expect("that makes a tokeniser")).expect("it has an end")
});

fuzz_target!(|data: &[u8]| {
    let [notation, text @ ..] = data else { return };
    let text = String::from_utf8_lossy(text).into_owned();
    let grammar = match notation % 3 {
        0 => Grammar::written(text),
        1 => Grammar::Regex(text),
        _ => match serde_json::from_str(&text) {
            Ok(schema) => Grammar::JsonSchema(schema),
            Err(_) => return,
        },
    };
    if let Err(said) = GRAMMARS.compile(&grammar) {
        assert!((1..600).contains(&said.len()), "{said}");
    }
});
