//! Repairs JSON while it streams: raw control characters, Python's literals and quotes, quotes inside of texts,
//! commas and brackets that are missing. Whatever the input is, the output is JSON.

/// Deepest nesting of values.
const DEPTH: usize = 120;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before a value, a key or a closing bracket.
    #[default]
    Open,
    /// After a key.
    Colon,
    /// Before the value of a key.
    Value,
    /// In a text with this quote.
    Text(char),
    Escape(char),
    /// After a quote that ends the text, if the next character is a delimiter.
    Quote(char),
    /// In a number or a word.
    Word,
    /// After a value.
    After,
}

/// Transducer of one object or list.
#[derive(Debug, Default)]
pub(super) struct Repair {
    state: State,
    /// Closing brackets.
    stack: Vec<char>,
    /// White space, a word, or digits of an escape, that are not decided.
    held: String,
    /// The next value needs a comma.
    comma: bool,
    /// White space after a comma that is not written yet.
    space: String,
    /// The current text or word is a key.
    key: bool,
    done: bool,
}

impl Repair {
    /// True if the value is complete.
    pub(super) const fn is_done(&self) -> bool {
        self.done
    }

    /// True inside of a text, where marks are data.
    pub(super) const fn is_in_text(&self) -> bool {
        matches!(self.state, State::Text(_) | State::Escape(_))
    }

    /// Adds a character and appends the decided JSON to `out`. The first one must open an object or a list.
    pub(super) fn feed(&mut self, c: char, out: &mut String) {
        match self.state {
            State::Text(quote) => self.text(c, quote, out),
            State::Escape(quote) => self.escape(c, quote, out),
            State::Quote(quote) => self.quote(c, quote, out),
            State::Word if !"{}[]:,\"'".contains(c) && !c.is_whitespace() => self.held.push(c),
            State::Word => {
                self.word(out);
                self.structure(c, out);
            }
            _ => self.structure(c, out),
        }
    }

    /// Completes the value.
    pub(super) fn finish(&mut self, out: &mut String) {
        match self.state {
            State::Escape(_) => {
                self.flush_escape(out);
                out.push('"');
                self.ends_value();
            }
            State::Text(_) | State::Quote(_) => {
                self.held.clear();
                out.push('"');
                self.ends_value();
            }
            State::Word => self.word(out),
            _ => {}
        }
        if self.state == State::Colon {
            out.push(':');
            self.state = State::Value;
        }
        if self.state == State::Value {
            out.push_str("null");
        }
        while let Some(close) = self.stack.pop() {
            out.push(close);
        }
        self.done = true;
    }

    fn text(&mut self, c: char, quote: char, out: &mut String) {
        match c {
            c if c == quote => self.state = State::Quote(quote),
            '\\' => {
                self.held.clear();
                self.state = State::Escape(quote);
            }
            c => push_escaped(c, out),
        }
    }

    fn escape(&mut self, c: char, quote: char, out: &mut String) {
        if self.held.is_empty() {
            match c {
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => out.extend(['\\', c]),
                'u' => {
                    self.held.push('u');
                    return;
                }
                '\'' => out.push('\''),
                // Not an escape of JSON: the backslash is data.
                c => {
                    out.push_str("\\\\");
                    push_escaped(c, out);
                }
            }
            self.state = State::Text(quote);
            return;
        }
        if c.is_ascii_hexdigit() {
            self.held.push(c);
            if self.held.len() == 5 {
                self.flush_escape(out);
                self.state = State::Text(quote);
            }
            return;
        }
        self.flush_escape(out);
        self.state = State::Text(quote);
        self.text(c, quote, out);
    }

    fn flush_escape(&mut self, out: &mut String) {
        out.push_str(if self.held.len() == 5 { "\\" } else { "\\\\" });
        out.push_str(&std::mem::take(&mut self.held));
    }

    /// Decides whether the quote before white space and `c` ended the text.
    fn quote(&mut self, c: char, quote: char, out: &mut String) {
        if c.is_whitespace() {
            self.held.push(c);
            return;
        }
        let space = std::mem::take(&mut self.held);
        if ",}]:".contains(c) && (c != ':' || self.key) {
            out.push('"');
            self.ends_value();
            out.push_str(&space);
            self.structure(c, out);
            return;
        }
        // A quote inside of the text.
        push_escaped(quote, out);
        space.chars().for_each(|c| push_escaped(c, out));
        self.state = State::Text(quote);
        self.text(c, quote, out);
    }

    fn ends_value(&mut self) {
        self.state = if self.key { State::Colon } else { State::After };
        self.comma = !self.key;
        self.key = false;
    }

    fn word(&mut self, out: &mut String) {
        let word = std::mem::take(&mut self.held);
        let literal = match &*word {
            "true" | "True" | "TRUE" => "true",
            "false" | "False" | "FALSE" => "false",
            "null" | "None" | "NaN" | "nan" | "undefined" => "null",
            _ => "",
        };
        if self.key
            || literal.is_empty() && serde_json::from_str::<serde_json::Number>(&word).is_err()
        {
            out.push('"');
            for c in word.chars() {
                if c == '\\' {
                    out.push(c);
                }
                push_escaped(c, out);
            }
            out.push('"');
        } else {
            out.push_str(if literal.is_empty() { &word } else { literal });
        }
        self.ends_value();
    }

