//! Text while it is being generated: ids to characters, and stop strings.
//!
//! Both sides hold text back only as long as it is undecided, and both give the same text whatever
//! the chunks they were fed.

use std::sync::Arc;

use super::Tokenizer;

/// Turns ids into text as they come, never giving out part of a character.
///
/// All that is pushed and finished, joined, equals [`Tokenizer::decode`] of the ids, or, of one
/// that goes on behind others, what they add to those.
#[derive(Clone, Debug)]
pub struct Detokeniser {
    tokenizer: Arc<Tokenizer>,
    /// The start of a character whose rest has not come: at most 3 bytes between calls.
    pending: Vec<u8>,
    /// Whether a text begins with the next id.
    begins: bool,
    /// Control tokens whose names are part of the text.
    shown: Vec<u32>,
    text: String,
}

impl Detokeniser {
    /// One for ids that begin a text.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self::after(tokenizer, &[])
    }

    /// One for ids that go on behind `prompt`.
    #[must_use]
    pub fn after(tokenizer: Arc<Tokenizer>, prompt: &[u32]) -> Self {
        let begins = tokenizer.begins_after(prompt);
        Self { tokenizer, pending: Vec::new(), begins, shown: Vec::new(), text: String::new() }
    }

    /// Gives out the names of these control tokens too.
    #[must_use]
    pub fn showing(self, shown: Vec<u32>) -> Self {
        Self { shown, ..self }
    }

    /// The text that `id` completes; empty for control tokens and in the middle of a character.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        self.pending.extend_from_slice(self.tokenizer.text_bytes(id, &mut self.begins));
        if self.shown.contains(&id) {
            self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or_default());
        }
        let (mut end, mut held) = (0, 0);
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            end += chunk.valid().len() + invalid.len();
            // Bytes at the very end may be a character cut short rather than wrong.
            let incomplete = std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if incomplete && end == self.pending.len() {
                held = invalid.len();
            } else if !invalid.is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - held);
        &self.text
    }

    /// What is left at the end: U+FFFD when the last character is incomplete, else nothing.
    /// The detokeniser is then at the start of a text again.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
        self.begins = true;
        &self.text
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted<'a> {
    /// Text that is surely no part of a stop string.
    pub text: &'a str,
    /// Whether a stop string was found; nothing follows.
    pub stopped: bool,
}

/// Watches a stream of text for stop strings.
///
/// The match that ends first wins (of several that end together, the longest); the text before it
/// is given out, the match and everything behind it is not.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// What was given out by the last call, then what is held back.
    buffer: String,
    /// Length of the part of `buffer` that was given out.
    emitted: usize,
    stopped: bool,
    found: String,
}

impl StopMatcher {
    /// A matcher for `stops`; empty strings among them are ignored.
    #[must_use]
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Self {
        let stops = stops.into_iter().map(Into::into).filter(|stop: &String| !stop.is_empty());
        Self {
            stops: stops.map(Stop::new).collect(),
            buffer: String::new(),
            emitted: 0,
            stopped: false,
            found: String::new(),
        }
    }

    /// The stop string that was found.
    #[must_use]
    pub fn found(&self) -> &str {
        &self.found
    }

    /// Adds `text` to the stream and gives out what is decided. After a stop, always nothing.
    pub fn push(&mut self, text: &str) -> Emitted<'_> {
        self.buffer.drain(..self.emitted);
        self.emitted = 0;
        if !self.stopped {
            let seen = self.buffer.len();
            self.buffer.push_str(text);
            self.emitted = self.scan(seen);
        }
        Emitted { text: &self.buffer[..self.emitted], stopped: self.stopped }
    }

    /// Advances over `buffer[seen..]` and returns how much of the buffer is decided; drops a match
    /// and what follows it.
    fn scan(&mut self, seen: usize) -> usize {
        for (at, &byte) in self.buffer.as_bytes().iter().enumerate().skip(seen) {
            let ends = self.stops.iter_mut().filter_map(|stop| stop.advance(byte)).max();
            if let Some(length) = ends {
                self.stopped = true;
                self.found = self.buffer[at + 1 - length..=at].to_owned();
                self.buffer.truncate(at + 1 - length);
                return self.buffer.len();
            }
        }
        // A partial match starts with a stop string's first byte, so at a character's start.
        let held = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        self.buffer.len() - held
    }

    /// The text still held back when the stream ends without a stop; the matcher then starts anew.
    pub fn finish(&mut self) -> String {
        let held = self.buffer.split_off(self.emitted);
        self.buffer.clear();
        self.emitted = 0;
        self.stopped = false;
        for stop in &mut self.stops {
            stop.matched = 0;
        }
        held
    }
}

/// One stop string and how much of it the stream's end matches (Knuth, Morris, Pratt).
#[derive(Clone, Debug)]
struct Stop {
    text: Vec<u8>,
    /// For each length, the longest shorter prefix that is also a suffix of that prefix.
    shorter: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(text: String) -> Self {
        let text = text.into_bytes();
        let mut stop = Self { shorter: vec![0; text.len() + 1], text, matched: 0 };
        for at in 1..stop.text.len() {
            stop.step(stop.text[at]);
            stop.shorter[at + 1] = stop.matched;
        }
        stop.matched = 0;
        stop
    }

    /// Moves to the longest prefix that the stream with `byte` ends in.
    fn step(&mut self, byte: u8) {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.shorter[self.matched];
        }
        if self.text[self.matched] == byte {
            self.matched += 1;
        }
    }

    /// Takes one byte; the length of the stop string when it is complete.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        self.step(byte);
        (self.matched == self.text.len()).then_some(self.matched)
    }
}
