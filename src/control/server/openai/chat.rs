//! `/v1/chat/completions`: a conversation, put into the model's own template.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::sse;
use axum::response::{IntoResponse, Response};
use futures_util::future::ready;
use futures_util::stream::{self, StreamExt};

use super::params::{self, OpenAiBody};
use super::{add_usage, finish_reason, head, logprobs, prompt, timings};
use crate::control::api;
use crate::control::server::error::Error;
use crate::control::server::{App, events, generation};
use crate::engine::{Event, Finished, Request};
use crate::wording::shown;
use model::tokenizer::Message;

const ROLE: &str = "assistant";

pub(in crate::control::server) async fn chat(
    State(app): State<Arc<App>>,
    OpenAiBody(request): OpenAiBody<api::ChatRequest>,
) -> Result<Response, Error> {
    let alternatives = alternatives(&request)?;
    let sampling =
        params::sampling(request.temperature, request.top_p, request.top_k, request.seed)?;
    let stop = params::stops(request.stop)?;
    let asked = request.max_completion_tokens.or(request.max_tokens);
    let most = params::reportable(alternatives, 0, asked, 1)?;
    let messages = messages(request.messages)?;
    let mut admission = params::admit(&app, request.model.as_deref(), 1)?;
    let served = Arc::clone(&admission.served);
    let prompt = prompt::conversation(&app, &served, messages).await?;
    let generation = Request {
        max_tokens: params::max_tokens(asked, prompt.len(), served.model.context, most),
        prompt,
        sampling,
        stop,
        ignore_end: request.ignore_eos.unwrap_or(false),
        logprobs: alternatives,
        prompt_logprobs: false,
    };
    let mut generations = generation::start(&app, &mut admission, vec![generation])?;

    let head = |object| head("chatcmpl", object, served.model.id.clone());
    let wants_logprobs = alternatives.is_some();
    if request.stream.unwrap_or(false) {
        let head = api::ChatChunk {
            head: head("chat.completion.chunk"),
            choices: Vec::new(),
            usage: None,
            timings: None,
        };
        let include_usage = request.stream_options.is_some_and(|o| o.include_usage);
        let stream = Streaming { head, wants_logprobs, include_usage, over: false };
        // The role comes first, so that a waiting client knows that it was heard.
        let first = stream.first();
        let parts = generations.scan(stream, |stream, (_, event)| ready(stream.step(event)));
        return Ok(events::answer(stream::iter([first]).chain(parts.flat_map(stream::iter))));
    }

    let mut content = String::new();
    let mut tokens = Vec::new();
    while let Some((_, event)) = generations.next().await {
        let part = take(event)?;
        content.push_str(&part.text);
        tokens.extend(part.logprobs);
        let Some(finished) = part.finished else { continue };
        let mut usage = api::Usage::default();
        add_usage(&mut usage, &finished);
        let choice = api::ChatChoice {
            index: 0,
            message: api::AssistantMessage { role: ROLE.into(), content, refusal: None },
            logprobs: wants_logprobs.then_some(api::ChatLogprobs { content: tokens }),
            finish_reason: finish_reason(&finished)?.into(),
        };
        let answer = api::Chat {
            head: head("chat.completion"),
            choices: vec![choice],
            usage,
            timings: timings(&finished),
        };
        return Ok(Json(answer).into_response());
    }
    Err(Error::internal("a generation ended without an end"))
}

/// How many alternatives per token, if log-probabilities were asked for.
fn alternatives(request: &api::ChatRequest) -> Result<Option<u8>, Error> {
    let wanted = request.logprobs.unwrap_or(false);
    let number = request.top_logprobs.unwrap_or(0);
    if !wanted && number > 0 {
        let message = "top_logprobs: needs `logprobs` to be true";
        return Err(Error::value("top_logprobs", message));
    }
    wanted.then(|| params::alternatives("top_logprobs", number)).transpose()
}

fn messages(messages: Vec<api::ChatMessage>) -> Result<Vec<Message>, Error> {
    if messages.is_empty() {
        return Err(Error::value("messages", "messages: is empty; at least one is needed"));
    }
    messages.into_iter().enumerate().map(|(at, message)| self::message(at, message)).collect()
}

