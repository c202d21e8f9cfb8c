//! Translates the engine's events into parts of an answer: reasoning, text, tool calls.

use futures_util::stream::{Stream, StreamExt};
use model::tokenizer::{AnswerParser, Piece};

use crate::error::Error;
use crate::unique;
use engine::{Event, FinishReason, Finished, GenerateError, TokenLogprobs};

/// A new part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Reasoning(String),
    Text(String),
    /// Beginning of the tool call number `index`.
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// Next part of the latest call's arguments, as JSON text.
    Arguments {
        index: usize,
        text: String,
    },
}

/// Reason why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended the answer, or its grammar did.
    Stop,
    /// The stop text that ended the answer.
    StopText(String),
    Length,
    /// The answer ends with tool calls.
    Calls,
}

impl Reason {
    /// Returns an error for a cancelled generation: the client has disconnected, or the daemon stops.
    pub(crate) fn of(finished: &Finished) -> Result<Self, Error> {
        match &finished.reason {
            FinishReason::End { .. } | FinishReason::Complete => Ok(Self::Stop),
            FinishReason::Stop { text } => Ok(Self::StopText(text.clone())),
            FinishReason::Length => Ok(Self::Length),
            FinishReason::Cancelled => Err(GenerateError::Stopping.into()),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: Reason,
    pub(crate) finished: Finished,
}

/// Contribution of one engine event to an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Update {
    pub(crate) parts: Vec<Part>,
    pub(crate) logprobs: Option<TokenLogprobs>,
    /// Set in the last update.
    pub(crate) end: Option<End>,
}

/// Parser state of one answer.
pub(super) struct Answer {
    parser: Option<AnswerParser>,
    /// Report more than one tool call.
    parallel: bool,
    calls: usize,
}

impl Answer {
    pub(super) fn new(parser: AnswerParser, parallel: bool) -> Self {
        Self { parser: Some(parser), parallel, calls: 0 }
    }

    /// Translates one event. `None` if it adds nothing.
    pub(super) fn take(&mut self, event: Event) -> Option<Result<Update, Error>> {
        let mut pieces = Vec::new();
        let mut update = Update::default();
        match event {
            Event::Prompt(_) | Event::Embedding(_) => return None,
            Event::Token(token) => {
                if let Some(parser) = &mut self.parser {
                    parser.push(&token.text, &mut pieces);
                }
                update.logprobs = token.logprobs;
            }
            Event::Finished(finished) => {
                if let Some(mut parser) = self.parser.take() {
                    parser.push(&finished.text, &mut pieces);
                    match finished.reason {
                        // The client learns that the answer, and so a call, is incomplete.
                        FinishReason::Length => parser.interrupt(&mut pieces),
                        _ => parser.finish(&mut pieces),
                    }
                }
                let reason = match Reason::of(&finished) {
                    Ok(reason) => reason,
                    Err(error) => return Some(Err(error)),
                };
                update.end = Some(End { reason, finished });
            }
            Event::Failed(error) => return Some(Err(error.into())),
        }
        update.parts = pieces.into_iter().filter_map(|piece| self.part(piece)).collect();
        if let Some(end) = &mut update.end
            && self.calls > 0
            && end.reason == Reason::Stop
        {
            end.reason = Reason::Calls;
        }
        let says_nothing =
            update.parts.is_empty() && update.logprobs.is_none() && update.end.is_none();
        (!says_nothing).then_some(Ok(update))
    }

    fn part(&mut self, piece: Piece) -> Option<Part> {
        let surplus = |calls: usize| calls > 1 && !self.parallel;
        match piece {
            Piece::Reasoning(text) => Some(Part::Reasoning(text)),
            Piece::Text(text) => Some(Part::Text(text)),
            Piece::Call { name } => {
                self.calls += 1;
                let call = Part::Call { index: self.calls - 1, id: call_id(), name };
                (self.parallel || self.calls == 1).then_some(call)
            }
            Piece::Arguments(text) if !surplus(self.calls) => {
                Some(Part::Arguments { index: self.calls.saturating_sub(1), text })
            }
            Piece::Arguments(_) => None,
        }
    }
}

/// Returns a random id of nine letters and digits, the form that Mistral's templates require.
fn call_id() -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut number = unique();
    let digit = |_| {
        let digit = DIGITS[(number % 36) as usize];
        number /= 36;
        char::from(digit)
    };
    (0..9).map(digit).collect()
}

