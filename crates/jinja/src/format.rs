//! Python's two notations of formats: `'%s' % value` and `'{}'.format(value)`.

use crate::args::Args;
use crate::meter::{Builder, Meter, Result, fail};
use crate::number;
use crate::ops;
use crate::print;
use crate::value::{ListKind, Value};

/// Widest field.
const WIDTH: usize = 10_000;

/// Fill, alignment, sign, width, precision and type of a field.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    width: usize,
    comma: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// `format % value`.
pub(crate) fn percent(meter: &Meter<'_>, format: &str, value: &Value) -> Result<Value> {
    let arguments: &[Value] = match value {
        Value::List(list) if list.kind == ListKind::Tuple => &list.items,
        other => std::slice::from_ref(other),
    };
    let mut out = meter.builder();
    let mut rest = format;
    let mut used = 0;
    while let Some(at) = rest.find('%') {
        out.push(&rest[..at])?;
        rest = &rest[at + 1..];
        let mut field = None;
        if let Some(after) = rest.strip_prefix('(') {
            let Some((name, after)) = after.split_once(')') else {
                return fail("incomplete format key");
            };
            let Value::Dict(dict) = value else { return fail("format requires a mapping") };
            let Some(found) = dict.get_text(name) else { return fail(format!("'{name}'")) };
            field = Some(found);
            rest = after;
        }
        let mut spec = Spec::default();
        rest = spec.percent_flags(rest)?;
        let Some(kind) = rest.chars().next() else { return fail("incomplete format") };
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push("%")?;
            continue;
        }
        spec.kind = Some(kind);
        let value = match field {
            Some(value) => value,
            None => {
                used += 1;
                match arguments.get(used - 1) {
                    Some(value) => value,
                    None => return fail("not enough arguments for format string"),
                }
            }
        };
        spec.percent_value(&mut out, value)?;
    }
    out.push(rest)?;
    if used < arguments.len() && !matches!(value, Value::Dict(_)) {
        return fail("not all arguments converted during string formatting");
    }
    out.finish()
}

