//! `/v1/chat/completions`: a conversation, rendered with the model's chat template.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::sse;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use model::tokenizer::{Call, Message};
use serde_json::Value;

use super::{add_usage, finish_reason, head, logprobs, timings};
use crate::dialect::Dialect;
use crate::dialogue::{
    Ask, Choice, Dialogue, Part, Skipped, Thinking, Tool, Update, gather, tools,
};
use crate::error::Error;
use crate::rejections::Checked;
use crate::{App, events, params};
use errors::invalid::excerpt;

const ROLE: &str = "assistant";

pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::ChatRequest>,
) -> Result<Response, Error> {
    let streamed = request.stream.unwrap_or(false);
    let include_usage = request.stream_options.is_some_and(|o| o.include_usage);
    let wants_logprobs = request.logprobs.unwrap_or(false);
    let mut ask = ask(request)?;
    let skipped = std::mem::take(&mut ask.skipped);
    let answers = ask.answers;
    let Dialogue { served, updates, .. } = ask.start(&app).await?;
    let head = |object| head("chatcmpl", object, served.model.id.clone());
    if streamed {
        let head = api::ChatChunk {
            head: head("chat.completion.chunk"),
            choices: Vec::new(),
            usage: None,
            timings: None,
        };
        let usage = include_usage.then(api::Usage::default);
        let mut stream = Streaming { head, wants_logprobs, usage, left: answers };
        // Sends the roles first, so that a waiting client knows that the request was accepted.
        let first: Vec<_> = (0..answers).map(|index| stream.first(index)).collect();
        let parts = events::until_error(updates, Dialect::OpenAi, move |(index, update)| {
            stream.parts(index, update?)
        });
        return Ok(skipped.report(events::answer(stream::iter(first).chain(parts))));
    }

    let mut usage = api::Usage::default();
    let mut choices = Vec::with_capacity(answers);
    let mut times = api::Timings::default();
    for (index, answer) in gather(updates, answers).await?.into_iter().enumerate() {
        let end = answer.end()?;
        // All answers share one prompt: count its tokens once.
        let before = usage;
        add_usage(&mut usage, &end.finished);
        if index > 0 {
            usage.prompt_tokens = before.prompt_tokens;
            usage.prompt_tokens_details = before.prompt_tokens_details;
            usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        }
        times = timings(&end.finished);
        let reason = finish_reason(&end.reason).into();
        let called = |(id, name, arguments)| call(None, Some(id), Some(name), arguments);
        let tool_calls: Vec<_> = answer.calls.into_iter().map(called).collect();
        let silent = answer.text.is_empty() && !tool_calls.is_empty();
        let tokens = answer.logprobs.iter().map(logprobs::chat).collect();
        choices.push(api::ChatChoice {
            index,
            message: api::AssistantMessage {
                role: ROLE.into(),
                content: (!silent).then_some(answer.text),
                refusal: None,
                reasoning_content: Some(answer.reasoning).filter(|text| !text.is_empty()),
                tool_calls,
            },
            logprobs: wants_logprobs.then_some(api::ChatLogprobs { content: tokens }),
            finish_reason: reason,
        });
    }
    let answer = api::Chat { head: head("chat.completion"), choices, usage, timings: times };
    Ok(skipped.report(Json(answer).into_response()))
}

/// Translates a request into an [`Ask`].
pub(crate) fn ask(mut request: api::ChatRequest) -> Result<Ask, Error> {
    let logprobs = alternatives(&request)?;
    let sampling = params::sampling(
        request.temperature,
        request.top_p,
        request.top_k,
        request.min_p,
        request.seed,
    )?;
    let logits_options = request.logits_options();
    let (grammar, schema) = (request.grammar.take(), request.json_schema.take());
    let (mut tools, skipped) = tool_list(request.tools.unwrap_or_default())?;
    let choice = choice(request.tool_choice, &mut tools)?;
    Ok(Ask {
        model: request.model,
        field: "messages",
        messages: messages(request.messages)?,
        tools,
        skipped,
        choice,
        parallel: request.parallel_tool_calls.unwrap_or(true),
        form: super::form(grammar, schema, request.response_format)?,
        thinking: request.reasoning_effort.map(|effort| ("reasoning_effort", thinking(effort))),
        variables: request.chat_template_kwargs.unwrap_or_default(),
        sampling,
        logits_options,
        lora: request.lora,
        stop: params::stops(request.stop)?,
        max_tokens: request.max_completion_tokens.or(request.max_tokens),
        ignore_end: request.ignore_eos.unwrap_or(false),
        logprobs,
        answers: params::answers(request.n)?,
    })
}

