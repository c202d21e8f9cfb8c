//! Calls as Python writes them: `[name(key="value", ..), ..]`, as LFM2's models do.

use serde_json::{Map, Value as Json};

/// Deepest nesting of values.
const DEPTH: usize = 64;

/// Names and arguments of the calls, if the text is a list of them.
pub(super) fn calls(text: &str) -> Option<Vec<(String, Json)>> {
    let text = text.trim();
    if let Some(calls) = of_json(text) {
        return Some(calls);
    }
    let mut reader = Reader { text };
    let listed = reader.take("[").is_some();
    let mut calls = Vec::new();
    while !reader.text.is_empty() && !reader.text.starts_with(']') {
        calls.push(reader.call()?);
        if reader.take(",").is_none() {
            break;
        }
    }
    if listed {
        reader.take("]")?;
    }
    (reader.text.trim().is_empty() && !calls.is_empty()).then_some(calls)
}

/// Calls as JSON, which the same models also write.
fn of_json(text: &str) -> Option<Vec<(String, Json)>> {
    let list = match serde_json::from_str(text).ok()? {
        Json::Array(list) => list,
        one => vec![one],
    };
    let call = |call: &Json| {
        let arguments = call.get("arguments").or_else(|| call.get("parameters"));
        Some((
            call.get("name")?.as_str()?.to_owned(),
            arguments.cloned().unwrap_or_else(|| Map::new().into()),
        ))
    };
    list.iter().map(call).collect()
}

struct Reader<'a> {
    text: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, mark: &str) -> Option<()> {
        self.text = self.text.trim_start().strip_prefix(mark)?.trim_start();
        Some(())
    }

    fn name(&mut self) -> Option<&'a str> {
        let end = self.text.find(|c: char| !c.is_alphanumeric() && !"_-.".contains(c))?;
        let (name, rest) = self.text.split_at(end);
        self.text = rest;
        (!name.is_empty()).then_some(name)
    }

    fn call(&mut self) -> Option<(String, Json)> {
        let name = self.name()?.to_owned();
        self.take("(")?;
        let mut arguments = Map::new();
        while self.take(")").is_none() {
            let key = self.name()?.to_owned();
            self.take("=")?;
            arguments.insert(key, self.value(0)?);
            if self.take(",").is_none() && !self.text.trim_start().starts_with(')') {
                return None;
            }
        }
        Some((name, arguments.into()))
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > DEPTH {
            return None;
        }
        self.text = self.text.trim_start();
        match self.text.chars().next()? {
            quote @ ('"' | '\'') => self.string(quote).map(Json::from),
            '[' | '(' => {
                let close =
                    if self.take("[").is_some() { "]" } else { self.take("(").map(|()| ")")? };
                let mut list = Vec::new();
                while self.take(close).is_none() {
                    list.push(self.value(depth + 1)?);
                    if self.take(",").is_none() && !self.text.starts_with(close) {
                        return None;
                    }
                }
                Some(list.into())
            }
            '{' => {
                self.take("{")?;
                let mut map = Map::new();
                while self.take("}").is_none() {
                    let Json::String(key) = self.value(depth + 1)? else { return None };
                    self.take(":")?;
                    map.insert(key, self.value(depth + 1)?);
                    if self.take(",").is_none() && !self.text.starts_with('}') {
                        return None;
                    }
                }
                Some(map.into())
            }
            _ => {
                let end = self.text.find(|c: char| ",)]}: \n".contains(c))?;
                let (word, rest) = self.text.split_at(end);
                self.text = rest;
                match word {
                    "True" => Some(true.into()),
                    "False" => Some(false.into()),
                    "None" => Some(Json::Null),
                    word => serde_json::from_str(word).ok(),
                }
            }
        }
    }

    fn string(&mut self, quote: char) -> Option<String> {
        let mut out = String::new();
        let mut characters = self.text.char_indices().skip(1);
        while let Some((at, c)) = characters.next() {
            match c {
                c if c == quote => {
                    self.text = &self.text[at + 1..];
                    return Some(out);
                }
                '\\' => match characters.next()?.1 {
                    'n' => out.push('\n'),
                    't' => out.push('\t'),
                    'r' => out.push('\r'),
                    'u' => {
                        let digits: String = characters.by_ref().take(4).map(|(_, c)| c).collect();
                        out.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                    }
                    c @ ('\\' | '\'' | '"' | '\n') => out.push(c),
                    c => out.extend(['\\', c]),
                },
                c => out.push(c),
            }
        }
        None
    }
}
