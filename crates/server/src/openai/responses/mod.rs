//! OpenAI's `/v1/responses`: answers items with items, and continues stored conversations.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use model::tokenizer::{Call, Message};
use serde_json::{Value, json};

use super::{chat, seconds};
use crate::dialogue::{Ask, Dialogue, End, Gathered, Part, Reason, Tool, Update, gather, tools};
use crate::error::Error;
use crate::rejections::{Checked, RejectsFields, UnsupportedField, is_empty};
use crate::response_store::ResponseStore;
use crate::{App, events, params, unique};
use errors::invalid::excerpt;

const FIELD: &str = "input";

impl RejectsFields for api::ResponsesRequest {
    const UNSUPPORTED: &'static [&'static [UnsupportedField]] = &[&[
        ("lora", is_empty, "select the adapter with `model`: `MODEL:ADAPTER`"),
        ("background", is_empty, "leave it out; stream the answer or wait for it"),
        ("conversation", is_empty, "use previous_response_id"),
        ("prompt", is_empty, "use instructions and input"),
        ("top_logprobs", is_empty, "use /v1/chat/completions"),
        ("max_tool_calls", is_empty, "leave it out"),
        ("truncation", is_disabled, "send a conversation that fits"),
    ]];
}

fn is_disabled(value: &Value) -> bool {
    is_empty(value) || value == "disabled"
}

pub(crate) async fn responses(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::ResponsesRequest>,
) -> Result<Response, Error> {
    let streamed = request.stream.unwrap_or(false);
    let stores = request.store.unwrap_or(true);
    let mut answer = Answer::new(&request);
    let (ask, history) = ask(&app, request)?;
    let Dialogue { served, updates, .. } = ask.start(&app).await?;
    answer.model.clone_from(&served.model.id);
    let store = stores.then(|| (Arc::clone(&app), history));
    if streamed {
        let mut stream = Streaming::new(answer, store);
        let first = stream.first();
        let parts = events::until_error(updates, move |(_, update)| Ok(stream.parts(update?)));
        return Ok(events::answer(stream::iter(first).chain(parts)));
    }
    let Some(whole) = gather(updates, 1).await?.pop() else {
        return Err(Error::internal("a generation ended without a final event"));
    };
    let end = whole.end()?.clone();
    for (kind, text) in [(Kind::Reasoning, &whole.reasoning), (Kind::Message, &whole.text)] {
        if !text.is_empty() {
            answer.items.push(Item { text: text.clone(), ..Item::new(kind) });
        }
    }
    for (call_id, name, arguments) in whole.calls.clone() {
        let text = arguments;
        answer.items.push(Item { text, call_id, name, ..Item::new(Kind::Call) });
    }
    store_answer(store, &answer.id, whole);
    Ok(Json(answer.body(Some(&end))).into_response())
}

/// Stores a conversation with its answer.
fn store_answer(store: Option<(Arc<App>, Vec<Message>)>, id: &str, answer: Gathered) {
    let Some((app, mut history)) = store else { return };
    let call = |(id, name, arguments): (String, String, String)| Call {
        id,
        name,
        arguments: tools::arguments(&arguments),
    };
    history.push(Message {
        reasoning: Some(answer.reasoning).filter(|text| !text.is_empty()),
        calls: answer.calls.into_iter().map(call).collect(),
        ..Message::new("assistant", answer.text)
    });
    app.responses.lock().put(id.to_owned(), history);
}