impl Spec {
    /// Reads flags, width and precision; returns the rest.
    fn percent_flags<'t>(&mut self, text: &'t str) -> Result<&'t str> {
        let mut rest = text;
        while let Some(flag) = rest.chars().next().filter(|c| "-+ 0#".contains(*c)) {
            match flag {
                '-' => self.align = Some('<'),
                '0' => self.fill = Some('0'),
                '#' => self.alternate = true,
                sign => self.sign = Some(sign),
            }
            rest = &rest[1..];
        }
        (self.width, rest) = digits(rest)?;
        if let Some(after) = rest.strip_prefix('.') {
            let precision;
            (precision, rest) = digits(after)?;
            self.precision = Some(precision);
        }
        Ok(rest.trim_start_matches(['h', 'l', 'L']))
    }

    fn percent_value(&mut self, out: &mut Builder<'_>, value: &Value) -> Result<()> {
        if self.align == Some('<') || matches!(self.kind, Some('s' | 'r' | 'a' | 'c')) {
            self.fill = None;
        }
        self.align = self.align.or(Some('>'));
        match self.kind {
            Some('s') => {
                let text = print::text(out.meter, value)?.into_owned();
                self.pad(out, "", self.cut(&text))
            }
            Some('r' | 'a') => {
                let mut text = out.meter.builder();
                print::repr(&mut text, value, 0)?;
                let text = text.into_text();
                self.pad(out, "", self.cut(&text))
            }
            Some('d' | 'i' | 'u') => {
                let number = match value {
                    Value::Float(number) => Value::Int(number::truncate(*number)),
                    other => other.clone(),
                };
                self.kind = Some('d');
                self.number(out, &number)
            }
            Some('c') => {
                let c = match value {
                    Value::Text(text) => text.text.clone(),
                    other => code(other)?.to_string(),
                };
                self.pad(out, "", &c)
            }
            Some('f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'x' | 'X' | 'o') => self.number(out, value),
            other => fail(format!("unsupported format character '{}'", other.unwrap_or(' '))),
        }
    }

    /// The first characters of a text, as many as the precision.
    fn cut<'t>(&self, text: &'t str) -> &'t str {
        let Some(most) = self.precision else { return text };
        text.char_indices().nth(most).map_or(text, |(at, _)| &text[..at])
    }

    /// Appends a text with its sign, padded to the width.
    fn pad(&self, out: &mut Builder<'_>, sign: &str, body: &str) -> Result<()> {
        let length = sign.chars().count() + body.chars().count();
        let missing = self.width.saturating_sub(length);
        let fill = self.fill.unwrap_or(' ').to_string();
        let zeros = self.fill == Some('0') && self.align.is_none_or(|align| align == '>');
        let (before, inner, after) = match self.align {
            _ if zeros && !sign.is_empty() => (0, missing, 0),
            Some('<') => (0, 0, missing),
            Some('^') => (missing / 2, 0, missing - missing / 2),
            Some('=') => (0, missing, 0),
            _ => (missing, 0, 0),
        };
        out.repeat(&fill, before)?;
        out.push(sign)?;
        out.repeat(&fill, inner)?;
        out.push(body)?;
        out.repeat(&fill, after)
    }

    /// Appends a number in the notation of the type.
    fn number(&self, out: &mut Builder<'_>, value: &Value) -> Result<()> {
        let wrong = || {
            fail(format!(
                "%{} format: a real number is required, not {}",
                self.kind.unwrap_or('d'),
                value.type_name()
            ))
        };
        let (negative, body) = match (self.kind, value.as_int(), value.as_float()) {
            (Some('d') | None, Some(number), _) => (number < 0, number.unsigned_abs().to_string()),
            (Some('x' | 'X' | 'o' | 'b'), Some(number), _) => {
                (number < 0, self.radix(number.unsigned_abs()))
            }
            (Some('f' | 'F' | 'e' | 'E' | 'g' | 'G' | '%') | None, _, Some(number)) => {
                (number.is_sign_negative() && !number.is_nan(), self.real(number.abs()))
            }
            _ => return wrong(),
        };
        let sign = match self.sign {
            _ if negative => "-",
            Some('+') => "+",
            Some(' ') => " ",
            _ => "",
        };
        let body = match self.comma {
            Some(comma) => grouped(&body, comma),
            None => body,
        };
        self.pad(out, sign, &body)
    }

    fn radix(&self, number: u128) -> String {
        match (self.kind, self.alternate) {
            (Some('x'), false) => format!("{number:x}"),
            (Some('x'), true) => format!("{number:#x}"),
            (Some('X'), false) => format!("{number:X}"),
            (Some('X'), true) => format!("0X{number:X}"),
            (Some('o'), false) => format!("{number:o}"),
            (Some('o'), true) => format!("{number:#o}"),
            (_, false) => format!("{number:b}"),
            (_, true) => format!("{number:#b}"),
        }
    }

    fn real(&self, number: f64) -> String {
        if !number.is_finite() {
            return number::float(number);
        }
        let places = self.precision.unwrap_or(6);
        match self.kind {
            Some('f' | 'F') => format!("{number:.places$}"),
            Some('%') => format!("{:.places$}%", number * 100.0),
            Some('e') => exponent(number, places),
            Some('E') => exponent(number, places).to_uppercase(),
            Some('g') => general(number, places),
            Some('G') => general(number, places).to_uppercase(),
            _ if self.precision.is_some() => general(number, places),
            _ => number::float(number),
        }
    }
}

/// Reads a number of at most [`WIDTH`].
fn digits(text: &str) -> Result<(usize, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = if end == 0 { Ok(0) } else { text[..end].parse() };
    match number {
        Ok(number) if number <= WIDTH => Ok((number, &text[end..])),
        _ => fail(format!("a format is wider than {WIDTH}")),
    }
}

fn code(value: &Value) -> Result<char> {
    let code = value.as_int().and_then(|n| u32::try_from(n).ok()).and_then(char::from_u32);
    code.map_or_else(|| fail("%c requires int or char"), Ok)
}

fn exponent(number: f64, places: usize) -> String {
    let text = format!("{number:.places$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn general(number: f64, places: usize) -> String {
    let places = places.max(1);
    let scientific = exponent(number, places - 1);
    let (mantissa, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i64 = power.parse().unwrap_or(0);
    let strip = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if power < -4 || power >= i64::try_from(places).unwrap_or(i64::MAX) {
        let sign = if power < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", strip(mantissa), power.abs());
    }
    let decimals = i64::try_from(places).unwrap_or(i64::MAX) - 1 - power;
    strip(&format!("{number:.*}", usize::try_from(decimals).unwrap_or(0)))
}

/// Digits in groups of three.
fn grouped(body: &str, comma: char) -> String {
    let end = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
    let mut out = String::new();
    for (at, digit) in body[..end].chars().enumerate() {
        if at > 0 && (end - at) % 3 == 0 {
            out.push(comma);
        }
        out.push(digit);
    }
    out + &body[end..]
}

/// `format.format(..)`.
pub(crate) fn braces(meter: &Meter<'_>, format: &str, args: &Args) -> Result<Value> {
    let mut out = meter.builder();
    let mut rest = format;
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push(brace)?;
            rest = after;
            continue;
        }
        if brace == "}" {
            return fail("Single '}' encountered in format string");
        }
        let Some((field, after)) = rest.split_once('}') else {
            return fail("expected '}' before end of string");
        };
        rest = after;
        let (path, spec) = field.split_once(':').unwrap_or((field, ""));
        let (path, conversion) = match path.split_once('!') {
            Some((path, conversion)) => (path, Some(conversion)),
            None => (path, None),
        };
        let value = lookup(meter, path, args, &mut next)?;
        match conversion {
            None => {}
            Some("s") => {
                let text = print::text(meter, &value)?.into_owned();
                Spec::parse(spec)?.format(&mut out, &meter.text(text)?)?;
                continue;
            }
            Some(_) => {
                let mut text = meter.builder();
                print::repr(&mut text, &value, 0)?;
                Spec::parse(spec)?.format(&mut out, &text.finish()?)?;
                continue;
            }
        }
        Spec::parse(spec)?.format(&mut out, &value)?;
    }
    out.push(rest)?;
    out.finish()
}

