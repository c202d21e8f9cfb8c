//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::sse;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use model::tokenizer::{Call, Message};
use serde_json::{Value, json};

use super::dialect::Dialect;
use super::dialogue::{
    Ask, Choice, Dialogue, End, Form, Part, Reason, Skipped, Thinking, Tool, Update, gather, tools,
};
use super::error::Error;
use super::rejections::Checked;
use super::{App, events, params, unique};
use config::BillingHeader;
use engine::Finished;
use errors::invalid::excerpt;

const FIELD: &str = "messages";

pub(super) async fn messages(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::MessagesRequest>,
) -> Result<Response, Error> {
    if request.max_tokens.is_none() {
        return Err(Error::value("max_tokens", "max_tokens: is missing"));
    }
    let streamed = request.stream.unwrap_or(false);
    let mut ask = ask(request, app.config().billing_header)?;
    let skipped = std::mem::take(&mut ask.skipped);
    let Dialogue { served, prompt_tokens, updates } = ask.start(&app).await?;
    let id = format!("msg_{:016x}", unique());
    let head = |content: Vec<Value>, reason: Value, sequence: Value, usage: Value| {
        json!({
            "id": id, "type": "message", "role": "assistant", "model": served.model.id,
            "content": content, "stop_reason": reason, "stop_sequence": sequence,
            "usage": usage,
        })
    };
    if streamed {
        let usage = json!({"input_tokens": prompt_tokens, "output_tokens": 0});
        let message = head(Vec::new(), Value::Null, Value::Null, usage);
        let first = event(&json!({"type": "message_start", "message": message}));
        let mut stream = Streaming::default();
        let parts = events::until_error(updates, Dialect::Anthropic, move |(_, update)| {
            Ok(stream.parts(update?))
        });
        return Ok(skipped.report(events::answer(stream::iter([first]).chain(parts))));
    }
    let mut content = Vec::new();
    let Some(answer) = gather(updates, 1).await?.pop() else {
        return Err(Error::internal("a generation ended without a final event"));
    };
    let end = answer.end()?;
    if !answer.reasoning.is_empty() {
        content.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": ""}));
    }
    if !answer.text.is_empty() || answer.calls.is_empty() {
        content.push(json!({"type": "text", "text": answer.text}));
    }
    for (id, name, arguments) in &answer.calls {
        let input = tools::arguments(arguments);
        content.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
    }
    let (reason, sequence) = stop(end);
    let body = head(content, reason.into(), sequence, usage(&end.finished));
    Ok(skipped.report(Json(body).into_response()))
}

pub(super) async fn count_tokens(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::MessagesRequest>,
) -> Result<Json<Value>, Error> {
    let tokens = ask(request, app.config().billing_header)?.count(&app).await?;
    Ok(Json(json!({"input_tokens": tokens})))
}

