//! The GGUF reader on arbitrary bytes: it may refuse them, but what it accepts must be readable, and
//! a model or an error.
//!
//! Run with `cargo +nightly fuzz run gguf`. The corpus beside this file is also replayed by the
//! ordinary tests of `model::gguf`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use model::Model;
use model::gguf::Gguf;

fuzz_target!(|data: &[u8]| {
    let Ok(model) = Gguf::from_bytes(data.to_vec()) else { return };
    for tensor in model.tensors() {
        let mut bytes = vec![0; tensor.bytes as usize];
        model.read(tensor, 0, &mut bytes).expect("a checked tensor lies within the file");
    }
    drop(Model::from_gguf(model));
});