/// The argument that a field names, such as `0`, `name` or `name[key]`.
fn lookup(meter: &Meter<'_>, path: &str, args: &Args, next: &mut usize) -> Result<Value> {
    let end = path.find(['[', '.']).unwrap_or(path.len());
    let (first, mut rest) = path.split_at(end);
    let value = if first.is_empty() {
        *next += 1;
        args.positional.get(*next - 1)
    } else if let Ok(index) = first.parse::<usize>() {
        args.positional.get(index)
    } else {
        args.named.iter().find(|(name, _)| &**name == first).map(|(_, value)| value)
    };
    let Some(mut value) = value.cloned() else {
        return fail(format!("no argument for the field {first:?} of a format string"));
    };
    while let Some(after) = rest.strip_prefix('[') {
        let Some((key, after)) = after.split_once(']') else { return fail("expected ']'") };
        let found = match &value {
            Value::Dict(dict) => dict.get_text(key).cloned(),
            Value::List(list) => key
                .parse()
                .ok()
                .and_then(|at| ops::place(at, list.items.len()))
                .map(|at| list.items[at].clone()),
            _ => None,
        };
        let Some(found) = found else { return fail(format!("no item {key:?} in a format string")) };
        meter.work(1)?;
        value = found;
        rest = after;
    }
    if rest.is_empty() { Ok(value) } else { fail("attributes in format strings are not allowed") }
}

impl Spec {
    /// Reads `[[fill]align][sign][#][0][width][,][.precision][type]`.
    fn parse(text: &str) -> Result<Self> {
        let mut spec = Self::default();
        let mut rest = text;
        let characters: Vec<char> = text.chars().take(2).collect();
        let is_align = |c: Option<&char>| c.filter(|c| "<>=^".contains(**c)).copied();
        if let Some(align) = is_align(characters.get(1)) {
            (spec.fill, spec.align) = (Some(characters[0]), Some(align));
            rest = &rest[characters[0].len_utf8() + 1..];
        } else if let Some(align) = is_align(characters.first()) {
            spec.align = Some(align);
            rest = &rest[1..];
        }
        let flag = |rest: &mut &str, flags: &str| {
            let found = rest.chars().next().filter(|c| flags.contains(*c));
            if let Some(c) = found {
                *rest = &rest[c.len_utf8()..];
            }
            found
        };
        spec.sign = flag(&mut rest, "+- ");
        spec.alternate = flag(&mut rest, "#").is_some();
        if flag(&mut rest, "0").is_some() && spec.fill.is_none() {
            spec.fill = Some('0');
        }
        (spec.width, rest) = digits(rest)?;
        spec.comma = flag(&mut rest, ",_");
        if let Some(after) = rest.strip_prefix('.') {
            let precision;
            (precision, rest) = digits(after)?;
            spec.precision = Some(precision);
        }
        spec.kind = flag(&mut rest, "sdfFeEgGxXobc%");
        if rest.is_empty() { Ok(spec) } else { fail("Invalid format specifier") }
    }

    fn format(&self, out: &mut Builder<'_>, value: &Value) -> Result<()> {
        match (self.kind, value) {
            (Some('c'), value) => self.pad(out, "", &code(value)?.to_string()),
            (None | Some('s'), Value::Text(text)) => {
                let spec = Self { align: self.align.or(Some('<')), ..Self::copy(self) };
                spec.pad(out, "", self.cut(&text.text))
            }
            (None, Value::Bool(_) | Value::None | Value::List(_) | Value::Dict(_)) => {
                let text = print::text(out.meter, value)?.into_owned();
                let spec = Self { align: self.align.or(Some('<')), ..Self::copy(self) };
                spec.pad(out, "", &text)
            }
            (None, Value::Undefined(_)) => Ok(()),
            _ => self.number(out, value),
        }
    }

    const fn copy(&self) -> Self {
        Self { ..*self }
    }
}
