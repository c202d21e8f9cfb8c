//! Fuzzes the answer parsers of every model family: an answer, whole or cut anywhere, yields the
//! same pieces and no panic.
//!
//! The first byte selects the format and, by its highest bit, reasoning; the second the cuts. Run with `cargo +nightly fuzz run
//! answer`. `crates/model/src/tokenizer/chat/answer/tests.rs` also replays the corpus.

#![no_main]

use libfuzzer_sys::fuzz_target;
use model::tokenizer::{AnswerParser, Calls, Format, Piece};

fn joined(format: Format, parts: &[&str]) -> Vec<Piece> {
    let tools = [serde_json::json!({"type": "function", "function": {"name": "weather"}})];
    let mut parser = AnswerParser::new(format, &tools, "");
    let (mut all, mut out) = (Vec::<Piece>::new(), Vec::new());
    for part in parts {
        parser.push(part, &mut out);
    }
    parser.finish(&mut out);
    for piece in out {
        match (all.last_mut(), &piece) {
            (Some(Piece::Text(last)), Piece::Text(more))
            | (Some(Piece::Reasoning(last)), Piece::Reasoning(more))
            | (Some(Piece::Arguments(last)), Piece::Arguments(more)) => last.push_str(more),
            _ => all.push(piece),
        }
    }
    all
}

fuzz_target!(|data: &[u8]| {
    let [format, cut, text @ ..] = data else { return };
    let thinking = (format & 128 != 0).then_some(["<think>", "</think>"]);
    let calls = Calls::ALL[usize::from(format & 127) % Calls::ALL.len()];
    let format = Format { calls: Some(calls), thinking };
    let text = String::from_utf8_lossy(text);
    let mut parts = Vec::new();
    let mut rest = &*text;
    while !rest.is_empty() {
        let mut end = usize::from(*cut % 16 + 1).min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        let (part, behind) = rest.split_at(end);
        parts.push(part);
        rest = behind;
    }
    assert_eq!(joined(format, &parts), joined(format, &[&text]));
});
