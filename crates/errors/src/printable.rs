//! Control characters in text from outside: names, paths, strings of files, answers of servers.
//! The programs write such text to terminals and logs only through these functions.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Write as _;
use std::io::Write as _;

/// True for characters that act on a terminal or reorder a line instead of being shown: C0, DEL, C1,
/// line and paragraph separators, and the explicit marks of bidirectional text.
#[must_use]
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes control characters, line feeds included: the result is one line.
#[must_use]
pub fn line(text: &str) -> String {
    escaped(text, |_, _| false)
}

/// Escapes control characters except tabs and line ends.
#[must_use]
pub fn page(text: &str) -> String {
    escaped(text, |c, next| matches!((c, next), ('\n' | '\t', _) | ('\r', Some('\n'))))
}

/// Replaces the control characters of generated text, except tabs and line feeds, by U+FFFD. A
/// character is judged alone, so that text may arrive in pieces.
#[must_use]
pub fn generated(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// Escapes the control characters that JSON allows in strings, so that a document keeps its
/// meaning.
#[must_use]
pub fn json(document: &str) -> String {
    let mut shown = String::with_capacity(document.len());
    for c in document.chars() {
        match is_control(c) && c != '\n' {
            // Writing to a string cannot fail. All of these characters have four digits.
            true => drop(write!(shown, "\\u{:04x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

/// Makes panics print their messages escaped, in one piece: they may quote text from outside.
pub fn escape_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let mut text = format!("thread '{}' {info}", thread.name().unwrap_or("<unnamed>"));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            text += &format!("\n{trace}");
        }
        // Lines of a message cannot pass for lines of a log.
        let text = page(text.trim_end()).replace('\n', "\n  ") + "\n";
        // There is no one to report the error to.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }));
}

/// Escapes control characters unless `keep` returns true for one and the character behind it.
fn escaped(text: &str, keep: impl Fn(char, Option<char>) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match is_control(c) && !keep(c, rest.clone().next()) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_remains() {
        for c in (0..=0x2100).filter_map(char::from_u32).filter(|c| is_control(*c)) {
            let text = format!("a{c}b");
            assert!(!line(&text).contains(is_control), "{c:?}");
            let kept = matches!(c, '\n' | '\t');
            assert_eq!(page(&text).contains(c), kept, "{c:?}");
            assert_eq!(generated(&text).contains(char::is_control), kept, "{c:?}");
            let document = serde_json::to_string(&text).unwrap();
            let shown = json(&document);
            assert!(!shown.contains(is_control), "{shown}");
            assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }
        assert_eq!(line("\u{1b}]0;x\u{7}\n"), "\\u{1b}]0;x\\u{7}\\n");
        assert_eq!(page("a\r\nb\rc"), "a\r\nb\\rc");
        assert_eq!(line("zwölf 日本 \u{200d}"), "zwölf 日本 \u{200d}");
    }
}
