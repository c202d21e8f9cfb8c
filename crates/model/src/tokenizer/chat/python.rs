//! Python functions that chat templates use: string methods, `tojson` with the format of `json.dumps`,
//! `raise_exception`, `strftime_now`.

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

/// Deepest nesting of values in `tojson`.
const JSON_DEPTH: usize = 64;

/// Adds everything but the clock to `environment`.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: &str| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("the template refuses: {message}")))
    });
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
#[expect(clippy::needless_pass_by_value, reason = "the engine passes arguments by value")]
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

/// Writes the items of a list, or those of an object, with keys.
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
    // JSON's rules equal Python's without `ensure_ascii`.
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// `now` (UTC) in the notation of C's `strftime`, in its POSIX locale.
pub(super) fn strftime(format: &str, now: Timestamp) -> Result<String, Error> {
    let posix = Config::new().custom(PosixCustom::new());
    BrokenDownTime::from(&now.to_zoned(TimeZone::UTC))
        .to_string_with_config(&posix, format)
        .map_err(|e| failure(format!("strftime_now: {e}")))
}

fn failure(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str) -> String {
        let mut environment = Environment::new();
        install(&mut environment);
        environment.render_str(source, ()).unwrap()
    }

    #[test]
    fn json_has_the_format_of_python() {
        // Each right-hand side is the output of Python's json.dumps(..., ensure_ascii=False).
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
    fn string_methods_match_python() {
        assert_eq!(render("{{ ' a b '.strip() ~ '|' ~ 'a-b'.split('-')[1] }}"), "a b|b");
        assert_eq!(render("{{ 'x</t>\n\ny'.split('</t>')[-1].lstrip('\n') }}"), "y");
        assert_eq!(render("{{ 'abc'.startswith('ab') and not 'abc'.endswith('b') }}"), "True");
    }

    #[test]
    fn dates_match_date_dash_u() {
        // From `LC_ALL=C date -u -d @SECONDS +FORMAT`.
        const FULL: &str = "%A %d %B %Y %j %H:%M:%S %I%p";
        const SHORT: &str = "%a %e %b %y, %m %F %T %Z %%";
        for (seconds, format, expected) in [
            (0, FULL, "Thursday 01 January 1970 001 00:00:00 12AM"),
            (0, SHORT, "Thu  1 Jan 70, 01 1970-01-01 00:00:00 UTC %"),
            (951_782_399, SHORT, "Mon 28 Feb 00, 02 2000-02-28 23:59:59 UTC %"),
            (951_782_400, FULL, "Tuesday 29 February 2000 060 00:00:00 12AM"),
            (1_709_164_800, "%d %b %Y, %a %e %%", "29 Feb 2024, Thu 29 %"),
            (1_735_646_399, FULL, "Tuesday 31 December 2024 366 11:59:59 11AM"),
            (1_735_689_599, SHORT, "Tue 31 Dec 24, 12 2024-12-31 23:59:59 UTC %"),
            (
                1_735_646_400,
                "%c | %x | %X | %r",
                "Tue Dec 31 12:00:00 2024 | 12/31/24 | 12:00:00 | 12:00:00 PM",
            ),
            (1_735_646_400, "%-d.%-m., %I %p", "31.12., 12 PM"),
            (4_107_542_400, FULL, "Monday 01 March 2100 060 00:00:00 12AM"),
        ] {
            let now = Timestamp::from_second(seconds).unwrap();
            assert_eq!(strftime(format, now).unwrap(), expected);
        }
        assert!(strftime("%!", Timestamp::UNIX_EPOCH).is_err());
        assert!(strftime("%", Timestamp::UNIX_EPOCH).is_err());
    }
}
