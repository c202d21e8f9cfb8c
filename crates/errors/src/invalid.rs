//! How a value that is wrong is told: what it is, what is needed in its place, and never more of it than helps. Parsers
//! speak of Rust's types; people who write JSON, TOML or a command line have not heard of those.

/// Characters of a value that a message repeats at most.
pub const SHOWN: usize = 80;

/// A value as a message repeats it: on one line, and of a long one the beginning.
pub fn shown(value: &str) -> String {
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}.. ({} bytes)", printable(&value[..end]), value.len()),
        None => printable(value),
    }
}

/// Text from elsewhere, without what would move a terminal's cursor.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => printable.extend(character.escape_default()),
            false => printable.push(character),
        }
    }
    printable
}

/// An error of `serde_json` without the place, for where the field is named.
pub fn json(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    plain(message.strip_suffix(&place).unwrap_or(&message))
}

/// What a parser of JSON or TOML says of a value, in plain words: `is "a", a whole number is needed`. What it says of
/// something else stays as it is.
pub fn plain(message: &str) -> String {
    let quoted = |text: &str| text.replace('`', "");
    for kind in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((before, said)) = message.split_once(kind)
            && let Some((found, needed)) = said.rsplit_once(", expected ")
        {
            return format!("{before}is {}, {} needed", value(found), type_of(needed));
        }
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        return format!("{} is missing", quoted(field));
    }
    if let Some(field) = message.strip_prefix("duplicate field ") {
        return format!("{} is there twice", quoted(field));
    }
    for (kind, is) in
        [("unknown field `", "is not known"), ("unknown variant `", "is not possible")]
    {
        if let Some(said) = message.strip_prefix(kind)
            && let Some((name, known)) = said.rsplit_once("`, expected ")
        {
            let known = quoted(known.strip_prefix("one of ").unwrap_or(known));
            return format!("`{}` {is}; possible: {known}", shown(name));
        }
    }
    match message.strip_prefix("expected ") {
        Some(needed) => format!("{needed} is needed"),
        None => message.to_owned(),
    }
}

/// A value as serde names it, which is a type and perhaps the value in quotes.
fn value(found: &str) -> String {
    let inside = |text: &str, quote: char| {
        let text = text.strip_prefix(quote)?.strip_suffix(quote)?;
        Some(text.to_owned())
    };
    if let Some(text) = found.strip_prefix("string ").and_then(|text| inside(text, '"')) {
        return format!("\"{}\"", shown(&text));
    }
    for kind in ["integer ", "floating point ", "boolean ", "character "] {
        if let Some(value) = found.strip_prefix(kind).and_then(|text| inside(text, '`')) {
            return shown(&value);
        }
    }
    match found {
        "null" | "unit value" | "Option value" => "null".into(),
        "sequence" => "a list".into(),
        "map" => "an object {..}".into(),
        number if number.bytes().all(|b| b.is_ascii_digit()) => format!("a list of {number}"),
        other => shown(other),
    }
}

/// What is needed, with its range where that is the type's.
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

/// What the standard library says of text that is no number.
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
    fn no_type_of_rust_is_told() {
        for (text, said) in [
            ("whole = 'a'", "is \"a\", a whole number from 0 to 4294967295 is needed"),
            ("whole = -1", "is -1, a whole number from 0 to 4294967295 is needed"),
            ("whole = 1.5", "is 1.5, a whole number from 0 to 4294967295 is needed"),
            ("number = true", "is true, a number is needed"),
            ("text = 1", "is 1, a text is needed"),
            ("text = ['a', 'b']", "is a list, a text is needed"),
            ("list = 'a, expected b'", "is \"a, expected b\", a list is needed"),
            ("list = [1]", "is 1, true or false is needed"),
            ("one = 'ON'", "`ON` is not possible; possible: off or on"),
            ("two = 2", "`two` is not known; possible: whole, number, text, list, one"),
        ] {
            assert_eq!(toml(text), said);
        }
        let error = serde_json::from_str::<Vec<All>>("[\"a\"]").unwrap_err();
        assert_eq!(json(&error), "is \"a\", an object {..} is needed");
        assert_eq!(plain("missing field `model`"), "model is missing");
        assert_eq!(plain("expected a string"), "a string is needed");
        assert_eq!(plain("no more room"), "no more room");
    }

    #[test]
    fn a_long_value_is_cut_and_stays_on_its_line() {
        assert_eq!(shown("short"), "short");
        assert_eq!(shown("a\nb"), "a\\nb");
        let long = "\u{e4}".repeat(1 << 20);
        assert_eq!(shown(&long), format!("{}.. (2097152 bytes)", "\u{e4}".repeat(SHOWN)));
        let said = toml(&format!("whole = '{long}'"));
        assert!(said.len() < 300 && said.ends_with("is needed"), "{said}");
        let said = toml(&format!("{} = 1", "x".repeat(1 << 20)));
        assert!(said.len() < 300 && said.contains("is not known"), "{said}");
    }

    #[test]
    fn numbers_of_a_command_line() {
        for (text, said) in [
            ("a", "a whole number is needed"),
            ("", "a whole number is needed"),
            ("300", "a smaller number is needed"),
        ] {
            assert_eq!(number(&text.parse::<u8>().unwrap_err().to_string()).unwrap(), said);
        }
        let float = "x".parse::<f64>().unwrap_err().to_string();
        assert_eq!(number(&float).unwrap(), "a number is needed");
        assert_eq!(number("9 is not in 1..=8").unwrap(), "1 to 8 are allowed");
        assert_eq!(number("all is well"), None);
    }
}
