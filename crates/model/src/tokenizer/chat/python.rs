//! What chat templates expect of the Python around their Jinja: string methods, `tojson` as
//! `json.dumps` writes it, `raise_exception`, `strftime_now`.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

/// Nesting of values that `tojson` follows.
const JSON_DEPTH: usize = 64;

/// Adds everything here but the clock to `environment`.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: &str| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("the template refuses: {message}")))
    });
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
#[expect(clippy::needless_pass_by_value, reason = "the engine hands arguments over by value")]
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if ensure_ascii == Some(true) {
        return Err(failure("tojson(ensure_ascii=true) is not supported"));
    }
    let mut out = String::new();
    write_json(value, indent, 0, &mut out)?;
    Ok(Value::from(out))
}

fn write_json(
    value: &Value,
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if depth > JSON_DEPTH {
        return Err(failure("tojson: the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&value.to_string()),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.map(|item| (None, item));
            write_items(['[', ']'], items, indent, depth, out)?;
        }
        ValueKind::Map => {
            let items = value.try_iter()?.map(|key| {
                let item = value.get_item(&key).unwrap_or_default();
                (Some(key), item)
            });
            write_items(['{', '}'], items, indent, depth, out)?;
        }
        _ => write_string(&value.to_string(), out),
    }
    Ok(())
}

/// The items of a list, or with keys of an object.
fn write_items(
    [open, close]: [char; 2],
    items: impl Iterator<Item = (Option<Value>, Value)>,
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth).min(1024)));
        }
    };
    out.push(open);
    let mut empty = true;
    for (key, item) in items {
        if !empty {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        empty = false;
        new_line(depth + 1, out);
        if let Some(key) = key {
            write_string(&key.to_string(), out);
            out.push_str(": ");
        }
        write_json(&item, indent, depth + 1, out)?;
    }
    if !empty {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

fn write_string(text: &str, out: &mut String) {
    // JSON's own rules; the same as Python's without `ensure_ascii`.
    out.push_str(&serde_json::Value::from(text).to_string());
}

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [(&str, u64); 12] = [
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
];

/// `now` (UTC) in the notation of C's `strftime`, the part of it that templates use.
pub(super) fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970u64, days);
    let leap = |year: u64| {
        u64::from(year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while day >= 365 + leap(year) {
        day -= 365 + leap(year);
        year += 1;
    }
    let day_of_year = day + 1;
    let mut month = 0;
    for (index, (_, length)) in MONTHS.iter().enumerate() {
        let length = length + if index == 1 { leap(year) } else { 0 };
        month = index;
        if day < length {
            break;
        }
        day -= length;
    }
    let (month_name, month, day) = (MONTHS[month].0, month + 1, day + 1);
    // 1970 began on a Thursday.
    let day_name = DAYS[((days + 4) % 7) as usize];
    let (hour, minute, second) =
        (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);

    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let directive = rest.next();
        let written = match directive {
            Some('Y') => write!(out, "{year:04}"),
            Some('y') => write!(out, "{:02}", year % 100),
            Some('m') => write!(out, "{month:02}"),
            Some('B') => write!(out, "{month_name}"),
            Some('b') => write!(out, "{}", &month_name[..3]),
            Some('d') => write!(out, "{day:02}"),
            Some('e') => write!(out, "{day:2}"),
            Some('j') => write!(out, "{day_of_year:03}"),
            Some('A') => write!(out, "{day_name}"),
            Some('a') => write!(out, "{}", &day_name[..3]),
            Some('H') => write!(out, "{hour:02}"),
            Some('I') => write!(out, "{:02}", (hour + 11) % 12 + 1),
            Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            Some('M') => write!(out, "{minute:02}"),
            Some('S') => write!(out, "{second:02}"),
            Some('F') => write!(out, "{year:04}-{month:02}-{day:02}"),
            Some('T') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => write!(out, "UTC"),
            Some('%') => write!(out, "%"),
            _ => {
                let directive = directive.map(String::from).unwrap_or_default();
                return Err(failure(format!("strftime_now: `%{directive}` is not supported")));
            }
        };
        written.map_err(|e| failure(format!("strftime_now: {e}")))?;
    }
    Ok(out)
}

fn failure(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn render(source: &str) -> String {
        let mut environment = Environment::new();
        install(&mut environment);
        environment.render_str(source, ()).unwrap()
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        // Each right-hand side is what Python's json.dumps(..., ensure_ascii=False) prints.
        assert_eq!(
            render("{{ {'a': [1, 2.5, true, none], 'b': {}} | tojson }}"),
            r#"{"a": [1, 2.5, true, null], "b": {}}"#
        );
        assert_eq!(render(r#"{{ "<a> 'q' \"é\"\n" | tojson }}"#), r#""<a> 'q' \"é\"\n""#);
        assert_eq!(
            render("{{ {'a': [1, 2], 'b': []} | tojson(indent=2) }}"),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": []\n}"
        );
    }

    #[test]
    fn string_methods_are_pythons() {
        assert_eq!(render("{{ ' a b '.strip() ~ '|' ~ 'a-b'.split('-')[1] }}"), "a b|b");
        assert_eq!(render("{{ 'x</t>\n\ny'.split('</t>')[-1].lstrip('\n') }}"), "y");
        assert_eq!(render("{{ 'abc'.startswith('ab') and not 'abc'.endswith('b') }}"), "True");
    }

    #[test]
    fn dates_are_those_of_date_dash_u() {
        // From `date -u -d @SECONDS '+%A %d %B %Y %j %H:%M:%S %I%p'`.
        for (seconds, expected) in [
            (0, "Thursday 01 January 1970 001 00:00:00 12AM"),
            (951_782_400, "Tuesday 29 February 2000 060 00:00:00 12AM"),
            (1_735_646_399, "Tuesday 31 December 2024 366 11:59:59 11AM"),
            (4_107_542_400, "Monday 01 March 2100 060 00:00:00 12AM"),
        ] {
            let now = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(strftime("%A %d %B %Y %j %H:%M:%S %I%p", now).unwrap(), expected);
        }
        let now = UNIX_EPOCH + Duration::from_secs(1_709_164_800);
        assert_eq!(strftime("%d %b %Y, %a %e %%", now).unwrap(), "29 Feb 2024, Thu 29 %");
        assert!(strftime("%Q", now).is_err());
        assert!(strftime("%", now).is_err());
    }
}
