//! Calls as tags: a function, and each of its parameters with an unquoted value.

use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::piece::{Piece, Read, Tools, emit};

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
const END_FUNCTION: &str = "</function>";

/// Reader of a call. It emits parameters one by one.
#[derive(Debug, Default)]
pub(super) struct Xml {
    /// Name of the function, once known.
    name: Option<String>,
    parameters: usize,
}

impl Xml {
    pub(super) fn read(&mut self, text: &str, tools: &Tools, out: &mut Vec<Piece>) -> Read {
        let mut at = 0;
        loop {
            let rest = text[at..].trim_start();
            let begins = text.len() - rest.len();
            let tag = |open: &str| {
                let (name, after) = rest.strip_prefix(open)?.split_once('>')?;
                Some((name, text.len() - after.len()))
            };
            let Some(function) = &self.name else {
                match tag(FUNCTION) {
                    Some((name, after)) if !name.is_empty() && !name.contains(['<', '\n']) => {
                        out.push(Piece::Call { name: name.to_owned() });
                        self.name = Some(name.to_owned());
                        at = after;
                        continue;
                    }
                    None if may_begin(rest, &[FUNCTION]) => return Read::More(at),
                    _ => return Read::Broken(at),
                }
            };
            let Some((name, after)) = tag(PARAMETER) else {
                let ends = rest.starts_with(END_FUNCTION);
                if !ends && may_begin(rest, &[PARAMETER, END_FUNCTION]) {
                    return Read::More(at);
                }
                // The text so far is already a complete call.
                let close = if self.parameters == 0 { "{}" } else { "}" };
                emit(out, Piece::Arguments(close.into()));
                return Read::Done(if ends { begins + END_FUNCTION.len() } else { at });
            };
            let Some(length) = text[after..].find(END_PARAMETER) else { return Read::More(at) };
            let value = &text[after..after + length];
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let open = if self.parameters == 0 { "{" } else { ", " };
            let value = json(value, tools.argument(function, name));
            let pair = format!("{open}{}: {value}", Json::from(name));
            emit(out, Piece::Arguments(pair));
            self.parameters += 1;
            at = after + length + END_PARAMETER.len();
        }
    }
}

/// True if a longer `text` could begin with one of the marks.
fn may_begin(text: &str, marks: &[&str]) -> bool {
    marks.iter().any(|mark| {
        mark.starts_with(text) || text.strip_prefix(mark).is_some_and(|name| !name.contains('>'))
    })
}

/// A value as JSON: a string if the schema requires it or the value is not JSON itself.
fn json(value: &str, schema: Option<&Json>) -> String {
    let is_text = schema.is_some_and(|schema| schema.get("type").is_some_and(|t| t == "string"));
    let python = match value.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    };
    match serde_json::from_str::<&RawValue>(python) {
        // Copies the JSON without reformatting it.
        Ok(read) if !is_text => read.get().to_owned(),
        _ => Json::from(value).to_string(),
    }
}
