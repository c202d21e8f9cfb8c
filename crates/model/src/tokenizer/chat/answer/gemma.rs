//! Gemma's calls: `call:name{key:value, ..}`, with marks in place of quotes.

use serde_json::{Map, Value as Json};

use super::format::Calls;
use super::piece::{Piece, Read};

/// Deepest nesting of values.
const DEPTH: usize = 64;

/// Reader of a call. It emits the arguments when the call is complete.
#[derive(Debug)]
pub(super) struct Gemma {
    quote: &'static str,
    close: &'static str,
    /// Part of the call that does not contain its end.
    text: String,
}

impl Gemma {
    pub(super) fn new(calls: Calls) -> Self {
        let close = calls.ends().first().copied().unwrap_or_default();
        Self { quote: calls.quote(), close, text: String::new() }
    }

    pub(super) fn read(&mut self, text: &str, out: &mut Vec<Piece>) -> Read {
        let from = self.text.len();
        self.text.push_str(text);
        // The mark may have begun in the text before.
        let mut search = from.saturating_sub(self.close.len());
        while !self.text.is_char_boundary(search) {
            search -= 1;
        }
        let Some(end) = self.text[search..].find(self.close).map(|at| search + at) else {
            return Read::More(text.len());
        };
        let call = self.text[..end].trim();
        let parsed = call.strip_prefix("call:").and_then(|call| {
            let (name, _) = call.split_once('{')?;
            let mut values = Values { text: &call[name.len()..], quote: self.quote };
            let arguments = values.object(0)?;
            (!name.trim().is_empty() && values.text.trim().is_empty())
                .then(|| (name.trim().to_owned(), arguments))
        });
        let Some((name, arguments)) = parsed else { return Read::Broken(text.len()) };
        out.push(Piece::Call { name });
        out.push(Piece::Arguments(Json::Object(arguments).to_string()));
        Read::Done((end + self.close.len()).saturating_sub(from))
    }
}

struct Values<'a> {
    text: &'a str,
    quote: &'static str,
}

impl<'a> Values<'a> {
    fn take(&mut self, mark: &str) -> Option<()> {
        self.text = self.text.trim_start().strip_prefix(mark)?;
        Some(())
    }

    fn quoted(&mut self) -> Option<&'a str> {
        self.take(self.quote)?;
        let (text, rest) = self.text.split_once(self.quote)?;
        self.text = rest;
        Some(text)
    }

    fn bare(&mut self, ends: &[char]) -> Option<&'a str> {
        let end = self.text.find(ends)?;
        let bare = self.text[..end].trim();
        self.text = &self.text[end..];
        Some(bare)
    }

    fn object(&mut self, depth: usize) -> Option<Map<String, Json>> {
        self.take("{")?;
        let mut map = Map::new();
        while self.take("}").is_none() {
            let key = self.quoted().or_else(|| self.bare(&[':', '}']))?;
            self.take(":")?;
            map.insert(key.to_owned(), self.value(depth)?);
            if self.take(",").is_none() && !self.text.trim_start().starts_with('}') {
                return None;
            }
        }
        Some(map)
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > DEPTH {
            return None;
        }
        if let Some(text) = self.quoted() {
            return Some(text.into());
        }
        if self.text.trim_start().starts_with('{') {
            return self.object(depth + 1).map(Json::Object);
        }
        if self.take("[").is_some() {
            let mut list = Vec::new();
            while self.take("]").is_none() {
                list.push(self.value(depth + 1)?);
                if self.take(",").is_none() && !self.text.trim_start().starts_with(']') {
                    return None;
                }
            }
            return Some(Json::Array(list));
        }
        let bare = self.bare(&[',', '}', ']'])?;
        (!bare.is_empty()).then(|| serde_json::from_str(bare).unwrap_or_else(|_| bare.into()))
    }
}
