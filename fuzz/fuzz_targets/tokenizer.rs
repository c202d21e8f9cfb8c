//! Fuzzes tokenisers with arbitrary files and text: a vocabulary may be rejected. An accepted one
//! encodes any text or names the byte it lacks, and streams what it decodes.
//!
//! Run with `cargo +nightly fuzz run tokenizer`. `tests/host/tokenizer/corpus.rs` also replays the
//! corpus.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use model::gguf::Gguf;
use model::tokenizer::{Detokeniser, Specials, Tokenizer, Vocabulary};

fuzz_target!(|data: &[u8]| {
    let Ok(file) = Gguf::from_bytes(data.to_vec()) else { return };
    let Ok(vocabulary) = Vocabulary::from_metadata(file.metadata()) else { return };
    let text = vocabulary.tokens.iter().collect::<String>() + &String::from_utf8_lossy(data);
    let Ok(tokenizer) = Tokenizer::new(vocabulary).map(Arc::new) else { return };
    for specials in [Specials::Parse, Specials::Plain] {
        let Ok(ids) = tokenizer.encode(&text, specials, true) else { continue };
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
        let mut detokeniser = Detokeniser::new(Arc::clone(&tokenizer));
        let mut streamed: String = ids.iter().map(|&id| detokeniser.push(id).to_owned()).collect();
        streamed.push_str(detokeniser.finish());
        assert_eq!(streamed, tokenizer.decode(&ids));
    }
});
