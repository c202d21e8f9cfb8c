//! Streaming: decodes ids to whole characters, and finds stop strings.
//!
//! Both withhold text only while it is undecided, and return the same text for any division of the stream.

use std::sync::Arc;

use super::build::Tokenizer;

/// Decodes a stream of ids to text, without splitting characters.
///
/// The joined results of all calls equal [`Tokenizer::decode`] of the ids; after a prompt, the text that they add to
/// it.
#[derive(Clone, Debug)]
pub struct Detokeniser {
    tokenizer: Arc<Tokenizer>,
    /// Start of an incomplete character: at most 3 bytes between calls.
    pending: Vec<u8>,
    /// Text begins with the next id.
    begins: bool,
    /// Control tokens whose names are emitted as text.
    shown: Vec<u32>,
    text: String,
}

impl Detokeniser {
    /// A detokeniser for ids at the start of a text.
    #[must_use]
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self::after(tokenizer, &[])
    }

    /// A detokeniser for ids that continue `prompt`.
    #[must_use]
    pub fn after(tokenizer: Arc<Tokenizer>, prompt: &[u32]) -> Self {
        let begins = tokenizer.begins_after(prompt);
        Self { tokenizer, pending: Vec::new(), begins, shown: Vec::new(), text: String::new() }
    }

    /// Also emits the names of these control tokens.
    #[must_use]
    pub fn showing(self, shown: Vec<u32>) -> Self {
        Self { shown, ..self }
    }

    /// The text that `id` completes; empty for control tokens and inside of a character.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        self.pending.extend_from_slice(self.tokenizer.text_bytes(id, &mut self.begins));
        if self.shown.contains(&id) {
            self.pending.extend_from_slice(self.tokenizer.token_bytes(id).unwrap_or_default());
        }
        let (mut end, mut pending) = (0, 0);
        for chunk in self.pending.utf8_chunks() {
            self.text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            end += chunk.valid().len() + invalid.len();
            // Bytes at the very end may be an incomplete character.
            let incomplete = std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if incomplete && end == self.pending.len() {
                pending = invalid.len();
            } else if !invalid.is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - pending);
        &self.text
    }

    /// Ends the text. Returns U+FFFD if the last character is incomplete, else nothing. The next id begins a new
    /// text.
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

/// Result of [`StopMatcher::push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted<'a> {
    /// Text that is certainly not part of a stop string.
    pub text: &'a str,
    /// A stop string was found; nothing follows.
    pub stopped: bool,
}

/// Finds stop strings in a stream of text.
///
/// The match that ends first wins; the longest, if several end at the same byte. The text before it is emitted, the
/// match and everything after it is not.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// Text that the last call emitted, then text that is withheld.
    buffer: String,
    /// Length of the emitted part of `buffer`.
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

    /// Adds `text` to the stream and returns the decided text; nothing after a stop.
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

    /// Searches `buffer[seen..]` and returns the decided length of the buffer. Removes a match and all text after it.
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
        // A partial match starts with the first byte of a stop string, so at the start of a character.
        let held = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        self.buffer.len() - held
    }

    /// Ends the stream and returns the withheld text. The matcher is reset.
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

/// A stop string, and the length of its prefix that the stream ends with (Knuth, Morris, Pratt).
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

    /// Updates `matched` for a stream that continues with `byte`.
    fn step(&mut self, byte: u8) {
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.shorter[self.matched];
        }
        if self.text[self.matched] == byte {
            self.matched += 1;
        }
    }

    /// Adds a byte. Returns the length of the stop string if it is complete.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        self.step(byte);
        (self.matched == self.text.len()).then_some(self.matched)
    }
}
