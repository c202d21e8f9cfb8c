//! Calls as JSON: an object with a name and arguments, read while it comes.

use super::{Piece, Read, Tools, emit};

/// Follows one JSON value to its end. What is within is not checked: it is given out as it is.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    depth: u32,
    begun: bool,
    in_string: bool,
    escaped: bool,
}

/// Where a value ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Within,
    /// With this character.
    Here,
    /// Before it.
    Before,
}

impl Scanner {
    pub(super) fn feed(&mut self, c: char) -> End {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => {
                    self.in_string = false;
                    return if self.depth == 0 { End::Here } else { End::Within };
                }
                _ => {}
            }
            return End::Within;
        }
        match c {
            '"' if self.depth > 0 || !self.begun => self.in_string = true,
            '{' | '[' if self.depth > 0 || !self.begun => self.depth += 1,
            '}' | ']' if self.depth > 0 => {
                self.depth -= 1;
                if self.depth == 0 {
                    return End::Here;
                }
            }
            // Behind a number or a name.
            _ if self.depth == 0 && self.begun && !c.is_alphanumeric() && !"+-.".contains(c) => {
                return End::Before;
            }
            _ if c.is_whitespace() => return End::Within,
            _ => {}
        }
        self.begun = true;
        End::Within
    }
}

#[derive(Debug, Default)]
enum At {
    #[default]
    Open,
    /// Before a key, or the end.
    Key,
    InKey(Scanner),
    Colon,
    /// Before a value.
    Value,
    InValue(Scanner),
    /// Behind a value.
    Comma,
}

/// An object being read.
#[derive(Debug)]
pub(super) struct JsonCall {
    /// Whether any name makes it a call, or one of the request's tools only.
    any: bool,
    at: At,
    key: String,
    value: String,
    /// Whether the value is a text.
    quoted: bool,
    named: bool,
    /// Arguments that came before the name.
    early: Option<String>,
    /// Arguments have been given out.
    argued: bool,
}

impl JsonCall {
    /// An object that a mark says to be a call.
    pub(super) fn any() -> Self {
        Self {
            any: true,
            at: At::Open,
            key: String::new(),
            value: String::new(),
            quoted: false,
            named: false,
            early: None,
            argued: false,
        }
    }

    /// An object that is a call if it names a tool of the request.
    pub(super) fn known() -> Self {
        Self { any: false, ..Self::any() }
    }

    pub(super) fn read(&mut self, text: &str, tools: &Tools, out: &mut Vec<Piece>) -> Read {
        for (at, c) in text.char_indices() {
            match self.feed(c, tools, out) {
                Some(true) => {}
                Some(false) => return Read::Done(at + c.len_utf8()),
                None if self.named => return Read::Done(at),
                None => return Read::Broken(at),
            }
        }
        Read::More(text.len())
    }

    /// Whether it goes on; `None` if it is no call.
    fn feed(&mut self, c: char, tools: &Tools, out: &mut Vec<Piece>) -> Option<bool> {
        match (&mut self.at, c) {
            (At::InKey(scanner), _) => {
                self.key.push(c);
                if scanner.feed(c) == End::Here {
                    self.key = serde_json::from_str(&self.key).ok()?;
                    self.at = At::Colon;
                }
            }
            (At::InValue(scanner), _) => {
                let end = scanner.feed(c);
                if end != End::Before {
                    self.value.push(c);
                    self.give(out);
                }
                if end != End::Within {
                    self.at = At::Comma;
                    self.value_ends(tools, out)?;
                }
                if end == End::Before {
                    return self.feed(c, tools, out);
                }
            }
            (_, c) if c.is_whitespace() => {}
            (At::Open, '{') => self.at = At::Key,
            (At::Key, '"') => {
                let mut scanner = Scanner::default();
                scanner.feed(c);
                self.key = c.into();
                self.at = At::InKey(scanner);
            }
            (At::Colon, ':') => self.at = At::Value,
            (At::Value, c) if !"}],:".contains(c) => {
                let mut scanner = Scanner::default();
                // A value does not end with its first character.
                scanner.feed(c);
                self.value = c.into();
                self.quoted = c == '"';
                self.at = At::InValue(scanner);
                self.give(out);
            }
            (At::Comma, ',') => self.at = At::Key,
            (At::Comma | At::Key, '}') => {
                self.ends(out)?;
                return Some(false);
            }
            _ => return None,
        }
        Some(true)
    }

    fn is_arguments(&self) -> bool {
        matches!(&*self.key, "arguments" | "parameters")
    }

    /// Gives out arguments while they come, once the call is certain.
    fn give(&mut self, out: &mut Vec<Piece>) {
        // Arguments may also be a text that is JSON, which is unpacked as a whole.
        if self.named && self.is_arguments() && !self.quoted {
            self.argued = true;
            emit(out, Piece::Arguments(std::mem::take(&mut self.value)));
        }
    }

    fn value_ends(&mut self, tools: &Tools, out: &mut Vec<Piece>) -> Option<()> {
        let value = std::mem::take(&mut self.value);
        if self.key == "name" && !self.named {
            let name: String = serde_json::from_str(&value).ok()?;
            if name.is_empty() || !self.any && !tools.has(&name) {
                return None;
            }
            self.named = true;
            out.push(Piece::Call { name });
            if let Some(early) = self.early.take() {
                self.argued = true;
                emit(out, Piece::Arguments(early));
            }
        } else if self.is_arguments() && !value.is_empty() {
            let value = serde_json::from_str::<String>(&value).unwrap_or(value);
            if self.named {
                self.argued = true;
                emit(out, Piece::Arguments(value));
            } else {
                self.early = Some(value);
            }
        }
        Some(())
    }

    fn ends(&mut self, out: &mut Vec<Piece>) -> Option<()> {
        if !self.named {
            return None;
        }
        if !std::mem::replace(&mut self.argued, true) {
            emit(out, Piece::Arguments("{}".into()));
        }
        Some(())
    }
}
