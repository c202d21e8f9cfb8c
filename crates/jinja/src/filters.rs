//! Filters of Jinja: dispatch, numbers, and defaults.

use crate::args::{Args, int, needed, truth};
use crate::json;
use crate::meter::{Result, fail};
use crate::methods;
use crate::number;
use crate::ops;
use crate::print;
use crate::run::Run;
use crate::value::Value;

const NAMES: [&str; 51] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
    "filesizeformat",
];

pub(crate) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

impl Run<'_> {
    pub(crate) fn filter(&mut self, name: &str, value: Value, args: Args) -> Result<Value> {
        let meter = self.meter;
        meter.work(1)?;
        match name {
            "tojson" => {
                ops::defined(&value)?;
                json::dumps(meter, &value, args)
            }
            "default" | "d" => {
                let [default, falsy] = args.bind(name, ["default_value", "boolean"])?;
                let replaced =
                    value.is_undefined() || truth(falsy.as_ref(), false) && !value.is_true();
                let empty = || Value::constant(String::new());
                Ok(if replaced { default.unwrap_or_else(empty) } else { value })
            }
            "length" | "count" => {
                args.none(name)?;
                let length = ops::length(meter, &value)?;
                Ok(Value::Int(i128::try_from(length).unwrap_or(i128::MAX)))
            }
            "string" => {
                args.none(name)?;
                match &value {
                    Value::Text(_) => Ok(value),
                    other => meter.text(print::text(meter, other)?.into_owned()),
                }
            }
            "safe" => Ok(value),
            "list" => {
                args.none(name)?;
                meter.list(ops::items(meter, &value)?)
            }
            "items" => match &value {
                Value::Undefined(_) => meter.list(Vec::new()),
                Value::Dict(_) => methods::call(meter, &value, "items", args),
                _ => fail("Can only get item pairs from a mapping."),
            },
            "attr" => {
                let [name] = args.bind(name, ["name"])?;
                let name = needed(name, "attr", "name")?;
                match (&value, name.as_str()) {
                    // The filter reads attributes, not items.
                    (Value::Dict(_), Some(name)) if !methods::exists(&value, name) => {
                        Ok(Value::missing("dict", name))
                    }
                    (value, Some(name)) => self.attribute(value, name),
                    _ => fail("attr needs a str"),
                }
            }
            "abs" | "int" | "float" | "round" | "filesizeformat" => numeric(&value, name, args),
            "pprint" => {
                let mut out = meter.builder();
                print::repr(&mut out, &value, 0)?;
                out.finish()
            }
            "first" | "last" | "reverse" | "join" | "sum" | "min" | "max" | "sort" | "unique"
            | "batch" | "slice" | "dictsort" | "groupby" | "map" | "select" | "reject"
            | "selectattr" | "rejectattr" => self.list_filter(name, &value, args),
            name if exists(name) => self.text_filter(name, &value, args),
            _ => fail(format!("No filter named '{name}'.")),
        }
    }
}

fn numeric(value: &Value, name: &str, args: Args) -> Result<Value> {
    match name {
        "abs" => {
            args.none(name)?;
            ops::defined(value)?;
            match (value.as_int().map(i128::checked_abs), value.as_float()) {
                (Some(Some(number)), _) => Ok(Value::Int(number)),
                (None, Some(number)) => Ok(Value::Float(number.abs())),
                _ => fail(format!("bad operand type for abs(): '{}'", value.type_name())),
            }
        }
        "int" => {
            let [default, base] = args.bind(name, ["default", "base"])?;
            let base = u32::try_from(int(base, 10)?).unwrap_or(10).clamp(2, 36);
            let number = match value {
                Value::Text(text) => number::parse_int(&text.text, base).or_else(|| {
                    number::parse_float(&text.text).filter(|f| f.is_finite()).map(number::truncate)
                }),
                Value::Float(number) if number.is_finite() => Some(number::truncate(*number)),
                other => other.as_int(),
            };
            Ok(number.map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
        }
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            let number = match value {
                Value::Text(text) => number::parse_float(&text.text),
                other => other.as_float(),
            };
            Ok(number.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        }
        "round" => {
            let [precision, method] = args.bind(name, ["precision", "method"])?;
            let digits = i32::try_from(int(precision, 0)?.clamp(-400, 400)).unwrap_or(0);
            let Some(float) = value.as_float() else { return fail("round needs a number") };
            let scale = 10f64.powi(digits);
            match method.as_ref().and_then(Value::as_str).unwrap_or("common") {
                // Python rounds an integer to an integer.
                "common" => match value.as_int() {
                    Some(number) if digits >= 0 => Ok(Value::Int(number)),
                    Some(_) => Ok(Value::Int(number::truncate(number::round(float, digits)))),
                    None => Ok(Value::Float(number::round(float, digits))),
                },
                "ceil" => Ok(Value::Float((float * scale).ceil() / scale)),
                "floor" => Ok(Value::Float((float * scale).floor() / scale)),
                _ => fail("method must be common, ceil or floor"),
            }
        }
        _ => {
            let [binary] = args.bind(name, ["binary"])?;
            let bytes = match value {
                Value::Text(text) => number::parse_float(&text.text),
                other => other.as_float(),
            };
            let Some(bytes) = bytes else { return fail("filesizeformat needs a number") };
            Ok(Value::constant(file_size(bytes, truth(binary.as_ref(), false))))
        }
    }
}

fn file_size(bytes: f64, binary: bool) -> String {
    let (base, units) = if binary {
        (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"])
    } else {
        (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"])
    };
    if bytes == 1.0 {
        return "1 Byte".into();
    }
    if bytes < base {
        return format!("{} Bytes", number::truncate(bytes));
    }
    let mut scaled = bytes / base;
    for (at, unit) in units.iter().enumerate() {
        if scaled < base || at + 1 == units.len() {
            return format!("{scaled:.1} {unit}");
        }
        scaled /= base;
    }
    String::new()
}
