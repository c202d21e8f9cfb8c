//! Fuzzes the GGUF reader: it may reject arbitrary bytes. Accepted ones must be readable; model,
//! weights and chat template load or fail with an error.
//!
//! Run with `cargo +nightly fuzz run gguf`. The ordinary tests of `model::gguf` also replay the
//! corpus.

#![no_main]

use std::sync::atomic::AtomicBool;

use libfuzzer_sys::fuzz_target;
use model::Model;
use model::gguf::Gguf;
use model::tokenizer::{ChatTemplate, Message, RenderOptions, Vocabulary};

fuzz_target!(|data: &[u8]| {
    let Ok(model) = Gguf::from_bytes(data.to_vec()) else { return };
    for tensor in model.tensors() {
        let mut bytes = vec![0; tensor.bytes as usize];
        model.read(tensor, 0, &mut bytes).expect("a checked tensor lies within the file");
    }
    let Ok(model) = Model::from_gguf(model) else { return };
    for weight in model.weights() {
        let _ = model.read_weight(&weight.name, 0, &mut vec![0; weight.bytes() as usize]);
    }
    let Ok(vocabulary) = Vocabulary::from_metadata(model.gguf().metadata()) else { return };
    let Ok(template) = ChatTemplate::new(&vocabulary) else { return };
    let message = Message::new("user", "abc");
    let _ = template.render(&[message], &RenderOptions::answer(), &AtomicBool::new(false));
});
