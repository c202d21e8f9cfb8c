//! Calls as tags: a function, and each of its parameters with an unquoted value.

use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::piece::{Piece, Read, Tools, emit};
use super::repair::repaired;

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";
const END_FUNCTION: &str = "</function>";
const END_CALL: &str = "</tool_call>";

/// Reader of a call. It emits parameters one by one.
#[derive(Debug, Default)]
pub(super) struct Xml {
    /// Name of the function, once known.
    name: Option<String>,
    parameters: usize,
    /// Bytes of the current value that contain no end.
    searched: usize,
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
            let Some(function) = self.name.clone() else {
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
                self.close(out);
                return Read::Done(if ends { begins + END_FUNCTION.len() } else { at });
            };
            let Some(length) = self.value(&text[after..], &function, tools) else {
                return Read::More(at);
            };
            self.emit(name, &text[after..after + length], tools, out);
            at = after + length + END_PARAMETER.len();
        }
    }

    /// Ends a call at the end of the answer; a value without its end extends to there.
    pub(super) fn finish(&mut self, text: &str, tools: &Tools, out: &mut Vec<Piece>) {
        let open = text.trim_start().strip_prefix(PARAMETER).and_then(|rest| rest.split_once('>'));
        if let Some((name, value)) = open {
            let mut value = value.trim_end();
            for end in [END_CALL, END_FUNCTION, END_PARAMETER] {
                value = value.strip_suffix(end).map_or(value, str::trim_end);
            }
            self.emit(name, value, tools, out);
        }
        self.close(out);
    }

    fn close(&self, out: &mut Vec<Piece>) {
        let close = if self.parameters == 0 { "{}" } else { "}" };
        emit(out, Piece::Arguments(close.into()));
    }

    fn emit(&mut self, name: &str, value: &str, tools: &Tools, out: &mut Vec<Piece>) {
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let open = if self.parameters == 0 { "{" } else { ", " };
        let function = self.name.as_deref().unwrap_or_default();
        let value = json(value, tools.argument(function, name));
        let pair = format!("{open}{}: {value}", Json::from(name));
        emit(out, Piece::Arguments(pair));
        self.parameters += 1;
        self.searched = 0;
    }

    /// Length of the value that `text` begins with; `None` if its end is not certain.
    fn value(&mut self, text: &str, function: &str, tools: &Tools) -> Option<usize> {
        loop {
            let at = self.searched + text.get(self.searched..)?.find(END_PARAMETER)?;
            let after = &text[at + END_PARAMETER.len()..];
            let own_line = !text.starts_with('\n') || text[..at].ends_with('\n');
            match ends(after, own_line, |name| tools.argument(function, name).is_some()) {
                Some(true) => return Some(at),
                Some(false) => self.searched = at + 1,
                None => return None,
            }
        }
    }
}

/// True if the text after `</parameter>` shows that the value has ended there; `None` if more text decides. The end
/// is on a line of its own, or else before a known parameter or the end of the whole call.
fn ends(after: &str, own_line: bool, known: impl Fn(&str) -> bool) -> Option<bool> {
    let next = after.trim_start();
    if let Some(rest) = next.strip_prefix(PARAMETER) {
        return if own_line {
            Some(true)
        } else {
            rest.split_once('>').map(|(name, _)| known(name))
        };
    }
    if let Some(rest) = next.strip_prefix(END_FUNCTION) {
        let rest = rest.trim_start();
        if own_line || rest.starts_with(END_CALL) {
            return Some(true);
        }
        return if END_CALL.starts_with(rest) { None } else { Some(false) };
    }
    let undecided = [PARAMETER, END_FUNCTION, END_CALL].iter().any(|mark| mark.starts_with(next));
    if undecided { None } else { Some(own_line && next.starts_with(END_CALL)) }
}

/// True if a longer `text` could begin with one of the marks.
fn may_begin(text: &str, marks: &[&str]) -> bool {
    marks.iter().any(|mark| {
        mark.starts_with(text) || text.strip_prefix(mark).is_some_and(|name| !name.contains('>'))
    })
}

/// JSON types that a schema names; empty if it names none.
fn types(schema: &Json) -> Vec<&str> {
    let mut all: Vec<&str> = match schema.get("type") {
        Some(Json::String(one)) => vec![one],
        Some(Json::Array(several)) => several.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    };
    for key in ["anyOf", "oneOf"] {
        let options = schema.get(key).and_then(Json::as_array);
        all.extend(
            options
                .into_iter()
                .flatten()
                .filter_map(|option| option.get("type").and_then(Json::as_str)),
        );
    }
    let choices = schema.get("enum").and_then(Json::as_array);
    if choices.is_some_and(|choices| choices.iter().any(Json::is_string)) {
        all.push("string");
    }
    all
}

/// A value as JSON: a text if the schema requires one or the value is not JSON itself.
pub(super) fn json(value: &str, schema: Option<&Json>) -> String {
    let types = schema.map(types).unwrap_or_default();
    let python = match value.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    };
    // Copies the JSON without reformatting it.
    let read = serde_json::from_str::<&RawValue>(python).ok().map(|raw| raw.get().to_owned());
    let is = |kind: &str| types.contains(&kind);
    let allowed = match read.as_deref().map(str::as_bytes) {
        Some([b'{', ..]) => is("object"),
        Some([b'[', ..]) => is("array"),
        Some([b'"', ..]) => false,
        Some([b't' | b'f', ..]) => is("boolean"),
        Some([b'n', ..]) => is("null"),
        Some(_) => is("number") || is("integer"),
        None => false,
    };
    match read {
        Some(read) if allowed || !is("string") => read,
        None if python.starts_with('{') && is("object")
            || python.starts_with('[') && is("array") =>
        {
            repaired(python)
        }
        _ => Json::from(value).to_string(),
    }
}
