//! Text formatting shared by commands: numbers, times, tables, JSON.

use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use super::error::Error;
use super::wrap;
use errors::printable;

pub(super) use super::wrap::columns;

/// Formats bytes with factor 1024: `604.2 MiB`.
pub(super) fn bytes(count: u64) -> String {
    in_units(count, 1024.0, 1, [" B", " KiB", " MiB", " GiB", " TiB"])
}

/// Formats a count of parameters or operations with factor 1000: `1.24 G`.
pub(super) fn count(count: u64) -> String {
    in_units(count, 1000.0, 2, ["", " k", " M", " G", " T"])
}

fn in_units(count: u64, step: f64, digits: usize, units: [&str; 5]) -> String {
    let (mut value, mut unit) = (count as f64, 0);
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { digits };
    format!("{value:.digits$}{}", units[unit])
}

/// Formats a duration: `3 d 4 h`, `5 min 6 s`, `7.8 s`.
pub(super) fn duration(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..86400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86400, s % 86400 / 3600),
    }
}

/// Formats a short time in nanoseconds with three digits: `12.3 us`, `1.23 ms`.
pub(super) fn short_time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "us"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Prints text, with control characters escaped.
pub(super) fn print(text: &str) -> Result<(), Error> {
    painted(&printable::page(text))
}

/// Prints text with colours. The caller has escaped what it contains from elsewhere.
pub(super) fn painted(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Aligns columns with names in the first row. A table wider than the terminal becomes a list for
/// each row.
pub(super) fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let table = columns(rows, right);
    match wrap::width() {
        Some(width) if table.lines().any(|line| line.chars().count() > width) => {
            wrap::lists(rows, width)
        }
        _ => table,
    }
}

/// Prints text for people, wrapped to the terminal.
pub(super) fn page(text: &str) -> Result<(), Error> {
    painted_page(&printable::page(text))
}

/// As [`page`], with colours. The caller has escaped what it contains from elsewhere.
pub(super) fn painted_page(text: &str) -> Result<(), Error> {
    painted(&wrap::page(text, wrap::width()))
}

/// Prints a document as indented JSON.
pub(super) fn json<T: Serialize>(document: &T) -> Result<(), Error> {
    json_text(&(serde_json::to_string_pretty(document).map_err(io::Error::from)? + "\n"))
}

/// Prints a document that is JSON already.
pub(super) fn json_text(document: &str) -> Result<(), Error> {
    painted(&printable::json(document))
}

/// Prints a document as indented JSON or as text.
pub(super) fn show<T: Serialize>(
    document: &T,
    json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Error> {
    if json { self::json(document) } else { page(&text(document)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(633_495_552), "604.1 MiB");
        assert_eq!(count(596_049_920), "596.05 M");
        assert_eq!(count(999), "999");
        assert_eq!(duration(Duration::from_millis(7800)), "7.8 s");
        assert_eq!(short_time(1.5), "1.50 ns");
        assert_eq!(short_time(12_345.0), "12.3 us");
        assert_eq!(short_time(123_456_789.0), "123 ms");
        assert_eq!(duration(Duration::from_secs(3 * 86400 + 4 * 3600)), "3 d 4 h");
    }

    #[test]
    fn columns_align_without_trailing_spaces() {
        let rows = [
            vec!["a".into(), "1".into(), String::new()],
            vec!["long".into(), "100".into(), "x".into()],
        ];
        assert_eq!(columns(&rows, &[1]), "a       1\nlong  100  x\n");
    }
}
