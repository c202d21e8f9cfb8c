//! Parses a streamed answer into reasoning, text and tool calls.
//!
//! Each family of models has its own format of calls, which its template identifies ([`Format`]). The parser emits a
//! piece as soon as it is decided. The joined pieces do not depend on how the stream is divided. Text that begins
//! like a call but is not one is emitted as text.

mod deepseek;
mod format;
mod gemma;
mod harmony;
mod json;
mod mistral;
mod piece;
mod python;
mod repair;
#[cfg(test)]
mod tests;
mod xml;

use serde_json::Value as Json;

use self::deepseek::DeepSeek;
pub use self::format::{Calls, Format};
use self::gemma::Gemma;
use self::harmony::Harmony;
use self::json::JsonCall;
use self::mistral::Mistral;
pub use self::piece::Piece;
use self::piece::{Read, Tools, emit, partial_mark};
use self::xml::Xml;

/// Reader of a call, or of several with one mark. It emits [`Piece::Call`] once the call is certain.
#[derive(Debug)]
enum Reader {
    Json(JsonCall),
    Xml(Xml),
    Mistral(Mistral),
    Gemma(Gemma),
    /// Python's notation; the text up to the mark that ends it.
    Python,
    DeepSeek(DeepSeek),
}

impl Reader {
    /// The reader of a call that a mark begins.
    fn new(calls: Calls) -> Self {
        match calls {
            Calls::Hermes | Calls::Generic => Self::Json(JsonCall::any(calls.ends())),
            Calls::Llama => Self::Json(JsonCall::known()),
            Calls::Xml => Self::Xml(Xml::default()),
            Calls::Mistral | Calls::Granite | Calls::Phi | Calls::Nemotron | Calls::Functools => {
                Self::Mistral(Mistral::default())
            }
            Calls::FunctionGemma | Calls::Gemma => Self::Gemma(Gemma::new(calls)),
            Calls::Lfm => Self::Python,
            Calls::DeepSeek => Self::DeepSeek(DeepSeek::default()),
            Calls::Harmony => unreachable!("Harmony has its own state"),
        }
    }

    fn read(&mut self, text: &str, calls: Calls, tools: &Tools, out: &mut Vec<Piece>) -> Read {
        match self {
            Self::Json(call) => call.read(text, tools, out),
            Self::Xml(call) => call.read(text, tools, out),
            Self::Mistral(list) => list.read(text, calls.ends(), out),
            Self::Gemma(call) => call.read(text, out),
            Self::DeepSeek(list) => list.read(text, out),
            Self::Python => {
                let close = calls.ends().first().copied().unwrap_or_default();
                let Some(end) = text.find(close) else { return Read::More(0) };
                match emit_python(&text[..end], out) {
                    Some(()) => Read::Done(end + close.len()),
                    None => Read::Broken(0),
                }
            }
        }
    }

    /// Completes a call at the end of the answer, of which `text` is not read.
    fn finish(&mut self, text: &str, tools: &Tools, out: &mut Vec<Piece>) {
        match self {
            Self::Json(call) => call.finish(tools, out),
            Self::Xml(call) => call.finish(text, tools, out),
            Self::Mistral(list) => list.finish(out),
            Self::Gemma(_) => {}
            Self::DeepSeek(_) => DeepSeek::finish(text, out),
            Self::Python => drop(emit_python(text, out)),
        }
    }
}

fn emit_python(text: &str, out: &mut Vec<Piece>) -> Option<()> {
    for (name, arguments) in python::calls(text)? {
        out.push(Piece::Call { name });
        out.push(Piece::Arguments(arguments.to_string()));
    }
    Some(())
}

#[derive(Debug)]
enum State {
    /// Only white space so far: reasoning may begin, or a call without a mark.
    Start,
    Thinking,
    Text,
    Call {
        reader: Reader,
        /// Number of bytes of the buffer that the reader has consumed.
        seen: usize,
        /// True if the text certainly is a call; consumed bytes are then removed from the buffer.
        certain: bool,
    },
    Harmony(Harmony),
}