/// Translates a request into an [`Ask`].
fn ask(request: api::MessagesRequest, header: BillingHeader) -> Result<Ask, Error> {
    let mut list = Vec::new();
    if let Some(system) = request.system {
        let system = match header {
            BillingHeader::Strip => without_billing_header(system),
            BillingHeader::Keep => system,
        };
        let system = text("system", system)?;
        if !system.is_empty() {
            list.push(Message::new("system", system));
        }
    }
    for (at, message) in request.messages.into_iter().enumerate() {
        turn(at, message, &mut list)?;
    }
    let (mut tools, mut skipped) = (Vec::new(), Skipped::default());
    if request.mcp_servers.is_some_and(|servers| !servers.is_empty()) {
        skipped.add("mcp_servers");
    }
    for (at, tool) in request.tools.unwrap_or_default().into_iter().enumerate() {
        if let Some(kind) = tool.kind.filter(|kind| kind != "custom") {
            skipped.add(if tool.name.is_empty() { &kind } else { &tool.name });
            continue;
        }
        let place = format!("tools[{at}]");
        let strict = tool.strict == Some(true);
        let tool = Tool::new(&place, tool.name, tool.description, tool.input_schema)?;
        tools.push(Tool { strict, ..tool });
    }
    tools::check(&tools)?;
    let format = request.output_config.and_then(|config| config.format).or(request.output_format);
    let parallel = request.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
    let thinking = match request.thinking.as_ref().map(|thinking| &*thinking.kind) {
        // Without `thinking`, reasoning is disabled if the model allows that.
        None => Thinking::Off { must: false },
        Some("disabled") => Thinking::Off { must: true },
        Some("enabled" | "adaptive") => Thinking::On,
        Some(kind) => {
            let message = format!(
                "thinking.type: is `{}`; allowed are enabled, adaptive, disabled",
                excerpt(kind)
            );
            return Err(Error::value("thinking.type", message));
        }
    };
    Ok(Ask {
        model: request.model,
        field: FIELD,
        messages: list,
        tools,
        skipped,
        choice: choice(request.tool_choice)?,
        parallel: !parallel.unwrap_or(false),
        form: format.map_or(Ok(Form::Text), form)?,
        thinking: Some(("thinking", thinking)),
        variables: serde_json::Map::new(),
        sampling: params::sampling(request.temperature, request.top_p, request.top_k, None, None)?,
        logits_options: api::LogitsOptions::default(),
        lora: None,
        stop: params::stops(request.stop_sequences.map(api::Stop::Many))?,
        max_tokens: request.max_tokens,
        ignore_end: false,
        logprobs: None,
        answers: 1,
    })
}

/// Begin of the line that Claude Code writes into its system prompt. Its hash differs in every
/// request, so that nothing after it would come from the prefix cache.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// Removes the line from the beginning of each text.
fn without_billing_header(system: api::Blocks) -> api::Blocks {
    let without = |text: &mut String| {
        if text.starts_with(BILLING_HEADER) {
            let end = text.find('\n').map_or(text.len(), |end| end + 1);
            text.replace_range(..end, "");
        }
    };
    match system {
        api::Blocks::Text(mut text) => {
            without(&mut text);
            api::Blocks::Text(text)
        }
        api::Blocks::List(mut list) => {
            list.iter_mut().filter_map(|block| block.text.as_mut()).for_each(without);
            api::Blocks::List(list)
        }
        other @ api::Blocks::Other(_) => other,
    }
}

/// Returns the required format of an answer.
fn form(format: api::OutputFormat) -> Result<Form, Error> {
    match (&*format.kind, format.schema) {
        ("json_schema", Some(schema)) => Ok(Form::schema(schema)),
        ("json_schema", None) => {
            let field = "output_config.format.schema";
            Err(Error::value(field, format!("{field}: is missing")))
        }
        (kind, _) => {
            let field = "output_config.format.type";
            let message = format!("{field}: is `{}`; allowed is json_schema", excerpt(kind));
            Err(Error::value(field, message))
        }
    }
}

fn choice(asked: Option<api::TurnChoice>) -> Result<Choice, Error> {
    let Some(api::TurnChoice { kind, name, .. }) = asked else { return Ok(Choice::Auto) };
    match (&*kind, name) {
        ("auto", _) => Ok(Choice::Auto),
        ("none", _) => Ok(Choice::None),
        ("any", _) => Ok(Choice::Required),
        ("tool", Some(name)) => Ok(Choice::Named(name)),
        ("tool", None) => Err(Error::value("tool_choice.name", "tool_choice.name: is missing")),
        (kind, _) => {
            let message = format!(
                "tool_choice.type: is `{}`; allowed are auto, any, tool, none",
                excerpt(kind)
            );
            Err(Error::value("tool_choice.type", message))
        }
    }
}

/// Returns the text of blocks that must all be readable as text.
fn text(place: &str, blocks: api::Blocks) -> Result<String, Error> {
    let list = match blocks {
        api::Blocks::Text(text) => return Ok(text),
        api::Blocks::List(list) => list,
        api::Blocks::Other(_) => {
            let message = format!("{place}: is an object; a text or a list of blocks is needed");
            return Err(Error::value(place, message));
        }
    };
    let mut all = String::new();
    for (at, block) in list.into_iter().enumerate() {
        let place = format!("{place}[{at}]");
        match &*block.kind {
            "text" | "search_result" | "document" | "tool_reference" => {
                all.push_str(&readable(&place, block)?);
            }
            kind => return Err(unreadable(&place, kind, "text")),
        }
    }
    Ok(all)
}

