//! gpt-oss's answers: messages on channels, each with a head that says what it is.

use super::{Piece, emit, held};

const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// What ends a message, or begins the head of the next one.
const ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", "<|start|>", CHANNEL];

#[derive(Debug)]
enum Body {
    Thoughts,
    Text,
    Arguments,
}

#[derive(Debug)]
pub(super) struct Harmony {
    /// Whether there are tools to be called.
    calls: bool,
    /// What the message being read is; `None` within a head.
    body: Option<Body>,
    /// Whether anything of the message has been given out.
    begun: bool,
}

impl Harmony {
    pub(super) const fn new(calls: bool) -> Self {
        Self { calls, body: None, begun: false }
    }

    /// Bytes of `text` that are done with.
    pub(super) fn read(&mut self, text: &str, out: &mut Vec<Piece>) -> usize {
        let mut at = 0;
        loop {
            let rest = &text[at..];
            if self.body.is_none() {
                let Some(end) = rest.find(MESSAGE) else { return at };
                self.body = Some(self.head(&rest[..end], out));
                self.begun = false;
                at += end + MESSAGE.len();
                continue;
            }
            let found = ENDS.iter().filter_map(|mark| Some((rest.find(mark)?, *mark))).min();
            let end = found.map_or(rest.len() - held(rest, &ENDS), |(at, _)| at);
            self.give(&rest[..end], out);
            at += end;
            let Some((_, mark)) = found else { return at };
            self.message_ends(out);
            // The mark of a channel is part of the next head.
            at += if mark == CHANNEL { 0 } else { mark.len() };
        }
    }

    pub(super) fn finish(&mut self, rest: &str, out: &mut Vec<Piece>) {
        match self.body {
            Some(_) => self.give(rest, out),
            // A head without a message is none, and one without a channel may be a text.
            None if rest.contains("<|") => {}
            None => emit(out, Piece::Text(rest.to_owned())),
        }
    }

    /// What the message behind a head is.
    fn head(&self, head: &str, out: &mut Vec<Piece>) -> Body {
        let word = |behind: &str| {
            let (_, word) = head.split_once(behind)?;
            word.split(|c: char| c.is_whitespace() || c == '<').next()
        };
        match (word("to="), word(CHANNEL)) {
            (Some(recipient), _) if self.calls => {
                let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
                out.push(Piece::Call { name: name.to_owned() });
                Body::Arguments
            }
            (None, Some("analysis")) => Body::Thoughts,
            _ => Body::Text,
        }
    }

    fn give(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.begun |= !text.is_empty();
        let text = text.to_owned();
        match self.body {
            Some(Body::Thoughts) => emit(out, Piece::Reasoning(text)),
            Some(Body::Arguments) => emit(out, Piece::Arguments(text)),
            Some(Body::Text) | None => emit(out, Piece::Text(text)),
        }
    }

    fn message_ends(&mut self, out: &mut Vec<Piece>) {
        if matches!(self.body.take(), Some(Body::Arguments)) && !self.begun {
            emit(out, Piece::Arguments("{}".into()));
        }
    }
}