pub(super) fn thinking(effort: String) -> Thinking {
    match &*effort {
        "none" => Thinking::Off { must: true },
        _ => Thinking::Effort(effort),
    }
}

/// Returns the number of alternatives per token if log-probabilities were requested.
fn alternatives(request: &api::ChatRequest) -> Result<Option<u8>, Error> {
    let wanted = request.logprobs.unwrap_or(false);
    let number = request.top_logprobs.unwrap_or(0);
    if !wanted && number > 0 {
        let message = "top_logprobs: needs `logprobs` to be true";
        return Err(Error::value("top_logprobs", message));
    }
    wanted.then(|| params::alternatives("top_logprobs", number)).transpose()
}

/// Returns the functions, and the tools of other types, which cannot run here.
pub(crate) fn tool_list(list: Vec<api::ChatTool>) -> Result<(Vec<Tool>, Skipped), Error> {
    let (mut tools, mut skipped) = (Vec::new(), Skipped::default());
    for (at, tool) in list.into_iter().enumerate() {
        if let Some(kind) = tool.kind.filter(|kind| kind != "function") {
            skipped.add(&kind);
            continue;
        }
        let place = format!("tools[{at}].function");
        let Some(api::Function { name, description, parameters, strict }) = tool.function else {
            return Err(Error::value(place.as_str(), format!("{place}: is missing")));
        };
        let tool = Tool::new(&place, name, description, parameters)?;
        tools.push(Tool { strict: strict == Some(true), ..tool });
    }
    tools::check(&tools)?;
    Ok((tools, skipped))
}

/// Parses `auto`, `none`, `required`, a function, or `allowed_tools`, which removes all others. The
/// Responses route sends the objects without an inner object.
pub(super) fn choice(asked: Option<Value>, tools: &mut Vec<Tool>) -> Result<Choice, Error> {
    let Some(asked) = asked.filter(|asked| !asked.is_null()) else { return Ok(Choice::Auto) };
    let inner = |key| asked.get(key).filter(|inner| inner.is_object()).unwrap_or(&asked);
    let name = |tool: &Value| {
        let function = tool.get("function").unwrap_or(tool);
        function.get("name").and_then(Value::as_str).map(str::to_owned)
    };
    if asked.get("type").is_some_and(|kind| kind == "allowed_tools") {
        let allowed = inner("allowed_tools");
        let list = allowed.get("tools").and_then(Value::as_array);
        let names: Vec<String> = list.into_iter().flatten().filter_map(name).collect();
        tools.retain(|tool| names.contains(&tool.name));
        let required = allowed.get("mode").is_some_and(|mode| mode == "required");
        return Ok(if required { Choice::Required } else { Choice::Auto });
    }
    match (asked.as_str(), name(inner("custom"))) {
        (Some("auto"), _) => Ok(Choice::Auto),
        (Some("none"), _) => Ok(Choice::None),
        // `any` is what Mistral calls it.
        (Some("required" | "any"), _) => Ok(Choice::Required),
        (None, Some(name)) => Ok(Choice::Named(name)),
        _ => {
            let message = format!(
                "tool_choice: is {}; allowed are auto, none, required, and a function by its name",
                excerpt(&asked.to_string())
            );
            Err(Error::value("tool_choice", message))
        }
    }
}

fn messages(messages: Vec<api::ChatMessage>) -> Result<Vec<Message>, Error> {
    if messages.is_empty() {
        return Err(Error::value("messages", "messages: is empty; at least one is needed"));
    }
    messages.into_iter().enumerate().map(|(at, message)| self::message(at, message)).collect()
}

