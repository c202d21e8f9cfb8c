//! Tests of Jinja, the words after `is`, with the answers of Python.

use crate::args::Args;
use crate::ast::Comparison;
use crate::meter::{Result, fail};
use crate::ops;
use crate::run::Run;
use crate::value::{ListKind, Value};

const NAMES: [&str; 37] = [
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "in",
    "integer",
    "iterable",
    "lower",
    "mapping",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
    "eq",
    "equalto",
    "==",
    "ne",
    "!=",
    "gt",
    "greaterthan",
    ">",
    "ge",
    ">=",
    "lt",
    "lessthan",
    "le",
];

impl Run<'_> {
    pub(crate) fn test(&mut self, name: &str, value: &Value, args: Args) -> Result<bool> {
        let Args { positional, .. } = args;
        let other = || {
            positional.first().map_or_else(|| fail(format!("test `{name}` needs an argument")), Ok)
        };
        let compare = |how| ops::compare(self.meter, how, value, other()?);
        let integer = || match value.as_int() {
            Some(number) => Ok(number),
            None => {
                ops::defined(value)?;
                fail(format!("test `{name}` needs an integer, not {}", value.type_name()))
            }
        };
        Ok(match name {
            "boolean" => matches!(value, Value::Bool(_)),
            "callable" => matches!(value, Value::Function(_) | Value::Undefined(_)),
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "divisibleby" => {
                let Some(divisor) = other()?.as_int().filter(|d| *d != 0) else {
                    return fail("test `divisibleby` needs a number that is not 0");
                };
                integer()? % divisor == 0
            }
            "escaped" => false,
            "even" => integer()? % 2 == 0,
            "odd" => integer()? % 2 != 0,
            "false" => matches!(value, Value::Bool(false)),
            "true" => matches!(value, Value::Bool(true)),
            "none" => matches!(value, Value::None),
            "float" => matches!(value, Value::Float(_)),
            "integer" => matches!(value, Value::Int(_)),
            "number" => value.as_float().is_some(),
            "string" => matches!(value, Value::Text(_)),
            "mapping" => matches!(value, Value::Dict(_)),
            "iterable" => {
                matches!(
                    value,
                    Value::Text(_) | Value::List(_) | Value::Dict(_) | Value::Undefined(_)
                )
            }
            "sequence" => match value {
                Value::List(list) => !matches!(list.kind, ListKind::View(name) if name != "range"),
                Value::Text(_) | Value::Dict(_) | Value::Undefined(_) => true,
                _ => false,
            },
            "sameas" => same(value, other()?),
            "lower" | "upper" => {
                let text = crate::print::text(self.meter, value)?;
                let wrong =
                    |c: char| if name == "lower" { c.is_uppercase() } else { c.is_lowercase() };
                text.chars().any(|c| c.is_lowercase() || c.is_uppercase())
                    && !text.chars().any(wrong)
            }
            "filter" => value.as_str().is_some_and(crate::filters::exists),
            "test" => value.as_str().is_some_and(|name| NAMES.contains(&name)),
            "in" => compare(Comparison::In)?,
            "eq" | "equalto" | "==" => compare(Comparison::Equal)?,
            "ne" | "!=" => compare(Comparison::NotEqual)?,
            "gt" | "greaterthan" | ">" => compare(Comparison::Greater)?,
            "ge" | ">=" => compare(Comparison::GreaterEqual)?,
            "lt" | "lessthan" | "<" => compare(Comparison::Less)?,
            "le" | "<=" => compare(Comparison::LessEqual)?,
            _ => return fail(format!("No test named '{name}'.")),
        })
    }
}

/// Python's `is`, as far as values without identity have one.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => a.text == b.text,
        (Value::List(a), Value::List(b)) => std::sync::Arc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => std::sync::Arc::ptr_eq(a, b),
        (Value::Object(a), Value::Object(b)) => a == b,
        _ => false,
    }
}
