//! Methods of texts, lists and dictionaries. Methods that change a value are not in the sandbox.

use crate::args::{Args, int, needed, size, text};
use crate::format;
use crate::meter::{Meter, Result, fail};
use crate::ops;
use crate::print;
use crate::value::{List, ListKind, Value};

const TEXT: [&str; 46] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
    "encode",
    "translate",
];
const LIST: [&str; 3] = ["count", "index", "copy"];
const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];

/// True if the type of the value has the method.
pub(crate) fn exists(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => TEXT.contains(&name),
        Value::List(list) => {
            LIST.contains(&name) && (name != "copy" || list.kind == ListKind::List)
        }
        Value::Dict(_) => DICT.contains(&name),
        Value::Float(_) => name == "is_integer",
        _ => false,
    }
}

/// Calls a method that exists.
pub(crate) fn call(meter: &Meter<'_>, value: &Value, name: &str, args: Args) -> Result<Value> {
    match value {
        Value::Text(receiver) => of_text(meter, &receiver.text, name, args),
        Value::List(list) => of_list(meter, value, list, name, args),
        Value::Dict(dict) => {
            let tuple =
                |(key, value): &(Value, Value)| meter.tuple(vec![key.clone(), value.clone()]);
            match name {
                "get" => {
                    let [key, default] = args.bind("get", ["key", "default"])?;
                    let key = needed(key, "get", "key")?;
                    if !key.is_key() {
                        return fail(format!("unhashable type: '{}'", key.type_name()));
                    }
                    Ok(dict.get(&key).cloned().or(default).unwrap_or(Value::None))
                }
                "copy" => args.none("copy").map(|()| value.clone()),
                "items" => {
                    args.none("items")?;
                    let pairs = dict.pairs.iter().map(tuple).collect::<Result<_>>()?;
                    meter.sequence(pairs, ListKind::View("dict_items"))
                }
                "keys" => {
                    args.none("keys")?;
                    meter.sequence(ops::items(meter, value)?, ListKind::View("dict_keys"))
                }
                _ => {
                    args.none("values")?;
                    let values = dict.pairs.iter().map(|(_, value)| value.clone()).collect();
                    meter.sequence(values, ListKind::View("dict_values"))
                }
            }
        }
        Value::Float(number) => Ok(Value::Bool(number.fract() == 0.0)),
        other => fail(format!("'{}' object has no attribute '{name}'", other.type_name())),
    }
}

fn of_list(meter: &Meter<'_>, value: &Value, list: &List, name: &str, args: Args) -> Result<Value> {
    if name == "copy" {
        return args.none(name).map(|()| value.clone());
    }
    let [item] = args.bind(name, ["value"])?;
    let item = needed(item, name, "value")?;
    let mut count = 0;
    for (at, known) in list.items.iter().enumerate() {
        if ops::equal(meter, known, &item)? {
            if name == "index" {
                return number(at);
            }
            count += 1;
        }
    }
    if name == "index" { fail("the value is not in the list") } else { number(count) }
}

fn number(number: usize) -> Result<Value> {
    Ok(Value::Int(i128::try_from(number).unwrap_or(i128::MAX)))
}