/// A complete answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    /// Id, name and arguments of each call.
    pub(crate) calls: Vec<(String, String, String)>,
    pub(crate) logprobs: Vec<TokenLogprobs>,
    pub(crate) end: Option<End>,
}

impl Gathered {
    pub(crate) fn add(&mut self, update: Update) {
        for part in update.parts {
            match part {
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::Text(text) => self.text.push_str(&text),
                Part::Call { id, name, .. } => self.calls.push((id, name, String::new())),
                Part::Arguments { text, .. } => {
                    if let Some((.., arguments)) = self.calls.last_mut() {
                        arguments.push_str(&text);
                    }
                }
            }
        }
        self.logprobs.extend(update.logprobs);
        self.end = update.end.or(self.end.take());
    }

    /// Returns how the answer ended.
    pub(crate) fn end(&self) -> Result<&End, Error> {
        self.end.as_ref().ok_or_else(|| Error::internal("a generation ended without a final event"))
    }
}

/// Collects complete answers.
pub(crate) async fn gather(
    mut updates: impl Stream<Item = (usize, Result<Update, Error>)> + Unpin,
    answers: usize,
) -> Result<Vec<Gathered>, Error> {
    let mut all = vec![Gathered::default(); answers];
    while let Some((index, update)) = updates.next().await {
        let update = update?;
        if let Some(answer) = all.get_mut(index) {
            answer.add(update);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::TokenEvent;
    use model::tokenizer::{Calls, Format};
    use serde_json::json;
    use std::time::Duration;

    fn answer(parallel: bool, text: &str) -> (Vec<Part>, Reason) {
        let format = Format { calls: Some(Calls::Hermes), thinking: None };
        let tools = [json!({"type": "function", "function": {"name": "a"}})];
        let mut answer = Answer::new(AnswerParser::new(format, &tools, ""), parallel);
        let token = TokenEvent { id: 0, text: text.into(), logprobs: None };
        let mut parts =
            answer.take(Event::Token(token)).map_or(Vec::new(), |update| update.unwrap().parts);
        let finished = Finished {
            reason: FinishReason::End { id: 0 },
            text: String::new(),
            prompt_tokens: 1,
            cached_tokens: 0,
            diverged_at: None,
            completion_tokens: 1,
            drafted_tokens: 0,
            accepted_tokens: 0,
            queued: Duration::ZERO,
            first_token: Duration::ZERO,
            total: Duration::ZERO,
        };
        let last = answer.take(Event::Finished(finished)).unwrap().unwrap();
        parts.extend(last.parts);
        (parts, last.end.unwrap().reason)
    }

    #[test]
    fn only_the_first_call_counts_without_parallel_calls() {
        let two = "<tool_call>{\"name\": \"a\", \"arguments\": {\"x\": 1}}</tool_call>\n\
                   <tool_call>{\"name\": \"a\"}</tool_call>";
        let (parts, reason) = answer(true, two);
        assert_eq!(reason, Reason::Calls);
        let indices: Vec<_> = parts
            .iter()
            .map(|part| match part {
                Part::Call { index, id, name } if id.len() == 9 && name == "a" => (0, *index),
                Part::Arguments { index, .. } => (1, *index),
                part => panic!("{part:?}"),
            })
            .collect();
        assert_eq!(indices, [(0, 0), (1, 0), (0, 1), (1, 1)]);
        let (parts, reason) = answer(false, two);
        assert_eq!((parts.len(), reason), (2, Reason::Calls));
        let (parts, reason) = answer(true, "well");
        assert_eq!((parts, reason), (vec![Part::Text("well".into())], Reason::Stop));
    }
}
