//! The filter `tojson` as transformers defines it: `json.dumps` without escapes of HTML, in the order of insertion.

use std::borrow::Cow;
use std::fmt::Write;

use crate::args::{Args, truth};
use crate::meter::{Builder, Meter, Result, VALUE_DEPTH, fail};
use crate::number;
use crate::ops;
use crate::value::Value;

struct Style {
    ascii: bool,
    indent: Option<String>,
    between_items: String,
    after_key: String,
    sort: bool,
}

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)`.
pub(crate) fn dumps(meter: &Meter<'_>, value: &Value, args: Args) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort] = args.bind("tojson", names)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Text(text)) => Some(text.text.clone()),
        Some(number) => match number.as_int() {
            Some(spaces) => Some(" ".repeat(usize::try_from(spaces.clamp(0, 1024)).unwrap_or(0))),
            None => return fail("tojson: indent must be a number or a str"),
        },
    };
    let [between_items, after_key] = match separators {
        None | Some(Value::None) => {
            [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()]
        }
        Some(Value::List(list)) => match list.items.as_slice() {
            [Value::Text(item), Value::Text(key)] => [item.text.clone(), key.text.clone()],
            _ => return fail("tojson: separators must be two texts"),
        },
        Some(_) => return fail("tojson: separators must be two texts"),
    };
    let (ascii, sort) = (truth(ascii.as_ref(), false), truth(sort.as_ref(), false));
    let style = Style { ascii, indent, between_items, after_key, sort };
    let mut out = meter.builder();
    style.value(&mut out, value, 0)?;
    out.finish()
}

impl Style {
    fn value(&self, out: &mut Builder<'_>, value: &Value, depth: usize) -> Result<()> {
        if depth > VALUE_DEPTH {
            return fail("tojson: the value is nested too deeply");
        }
        match value {
            Value::None => out.push("null"),
            Value::Bool(on) => out.push(if *on { "true" } else { "false" }),
            Value::Int(number) => out.push(&number.to_string()),
            Value::Float(number) => out.push(&float(*number)),
            Value::Text(text) => out.push(&self.text(&text.text)),
            Value::List(list) => {
                out.push("[")?;
                for (at, item) in list.items.iter().enumerate() {
                    self.separate(out, at, depth)?;
                    self.value(out, item, depth + 1)?;
                }
                self.close(out, "]", list.items.is_empty(), depth)
            }
            Value::Dict(dict) => {
                out.push("{")?;
                let mut pairs: Vec<&(Value, Value)> = dict.pairs.iter().collect();
                if self.sort {
                    ops::sort(out.meter, &mut pairs, |a, b| ops::order(out.meter, &a.0, &b.0))?;
                }
                for (at, (key, item)) in pairs.into_iter().enumerate() {
                    self.separate(out, at, depth)?;
                    out.push(&self.text(&key_text(key)?))?;
                    out.push(&self.after_key)?;
                    self.value(out, item, depth + 1)?;
                }
                self.close(out, "}", dict.pairs.is_empty(), depth)
            }
            other => fail(format!("Object of type {} is not JSON serializable", other.type_name())),
        }
    }

    fn separate(&self, out: &mut Builder<'_>, at: usize, depth: usize) -> Result<()> {
        if at > 0 {
            out.push(&self.between_items)?;
        }
        self.line(out, depth + 1)
    }

    fn close(&self, out: &mut Builder<'_>, close: &str, empty: bool, depth: usize) -> Result<()> {
        if !empty {
            self.line(out, depth)?;
        }
        out.push(close)
    }

    fn line(&self, out: &mut Builder<'_>, depth: usize) -> Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        out.push("\n")?;
        out.repeat(indent, depth)
    }

    fn text(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 2);
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                c if c < ' ' || self.ascii && c > '~' => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
        out
    }
}

fn float(number: f64) -> String {
    match number::float(number).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        text => text.to_owned(),
    }
}

fn key_text(key: &Value) -> Result<Cow<'_, str>> {
    Ok(match key {
        Value::Text(text) => text.text.as_str().into(),
        Value::None => "null".into(),
        Value::Bool(on) => if *on { "true" } else { "false" }.into(),
        Value::Int(number) => number.to_string().into(),
        Value::Float(number) => float(*number).into(),
        other => return fail(format!("keys must be str, not {}", other.type_name())),
    })
}