fn of_text(meter: &Meter<'_>, receiver: &str, name: &str, args: Args) -> Result<Value> {
    meter.work(1 + receiver.len() / 16)?;
    match name {
        "strip" | "lstrip" | "rstrip" => strip(meter, receiver, name, args),
        "startswith" | "endswith" => affix(meter, receiver, name, args),
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(name, ["affix"])?;
            let affix = needed(affix, name, "affix")?;
            let affix = text(&affix, name)?;
            let rest = if name == "removeprefix" {
                receiver.strip_prefix(affix)
            } else {
                receiver.strip_suffix(affix)
            };
            meter.text(rest.unwrap_or(receiver))
        }
        "split" | "rsplit" => split(meter, receiver, name, args),
        "splitlines" => splitlines(meter, receiver, args),
        "partition" | "rpartition" => partition(meter, receiver, name, args),
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
            let (old, new) = (needed(old, name, "old")?, needed(new, name, "new")?);
            let count = int(count, -1)?;
            replace(meter, receiver, text(&old, name)?, text(&new, name)?, count)
        }
        "join" => {
            let [items] = args.bind(name, ["iterable"])?;
            let mut out = meter.builder();
            for (at, item) in
                ops::items(meter, &needed(items, name, "iterable")?)?.iter().enumerate()
            {
                if at > 0 {
                    out.push(receiver)?;
                }
                let Some(item) = item.as_str() else {
                    let kind = item.type_name();
                    return fail(format!(
                        "sequence item {at}: expected str instance, {kind} found"
                    ));
                };
                out.push(item)?;
            }
            out.finish()
        }
        "format" => format::braces(meter, receiver, &args),
        "format_map" => {
            let [map] = args.bind(name, ["mapping"])?;
            let Some(Value::Dict(dict)) = map else { return fail("format_map() needs a dict") };
            let pair = |(key, value): &(Value, Value)| Some((key.as_str()?.into(), value.clone()));
            let named = dict.pairs.iter().filter_map(pair).collect();
            format::braces(meter, receiver, &Args { positional: Vec::new(), named })
        }
        "find" | "rfind" | "index" | "rindex" | "count" => find(meter, receiver, name, args),
        "center" | "ljust" | "rjust" | "zfill" => justify(meter, receiver, name, args),
        "expandtabs" => {
            let [tab] = args.bind(name, ["tabsize"])?;
            expandtabs(meter, receiver, size(tab, 8)?)
        }
        "encode" | "translate" => fail(format!("str.{name}() is not supported")),
        _ => {
            args.none(name)?;
            cases(meter, receiver, name)
        }
    }
}

/// Methods without arguments.
fn cases(meter: &Meter<'_>, text: &str, name: &str) -> Result<Value> {
    // A character of three bytes may have a capital of nine.
    meter.room(text.len().saturating_mul(3))?;
    let all = |test: fn(char) -> bool| !text.is_empty() && text.chars().all(test);
    let cased = |upper: bool| {
        let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
        text.chars().any(|c| c.is_lowercase() || c.is_uppercase()) && !text.chars().any(wrong)
    };
    Ok(Value::Bool(match name {
        "lower" | "casefold" => return meter.text(text.to_lowercase()),
        "upper" => return meter.text(text.to_uppercase()),
        "title" => return meter.text(title(text)),
        "capitalize" => return meter.text(capitalize(text)),
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            return meter.text(text.chars().map(swap).collect::<String>());
        }
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isascii" => text.is_ascii(),
        "isdecimal" | "isdigit" => {
            all(|c| c.is_ascii_digit() || c.is_numeric() && !c.is_ascii() && !c.is_alphabetic())
        }
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(char::is_whitespace),
        "isprintable" => text.chars().all(print::is_printable),
        "islower" => cased(false),
        "isupper" => cased(true),
        "istitle" => text.chars().any(char::is_alphabetic) && title(text) == text,
        _ => {
            let first = |c: char| c.is_alphabetic() || c == '_';
            text.starts_with(first) && text.chars().all(|c| c.is_alphanumeric() || c == '_')
        }
    }))
}

/// Capitals at the beginning of words, as `str.title`.
pub(crate) fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut within = false;
    for c in text.chars() {
        if within {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        within = c.is_alphabetic();
    }
    out
}

pub(crate) fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first: String = characters.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &characters.as_str().to_lowercase()
}

/// Removes white space, or the characters of an argument, from the ends.
pub(crate) fn strip(meter: &Meter<'_>, receiver: &str, name: &str, args: Args) -> Result<Value> {
    let [characters] = args.bind(name, ["chars"])?;
    let set = match &characters {
        None | Some(Value::None) => None,
        Some(value) => Some(text(value, name)?),
    };
    let mut sorted: Vec<char> = set.map(|set| set.chars().collect()).unwrap_or_default();
    sorted.sort_unstable();
    sorted.dedup();
    let drops = |c: char| match set {
        Some(_) => sorted.binary_search(&c).is_ok(),
        None => is_space(c),
    };
    let mut rest = receiver;
    if name != "rstrip" {
        rest = rest.trim_start_matches(drops);
    }
    if name != "lstrip" {
        rest = rest.trim_end_matches(drops);
    }
    meter.text(rest)
}

