//! `str` and `repr` of values.

use std::borrow::Cow;

use crate::meter::{Builder, Meter, Result, VALUE_DEPTH, fail};
use crate::number;
use crate::objects::Function;
use crate::value::{ListKind, Missing, Value};

/// Message for the use of an undefined value.
pub(crate) fn undefined(missing: &Missing) -> String {
    let Missing { owner, name } = missing;
    match *owner {
        "" => format!("'{name}' is undefined"),
        "#" => format!("{name}"),
        "None" => format!("'None' has no attribute '{name}'"),
        owner => format!("'{owner} object' has no attribute '{name}'"),
    }
}

/// `str(value)`.
pub(crate) fn text<'v>(meter: &Meter<'_>, value: &'v Value) -> Result<Cow<'v, str>> {
    Ok(match value {
        Value::Undefined(_) => "".into(),
        Value::Text(text) => text.text.as_str().into(),
        other => {
            let mut out = meter.builder();
            repr(&mut out, other, 0)?;
            out.into_text().into()
        }
    })
}

/// Appends `repr(value)`.
pub(crate) fn repr(out: &mut Builder<'_>, value: &Value, depth: usize) -> Result<()> {
    if depth > VALUE_DEPTH {
        return fail("a value is nested too deeply");
    }
    match value {
        Value::Undefined(_) => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(on) => out.push(if *on { "True" } else { "False" }),
        Value::Int(number) => out.push(&number.to_string()),
        Value::Float(number) => out.push(&number::float(*number)),
        Value::Text(text) => repr_text(out, &text.text),
        Value::List(list) => {
            let (open, close) = match list.kind {
                ListKind::List => ("[".to_owned(), "]"),
                ListKind::Tuple if list.items.len() == 1 => ("(".to_owned(), ",)"),
                ListKind::Tuple => ("(".to_owned(), ")"),
                ListKind::View(name) => (format!("{name}(["), "])"),
            };
            out.push(&open)?;
            for (at, item) in list.items.iter().enumerate() {
                if at > 0 {
                    out.push(", ")?;
                }
                repr(out, item, depth + 1)?;
            }
            out.push(close)
        }
        Value::Dict(dict) => {
            out.push("{")?;
            for (at, (key, item)) in dict.pairs.iter().enumerate() {
                if at > 0 {
                    out.push(", ")?;
                }
                repr(out, key, depth + 1)?;
                out.push(": ")?;
                repr(out, item, depth + 1)?;
            }
            out.push("}")
        }
        Value::Object(_) => out.push("<Namespace>"),
        Value::Loop(state) => {
            out.push(&format!("<LoopContext {}/{}>", state.index + 1, state.length))
        }
        Value::Function(function) => match &**function {
            Function::Macro(value) => out.push(&format!("<Macro '{}'>", value.definition.name)),
            Function::Method { name, .. } => out.push(&format!("<built-in method {name}>")),
            Function::Global(name) => out.push(&format!("<function {name}>")),
        },
    }
}

fn repr_text(out: &mut Builder<'_>, text: &str) -> Result<()> {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for c in text.chars() {
        match c {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c == quote => quoted.extend(['\\', c]),
            ' '..='~' => quoted.push(c),
            c if is_printable(c) => quoted.push(c),
            c => match u32::from(c) {
                code @ 0..=0xff => quoted.push_str(&format!("\\x{code:02x}")),
                code @ 0x100..=0xffff => quoted.push_str(&format!("\\u{code:04x}")),
                code => quoted.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    quoted.push(quote);
    out.push(&quoted)
}

/// Python's `str.isprintable` of a character.
pub(crate) fn is_printable(c: char) -> bool {
    // The letter before it makes a combining character printable, as it is for Python.
    let pair: String = ['a', c].iter().collect();
    c == ' '
        || c == '\\'
        || !c.is_whitespace() && !pair.escape_debug().skip(1).collect::<String>().starts_with('\\')
}
