//! Decoding against the vendor's disassembler: every instruction of every kernel in `tests/data`.
//!
//! A `.txt` holds a kernel's name on a line of its own, then one instruction a line: its low and
//! high 64 bits and the disassembler's text. `tests/data/build.py` makes them from the sources.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use sass::decode::decode;

/// Text as both sides can write it: no register-cache hints, numbers by value, single spaces.
fn normalise(text: &str) -> String {
    let mut out = String::new();
    for token in text.replace(".reuse", "").split_whitespace() {
        let (body, comma) = match token.strip_suffix(',') {
            Some(body) => (body, ","),
            None => (token, ""),
        };
        let separator = if out.is_empty() || token == "," { "" } else { " " };
        let decimal = body.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
            && !body.contains("0x");
        match body.parse::<f64>() {
            Ok(number) if decimal => write!(out, "{separator}{number:e}{comma}").unwrap(),
            _ => write!(out, "{separator}{token}").unwrap(),
        }
    }
    out
}

#[test]
fn every_instruction_is_written_as_the_disassembler_writes_it() {
    let mut instructions = 0;
    let mut wrong = String::new();
    let mut count = 0;
    for directory in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data")).unwrap() {
        let directory: PathBuf = directory.unwrap().path();
        if !directory.is_dir() {
            continue;
        }
        for file in fs::read_dir(directory).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_none_or(|extension| extension != "txt") {
                continue;
            }
            let mut offset = 0;
            for line in fs::read_to_string(&file).unwrap().lines() {
                let mut fields = line.splitn(3, ' ');
                let (Some(low), Some(high), Some(text)) =
                    (fields.next(), fields.next(), fields.next())
                else {
                    offset = 0;
                    continue;
                };
                let bits = u128::from_str_radix(low, 16).unwrap()
                    | u128::from_str_radix(high, 16).unwrap() << 64;
                let ours = match decode(bits, offset) {
                    Ok(instruction) => normalise(&instruction.to_string()),
                    Err(error) => error.to_string(),
                };
                if ours != normalise(text) {
                    count += 1;
                    if count < 60 {
                        writeln!(wrong, "{} {offset:#x} {low} {high}", file.display()).unwrap();
                        writeln!(wrong, "    {}\n    {ours}", normalise(text)).unwrap();
                    }
                }
                instructions += 1;
                offset += 16;
            }
        }
    }
    assert!(wrong.is_empty(), "{count} of {instructions} differ:\n{wrong}");
    assert!(instructions > 5000, "{instructions} instructions");
}