fn message(at: usize, message: api::ChatMessage) -> Result<Message, Error> {
    let role = match message.role.as_str() {
        // OpenAI's newer name.
        "developer" => "system",
        role @ ("system" | "user" | "assistant") => role,
        role => {
            let param = format!("messages[{at}].role");
            let allowed = "allowed are system, developer, user, assistant";
            let reason = format!("{param}: is `{}`; {allowed}", shown(role));
            return Err(Error::value(param, reason));
        }
    };
    let content = match message.content {
        api::Content::Text(text) => text,
        api::Content::Parts(parts) => {
            if let Some((i, part)) = parts.iter().enumerate().find(|(_, p)| p.kind != "text") {
                let param = format!("messages[{at}].content[{i}].type");
                let reason =
                    format!("{param}: is `{}`; only `text` can be read", shown(&part.kind));
                return Err(Error::value(param, reason));
            }
            parts.into_iter().map(|part| part.text).collect()
        }
    };
    Ok(Message::new(role, content))
}

#[derive(Default)]
struct Part {
    text: String,
    logprobs: Option<api::ChatTokenLogprobs>,
    finished: Option<Finished>,
}

fn take(event: Event) -> Result<Part, Error> {
    match event {
        Event::Prompt(_) => Ok(Part::default()),
        Event::Token(token) => {
            let logprobs = token.logprobs.as_ref().map(logprobs::chat);
            Ok(Part { text: token.text, logprobs, finished: None })
        }
        Event::Finished(finished) => {
            Ok(Part { text: finished.text.clone(), logprobs: None, finished: Some(finished) })
        }
        Event::Failed(error) => Err(error.into()),
    }
}

struct Streaming {
    head: api::ChatChunk,
    wants_logprobs: bool,
    include_usage: bool,
    over: bool,
}

impl Streaming {
    fn chunk(&self, choice: api::ChatChunkChoice) -> api::ChatChunk {
        api::ChatChunk { choices: vec![choice], ..self.head.clone() }
    }

    fn first(&self) -> sse::Event {
        let delta = api::Delta { role: Some(ROLE.into()), content: Some(String::new()) };
        events::data(&self.chunk(api::ChatChunkChoice { delta, ..Default::default() }))
    }

    /// The events to send for one event of the engine; `None` ends the stream.
    fn step(&mut self, event: Event) -> Option<Vec<sse::Event>> {
        if self.over {
            return None;
        }
        Some(self.parts(event).unwrap_or_else(|error| {
            self.over = true;
            vec![events::error(&error)]
        }))
    }

    fn parts(&mut self, event: Event) -> Result<Vec<sse::Event>, Error> {
        let part = take(event)?;
        let mut out = Vec::new();
        if !part.text.is_empty() || part.logprobs.is_some() {
            let content = part.logprobs.into_iter().collect();
            out.push(events::data(&self.chunk(api::ChatChunkChoice {
                delta: api::Delta { role: None, content: Some(part.text) },
                logprobs: self.wants_logprobs.then_some(api::ChatLogprobs { content }),
                ..Default::default()
            })));
        }
        let Some(finished) = part.finished else { return Ok(out) };
        let mut last = self.chunk(api::ChatChunkChoice {
            finish_reason: Some(finish_reason(&finished)?.into()),
            ..Default::default()
        });
        last.timings = Some(timings(&finished));
        out.push(events::data(&last));
        if self.include_usage {
            let mut usage = api::Usage::default();
            add_usage(&mut usage, &finished);
            out.push(events::data(&api::ChatChunk { usage: Some(usage), ..self.head.clone() }));
        }
        out.push(events::done());
        self.over = true;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: serde_json::Value) -> Result<Vec<(String, String)>, Option<String>> {
        let read = messages(serde_json::from_value(json).unwrap());
        let pairs = read.map(|list| list.into_iter().map(|m| (m.role, m.content)).collect());
        pairs.map_err(|e| e.body().error.param)
    }

    #[test]
    fn messages_of_text_and_of_parts() {
        let pair = |role: &str, content: &str| (role.to_owned(), content.to_owned());
        assert_eq!(
            read(serde_json::json!([
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [
                    {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            ])),
            Ok(vec![pair("system", "be brief"), pair("user", "ab")])
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_by_its_place() {
        assert_eq!(read(serde_json::json!([])), Err(Some("messages".into())));
        assert_eq!(
            read(serde_json::json!([{"role": "tool", "content": ""}])),
            Err(Some("messages[0].role".into()))
        );
        let image = serde_json::json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        assert_eq!(read(image), Err(Some("messages[0].content[0].type".into())));
    }
}