fn message(at: usize, message: api::ChatMessage) -> Result<Message, Error> {
    let role = match message.role.as_str() {
        // OpenAI's newer name for `system`.
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        role => {
            let param = format!("messages[{at}].role");
            let allowed = "allowed are system, developer, user, assistant, tool";
            let reason = format!("{param}: is `{}`; {allowed}", excerpt(role));
            return Err(Error::value(param, reason));
        }
    };
    let calls = message.tool_calls.unwrap_or_default();
    let content = match message.content {
        Some(content) => text(&format!("messages[{at}].content"), content)?,
        None if role == "assistant" => String::new(),
        None => {
            let param = format!("messages[{at}].content");
            return Err(Error::value(param.as_str(), format!("{param}: is missing")));
        }
    };
    let made = |(i, call): (usize, api::ToolCall)| {
        let Some(name) = call.function.name else {
            let param = format!("messages[{at}].tool_calls[{i}].function.name");
            return Err(Error::value(param.as_str(), format!("{param}: is missing")));
        };
        let id = tools::call_id(&format!("messages[{at}].tool_calls[{i}].id"), call.id)?;
        let arguments = tools::arguments(&call.function.arguments);
        Ok(Call { id, name, arguments })
    };
    let call_id = match role {
        "tool" => {
            let place = format!("messages[{at}].tool_call_id");
            Some(tools::call_id(&place, message.tool_call_id)?)
        }
        _ => None,
    };
    Ok(Message {
        reasoning: message.reasoning_content.filter(|text| !text.is_empty()),
        calls: calls.into_iter().enumerate().map(made).collect::<Result<_, _>>()?,
        call_id,
        name: message.name,
        ..Message::new(role, content)
    })
}

/// Returns the text of a content whose parts must all be text.
fn text(place: &str, content: api::Content) -> Result<String, Error> {
    match content {
        api::Content::Text(text) => Ok(text),
        api::Content::Parts(parts) => {
            if let Some((i, part)) = parts.iter().enumerate().find(|(_, p)| p.kind != "text") {
                let param = format!("{place}[{i}].type");
                let reason =
                    format!("{param}: is `{}`; only `text` can be read", excerpt(&part.kind));
                return Err(Error::value(param, reason));
            }
            Ok(parts.into_iter().map(|part| part.text).collect())
        }
    }
}

fn call(
    index: Option<usize>,
    id: Option<String>,
    name: Option<String>,
    arguments: String,
) -> api::ToolCall {
    let kind = id.is_some().then(|| "function".to_owned());
    api::ToolCall { index, id, kind, function: api::CalledFunction { name, arguments } }
}

struct Streaming {
    head: api::ChatChunk,
    wants_logprobs: bool,
    /// Present if the request asks for token counts.
    usage: Option<api::Usage>,
    /// Number of answers still in progress.
    left: usize,
}

impl Streaming {
    fn chunk(&self, choice: api::ChatChunkChoice) -> sse::Event {
        events::data(&api::ChatChunk { choices: vec![choice], ..self.head.clone() })
    }

    fn first(&self, index: usize) -> sse::Event {
        let delta = api::Delta {
            role: Some(ROLE.into()),
            content: Some(String::new()),
            ..Default::default()
        };
        self.chunk(api::ChatChunkChoice { index, delta, ..Default::default() })
    }

    /// Returns the events for an update.
    fn parts(&mut self, index: usize, update: Update) -> Result<Vec<sse::Event>, Error> {
        let mut deltas: Vec<api::Delta> = update.parts.into_iter().map(delta).collect();
        if deltas.is_empty() && update.logprobs.is_some() {
            deltas.push(api::Delta { content: Some(String::new()), ..Default::default() });
        }
        let mut tokens = update.logprobs.as_ref().map(logprobs::chat);
        let mut out = Vec::new();
        for delta in deltas {
            let content = tokens.take().into_iter().collect();
            let logprobs = self.wants_logprobs.then_some(api::ChatLogprobs { content });
            out.push(self.chunk(api::ChatChunkChoice {
                index,
                delta,
                logprobs,
                ..Default::default()
            }));
        }
        let Some(end) = update.end else { return Ok(out) };
        let mut last = api::ChatChunk {
            choices: vec![api::ChatChunkChoice {
                index,
                finish_reason: Some(finish_reason(&end.reason).into()),
                ..Default::default()
            }],
            ..self.head.clone()
        };
        last.timings = Some(timings(&end.finished));
        out.push(events::data(&last));
        if let Some(usage) = &mut self.usage {
            // All answers share one prompt: its tokens have been counted.
            usage.prompt_tokens = 0;
            usage.prompt_tokens_details.cached_tokens = 0;
            add_usage(usage, &end.finished);
        }
        self.left -= 1;
        if self.left == 0 {
            if self.usage.is_some() {
                out.push(events::data(&api::ChatChunk { usage: self.usage, ..self.head.clone() }));
            }
            out.push(events::done());
        }
        Ok(out)
    }
}

