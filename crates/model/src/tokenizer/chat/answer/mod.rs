//! An answer taken apart while it streams: thoughts, text, calls of tools.
//!
//! Each family of models writes calls in its own way, told by its template ([`Format`]). The parser
//! gives out a piece as soon as it is decided, and the same pieces, joined, whatever the cuts of
//! the stream. What begins like a call and is none is text.

mod format;
mod gemma;
mod harmony;
mod json;
mod mistral;
#[cfg(test)]
mod tests;
mod xml;

use serde_json::Value as Json;

pub use self::format::{Calls, Format};
use self::gemma::Gemma;
use self::harmony::Harmony;
use self::json::JsonCall;
use self::mistral::Mistral;
use self::xml::Xml;

/// What an answer is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Reasoning(String),
    Text(String),
    /// A call begins.
    Call {
        name: String,
    },
    /// More of the arguments of the latest call, which together are a JSON object.
    Arguments(String),
}

/// Adds a piece, joined with the last one if both are of one kind.
fn emit(out: &mut Vec<Piece>, piece: Piece) {
    match (out.last_mut(), piece) {
        (Some(Piece::Text(last)), Piece::Text(more))
        | (Some(Piece::Reasoning(last)), Piece::Reasoning(more))
        | (Some(Piece::Arguments(last)), Piece::Arguments(more)) => last.push_str(&more),
        (_, Piece::Text(text) | Piece::Reasoning(text) | Piece::Arguments(text))
            if text.is_empty() => {}
        (_, piece) => out.push(piece),
    }
}

/// What came of reading on in a call.
enum Read {
    /// The call goes on; so many bytes need not be seen again.
    More(usize),
    /// It ends behind so many bytes.
    Done(usize),
    /// It is none. What has been certain does not become so again.
    /// So many bytes were not wrong yet.
    Broken(usize),
}

/// A call being read, or several that share a mark. Once it is certain, its [`Piece::Call`] is
/// given out.
#[derive(Debug)]
enum Reader {
    Json(JsonCall),
    Xml(Xml),
    Mistral(Mistral),
    Gemma(Gemma),
}

impl Reader {
    fn read(&mut self, text: &str, tools: &Tools, out: &mut Vec<Piece>) -> Read {
        match self {
            Self::Json(call) => call.read(text, tools, out),
            Self::Xml(call) => call.read(text, tools, out),
            Self::Mistral(calls) => calls.read(text, out),
            Self::Gemma(call) => call.read(text, out),
        }
    }
}

/// The tools of a request: what their arguments are, and, where only a name tells a call from text,
/// which there are.
#[derive(Clone, Debug, Default)]
struct Tools(Vec<(String, Json)>);