/// Returns the text of a block of text, or of a document that is text.
fn readable(place: &str, block: api::Block) -> Result<String, Error> {
    let missing = |field: &str| {
        let param = format!("{place}.{field}");
        Error::value(param.as_str(), format!("{param}: is missing"))
    };
    match &*block.kind {
        "document" => {
            let source = block.source.ok_or_else(|| missing("source"))?;
            let field = |name: &str| source.get(name).and_then(Value::as_str).unwrap_or_default();
            match field("type") {
                "text" => Ok(field("data").to_owned()),
                kind => Err(unreadable(&format!("{place}.source"), kind, "text")),
            }
        }
        "search_result" => {
            text(&format!("{place}.content"), block.content.ok_or_else(|| missing("content"))?)
        }
        "tool_reference" => block.tool_name.ok_or_else(|| missing("tool_name")),
        _ => block.text.ok_or_else(|| missing("text")),
    }
}

fn unreadable(place: &str, kind: &str, readable: &str) -> Error {
    let param = format!("{place}.type");
    let message = format!("{param}: is `{}`; only {readable} can be read", excerpt(kind));
    Error::value(param, message)
}

/// Appends the messages of one turn. Tool results become messages of their own, before the user's
/// text.
fn turn(at: usize, message: api::TurnMessage, list: &mut Vec<Message>) -> Result<(), Error> {
    let place = format!("messages[{at}].content");
    let role = match &*message.role {
        role @ ("user" | "assistant" | "system") => role.to_owned(),
        "developer" => "system".to_owned(),
        role => {
            let param = format!("messages[{at}].role");
            let message = format!("{param}: is `{}`; allowed are user, assistant", excerpt(role));
            return Err(Error::value(param, message));
        }
    };
    let blocks = match message.content {
        api::Blocks::Text(text) => {
            list.push(Message::new(role, text));
            return Ok(());
        }
        api::Blocks::List(blocks) => blocks,
        other @ api::Blocks::Other(_) => return text(&place, other).map(drop),
    };
    let mut text_message = Message::new(role, "");
    let mut answers = false;
    for (i, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}[{i}]");
        let missing = |field: &str| {
            let param = format!("{place}.{field}");
            Error::value(param.as_str(), format!("{param}: is missing"))
        };
        match &*block.kind {
            "text" | "search_result" | "document" => {
                text_message.content.push_str(&readable(&place, block)?);
            }
            "thinking" => {
                text_message
                    .reasoning
                    .get_or_insert_default()
                    .push_str(&block.thinking.unwrap_or_default());
            }
            "redacted_thinking" => {}
            // Anthropic has run these tools and the answer's text has the outcome.
            kind if is_of_anthropic(kind) => {}
            "tool_use" => text_message.calls.push(Call {
                id: tools::call_id(&format!("{place}.id"), block.id)?,
                name: block.name.ok_or_else(|| missing("name"))?,
                arguments: block.input.unwrap_or_else(|| json!({})),
            }),
            "tool_result" => {
                let content = match block.content {
                    Some(content) => text(&format!("{place}.content"), content)?,
                    None => String::new(),
                };
                let place = format!("{place}.tool_use_id");
                let call_id = Some(tools::call_id(&place, block.tool_use_id)?);
                list.push(Message { call_id, ..Message::new("tool", content) });
                answers = true;
            }
            kind => {
                let readable = "text, thinking, tool_use and tool_result";
                return Err(unreadable(&place, kind, readable));
            }
        }
    }
    if !answers || !text_message.content.is_empty() {
        list.push(text_message);
    }
    Ok(())
}

