//! Messages for invalid values: the value, truncated, and what is expected instead. Replaces the
//! Rust types in parser errors by words that users of JSON, TOML and command lines know.

use crate::printable::line;

/// Maximum number of characters of a value in a message.
pub const EXCERPT_CHARACTERS: usize = 80;

/// Returns a value for a message: on one line, truncated to [`EXCERPT_CHARACTERS`] characters.
pub fn excerpt(value: &str) -> String {
    match value.char_indices().nth(EXCERPT_CHARACTERS) {
        Some((end, _)) => format!("{}.. ({} bytes)", line(&value[..end]), value.len()),
        None => line(value),
    }
}

/// Message of a `serde_json` error without line and column, for messages that name the field.
pub fn json(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    plain(message.strip_suffix(&place).unwrap_or(&message))
}

/// Rewrites a JSON or TOML parser's message about a value: `is "a", a whole number is needed`.
/// Returns other messages unchanged.
pub fn plain(message: &str) -> String {
    let quoted = |text: &str| text.replace('`', "");
    for kind in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((before, detail)) = message.split_once(kind)
            && let Some((found, needed)) = detail.rsplit_once(", expected ")
        {
            return format!("{before}is {}, {} needed", value(found), type_of(needed));
        }
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        return format!("{} is missing", quoted(field));
    }
    if let Some(field) = message.strip_prefix("duplicate field ") {
        return format!("{} appears twice", quoted(field));
    }
    for (kind, is) in [
        ("unknown field `", "is not known; possible: "),
        ("unknown variant `", "is not allowed; allowed are "),
    ] {
        if let Some(detail) = message.strip_prefix(kind)
            && let Some((name, known)) = detail.rsplit_once("`, expected ")
        {
            let known = quoted(known.strip_prefix("one of ").unwrap_or(known));
            return format!("`{}` {is}{known}", excerpt(name));
        }
    }
    match message.strip_prefix("expected ") {
        Some(needed) => format!("{needed} is needed"),
        None => message.to_owned(),
    }
}

/// Rewrites serde's description of a value: a type, and possibly the value in quotes.
fn value(found: &str) -> String {
    let inside = |text: &str, quote: char| {
        let text = text.strip_prefix(quote)?.strip_suffix(quote)?;
        Some(text.to_owned())
    };
    if let Some(text) = found.strip_prefix("string ").and_then(|text| inside(text, '"')) {
        return format!("\"{}\"", excerpt(&text));
    }
    for kind in ["integer ", "floating point ", "boolean ", "character "] {
        if let Some(value) = found.strip_prefix(kind).and_then(|text| inside(text, '`')) {
            return excerpt(&value);
        }
    }
    match found {
        "null" | "unit value" | "Option value" => "null".into(),
        "sequence" => "a list".into(),
        "map" => "an object {..}".into(),
        number if number.bytes().all(|b| b.is_ascii_digit()) => format!("a list of {number}"),
        other => excerpt(other),
    }
}

/// Describes the expected type, with its range if the type implies it.
fn type_of(needed: &str) -> String {
    let whole = |from: i128, to: i128| format!("a whole number from {from} to {to} is");
    match needed {
        "u8" => whole(0, u8::MAX.into()),
        "u16" => whole(0, u16::MAX.into()),
        "u32" => whole(0, u32::MAX.into()),
        "u64" | "usize" => "a whole number from 0 on is".into(),
        "i32" => whole(i32::MIN.into(), i32::MAX.into()),
        "i64" => whole(i64::MIN.into(), i64::MAX.into()),
        "f32" | "f64" => "a number is".into(),
        "a boolean" => "true or false is".into(),
        "a string" | "string" => "a text is".into(),
        "a sequence" => "a list is".into(),
        "a map" => "an object {..} is".into(),
        text if text.starts_with("struct ") || text.starts_with("internally tagged enum ") => {
            "an object {..} is".into()
        }
        text if text.starts_with("tuple ") || text.starts_with("an array of ") => {
            "a list is".into()
        }
        other => format!("{other} is"),
    }
}