fn delta(part: Part) -> api::Delta {
    let mut delta = api::Delta::default();
    match part {
        Part::Text(text) => delta.content = Some(text),
        Part::Reasoning(text) => delta.reasoning_content = Some(text),
        Part::Call { index, id, name } => {
            delta.tool_calls.push(call(Some(index), Some(id), Some(name), String::new()));
        }
        Part::Arguments { index, text } => {
            delta.tool_calls.push(call(Some(index), None, None, text));
        }
    }
    delta
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: Value) -> Result<Vec<(String, String)>, Option<String>> {
        let read = messages(serde_json::from_value(json).unwrap());
        let pairs = read.map(|list| list.into_iter().map(|m| (m.role, m.content)).collect());
        pairs.map_err(|e| e.body().error.param)
    }

    #[test]
    fn messages_accept_text_and_parts() {
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
    fn unreadable_content_is_rejected_with_its_path() {
        assert_eq!(read(serde_json::json!([])), Err(Some("messages".into())));
        assert_eq!(
            read(serde_json::json!([{"role": "robot", "content": ""}])),
            Err(Some("messages[0].role".into()))
        );
        let image = serde_json::json!([{"role": "user", "content": [{"type": "image_url"}]}]);
        assert_eq!(read(image), Err(Some("messages[0].content[0].type".into())));
        for id in [Value::Null, "".into()] {
            let call = serde_json::json!({"id": id, "function": {"name": "f", "arguments": "{}"}});
            let calls = serde_json::json!([{"role": "assistant", "tool_calls": [call]}]);
            assert_eq!(read(calls), Err(Some("messages[0].tool_calls[0].id".into())));
            let answer = serde_json::json!([{"role": "tool", "tool_call_id": id, "content": "x"}]);
            assert_eq!(read(answer), Err(Some("messages[0].tool_call_id".into())));
        }
    }

    #[test]
    fn tool_calls_and_results_are_parsed() {
        let json = serde_json::json!([
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"},
        ]);
        let read = messages(serde_json::from_value(json).unwrap()).unwrap();
        assert_eq!(read[0].calls[0].arguments, serde_json::json!({"a": 1}));
        assert_eq!(read[0].calls[1].arguments, serde_json::json!({}));
        assert_eq!((read[0].reasoning.as_deref(), &*read[0].content), (Some("hm"), ""));
        assert_eq!(read[1].call_id.as_deref(), Some("1"));
    }

    #[test]
    fn tool_choices_are_parsed() {
        let read =
            |asked: Value| choice(Some(asked), &mut Vec::new()).map_err(|e| e.body().error.param);
        assert_eq!(read("required".into()), Ok(Choice::Required));
        let named = serde_json::json!({"type": "function", "function": {"name": "f"}});
        assert_eq!(read(named), Ok(Choice::Named("f".into())));
        let named = serde_json::json!({"type": "function", "name": "f"});
        assert_eq!(read(named), Ok(Choice::Named("f".into())));
        assert_eq!(read(Value::Null), Ok(Choice::Auto));
        assert_eq!(read(7.into()), Err(Some("tool_choice".into())));
        let tool = |name: &str| Tool::new("", name.into(), None, None).unwrap();
        let mut tools = vec![tool("f"), tool("g")];
        let allowed = serde_json::json!({"type": "allowed_tools", "allowed_tools":
            {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}});
        assert_eq!(choice(Some(allowed), &mut tools).unwrap(), Choice::Required);
        assert_eq!(tools, [tool("g")]);
    }
}