/// Returns true for the blocks of tools that Anthropic runs.
fn is_of_anthropic(kind: &str) -> bool {
    kind != "tool_result" && kind.ends_with("_tool_result")
        || ["server_tool_use", "mcp_tool_use", "container_upload", "mcp_tool_listing"]
            .contains(&kind)
}

/// `stop_reason` and `stop_sequence`.
fn stop(end: &End) -> (&'static str, Value) {
    match &end.reason {
        Reason::Stop => ("end_turn", Value::Null),
        Reason::StopText(text) => ("stop_sequence", text.as_str().into()),
        Reason::Length => ("max_tokens", Value::Null),
        Reason::Calls => ("tool_use", Value::Null),
    }
}

/// Token counts. This API counts cached input tokens separately.
fn usage(finished: &Finished) -> Value {
    let mut usage = json!({
        "input_tokens": finished.prompt_tokens - finished.cached_tokens,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": finished.cached_tokens,
        "output_tokens": finished.completion_tokens,
    });
    if let Some(at) = finished.diverged_at {
        usage["diverged_at"] = at.into();
    }
    usage
}

/// Returns an event that is named after its `type`.
fn event(value: &Value) -> sse::Event {
    let name = value.get("type").and_then(Value::as_str).unwrap_or_default();
    events::named(name, value)
}

/// The content block that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    ToolUse,
}

#[derive(Default)]
struct Streaming {
    open: Option<Open>,
    /// Number of blocks begun.
    blocks: usize,
}

impl Streaming {
    /// Returns the events for an update.
    fn parts(&mut self, update: Update) -> Vec<sse::Event> {
        self.values(update).iter().map(event).collect()
    }