/// Parser of one answer.
#[derive(Debug)]
pub struct AnswerParser {
    format: Format,
    tools: Tools,
    state: State,
    /// Undecided text.
    buffer: String,
    /// White space that is emitted only if more text follows.
    space: String,
    /// White space is dropped here, as around reasoning and calls.
    trims: bool,
    called: bool,
}

impl AnswerParser {
    /// A parser for the answer to `prompt`, with tools in the format of templates. Without tools there are no calls.
    #[must_use]
    pub fn new(format: Format, tools: &[Json], prompt: &str) -> Self {
        let calls = format.calls.filter(|calls| !tools.is_empty() || *calls == Calls::Harmony);
        let format = Format { calls, ..format };
        let thinks = format.thinking.is_some_and(|[open, _]| prompt.trim_end().ends_with(open));
        let state = match format.calls {
            Some(Calls::Harmony) => State::Harmony(Harmony::new(!tools.is_empty())),
            _ if thinks => State::Thinking,
            _ if format == Format::PLAIN => State::Text,
            _ => State::Start,
        };
        Self {
            format,
            tools: Tools::new(tools),
            state,
            buffer: String::new(),
            space: String::new(),
            trims: thinks,
            called: false,
        }
    }

    /// Adds text to the answer and appends the decided pieces to `out`.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.buffer.push_str(text);
        while self.step(out) {}
    }

    /// Ends a complete answer. A call that lacks its end gets one.
    pub fn finish(self, out: &mut Vec<Piece>) {
        self.end(true, out);
    }

    /// Ends an answer that a limit cut. If it ends inside of a call, the arguments are incomplete.
    pub fn interrupt(self, out: &mut Vec<Piece>) {
        self.end(false, out);
    }

    fn end(mut self, complete: bool, out: &mut Vec<Piece>) {
        let rest = std::mem::take(&mut self.buffer);
        match &mut self.state {
            State::Harmony(harmony) => return harmony.finish(&rest, complete, out),
            State::Thinking => return self.run(&rest, Piece::Reasoning, out),
            State::Call { certain: true, .. } if !complete => return,
            State::Call { reader, seen, certain } if complete => {
                let mut calls = Vec::new();
                reader.finish(&rest[*seen..], &self.tools, &mut calls);
                if *certain || matches!(calls.first(), Some(Piece::Call { .. })) {
                    return calls.into_iter().for_each(|piece| emit(out, piece));
                }
            }
            State::Call { .. } | State::Start | State::Text => {}
        }
        self.run(&rest, Piece::Text, out);
        if !self.called {
            emit(out, Piece::Text(std::mem::take(&mut self.space)));
        }
    }

    /// Advances within the current state. Returns true if the next state may have more to do.
    fn step(&mut self, out: &mut Vec<Piece>) -> bool {
        match &mut self.state {
            State::Harmony(harmony) => {
                let read = harmony.read(&self.buffer, out);
                self.buffer.drain(..read);
                false
            }
            State::Start => self.start(),
            State::Thinking => self.thinking(out),
            State::Text => self.text(out),
            State::Call { .. } => self.call(out),
        }
    }

    /// Decides what the answer begins with.
    fn start(&mut self) -> bool {
        let rest = self.buffer.trim_start();
        if rest.is_empty() {
            return false;
        }
        let space = self.buffer.len() - rest.len();
        if let Some([open, _]) = self.format.thinking {
            if let Some(reasoning) = rest.strip_prefix(open) {
                self.buffer = reasoning.to_owned();
                self.trims = true;
                self.state = State::Thinking;
                return true;
            }
            if open.starts_with(rest) {
                return false;
            }
        }
        self.state = State::Text;
        if self.format.calls == Some(Calls::Llama) && rest.starts_with('{') {
            self.begin_call(Reader::Json(JsonCall::known()), space);
        }
        true
    }

    fn thinking(&mut self, out: &mut Vec<Piece>) -> bool {
        let Some([_, close]) = self.format.thinking else {
            unreachable!("only formats with marks for reasoning have this state");
        };
        if self.until(&[close], Piece::Reasoning, out).is_none() {
            return false;
        }
        self.buffer.drain(..close.len());
        self.after_mark();
        self.state = State::Text;
        // A call without a mark may follow.
        if self.format.calls == Some(Calls::Llama) {
            self.state = State::Start;
        }
        true
    }

    fn text(&mut self, out: &mut Vec<Piece>) -> bool {
        let Some(calls) = self.format.calls else {
            let text = std::mem::take(&mut self.buffer);
            self.run(&text, Piece::Text, out);
            return false;
        };
        // Marks after a call, which are dropped.
        let dropped: &[&str] = if self.called { calls.ends() } else { &[] };
        let opens = calls.opens();
        let marks: Vec<&str> = opens.iter().chain(dropped).copied().collect();
        if self.called && self.trims && calls == Calls::Llama {
            let rest = self.buffer.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
            let separator = self.buffer.len() - rest.len();
            if rest.starts_with('{') {
                self.begin_call(Reader::Json(JsonCall::known()), separator);
                return true;
            }
            if rest.is_empty() {
                return false;
            }
        }
        let Some(mark) = self.until(&marks, Piece::Text, out) else { return false };
        if dropped.contains(&mark) {
            self.buffer.drain(..mark.len());
            self.after_mark();
        } else {
            let reader = Reader::new(calls);
            // The reader needs a mark that is part of the call itself.
            let seen = if calls == Calls::Xml && mark != Calls::TOOL_CALL { 0 } else { mark.len() };
            self.begin_call(reader, seen);
        }
        true
    }

    fn begin_call(&mut self, reader: Reader, seen: usize) {
        self.state = State::Call { reader, seen, certain: false };
    }

    fn call(&mut self, out: &mut Vec<Piece>) -> bool {
        let State::Call { reader, seen, certain } = &mut self.state else {
            unreachable!("called only inside of a call");
        };
        let before = out.len();
        let Some(calls) = self.format.calls else { return false };
        let read = reader.read(&self.buffer[*seen..], calls, &self.tools, out);
        *certain |= out[before..].iter().any(|piece| matches!(piece, Piece::Call { .. }));
        let certain = *certain;
        if let Read::More(bytes) | Read::Done(bytes) = read {
            *seen += bytes;
        }
        if certain {
            self.called = true;
            self.buffer.drain(..std::mem::take(seen));
        }
        match read {
            Read::More(_) => return false,
            Read::Done(_) if certain => {
                self.state = State::Text;
                self.after_mark();
            }
            Read::Done(_) | Read::Broken(_) => {
                debug_assert!(!certain, "an emitted call cannot become text");
                self.state = State::Text;
                // No call begins with its first character.
                let first = self.buffer.chars().next().map_or(0, char::len_utf8);
                let first: String = self.buffer.drain(..first).collect();
                self.run(&first, Piece::Text, out);
            }
        }
        true
    }

    /// Drops white space around a mark.
    fn after_mark(&mut self) {
        self.space.clear();
        self.trims = true;
    }

    /// Emits the text before the first of the marks, which the buffer then begins with. Without a mark, emits
    /// everything that cannot be the start of one.
    fn until(
        &mut self,
        marks: &[&'static str],
        piece: fn(String) -> Piece,
        out: &mut Vec<Piece>,
    ) -> Option<&'static str> {
        let found = marks.iter().filter_map(|mark| Some((self.buffer.find(mark)?, *mark)));
        // The longer one, if two begin at the same place.
        let found = found.min_by_key(|(at, mark)| (*at, std::cmp::Reverse(mark.len())));
        let end = match found {
            Some((at, _)) => at,
            None => self.buffer.len() - partial_mark(&self.buffer, marks),
        };
        let text: String = self.buffer.drain(..end).collect();
        self.run(&text, piece, out);
        found.map(|(_, mark)| mark)
    }

    /// Emits part of a run of text or reasoning, without white space at its end, and after a mark without white
    /// space at its start.
    fn run(&mut self, text: &str, piece: fn(String) -> Piece, out: &mut Vec<Piece>) {
        if self.format == Format::PLAIN {
            emit(out, piece(text.to_owned()));
            return;
        }
        let text = if self.trims { text.trim_start() } else { text };
        let body = text.trim_end();
        if !body.is_empty() {
            self.trims = false;
            emit(out, piece(std::mem::take(&mut self.space) + body));
        }
        self.space.push_str(&text[body.len()..]);
    }
}