/// Translates a request into an [`Ask`] and its conversation without instructions, which apply to
/// one answer only.
fn ask(app: &App, request: api::ResponsesRequest) -> Result<(Ask, Vec<Message>), Error> {
    let mut history = match &request.previous_response_id {
        None => Vec::new(),
        Some(id) => app.responses.lock().get(id).ok_or_else(|| {
            let message = format!(
                "previous_response_id: no answer `{}` is stored; the daemon stores the latest {}, up to {} MiB, while it runs",
                excerpt(id),
                ResponseStore::ANSWERS,
                ResponseStore::BYTES >> 20
            );
            Error::new(StatusCode::NOT_FOUND, "response_not_found", message)
                .param("previous_response_id")
                .hint("send the whole conversation as `input`")
        })?,
    };
    match request.input {
        api::Input::Text(text) => history.push(Message::new("user", text)),
        api::Input::Items(items) => {
            for (at, item) in items.into_iter().enumerate() {
                self::item(at, item, &mut history)?;
            }
        }
    }
    let tool = |(at, tool): (usize, api::ResponseTool)| {
        let place = format!("tools[{at}]");
        if tool.kind != "function" {
            let param = format!("{place}.type");
            let message =
                format!("{param}: is `{}`; only `function` is possible", excerpt(&tool.kind));
            return Err(Error::value(param, message));
        }
        Tool::new(&place, tool.name, tool.description, tool.parameters)
    };
    let list = request.tools.unwrap_or_default().into_iter().enumerate().map(tool);
    let list: Vec<Tool> = list.collect::<Result<_, _>>()?;
    tools::check(&list)?;
    let format = request.text.and_then(|text| text.format).map(|format| api::ResponseFormat {
        kind: format.kind,
        json_schema: Some(api::JsonSchema { schema: format.schema }),
    });
    let instructions = request.instructions.map(|text| Message::new("system", text));
    let messages = instructions.into_iter().chain(history.iter().cloned()).collect();
    let effort = request.reasoning.and_then(|reasoning| reasoning.effort);
    let ask = Ask {
        model: request.model,
        field: FIELD,
        messages,
        tools: list,
        choice: chat::choice(request.tool_choice)?,
        parallel: request.parallel_tool_calls.unwrap_or(true),
        form: super::form(None, None, format)?,
        thinking: effort.map(|effort| ("reasoning.effort", chat::thinking(effort))),
        variables: serde_json::Map::new(),
        sampling: params::sampling(
            request.temperature,
            request.top_p,
            request.top_k,
            None,
            request.seed,
        )?,
        logits_options: api::LogitsOptions::default(),
        lora: None,
        stop: Vec::new(),
        max_tokens: request.max_output_tokens,
        at_most: true,
        ignore_end: false,
        logprobs: None,
        answers: 1,
    };
    Ok((ask, history))
}

/// Appends an item to a conversation. Consecutive reasoning, text and calls of the assistant form
/// one message.
fn item(at: usize, item: api::Item, list: &mut Vec<Message>) -> Result<(), Error> {
    let place = format!("input[{at}]");
    let missing = |field: &str| {
        let param = format!("{place}.{field}");
        Error::value(param.as_str(), format!("{param}: is missing"))
    };
    let assistant = |list: &mut Vec<Message>, add: &mut dyn FnMut(&mut Message)| {
        if list.last().is_none_or(|last| last.role != "assistant") {
            list.push(Message::new("assistant", ""));
        }
        if let Some(last) = list.last_mut() {
            add(last);
        }
    };
    match item.kind.as_deref().unwrap_or("message") {
        "message" => {
            let role = item.role.ok_or_else(|| missing("role"))?;
            let text = text(&place, item.content.ok_or_else(|| missing("content"))?)?;
            match &*role {
                "assistant" => assistant(list, &mut |last| last.content.push_str(&text)),
                "developer" | "system" => list.push(Message::new("system", text)),
                "user" => list.push(Message::new("user", text)),
                role => {
                    let param = format!("{place}.role");
                    let allowed = "allowed are user, assistant, system, developer";
                    let message = format!("{param}: is `{}`; {allowed}", excerpt(role));
                    return Err(Error::value(param, message));
                }
            }
        }
        "reasoning" => {
            let content = item.content.map_or_else(
                || Ok(item.summary.unwrap_or_default().into_iter().map(|part| part.text).collect()),
                |content| text(&place, content),
            )?;
            assistant(list, &mut |last| {
                last.reasoning.get_or_insert_default().push_str(&content);
            });
        }
        "function_call" => {
            let call = Call {
                id: tools::call_id(&format!("{place}.call_id"), item.call_id)?,
                name: item.name.ok_or_else(|| missing("name"))?,
                arguments: tools::arguments(&item.arguments.unwrap_or_default()),
            };
            assistant(list, &mut |last| last.calls.push(call.clone()));
        }
        "function_call_output" => {
            let output = text(&place, item.output.ok_or_else(|| missing("output"))?)?;
            let call_id = Some(tools::call_id(&format!("{place}.call_id"), item.call_id)?);
            list.push(Message { call_id, ..Message::new("tool", output) });
        }
        kind => {
            let param = format!("{place}.type");
            let allowed = "allowed are message, reasoning, function_call, function_call_output";
            let message = format!("{param}: is `{}`; {allowed}", excerpt(kind));
            return Err(Error::value(param, message));
        }
    }
    Ok(())
}