    /// Handles a character outside of texts and words.
    fn structure(&mut self, c: char, out: &mut String) {
        match c {
            c if c.is_whitespace() => {
                let c = if matches!(c, '\n' | '\t' | '\r') { c } else { ' ' };
                // The comma is written with the value that follows it.
                let waits = self.state == State::Open && self.comma;
                if waits { &mut self.space } else { &mut *out }.push(c);
            }
            '}' | ']' => self.close(c, out),
            ',' => {
                if matches!(self.state, State::Colon | State::Value) {
                    out.push_str(if self.state == State::Colon { ": null" } else { "null" });
                    self.ends_value();
                }
                if self.state == State::After {
                    self.state = State::Open;
                }
            }
            ':' if self.state == State::Colon => {
                out.push(':');
                self.state = State::Value;
            }
            ':' => {}
            c => self.begin(c, out),
        }
    }

    fn close(&mut self, c: char, out: &mut String) {
        // A bracket of the other kind closes what is open.
        if !self.stack.contains(&c) {
            return;
        }
        if matches!(self.state, State::Colon | State::Value) {
            out.push_str(if self.state == State::Colon { ": null" } else { "null" });
        }
        out.push_str(&std::mem::take(&mut self.space));
        while let Some(close) = self.stack.pop() {
            out.push(close);
            if close == c {
                break;
            }
        }
        self.key = false;
        self.ends_value();
        self.done = self.stack.is_empty();
    }

    /// Begins a key or a value.
    fn begin(&mut self, c: char, out: &mut String) {
        if self.state == State::Colon {
            out.push(':');
            self.state = State::Value;
        }
        let in_object = self.stack.last() == Some(&'}');
        self.key = in_object && self.state != State::Value;
        if matches!(c, '{' | '[') && (self.key || self.stack.len() >= DEPTH) {
            // An object or a list is no key, and too deep ones are left out.
            return;
        }
        if self.comma && self.state != State::Value {
            out.push(',');
        }
        out.push_str(&std::mem::take(&mut self.space));
        self.comma = false;
        match c {
            '"' | '\'' => {
                out.push('"');
                self.state = State::Text(c);
            }
            '{' | '[' => {
                out.push(c);
                self.stack.push(if c == '{' { '}' } else { ']' });
                self.state = State::Open;
            }
            c => {
                self.held = c.into();
                self.state = State::Word;
            }
        }
    }
}

fn push_escaped(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// A complete value, repaired.
pub(super) fn repaired(text: &str) -> String {
    if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        return text.to_owned();
    }
    let mut repair = Repair::default();
    let mut out = String::new();
    for c in text.chars() {
        repair.feed(c, &mut out);
        if repair.is_done() {
            return out;
        }
    }
    repair.finish(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value as Json;

    use super::repaired;

    #[test]
    fn common_faults_are_repaired() {
        for (text, expected) in [
            (r#"{"a": 1}"#, r#"{"a": 1}"#),
            ("{\"a\": \"x\ny\tz\"}", r#"{"a": "x\ny\tz"}"#),
            ("{'a': True, 'b': None, 'c': 'it\\'s'}", r#"{"a": true, "b": null, "c": "it's"}"#),
            (r#"{"a": {"b": [1, 2"#, r#"{"a": {"b": [1, 2]}}"#),
            (r#"{"a": {"b": [1, 2}"#, r#"{"a": {"b": [1, 2]}}"#),
            (r#"{"a": 1,}"#, r#"{"a": 1}"#),
            (r#"{"a": 1 "b": 2}"#, r#"{"a": 1, "b": 2}"#),
            (r#"{a: b}"#, r#"{"a": "b"}"#),
            (r#"{"a": "say "hi" now"}"#, r#"{"a": "say \"hi\" now"}"#),
            (r#"{"a": "C:\dir\x"}"#, r#"{"a": "C:\\dir\\x"}"#),
            (r#"{"a": "\u12"}"#, r#"{"a": "\\u12"}"#),
            (r#"{"a": 007}"#, r#"{"a": "007"}"#),
            (r#"{"a":"#, r#"{"a": null}"#),
            (r#"{"a"#, r#"{"a": null}"#),
            (r#"{"a": "x"#, r#"{"a": "x"}"#),
            (r#"{"a": [1, 2,], "b": NaN}"#, r#"{"a": [1, 2], "b": null}"#),
        ] {
            let json: Json = serde_json::from_str(&repaired(text)).expect(text);
            assert_eq!(json, serde_json::from_str::<Json>(expected).unwrap(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn whatever_it_is_becomes_json(text in r#"[{\[][{}\[\]:,"'\\a1 \nTu-]{0,24}"#) {
            let json = repaired(&text);
            prop_assert!(serde_json::from_str::<Json>(&json).is_ok(), "{:?} {:?}", text, json);
        }

        #[test]
        fn json_stays(keys in prop::collection::vec(".{0,9}", 0..4), values in prop::collection::vec(".{0,9}", 4)) {
            let map: serde_json::Map<String, Json> =
                keys.into_iter().zip(values).map(|(key, value)| (key, value.into())).collect();
            let text = Json::Object(map.clone()).to_string();
            let mut repair = super::Repair::default();
            let mut out = String::new();
            text.chars().for_each(|c| repair.feed(c, &mut out));
            prop_assert!(repair.is_done());
            prop_assert_eq!(serde_json::from_str::<Json>(&out).unwrap(), Json::Object(map));
        }
    }
}