/// Rewrites the standard library's message for an invalid number.
pub fn number(message: &str) -> Option<String> {
    match message {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            Some("a whole number is needed".into())
        }
        "number too large to fit in target type" => Some("a smaller number is needed".into()),
        "number too small to fit in target type" => Some("a larger number is needed".into()),
        "number would be zero for non-zero type" => Some("a number above 0 is needed".into()),
        "invalid float literal" | "cannot parse float from empty string" => {
            Some("a number is needed".into())
        }
        _ => {
            let (_, range) = message.split_once(" is not in ")?;
            let (from, to) = range.split_once("..=")?;
            Some(format!("{from} to {to} are allowed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct All {
        #[serde(rename = "whole")]
        _whole: Option<u32>,
        #[serde(rename = "number")]
        _number: Option<f32>,
        #[serde(rename = "text")]
        _text: Option<String>,
        #[serde(rename = "list")]
        _list: Option<Vec<bool>>,
        #[serde(rename = "one")]
        _one: Option<One>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum One {
        Off,
        On,
    }

    fn toml(text: &str) -> String {
        plain(toml::from_str::<All>(text).unwrap_err().message())
    }

    #[test]
    fn messages_do_not_name_rust_types() {
        for (text, message) in [
            ("whole = 'a'", "is \"a\", a whole number from 0 to 4294967295 is needed"),
            ("whole = -1", "is -1, a whole number from 0 to 4294967295 is needed"),
            ("whole = 1.5", "is 1.5, a whole number from 0 to 4294967295 is needed"),
            ("number = true", "is true, a number is needed"),
            ("text = 1", "is 1, a text is needed"),
            ("text = ['a', 'b']", "is a list, a text is needed"),
            ("list = 'a, expected b'", "is \"a, expected b\", a list is needed"),
            ("list = [1]", "is 1, true or false is needed"),
            ("one = 'ON'", "`ON` is not allowed; allowed are off or on"),
            ("two = 2", "`two` is not known; possible: whole, number, text, list, one"),
        ] {
            assert_eq!(toml(text), message);
        }
        let error = serde_json::from_str::<Vec<All>>("[\"a\"]").unwrap_err();
        assert_eq!(json(&error), "is \"a\", an object {..} is needed");
        assert_eq!(plain("missing field `model`"), "model is missing");
        assert_eq!(plain("expected a string"), "a string is needed");
        assert_eq!(plain("no more room"), "no more room");
    }

    #[test]
    fn long_values_are_truncated_to_one_line() {
        assert_eq!(excerpt("short"), "short");
        assert_eq!(excerpt("a\nb"), "a\\nb");
        let long = "\u{e4}".repeat(1 << 20);
        assert_eq!(
            excerpt(&long),
            format!("{}.. (2097152 bytes)", "\u{e4}".repeat(EXCERPT_CHARACTERS))
        );
        let message = toml(&format!("whole = '{long}'"));
        assert!(message.len() < 300 && message.ends_with("is needed"), "{message}");
        let message = toml(&format!("{} = 1", "x".repeat(1 << 20)));
        assert!(message.len() < 300 && message.contains("is not known"), "{message}");
    }

    #[test]
    fn invalid_numbers_have_plain_messages() {
        for (text, message) in [
            ("a", "a whole number is needed"),
            ("", "a whole number is needed"),
            ("300", "a smaller number is needed"),
        ] {
            assert_eq!(number(&text.parse::<u8>().unwrap_err().to_string()).unwrap(), message);
        }
        let float = "x".parse::<f64>().unwrap_err().to_string();
        assert_eq!(number(&float).unwrap(), "a number is needed");
        assert_eq!(number("9 is not in 1..=8").unwrap(), "1 to 8 are allowed");
        assert_eq!(number("all is well"), None);
    }
}
