//! Calls as JSON: an object with a name and arguments, parsed while it streams.

use super::piece::{Piece, Read, Tools, emit};
use super::repair::{Repair, repaired};

/// Finds the end of one JSON value. Its content is not checked, but emitted unchanged.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    depth: u32,
    begun: bool,
    in_string: bool,
    escaped: bool,
}

/// Position of a value's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Within,
    /// At this character.
    Here,
    /// Before this character.
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
            // After a number or a literal.
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
enum Position {
    #[default]
    Open,
    /// Before a key, or the end.
    Key,
    InKey(Scanner),
    Colon,
    /// Before a value.
    Value,
    InValue(Scanner),
    /// After a value.
    Comma,
}

/// Reader of an object.
#[derive(Debug)]
pub(super) struct JsonCall {
    /// True if a call may have any name, not only that of one of the request's tools.
    any: bool,
    at: Position,
    key: String,
    value: String,
    /// The value is a string.
    quoted: bool,
    named: bool,
    /// Arguments that precede the name.
    early: Option<String>,
    /// Arguments have been emitted.
    argued: bool,
    /// The arguments are complete; further ones are ignored.
    complete: bool,
    repair: Repair,
    /// Marks that end the call outside of texts.
    ends: &'static [&'static str],
}

impl JsonCall {
    /// An object that follows a mark, hence is a call.
    pub(super) fn any(ends: &'static [&'static str]) -> Self {
        Self {
            complete: false,
            repair: Repair::default(),
            ends,
            any: true,
            at: Position::Open,
            key: String::new(),
            value: String::new(),
            quoted: false,
            named: false,
            early: None,
            argued: false,
        }
    }

    /// An object that is a call if its name is that of one of the request's tools.
    pub(super) fn known() -> Self {
        Self { any: false, ..Self::any(&[]) }
    }

    pub(super) fn read(&mut self, text: &str, tools: &Tools, out: &mut Vec<Piece>) -> Read {
        let mut clean = String::new();
        for (at, c) in text.char_indices() {
            if matches!(self.at, Position::Open) && c != '{' {
                if c.is_whitespace() {
                    continue;
                }
                return Read::Broken(at);
            }
            if c == '<' && !self.repair.is_in_text() {
                let rest = &text[at..];
                if self.ends.iter().any(|mark| rest.starts_with(mark)) {
                    self.finish(tools, out);
                    return if self.named { Read::Done(at) } else { Read::Broken(at) };
                }
                if self.ends.iter().any(|mark| mark.starts_with(rest)) {
                    return Read::More(at);
                }
            }
            clean.clear();
            self.repair.feed(c, &mut clean);
            for clean in clean.chars() {
                match self.feed(clean, tools, out) {
                    Some(true) => {}
                    Some(false) => return Read::Done(at + c.len_utf8()),
                    None if self.named => return Read::Done(at),
                    None => return Read::Broken(at),
                }
            }
        }
        Read::More(text.len())
    }

    /// Completes an object that its writer did not.
    pub(super) fn finish(&mut self, tools: &Tools, out: &mut Vec<Piece>) {
        let mut clean = String::new();
        self.repair.finish(&mut clean);
        for c in clean.chars() {
            if self.feed(c, tools, out) != Some(true) {
                return;
            }
        }
    }

    /// True if the object continues, false if it ends; `None` if it is not a call.
    fn feed(&mut self, c: char, tools: &Tools, out: &mut Vec<Piece>) -> Option<bool> {
        match (&mut self.at, c) {
            (Position::InKey(scanner), _) => {
                self.key.push(c);
                if scanner.feed(c) == End::Here {
                    self.key = serde_json::from_str(&self.key).ok()?;
                    self.at = Position::Colon;
                }
            }
            (Position::InValue(scanner), _) => {
                let end = scanner.feed(c);
                if end != End::Before {
                    self.value.push(c);
                    self.stream(out);
                }
                if end != End::Within {
                    self.at = Position::Comma;
                    self.value_ends(tools, out)?;
                }
                if end == End::Before {
                    return self.feed(c, tools, out);
                }
            }
            (_, c) if c.is_whitespace() => {}
            (Position::Open, '{') => self.at = Position::Key,
            (Position::Key, '"') => {
                let mut scanner = Scanner::default();
                scanner.feed(c);
                self.key = c.into();
                self.at = Position::InKey(scanner);
            }
            (Position::Colon, ':') => self.at = Position::Value,
            (Position::Value, c) if !"}],:".contains(c) => {
                let mut scanner = Scanner::default();
                // No value ends with its first character.
                scanner.feed(c);
                self.value = c.into();
                self.quoted = c == '"';
                self.at = Position::InValue(scanner);
                self.stream(out);
            }
            (Position::Comma, ',') => self.at = Position::Key,
            (Position::Comma | Position::Key, '}') => {
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

    /// Emits arguments while they stream, once the call is certain.
    fn stream(&mut self, out: &mut Vec<Piece>) {
        // Arguments may also be a string with JSON, which is decoded when it is complete.
        if self.named && self.is_arguments() && !self.quoted && !self.complete {
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
        } else if self.is_arguments() && !self.complete {
            self.complete = true;
            let value = match serde_json::from_str::<String>(&value) {
                Ok(text) if text.trim().is_empty() => "{}".into(),
                Ok(text) if text.trim_start().starts_with('{') => repaired(text.trim()),
                _ => value,
            };
            if self.named {
                self.argued |= !value.is_empty();
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