impl Tools {
    /// Of tools as templates get them.
    fn new(tools: &[Json]) -> Self {
        let tool = |tool: &Json| {
            let function = tool.get("function")?;
            let name = function.get("name")?.as_str()?.to_owned();
            Some((name, function.get("parameters").cloned().unwrap_or_default()))
        };
        Self(tools.iter().filter_map(tool).collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// The schema of an argument.
    fn argument(&self, tool: &str, name: &str) -> Option<&Json> {
        let (_, parameters) = self.0.iter().find(|(known, _)| known == tool)?;
        parameters.get("properties")?.get(name)
    }
}

#[derive(Debug)]
enum State {
    /// Nothing but white space so far: thoughts may begin, and a call without a mark.
    Start,
    Thinking,
    Text,
    Call {
        reader: Reader,
        /// What the reader has seen of the buffer.
        seen: usize,
        /// Whether it is a call: then what has been seen is gone from the buffer.
        certain: bool,
    },
    Harmony(Harmony),
}

#[derive(Debug)]
pub struct AnswerParser {
    format: Format,
    tools: Tools,
    state: State,
    /// What is not decided.
    buffer: String,
    /// White space that is part of the text if more text follows.
    space: String,
    /// Whether white space is dropped: around thoughts and calls.
    trims: bool,
    called: bool,
}

impl AnswerParser {
    /// For the answer to `prompt`, with these tools, as templates get them; without tools there
    /// are no calls.
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

    /// Adds text to the answer; `out` receives what is decided.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.buffer.push_str(text);
        while self.step(out) {}
    }

    /// The answer ends. Where it was cut off within a call that has begun, its arguments are too.
    pub fn finish(mut self, out: &mut Vec<Piece>) {
        let rest = std::mem::take(&mut self.buffer);
        match &mut self.state {
            State::Harmony(harmony) => harmony.finish(&rest, out),
            State::Thinking => self.run(&rest, Piece::Reasoning, out),
            State::Call { certain: true, .. } => {}
            State::Call { .. } | State::Start | State::Text => {
                self.run(&rest, Piece::Text, out);
                if !self.called {
                    emit(out, Piece::Text(std::mem::take(&mut self.space)));
                }
            }
        }
    }

    /// Goes on as far as the state does; whether there may be more to do.
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

    /// Decides how the answer begins.
    fn start(&mut self) -> bool {
        let begun = self.buffer.trim_start();
        if begun.is_empty() {
            return false;
        }
        let space = self.buffer.len() - begun.len();
        if let Some([open, _]) = self.format.thinking {
            if let Some(thoughts) = begun.strip_prefix(open) {
                self.buffer = thoughts.to_owned();
                self.trims = true;
                self.state = State::Thinking;
                return true;
            }
            if open.starts_with(begun) {
                return false;
            }
        }
        self.state = State::Text;
        if self.format.calls == Some(Calls::Llama) && begun.starts_with('{') {
            self.begin_call(Reader::Json(JsonCall::known()), space);
        }
        true
    }

    fn thinking(&mut self, out: &mut Vec<Piece>) -> bool {
        let Some([_, close]) = self.format.thinking else {
            unreachable!("only what has a mark for thoughts is among them");
        };
        if self.until(&[close], Piece::Reasoning, out).is_none() {
            return false;
        }
        self.buffer.drain(..close.len());
        self.behind_mark();
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
        // What may stand behind a call and says nothing.
        let dropped: &[&str] = if self.called { calls.ends() } else { &[] };
        let opens = calls.opens();
        let marks: Vec<&str> = opens.iter().chain(dropped).copied().collect();
        if self.called && self.trims && calls == Calls::Llama {
            let begun = self.buffer.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
            let apart = self.buffer.len() - begun.len();
            if begun.starts_with('{') {
                self.begin_call(Reader::Json(JsonCall::known()), apart);
                return true;
            }
            if begun.is_empty() {
                return false;
            }
        }
        let Some(mark) = self.until(&marks, Piece::Text, out) else { return false };
        if dropped.contains(&mark) {
            self.buffer.drain(..mark.len());
            self.behind_mark();
        } else {
            let reader = match calls {
                Calls::Hermes => Reader::Json(JsonCall::any()),
                Calls::Llama => Reader::Json(JsonCall::known()),
                Calls::Xml => Reader::Xml(Xml::default()),
                Calls::Mistral => Reader::Mistral(Mistral::default()),
                Calls::FunctionGemma | Calls::Gemma => Reader::Gemma(Gemma::new(calls)),
                Calls::Harmony => unreachable!("it has a state of its own"),
            };
            // The reader sees a mark that is part of the call itself.
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
            unreachable!("asked for within a call only");
        };
        let before = out.len();
        let read = reader.read(&self.buffer[*seen..], &self.tools, out);
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
                self.behind_mark();
            }
            Read::Done(_) | Read::Broken(_) => {
                debug_assert!(!certain, "a call that has been given out stays one");
                self.state = State::Text;
                // Whatever it is, its first character begins no call.
                let first = self.buffer.chars().next().map_or(0, char::len_utf8);
                let first: String = self.buffer.drain(..first).collect();
                self.run(&first, Piece::Text, out);
            }
        }
        true
    }

    /// White space around a mark says nothing.
    fn behind_mark(&mut self) {
        self.space.clear();
        self.trims = true;
    }

    /// Gives out what stands before the first of some marks, which the buffer then begins with, or,
    /// where there is none, all that is no part of one.
    fn until(
        &mut self,
        marks: &[&'static str],
        piece: fn(String) -> Piece,
        out: &mut Vec<Piece>,
    ) -> Option<&'static str> {
        let found = marks.iter().filter_map(|mark| Some((self.buffer.find(mark)?, *mark)));
        // Of two that begin together the longer one.
        let found = found.min_by_key(|(at, mark)| (*at, std::cmp::Reverse(mark.len())));
        let end = match found {
            Some((at, _)) => at,
            None => self.buffer.len() - held(&self.buffer, marks),
        };
        let text: String = self.buffer.drain(..end).collect();
        self.run(&text, piece, out);
        found.map(|(_, mark)| mark)
    }

    /// Gives out part of a run of text or thoughts, but for white space at its end, and, behind a
    /// mark, at its beginning.
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

/// Bytes at the end of `text` that may be the beginning of one of some marks.
fn held(text: &str, marks: &[&str]) -> usize {
    let longest = |mark: &&str| {
        let most = text.len().min(mark.len() - 1);
        (1..=most).rev().find(|n| text.as_bytes().ends_with(&mark.as_bytes()[..*n]))
    };
    marks.iter().filter_map(longest).max().unwrap_or(0)
}
