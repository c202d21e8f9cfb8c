//! Streaming Markdown renderer for a terminal: emphasis, code, headings and lists become colours
//! and symbols; other text is unchanged. Input may be split anywhere: only a run of equal marks is
//! buffered until the next character. Control characters become U+FFFD, so that a model cannot move
//! the cursor.

use errors::printable;

const RESET: &str = "\x1b[0m";
const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const ITALIC: &str = "\x1b[3m";
const HEADING: &str = "\x1b[1;4m";
const CODE: &str = "\x1b[36m";

/// Renderer state.
#[derive(Debug, Default)]
pub(super) struct Markdown {
    /// True if Markdown is rendered at all.
    paints: bool,
    /// Run of equal marks that may continue.
    run: String,
    /// True if the line contains more than blanks so far.
    begun: bool,
    heading: bool,
    bold: bool,
    italic: bool,
    code: bool,
    /// Inside a fenced code block.
    fenced: bool,
    /// True in the line that opens or closes a fenced code block.
    fence_line: bool,
}

impl Markdown {
    pub(super) fn new(paints: bool) -> Self {
        Self { paints, ..Self::default() }
    }

    /// Renders the next piece of text.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        let text = printable::generated(text);
        if !self.paints {
            return text;
        }
        text.chars().for_each(|c| self.take(c, &mut out));
        out
    }

    /// Returns buffered text and resets all colours.
    pub(super) fn finish(&mut self) -> String {
        let mut out = String::new();
        self.end_run(None, &mut out);
        if self.paints && !self.style().is_empty() {
            out.push_str(RESET);
        }
        *self = Self::new(self.paints);
        out
    }

    fn take(&mut self, c: char, out: &mut String) {
        if self.run.starts_with(c) {
            self.run.push(c);
            return;
        }
        self.end_run(Some(c), out);
        let marks = c == '`' || c == '*' || !self.begun && (c == '#' || c == '-');
        if marks && !self.fence_line {
            self.run.push(c);
            return;
        }
        if c != '\n' {
            self.begun |= !c.is_whitespace();
            out.push(c);
            return;
        }
        // Styles that were not closed end with the line.
        let styled = !self.style().is_empty();
        (self.heading, self.bold, self.italic, self.code) = (false, false, false, false);
        (self.begun, self.fence_line) = (false, false);
        if styled {
            out.push_str(RESET);
        }
        out.push('\n');
        out.push_str(self.style());
    }

    /// Ends a run of marks and applies its meaning, given the next character.
    fn end_run(&mut self, next: Option<char>, out: &mut String) {
        let run = std::mem::take(&mut self.run);
        let Some(mark) = run.chars().next() else { return };
        let first = !std::mem::replace(&mut self.begun, true);
        let blank = next.is_none_or(char::is_whitespace);
        match (mark, run.len()) {
            ('`', 3..) if first && (self.fenced || !self.code) => {
                self.fenced = !self.fenced;
                self.fence_line = true;
                out.push_str(&format!("{DIM}{run}"));
            }
            _ if self.fenced => out.push_str(&run),
            ('`', 1) => {
                self.code = !self.code;
                self.restyle(out);
            }
            _ if self.code => out.push_str(&run),
            ('#', 1..=6) if first && blank => {
                self.heading = true;
                self.restyle(out);
                out.push_str(&run);
            }
            ('*' | '-', 1) if first && blank => out.push('•'),
            ('-', 3..) if first && blank => out.push_str(&"─".repeat(run.len())),
            ('*', length @ 1..=3) if !blank || self.bold || self.italic => {
                self.bold ^= length >= 2;
                self.italic ^= length != 2;
                self.restyle(out);
            }
            _ => out.push_str(&run),
        }
    }

    fn restyle(&self, out: &mut String) {
        out.push_str(RESET);
        out.push_str(self.style());
    }

    const fn style(&self) -> &'static str {
        match self {
            Self { fence_line: true, .. } => DIM,
            Self { fenced: true, .. } | Self { code: true, .. } => CODE,
            Self { heading: true, .. } => HEADING,
            Self { bold: true, italic: true, .. } => "\x1b[1;3m",
            Self { bold: true, .. } => BOLD,
            Self { italic: true, .. } => ITALIC,
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(pieces: &[&str]) -> String {
        let mut markdown = Markdown::new(true);
        let mut all: String = pieces.iter().map(|piece| markdown.push(piece)).collect();
        all.push_str(&markdown.finish());
        all.replace(RESET, "[]").replace('\x1b', "")
    }

    #[test]
    fn each_mark_has_its_style() {
        for (text, expected) in [
            ("plain", "plain"),
            ("a **b** c", "a [][1mb[] c"),
            ("a *b* c", "a [][3mb[] c"),
            ("***b***", "[][1;3mb[]"),
            ("2 * 3 ** 4", "2 * 3 ** 4"),
            ("`a*b*`", "[][36ma*b*[]"),
            ("# Head\nx", "[][1;4m# Head[]\nx"),
            ("#no", "#no"),
            ("- one\n  * two", "• one\n  • two"),
            ("a - b", "a - b"),
            ("---\n", "───\n"),
            ("**open\nx", "[][1mopen[]\nx"),
            ("```c\n*p = 1;\n```\nx", "[2m```c[]\n[36m*p = 1;[]\n[36m[2m```[]\nx"),
            ("\x1b[2Jx\r", "\u{fffd}[2Jx\u{fffd}"),
        ] {
            assert_eq!(shown(&[text]), expected, "{text:?}");
        }
        assert_eq!(Markdown::new(false).push("**a**\x07"), "**a**\u{fffd}");
    }

    proptest! {
        #[test]
        fn splitting_the_text_does_not_change_the_output(text in "[ab *`#\n-]{0,40}", at in 0usize..40) {
            let at = at.min(text.len());
            prop_assert_eq!(shown(&[&text]), shown(&[&text[..at], &text[at..]]));
        }
    }
}