fn text(place: &str, content: api::ItemContent) -> Result<String, Error> {
    const READABLE: [&str; 5] =
        ["input_text", "output_text", "text", "reasoning_text", "summary_text"];
    match content {
        api::ItemContent::Text(text) => Ok(text),
        api::ItemContent::Parts(parts) => {
            let odd = parts.iter().enumerate().find(|(_, part)| !READABLE.contains(&&*part.kind));
            if let Some((i, part)) = odd {
                let param = format!("{place}.content[{i}].type");
                let message =
                    format!("{param}: is `{}`; only text can be read", excerpt(&part.kind));
                return Err(Error::value(param, message));
            }
            Ok(parts.into_iter().map(|part| part.text).collect())
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call,
}

/// An item of the answer.
#[derive(Clone, Debug)]
struct Item {
    kind: Kind,
    id: String,
    /// Reasoning, text or arguments.
    text: String,
    call_id: String,
    name: String,
}

impl Item {
    fn new(kind: Kind) -> Self {
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
            Kind::Call => "fc",
        };
        let id = format!("{prefix}_{:016x}", unique());
        Self { kind, id, text: String::new(), call_id: String::new(), name: String::new() }
    }

    /// Returns the only part of its content.
    fn part(&self, text: &str) -> Value {
        match self.kind {
            Kind::Reasoning => json!({"type": "reasoning_text", "text": text}),
            Kind::Message | Kind::Call => {
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
            }
        }
    }

    fn value(&self, status: &str) -> Value {
        let Self { id, text, call_id, name, .. } = self;
        let content: Vec<Value> =
            if status == "in_progress" { Vec::new() } else { vec![self.part(text)] };
        match self.kind {
            Kind::Reasoning => json!({
                "type": "reasoning", "id": id, "summary": [], "content": content, "status": status,
            }),
            Kind::Message => json!({
                "type": "message", "id": id, "status": status, "role": "assistant", "content": content,
            }),
            Kind::Call => json!({
                "type": "function_call", "id": id, "call_id": call_id, "name": name,
                "arguments": text, "status": status,
            }),
        }
    }
}

/// The response object. Repeats the request's settings.
struct Answer {
    id: String,
    created: u64,
    model: String,
    echo: Value,
    items: Vec<Item>,
}

impl Answer {
    fn new(request: &api::ResponsesRequest) -> Self {
        let format = request.text.as_ref().and_then(|text| text.format.as_ref());
        let mut shape = json!({"type": format.map_or("text", |format| &*format.kind)});
        if let Some(schema) = format.and_then(|format| format.schema.clone()) {
            shape["schema"] = schema;
            shape["name"] = "answer".into();
        }
        let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone());
        let echo = json!({
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata.clone().unwrap_or_else(|| json!({})),
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": effort, "summary": null},
            "store": request.store.unwrap_or(true),
            "temperature": request.temperature,
            "text": {"format": shape},
            "tool_choice": request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": request.tools.clone().unwrap_or_default(),
            "top_p": request.top_p,
            "truncation": "disabled",
        });
        Self {
            id: format!("resp_{:016x}", unique()),
            created: seconds(std::time::SystemTime::now()),
            model: String::new(),
            echo,
            items: Vec::new(),
        }
    }

    fn status(end: Option<&End>) -> &'static str {
        match end.map(|end| &end.reason) {
            None => "in_progress",
            Some(Reason::Length) => "incomplete",
            Some(_) => "completed",
        }
    }

    fn body(&self, end: Option<&End>) -> Value {
        let status = Self::status(end);
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let usage = end.map(|End { finished, .. }| {
            let (input, output) = (finished.prompt_tokens, finished.completion_tokens);
            json!({
                "input_tokens": input, "input_tokens_details": {"cached_tokens": finished.cached_tokens},
                "output_tokens": output, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": u64::from(input) + u64::from(output),
            })
        });
        let items: Vec<Value> = match end {
            None => Vec::new(),
            Some(_) => self.items.iter().map(|item| item.value(status)).collect(),
        };
        let mut body = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "error": null, "incomplete_details": incomplete, "model": self.model,
            "output": items, "usage": usage,
        });
        if let (Value::Object(body), Value::Object(echo)) = (&mut body, self.echo.clone()) {
            body.extend(echo);
        }
        body
    }
}

