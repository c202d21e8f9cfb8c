//! Filters of texts.

use crate::args::{Args, int, needed, size, text, truth};
use crate::format;
use crate::list_filters::format_arguments;
use crate::meter::{Result, fail};
use crate::methods;
use crate::print;
use crate::run::Run;
use crate::value::Value;

impl Run<'_> {
    pub(crate) fn text_filter(&mut self, name: &str, value: &Value, args: Args) -> Result<Value> {
        let meter = self.meter;
        let subject = print::text(meter, value)?;
        let subject = &*subject;
        meter.work(1 + subject.len() / 16)?;
        match name {
            "upper" | "lower" => {
                args.none(name)?;
                meter.room(subject.len().saturating_mul(3))?;
                meter.text(if name == "upper" {
                    subject.to_uppercase()
                } else {
                    subject.to_lowercase()
                })
            }
            "capitalize" => args.none(name).and_then(|()| meter.text(methods::capitalize(subject))),
            "title" => args.none(name).and_then(|()| meter.text(title(subject))),
            "trim" => methods::strip(meter, subject, "trim", args),
            "center" => {
                let [width] = args.bind(name, ["width"])?;
                let width = Value::Int(int(width, 80)?);
                let args = Args { positional: vec![width], named: Vec::new() };
                methods::call(meter, &meter.text(subject)?, name, args)
            }
            "replace" => {
                let [old, new, count] = args.bind(name, ["old", "new", "count"])?;
                let (old, new) = (needed(old, name, "old")?, needed(new, name, "new")?);
                let count = match count {
                    None | Some(Value::None) => -1,
                    count => int(count, -1)?,
                };
                let (old, new) = (print::text(meter, &old)?, print::text(meter, &new)?);
                methods::replace(meter, subject, &old, &new, count)
            }
            "format" => {
                let arguments = format_arguments(self, args)?;
                format::percent(meter, subject, &arguments)
            }
            "indent" => self.indent(subject, args),
            "truncate" => self.truncate(subject, args),
            "wordcount" => {
                args.none(name)?;
                let word = |c: char| c.is_alphanumeric() || c == '_';
                let count = subject.split(|c| !word(c)).filter(|word| !word.is_empty()).count();
                Ok(Value::Int(i128::try_from(count).unwrap_or(i128::MAX)))
            }
            "wordwrap" => self.wordwrap(subject, args),
            "escape" | "e" | "forceescape" => {
                args.none(name)?;
                let mut out = meter.builder();
                let mut rest = subject;
                while let Some(at) = rest.find(['&', '<', '>', '"', '\'']) {
                    out.push(&rest[..at])?;
                    out.push(match rest.as_bytes()[at] {
                        b'&' => "&amp;",
                        b'<' => "&lt;",
                        b'>' => "&gt;",
                        b'"' => "&#34;",
                        _ => "&#39;",
                    })?;
                    rest = &rest[at + 1..];
                }
                out.push(rest)?;
                out.finish()
            }
            "striptags" => {
                args.none(name)?;
                meter.text(striptags(subject))
            }
            "urlencode" => self.urlencode(value, args),
            _ => fail(format!("No filter named '{name}'.")),
        }
    }

    fn indent(&self, subject: &str, args: Args) -> Result<Value> {
        let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
        let indent = match &width {
            Some(Value::Text(text)) => text.text.clone(),
            width => " ".repeat(size(width.clone(), 4)?.min(10_000)),
        };
        let (first, blank) = (truth(first.as_ref(), false), truth(blank.as_ref(), false));
        // Jinja adds a newline that the split takes away, so a text that ends with one keeps it.
        let mut out = self.meter.builder();
        for (at, line) in subject.split('\n').enumerate() {
            if at > 0 {
                out.push("\n")?;
            }
            if (at > 0 || first) && (blank || at == 0 || !line.is_empty()) {
                out.push(&indent)?;
            }
            out.push(line)?;
        }
        out.finish()
    }

    fn truncate(&self, subject: &str, args: Args) -> Result<Value> {
        let [length, words, end, leeway] =
            args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
        let (length, leeway) = (size(length, 255)?, size(leeway, 5)?);
        let end = end.unwrap_or_else(|| Value::constant("...".into()));
        let end = text(&end, "truncate")?;
        let ends = end.chars().count();
        if length < ends {
            return fail(format!("expected length >= {ends}, got {length}"));
        }
        if subject.chars().count() <= length.saturating_add(leeway) {
            return self.meter.text(subject);
        }
        let cut: String = subject.chars().take(length - ends).collect();
        let kept = match cut.rsplit_once(' ') {
            Some((kept, _)) if !truth(words.as_ref(), false) => kept,
            _ => &cut,
        };
        self.meter.text(format!("{kept}{end}"))
    }

    fn wordwrap(&self, subject: &str, args: Args) -> Result<Value> {
        let [width, long, separator] =
            args.bind("wordwrap", ["width", "break_long_words", "wrapstring"])?;
        let width = size(width, 79)?.max(1);
        let long = truth(long.as_ref(), true);
        let separator = separator.unwrap_or_else(|| Value::constant("\n".into()));
        let separator = text(&separator, "wordwrap")?;
        let mut out = self.meter.builder();
        for (at, line) in subject.lines().enumerate() {
            if at > 0 {
                out.push(separator)?;
            }
            let mut column = 0;
            for word in line.split(' ').filter(|word| !word.is_empty()) {
                let length = word.chars().count();
                if column > 0 && column + 1 + length > width {
                    out.push(separator)?;
                    column = 0;
                } else if column > 0 {
                    out.push(" ")?;
                    column += 1;
                }
                for (at, c) in word.chars().enumerate() {
                    if long && at > 0 && at % width == 0 {
                        out.push(separator)?;
                        column = 0;
                    }
                    out.push_char(c)?;
                    column += 1;
                }
            }
        }
        out.finish()
    }

    fn urlencode(&self, value: &Value, args: Args) -> Result<Value> {
        args.none("urlencode")?;
        let subject = print::text(self.meter, value)?;
        let mut out = self.meter.builder();
        for byte in subject.bytes() {
            match byte {
                b if b.is_ascii_alphanumeric() || b"/_.-~".contains(&b) => {
                    out.push_char(char::from(b))?;
                }
                b => out.push(&format!("%{b:02X}"))?,
            }
        }
        out.finish()
    }
}

/// Capitals at the beginning of words, which white space, hyphens and opening brackets separate.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts = true;
    for c in text.chars() {
        if starts {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        starts = c.is_whitespace() || "-({[<".contains(c);
    }
    out
}

/// Text without tags and comments, with single spaces.
fn striptags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        out.push_str(&rest[..at]);
        let close = if rest[at..].starts_with("<!--") { "-->" } else { ">" };
        let Some(end) = rest[at..].find(close) else {
            out.push_str(&rest[at..]);
            rest = "";
            break;
        };
        rest = &rest[at + end + close.len()..];
    }
    out.push_str(rest);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}
