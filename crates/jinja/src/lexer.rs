//! Splits a template into text and tokens, with Jinja's control of white space: `trim_blocks`, `lstrip_blocks`, and
//! without the newline at the end.

use crate::escapes;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// Text between tags.
    Data(String),
    BlockBegin,
    BlockEnd,
    VariableBegin,
    VariableEnd,
    Name(String),
    Text(String),
    Int(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

impl Token {
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Data(_) => "text".into(),
            Self::BlockBegin => "`{%`".into(),
            Self::BlockEnd => "end of statement block".into(),
            Self::VariableBegin => "`{{`".into(),
            Self::VariableEnd => "end of print statement".into(),
            Self::Name(name) => format!("`{name}`"),
            Self::Text(_) => "a string".into(),
            Self::Int(_) | Self::Float(_) => "a number".into(),
            Self::Operator(operator) => format!("`{operator}`"),
            Self::End => "the end of the template".into(),
        }
    }
}

/// A line and a message.
pub(crate) type SyntaxError = (usize, String);

/// Longer operators precede their prefixes.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

/// Tokens with their lines.
pub(crate) fn tokens(source: &str) -> Result<Vec<(usize, Token)>, SyntaxError> {
    let mut normal = source.replace("\r\n", "\n").replace('\r', "\n");
    if normal.ends_with('\n') {
        normal.pop();
    }
    let mut lexer =
        Lexer { source: &normal, at: 0, line: 1, starts_line: true, tokens: Vec::new() };
    lexer.run()?;
    lexer.push(Token::End);
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    /// True if the text at the position begins a line.
    starts_line: bool,
    tokens: Vec<(usize, Token)>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((self.line, token));
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, SyntaxError> {
        Err((self.line, message.into()))
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.rest()[..bytes];
        self.line += passed.bytes().filter(|b| *b == b'\n').count();
        self.at += bytes;
    }

    fn run(&mut self) -> Result<(), SyntaxError> {
        while self.at < self.source.len() {
            let rest = self.rest();
            let Some(open) = tag(rest) else {
                self.data(rest, "", false);
                self.advance(rest.len());
                return Ok(());
            };
            let kind = &rest[open..open + 2];
            let sign = sign(&rest[open + 2..]);
            self.data(&rest[..open], sign, kind != "{{");
            self.advance(open + 2 + sign.len());
            match kind {
                "{#" => self.comment()?,
                "{{" => {
                    self.push(Token::VariableBegin);
                    self.code("}}")?;
                }
                _ => match self.raw_begin() {
                    Some(bytes) => {
                        self.advance(bytes);
                        self.raw()?;
                    }
                    None => {
                        self.push(Token::BlockBegin);
                        self.code("%}")?;
                    }
                },
            }
        }
        Ok(())
    }

    /// Emits text before a tag with a sign; `strips` if white space before it on its line is dropped.
    fn data(&mut self, text: &str, sign: &str, strips: bool) {
        let mut kept = text;
        if sign == "-" {
            kept = text.trim_end();
        } else if sign != "+" && strips {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            if (line > 0 || self.starts_line) && text[line..].trim().is_empty() {
                kept = &text[..line];
            }
        }
        if !kept.is_empty() {
            self.push(Token::Data(kept.to_owned()));
        }
    }

    /// Passes the end of a tag whose text ends at `length` bytes, with the white space that it drops.
    fn tag_end(&mut self, sign: &str, close: &str, trims: bool) {
        let mut bytes = sign.len() + close.len();
        let rest = self.rest();
        let after = &rest[bytes..];
        if sign == "-" {
            bytes += after.len() - after.trim_start().len();
        } else if sign != "+" && trims && after.starts_with('\n') {
            bytes += 1;
        }
        self.starts_line = rest[..bytes].ends_with('\n');
        self.advance(bytes);
    }

    fn comment(&mut self) -> Result<(), SyntaxError> {
        let Some(end) = self.rest().find("#}") else {
            return self.error("missing end of comment tag");
        };
        let text = &self.rest()[..end];
        let sign = if text.ends_with('-') {
            "-"
        } else if text.ends_with('+') {
            "+"
        } else {
            ""
        };
        self.advance(end - sign.len());
        self.tag_end(sign, "#}", true);
        Ok(())
    }

    /// Length of the rest of a raw tag; white space after it is dropped only for `-`.
    fn raw_begin(&self) -> Option<usize> {
        let rest = self.rest();
        let after = rest.trim_start().strip_prefix("raw")?.trim_start();
        let end = match after.strip_prefix("-%}") {
            Some(after) => after.trim_start(),
            None => after.strip_prefix("%}")?,
        };
        Some(rest.len() - end.len())
    }

    fn raw(&mut self) -> Result<(), SyntaxError> {
        self.starts_line = false;
        let mut from = 0;
        let rest = self.rest();
        while let Some(at) = rest[from..].find("{%").map(|at| from + at) {
            let sign = sign(&rest[at + 2..]);
            let name = rest[at + 2 + sign.len()..].trim_start();
            if let Some(after) = name.strip_prefix("endraw") {
                let after = after.trim_start();
                let end = if after.starts_with(['-', '+']) { &after[..1] } else { "" };
                if after[end.len()..].starts_with("%}") {
                    self.data(&rest[..at], sign, true);
                    self.advance(rest.len() - after.len());
                    self.tag_end(end, "%}", true);
                    return Ok(());
                }
            }
            from = at + 2;
        }
        self.error("missing end of raw directive")
    }

    /// Emits the tokens of a tag up to its end.
    fn code(&mut self, close: &str) -> Result<(), SyntaxError> {
        let mut open = Vec::new();
        loop {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start().len();
            self.advance(space);
            let rest = self.rest();
            if open.is_empty() {
                let sign = match rest.as_bytes().first() {
                    Some(b'-') => "-",
                    Some(b'+') if close == "%}" => "+",
                    _ => "",
                };
                if rest[sign.len()..].starts_with(close) {
                    let end = if close == "}}" { Token::VariableEnd } else { Token::BlockEnd };
                    self.push(end);
                    self.tag_end(sign, close, close == "%}");
                    return Ok(());
                }
            }
            let Some(first) = rest.chars().next() else {
                return self.error("unexpected end of template");
            };
            let bytes = if first == '"' || first == '\'' {
                self.string(rest, first)?
            } else if first.is_ascii_digit() {
                self.number(rest)?
            } else if first.is_alphabetic() || first == '_' {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let name = &rest[..end.unwrap_or(rest.len())];
                self.push(Token::Name(name.to_owned()));
                name.len()
            } else {
                self.operator(rest, first, &mut open)?
            };
            self.advance(bytes);
        }
    }

    fn operator(
        &mut self,
        rest: &str,
        first: char,
        open: &mut Vec<char>,
    ) -> Result<usize, SyntaxError> {
        let Some(operator) = OPERATORS.iter().find(|operator| rest.starts_with(**operator)) else {
            return self.error(format!("unexpected char {first:?}"));
        };
        match first {
            '(' => open.push(')'),
            '[' => open.push(']'),
            '{' => open.push('}'),
            ')' | ']' | '}' if open.pop() != Some(first) => {
                return self.error(format!("unexpected `{first}`"));
            }
            _ => {}
        }
        self.push(Token::Operator(operator));
        Ok(operator.len())
    }

    fn string(&mut self, rest: &str, quote: char) -> Result<usize, SyntaxError> {
        let mut escaped = false;
        for (at, c) in rest.char_indices().skip(1) {
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == quote {
                let text = escapes::decode(&rest[1..at]).map_err(|why| (self.line, why))?;
                self.push(Token::Text(text));
                return Ok(at + 1);
            }
        }
        self.error("unexpected char: a string without end")
    }

    fn number(&mut self, rest: &str) -> Result<usize, SyntaxError> {
        let radix = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0b") => 2,
            Some("0o") => 8,
            Some("0x") => 16,
            _ => 10,
        };
        if radix != 10 {
            let end = rest[2..].find(|c: char| !c.is_digit(radix) && c != '_');
            let end = end.map_or(rest.len(), |end| end + 2);
            let number = i128::from_str_radix(&rest[2..end].replace('_', ""), radix);
            let Ok(number) = number else { return self.error("invalid number") };
            self.push(Token::Int(number));
            return Ok(end);
        }
        let digits =
            |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let whole = digits(rest);
        let mut end = whole;
        if rest[end..].starts_with('.') && rest[end + 1..].starts_with(|c: char| c.is_ascii_digit())
        {
            end += 1 + digits(&rest[end + 1..]);
        }
        if rest[end..].starts_with(['e', 'E']) {
            let sign = usize::from(rest[end + 1..].starts_with(['+', '-']));
            let exponent = digits(&rest[end + 1 + sign..]);
            if exponent > 0 {
                end += 1 + sign + exponent;
            }
        }
        let text = rest[..end].replace('_', "");
        let token = if end == whole {
            text.parse().ok().map(Token::Int)
        } else {
            text.parse().ok().map(Token::Float)
        };
        let Some(token) = token else { return self.error("the number is too large") };
        self.push(token);
        Ok(end)
    }
}

/// Position of the next tag.
fn tag(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find('{')?;
        if text[at + 1..].starts_with(['{', '%', '#']) {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Sign after the beginning of a tag.
fn sign(text: &str) -> &str {
    if text.starts_with(['-', '+']) { &text[..1] } else { "" }
}