struct Streaming {
    answer: Answer,
    store: Option<(Arc<App>, Vec<Message>)>,
    whole: Gathered,
    /// True while the last item is incomplete.
    open: bool,
    sequence: u64,
}

impl Streaming {
    fn new(answer: Answer, store: Option<(Arc<App>, Vec<Message>)>) -> Self {
        Self { answer, store, whole: Gathered::default(), open: false, sequence: 0 }
    }

    /// Returns a numbered event of the given type.
    fn event(&mut self, kind: &str, mut fields: Value) -> sse::Event {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        events::named(kind, &fields)
    }

    fn first(&mut self) -> Vec<sse::Event> {
        let body = self.answer.body(None);
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, json!({"response": body})))
            .into()
    }

    /// Returns the events for an update.
    fn parts(&mut self, update: Update) -> Vec<sse::Event> {
        self.whole.add(update.clone());
        let mut out = Vec::new();
        for part in update.parts {
            let (kind, text) = match part {
                Part::Reasoning(text) => (Kind::Reasoning, text),
                Part::Text(text) => (Kind::Message, text),
                Part::Call { id, name, .. } => {
                    self.begin(Item { call_id: id, name, ..Item::new(Kind::Call) }, &mut out);
                    continue;
                }
                Part::Arguments { text, .. } => (Kind::Call, text),
            };
            let goes_on =
                self.open && self.answer.items.last().is_some_and(|item| item.kind == kind);
            if !goes_on {
                self.begin(Item::new(kind), &mut out);
            }
            let name = match kind {
                Kind::Reasoning => "response.reasoning_text.delta",
                Kind::Message => "response.output_text.delta",
                Kind::Call => "response.function_call_arguments.delta",
            };
            let mut fields = self.place();
            fields["delta"] = text.as_str().into();
            if kind == Kind::Message {
                fields["logprobs"] = json!([]);
            }
            out.push(self.event(name, fields));
            if let Some(item) = self.answer.items.last_mut() {
                item.text.push_str(&text);
            }
        }
        let Some(end) = update.end else { return out };
        let status = Answer::status(Some(&end));
        self.close(status, &mut out);
        let body = self.answer.body(Some(&end));
        store_answer(self.store.take(), &self.answer.id, std::mem::take(&mut self.whole));
        out.push(self.event(&format!("response.{status}"), json!({"response": body})));
        out
    }

    /// Returns the position of the last item.
    fn place(&self) -> Value {
        let Some(item) = self.answer.items.last() else {
            unreachable!("asked for behind the beginning of an item");
        };
        let mut place = json!({"item_id": item.id, "output_index": self.answer.items.len() - 1});
        if item.kind != Kind::Call {
            place["content_index"] = 0.into();
        }
        place
    }

    fn begin(&mut self, item: Item, out: &mut Vec<sse::Event>) {
        self.close("completed", out);
        let (index, value) = (self.answer.items.len(), item.value("in_progress"));
        let (kind, part) = (item.kind, item.part(""));
        self.answer.items.push(item);
        self.open = true;
        let added = json!({"output_index": index, "item": value});
        out.push(self.event("response.output_item.added", added));
        if kind != Kind::Call {
            let mut fields = self.place();
            fields["part"] = part;
            out.push(self.event("response.content_part.added", fields));
        }
    }

    /// Ends the last item if it is open.
    fn close(&mut self, status: &str, out: &mut Vec<sse::Event>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Some(item) = self.answer.items.last().cloned() else { return };
        let (name, key) = match item.kind {
            Kind::Reasoning => ("response.reasoning_text.done", "text"),
            Kind::Message => ("response.output_text.done", "text"),
            Kind::Call => ("response.function_call_arguments.done", "arguments"),
        };
        let mut fields = self.place();
        fields[key] = item.text.as_str().into();
        match item.kind {
            Kind::Message => fields["logprobs"] = json!([]),
            Kind::Call => fields["name"] = item.name.as_str().into(),
            Kind::Reasoning => {}
        }
        out.push(self.event(name, fields));
        if item.kind != Kind::Call {
            let mut fields = self.place();
            fields["part"] = item.part(&item.text);
            out.push(self.event("response.content_part.done", fields));
        }
        let index = self.answer.items.len() - 1;
        let done = json!({"output_index": index, "item": item.value(status)});
        out.push(self.event("response.output_item.done", done));
    }
}
