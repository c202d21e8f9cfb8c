//! Numbers as Python prints and reads them.

use crate::value::Value;

/// `repr` of a float.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{number:?}")
}

/// Reads an integer, as `int(text, base)`.
pub(crate) fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    let valid = digits.starts_with(|c: char| c.is_digit(base))
        && !digits.ends_with('_')
        && !digits.contains("__");
    if !valid {
        return None;
    }
    i128::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), base).ok()
}

/// Reads a float, as `float(text)`.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim().to_ascii_lowercase();
    let body = text.trim_start_matches(['+', '-']);
    let is_word = ["inf", "infinity", "nan"].contains(&body);
    let is_number = body.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if !is_word && !is_number || text.len() > body.len() + 1 {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// A float without its fraction, as an integer.
#[expect(
    clippy::cast_possible_truncation,
    reason = "Python's integers have no limit; these saturate"
)]
pub(crate) const fn truncate(number: f64) -> i128 {
    number.trunc() as i128
}

/// `round(number, digits)`: half to even in the decimal notation of the exact value.
pub(crate) fn round(number: f64, digits: i32) -> f64 {
    if !number.is_finite() || digits > 300 {
        return number;
    }
    if let Ok(places) = usize::try_from(digits) {
        // Formatting rounds the exact binary value, ties to even.
        return format!("{number:.places$}").parse().unwrap_or(number);
    }
    let scale = 10f64.powi(-digits);
    (number / scale).round_ties_even() * scale
}

/// The integer or float that arithmetic of two operands uses.
pub(crate) enum Pair {
    Ints(i128, i128),
    Floats(f64, f64),
}

pub(crate) fn pair(a: &Value, b: &Value) -> Option<Pair> {
    match (a.as_int(), b.as_int()) {
        (Some(a), Some(b)) => Some(Pair::Ints(a, b)),
        _ => Some(Pair::Floats(a.as_float()?, b.as_float()?)),
    }
}