/// Python's `str.isspace`: also the separators of information.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

fn affix(meter: &Meter<'_>, receiver: &str, name: &str, args: Args) -> Result<Value> {
    let [affixes, start, end] = args.bind(name, ["affix", "start", "end"])?;
    let part;
    let mut receiver = receiver;
    if start.is_some() || end.is_some() {
        part = ops::slice(meter, &meter.text(receiver)?, &[start, end, None])?;
        receiver = text(&part, name)?;
    }
    let affixes = needed(affixes, name, "affix")?;
    let single = std::slice::from_ref(&affixes);
    let all = match &affixes {
        Value::List(list) if list.kind == ListKind::Tuple => &list.items[..],
        _ => single,
    };
    for affix in all {
        let Some(affix) = affix.as_str() else {
            let kind = affix.type_name();
            return fail(format!("{name} first arg must be str or a tuple of str, not {kind}"));
        };
        if if name == "startswith" {
            receiver.starts_with(affix)
        } else {
            receiver.ends_with(affix)
        } {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn texts<'t>(meter: &Meter<'_>, parts: impl Iterator<Item = &'t str>) -> Result<Value> {
    let mut all = Vec::new();
    for part in parts {
        meter.room(all.len().saturating_mul(2 * size_of::<Value>()))?;
        all.push(meter.text(part)?);
    }
    meter.list(all)
}

fn split(meter: &Meter<'_>, receiver: &str, name: &str, args: Args) -> Result<Value> {
    let [separator, most] = args.bind(name, ["sep", "maxsplit"])?;
    let most = int(most, -1)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let parts = most.saturating_add(1);
    match separator {
        None | Some(Value::None) => words(meter, receiver, most, name == "rsplit"),
        Some(separator) => {
            let separator = text(&separator, name)?;
            if separator.is_empty() {
                return fail("empty separator");
            }
            if name == "split" {
                return texts(meter, receiver.splitn(parts, separator));
            }
            let mut all: Vec<Value> = Vec::new();
            for part in receiver.rsplitn(parts, separator) {
                meter.room(all.len().saturating_mul(2 * size_of::<Value>()))?;
                all.push(meter.text(part)?);
            }
            all.reverse();
            meter.list(all)
        }
    }
}

/// Words between white space, at most `most` of them split off from one end.
fn words(meter: &Meter<'_>, receiver: &str, most: usize, backwards: bool) -> Result<Value> {
    // White space at the end of the part that is not split stays.
    let mut rest = if backwards { receiver.trim_end() } else { receiver.trim_start() };
    let mut all = Vec::new();
    while !rest.is_empty() {
        meter.room(all.len().saturating_mul(2 * size_of::<Value>()))?;
        if all.len() == most {
            all.push(meter.text(rest)?);
            break;
        }
        if backwards {
            let at = rest.rfind(char::is_whitespace);
            let from = at.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
            all.push(meter.text(&rest[from..])?);
            rest = rest[..at.unwrap_or(0)].trim_end();
        } else {
            let at = rest.find(char::is_whitespace).unwrap_or(rest.len());
            all.push(meter.text(&rest[..at])?);
            rest = rest[at..].trim_start();
        }
    }
    if backwards {
        all.reverse();
    }
    meter.list(all)
}

fn splitlines(meter: &Meter<'_>, receiver: &str, args: Args) -> Result<Value> {
    let [ends] = args.bind("splitlines", ["keepends"])?;
    let keeps = ends.is_some_and(|value| value.is_true());
    let mut all = Vec::new();
    let mut rest = receiver;
    let breaks = |c: char| "\n\r\x0b\x0c\x1c\x1d\x1e\u{85}\u{2028}\u{2029}".contains(c);
    while !rest.is_empty() {
        meter.room(all.len().saturating_mul(2 * size_of::<Value>()))?;
        let at = rest.find(breaks).unwrap_or(rest.len());
        let end = match &rest[at..] {
            "" => at,
            after if after.starts_with("\r\n") => at + 2,
            after => at + after.chars().next().map_or(0, char::len_utf8),
        };
        all.push(meter.text(&rest[..if keeps { end } else { at }])?);
        rest = &rest[end..];
    }
    meter.list(all)
}

fn partition(meter: &Meter<'_>, receiver: &str, name: &str, args: Args) -> Result<Value> {
    let [separator] = args.bind(name, ["sep"])?;
    let separator = needed(separator, name, "sep")?;
    let separator = text(&separator, name)?;
    if separator.is_empty() {
        return fail("empty separator");
    }
    let parts = if name == "partition" {
        receiver.split_once(separator).map_or([receiver, "", ""], |(a, b)| [a, separator, b])
    } else {
        receiver.rsplit_once(separator).map_or(["", "", receiver], |(a, b)| [a, separator, b])
    };
    meter.tuple(parts.into_iter().map(|part| meter.text(part)).collect::<Result<_>>()?)
}

/// Replaces the first `count` occurrences; all, if it is negative.
pub(crate) fn replace(
    meter: &Meter<'_>,
    receiver: &str,
    old: &str,
    new: &str,
    count: i128,
) -> Result<Value> {
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let mut out = meter.builder();
    let mut from = 0;
    for (at, found) in receiver.match_indices(old).take(most) {
        out.push(&receiver[from..at])?;
        out.push(new)?;
        from = at + found.len();
    }
    out.push(&receiver[from..])?;
    out.finish()
}

fn find(meter: &Meter<'_>, receiver: &str, name: &str, args: Args) -> Result<Value> {
    let [part, start, end] = args.bind(name, ["sub", "start", "end"])?;
    let part = needed(part, name, "sub")?;
    let part = text(&part, name)?;
    let from = int(start.clone(), 0)?;
    let whole = receiver.chars().count();
    let slice;
    let mut within = receiver;
    let mut offset = 0;
    if start.is_some() || end.is_some() {
        slice = ops::slice(meter, &meter.text(receiver)?, &[start, end, None])?;
        within = text(&slice, name)?;
        let length = i128::try_from(whole).unwrap_or(i128::MAX);
        let from = if from < 0 { from + length } else { from };
        offset = usize::try_from(from.clamp(0, length)).unwrap_or(0);
    }
    let at = match name {
        "count" if part.is_empty() => return number(within.chars().count() + 1),
        "count" => return number(within.matches(part).count()),
        "find" | "index" => within.find(part),
        _ => within.rfind(part),
    };
    match at {
        Some(at) => number(offset + within[..at].chars().count()),
        None if name.ends_with("index") => fail("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}

fn justify(meter: &Meter<'_>, receiver: &str, name: &str, args: Args) -> Result<Value> {
    let [width, fill] = args.bind(name, ["width", "fillchar"])?;
    let width = size(Some(needed(width, name, "width")?), 0)?;
    let fill = match &fill {
        Some(fill) => text(fill, name)?,
        None if name == "zfill" => "0",
        None => " ",
    };
    if fill.chars().count() != 1 {
        return fail("The fill character must be exactly one character long");
    }
    let length = receiver.chars().count();
    let missing = width.saturating_sub(length);
    let (sign, body) = match receiver.strip_prefix(['-', '+']) {
        Some(body) if name == "zfill" => (&receiver[..1], body),
        _ => ("", receiver),
    };
    // Python puts the odd space of `center` on the left only if the width is odd.
    let before = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let mut out = meter.builder();
    out.push(sign)?;
    out.repeat(fill, before)?;
    out.push(body)?;
    out.repeat(fill, missing - before)?;
    out.finish()
}

fn expandtabs(meter: &Meter<'_>, receiver: &str, tab: usize) -> Result<Value> {
    let mut out = meter.builder();
    let mut column = 0;
    for c in receiver.chars() {
        match c {
            '\t' if tab > 0 => {
                out.repeat(" ", tab - column % tab)?;
                column += tab - column % tab;
            }
            '\t' => {}
            c => {
                column = if c == '\n' || c == '\r' { 0 } else { column + 1 };
                out.push_char(c)?;
            }
        }
    }
    out.finish()
}
