//! JSON as clients write it: a byte order mark, halves of surrogate pairs, deep nesting. Prepares
//! the bytes of a body for the parser, in place.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::de::SliceRead;

/// Maximum nesting of lists and objects. It bounds the stack that parsing takes.
pub(super) const NESTING: usize = 256;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooDeep;

/// Returns a parser whose nesting [`prepare`] has bounded.
pub(super) fn deserializer(json: &[u8]) -> serde_json::Deserializer<SliceRead<'_>> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    deserializer.disable_recursion_limit();
    deserializer
}

/// Parses JSON of a model or a history. `None` if it is none, or nested too deeply.
pub(super) fn value(text: &str) -> Option<Value> {
    let mut json = Cow::Borrowed(text.as_bytes());
    // Only escapes can need a change.
    match text.contains('\\') {
        true => prepare(json.to_mut()).ok()?,
        false => bounded(&json).ok()?,
    }
    let mut deserializer = deserializer(&json);
    let value = Value::deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

fn bounded(json: &[u8]) -> Result<(), TooDeep> {
    scan(json, |_| {})
}

/// Replaces a byte order mark by spaces, and escapes of single surrogates by that of U+FFFD.
///
/// # Errors
/// Lists and objects are nested deeper than [`NESTING`].
pub(super) fn prepare(json: &mut [u8]) -> Result<(), TooDeep> {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    if json.starts_with(MARK) {
        json[..MARK.len()].fill(b' ');
    }
    let mut single = Vec::new();
    scan(json, |at| single.push(at))?;
    for at in single {
        json[at..at + 4].copy_from_slice(b"FFFD");
    }
    Ok(())
}

/// Checks the nesting. Reports where the digits of each single surrogate are.
fn scan(json: &[u8], mut single_surrogate: impl FnMut(usize)) -> Result<(), TooDeep> {
    let (mut at, mut depth, mut in_text) = (0, 0_usize, false);
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => depth += 1,
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            b'\\' if in_text => match (surrogate(json, at), surrogate(json, at + 6)) {
                (Some(false), Some(true)) => at += 11,
                (Some(_), _) => {
                    single_surrogate(at + 2);
                    at += 5;
                }
                (None, _) => at += 1,
            },
            _ => {}
        }
        if depth > NESTING {
            return Err(TooDeep);
        }
        at += 1;
    }
    Ok(())
}

/// Returns whether an escape is a low (true) or a high surrogate; `None` if it is neither.
fn surrogate(json: &[u8], at: usize) -> Option<bool> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    match u32::from_str_radix(digits, 16).ok()? {
        0xd800..=0xdbff => Some(false),
        0xdc00..=0xdfff => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_surrogates_become_replacement_characters() {
        for (json, text) in [
            (r#""\ud83d\ude00""#, "😀"),
            (r#""\ud83d""#, "\u{fffd}"),
            (r#""a\ude00b""#, "a\u{fffd}b"),
            (r#""\ude00\ud83d""#, "\u{fffd}\u{fffd}"),
            (r#""\ud83d\ud83d\ude00""#, "\u{fffd}😀"),
            (r#""\\ud83d \" \ud83dx""#, "\\ud83d \" \u{fffd}x"),
            (r#""\ud83d\n\u0041""#, "\u{fffd}\nA"),
        ] {
            assert_eq!(value(json), Some(text.into()), "{json}");
        }
        assert_eq!(value(r#""\ud8"#), None);
    }

    #[test]
    fn marks_are_skipped_and_nesting_is_bounded() {
        let mut json = b"\xef\xbb\xbf{}".to_vec();
        prepare(&mut json).unwrap();
        assert_eq!(json, b"   {}");
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(value(&nested(NESTING)).is_some());
        assert_eq!(value(&nested(NESTING + 1)), None);
        assert_eq!(value(&format!("\"{}\"", "[".repeat(1000))), Some("[".repeat(1000).into()));
    }
}
