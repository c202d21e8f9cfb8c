//! gpt-oss's answers (Harmony): messages on channels, each with a header.

use super::piece::{Piece, emit, partial_mark};
use super::repair::Repair;

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// Marks that end a message or begin the header of the next one.
const ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", "<|start|>", CHANNEL];

#[derive(Debug)]
enum Body {
    Reasoning,
    Text,
    Arguments,
}

#[derive(Debug)]
pub(super) struct Harmony {
    /// True if the request has tools.
    calls: bool,
    /// Kind of the current message; `None` inside of a header.
    body: Option<Body>,
    /// Arguments of the current call, once they begin.
    arguments: Option<Repair>,
}

impl Harmony {
    pub(super) const fn new(calls: bool) -> Self {
        Self { calls, body: None, arguments: None }
    }

    /// Returns the number of bytes consumed.
    pub(super) fn read(&mut self, text: &str, out: &mut Vec<Piece>) -> usize {
        let mut at = 0;
        loop {
            let rest = &text[at..];
            if self.body.is_none() {
                let Some(end) = rest.find(MESSAGE) else { return at };
                self.body = Some(self.header(&rest[..end], out));
                self.arguments = None;
                at += end + MESSAGE.len();
                continue;
            }
            let found = ENDS.iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min();
            let end = found.map_or(rest.len() - partial_mark(rest, &ENDS), |(at, _)| at);
            self.emit(&rest[..end], out);
            at += end;
            let Some((_, mark)) = found else { return at };
            self.message_ends(out);
            // The mark of a channel is part of the next header.
            at += if mark == CHANNEL { 0 } else { mark.len() };
        }
    }

    pub(super) fn finish(&mut self, rest: &str, complete: bool, out: &mut Vec<Piece>) {
        match self.body {
            Some(_) => {
                self.emit(rest, out);
                if complete {
                    self.message_ends(out);
                }
            }
            // Drop an incomplete header; without marks it is text.
            None if rest.contains("<|") => {}
            None => emit(out, Piece::Text(rest.to_owned())),
        }
    }

    /// Kind of the message after a header. Emits the call if it is one.
    fn header(&self, header: &str, out: &mut Vec<Piece>) -> Body {
        let word = |mark: &str| {
            let (_, word) = header.split_once(mark)?;
            word.split(|c: char| c.is_whitespace() || c == '<').next()
        };
        match (word("to="), word(CHANNEL)) {
            (Some(recipient), _) if self.calls => {
                let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
                out.push(Piece::Call { name: name.to_owned() });
                Body::Arguments
            }
            (None, Some("analysis")) => Body::Reasoning,
            _ => Body::Text,
        }
    }

    fn emit(&mut self, text: &str, out: &mut Vec<Piece>) {
        match self.body {
            Some(Body::Reasoning) => emit(out, Piece::Reasoning(text.to_owned())),
            Some(Body::Arguments) => self.arguments(text, out),
            Some(Body::Text) | None => emit(out, Piece::Text(text.to_owned())),
        }
    }

    /// Emits the object that the text contains.
    fn arguments(&mut self, text: &str, out: &mut Vec<Piece>) {
        let mut clean = String::new();
        for c in text.chars() {
            if self.arguments.is_none() && c == '{' {
                self.arguments = Some(Repair::default());
            }
            if let Some(repair) = self.arguments.as_mut().filter(|repair| !repair.is_done()) {
                repair.feed(c, &mut clean);
            }
        }
        emit(out, Piece::Arguments(clean));
    }

    fn message_ends(&mut self, out: &mut Vec<Piece>) {
        if matches!(self.body.take(), Some(Body::Arguments)) {
            let mut clean = String::new();
            match self.arguments.take() {
                Some(mut repair) if !repair.is_done() => repair.finish(&mut clean),
                Some(_) => {}
                None => clean.push_str("{}"),
            }
            emit(out, Piece::Arguments(clean));
        }
    }
}