    fn values(&mut self, update: Update) -> Vec<Value> {
        let mut out = Vec::new();
        for part in update.parts {
            let delta = match part {
                Part::Reasoning(text) => {
                    let block = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.begin(Open::Thinking, &block, &mut out);
                    json!({"type": "thinking_delta", "thinking": text})
                }
                Part::Text(text) => {
                    self.begin(Open::Text, &json!({"type": "text", "text": ""}), &mut out);
                    json!({"type": "text_delta", "text": text})
                }
                Part::Call { id, name, .. } => {
                    self.end(&mut out);
                    let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.begin(Open::ToolUse, &block, &mut out);
                    continue;
                }
                Part::Arguments { text, .. } => {
                    json!({"type": "input_json_delta", "partial_json": text})
                }
            };
            let index = self.blocks - 1;
            out.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        let Some(end) = update.end else { return out };
        if self.blocks == 0 {
            self.begin(Open::Text, &json!({"type": "text", "text": ""}), &mut out);
        }
        self.end(&mut out);
        let (reason, sequence) = stop(&end);
        out.push(json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(&end.finished),
        }));
        out.push(json!({"type": "message_stop"}));
        out
    }

    fn begin(&mut self, kind: Open, block: &Value, out: &mut Vec<Value>) {
        if self.open == Some(kind) {
            return;
        }
        self.end(out);
        let index = self.blocks;
        out.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        self.open = Some(kind);
        self.blocks += 1;
    }

    fn end(&mut self, out: &mut Vec<Value>) {
        match self.open.take() {
            None => return,
            Some(Open::Thinking) => {
                // Clients send reasoning back with its signature. The daemon does not need one.
                let delta = json!({"type": "signature_delta", "signature": ""});
                let index = self.blocks - 1;
                out.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
            }
            Some(Open::Text | Open::ToolUse) => {}
        }
        out.push(json!({"type": "content_block_stop", "index": self.blocks - 1}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: Value) -> Result<Ask, Option<String>> {
        let request: api::MessagesRequest = serde_json::from_value(json).unwrap();
        ask(request, BillingHeader::Strip).map_err(|error| error.body().error.param)
    }

    #[test]
    fn turns_become_messages() {
        let asked = read(json!({
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "weather?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "1", "name": "w", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "fine"}]},
                    {"type": "text", "text": "and?"}]},
            ],
            "tools": [{"name": "w", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
        }))
        .unwrap();
        let roles: Vec<_> =
            asked.messages.iter().map(|m| (m.role.as_str(), m.content.as_str())).collect();
        assert_eq!(
            roles,
            [
                ("system", "be brief"),
                ("user", "weather?"),
                ("assistant", "I look."),
                ("tool", "fine"),
                ("user", "and?")
            ]
        );
        assert_eq!(asked.messages[2].reasoning.as_deref(), Some("hm"));
        assert_eq!(asked.messages[2].calls[0].arguments, json!({"a": 1}));
        assert_eq!(asked.messages[3].call_id.as_deref(), Some("1"));
        assert_eq!((asked.choice, asked.parallel), (Choice::Required, false));
    }

    #[test]
    fn unreadable_content_is_rejected_with_its_path() {
        let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
        let image = read(user(json!([{"type": "image", "source": {}}])));
        assert_eq!(image.err(), Some(Some("messages[0].content[0].type".into())));
        let nameless = read(user(json!([{"type": "tool_use", "id": "", "name": "f"}])));
        assert_eq!(nameless.err(), Some(Some("messages[0].content[0].id".into())));
        let result = read(user(json!([{"type": "tool_result"}])));
        assert_eq!(result.err(), Some(Some("messages[0].content[0].tool_use_id".into())));
        let odd = read(json!({"messages": [{"role": "user", "content": {"a": 1}}]}));
        assert_eq!(odd.err(), Some(Some("messages[0].content".into())));
    }

    #[test]
    fn history_of_anthropics_tools_and_documents_is_read() {
        let asked = read(json!({"messages": [
            {"role": "user", "content": [
                {"type": "document", "source": {"type": "text", "data": "a page "}},
                {"type": "text", "text": "news?"}]},
            {"role": "assistant", "content": [
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"error_code": "x"}},
                {"type": "text", "text": "none"}]},
            {"role": "developer", "content": "be brief"}],
            "tools": [{"type": "web_search_20250305", "name": "web_search"}]}))
        .unwrap();
        let texts: Vec<&str> = asked.messages.iter().map(|m| m.content.as_str()).collect();
        assert_eq!(texts, ["a page news?", "none", "be brief"]);
        assert!(asked.tools.is_empty() && asked.messages[2].role == "system");
    }

    #[test]
    fn the_billing_header_is_no_part_of_the_prompt() {
        let system = |system: Value, header| {
            let request = json!({"messages": [{"role": "user", "content": "x"}], "system": system});
            let asked = ask(serde_json::from_value(request).unwrap(), header).unwrap();
            asked.messages[0].content.clone()
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        let line = "x-anthropic-billing-header: cc_version=2; cch=1a2b3;";
        for given in [
            json!([text(line), text("be brief")]),
            json!(format!("{line}\nbe brief")),
            json!([text("be brief")]),
        ] {
            assert_eq!(system(given, BillingHeader::Strip), "be brief");
        }
        assert_eq!(system(json!(line), BillingHeader::Keep), line);
        assert_eq!(system(json!(line), BillingHeader::Strip), "x", "no empty message");
    }

    #[test]
    fn blocks_open_and_close_in_order() {
        let mut stream = Streaming::default();
        let update = |parts| Update { parts, ..Update::default() };
        let mut events = stream.values(update(vec![
            Part::Reasoning("a".into()),
            Part::Text("b".into()),
            Part::Text("c".into()),
        ]));
        events.extend(stream.values(update(vec![
            Part::Call { index: 0, id: "1".into(), name: "f".into() },
            Part::Arguments { index: 0, text: "{}".into() },
            Part::Call { index: 1, id: "2".into(), name: "g".into() },
        ])));
        let brief: Vec<String> = events
            .iter()
            .map(|event| {
                let kind = event["type"].as_str().unwrap().trim_start_matches("content_block_");
                format!("{kind} {}", event["index"])
            })
            .collect();
        assert_eq!(
            brief,
            [
                "start 0", "delta 0", "delta 0", "stop 0", "start 1", "delta 1", "delta 1",
                "stop 1", "start 2", "delta 2", "stop 2", "start 3"
            ]
        );
    }
}
