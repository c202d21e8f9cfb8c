//! ollama's API: generate, chat and model information. Streams are lines of JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream::StreamExt;
use jiff::Timestamp;
use model::tokenizer::{Call, Message};
use serde_json::{Map, Value, json};

use super::dialogue::{
    Ask, Choice, Dialogue, End, Form, Gathered, Reason, Thinking, Update, gather, tools,
};
use super::error::Error;
use super::openai::tool_list;
use super::rejections::{Checked, RejectsFields, UnsupportedField, is_empty};
use super::residents::{self, Resident};
use super::{App, params};
use engine::ModelInfo;
use errors::invalid::excerpt;

/// Tag that ollama appends to a name without one.
const TAG: &str = ":latest";

impl RejectsFields for api::OllamaChat {
    const UNSUPPORTED: &'static [&'static [UnsupportedField]] = &[&[
        ("lora", is_empty, "select the adapter with `model`: `MODEL:ADAPTER`"),
        ("logprobs", is_empty, "use /v1/chat/completions"),
    ]];
}

impl RejectsFields for api::OllamaGenerate {
    const UNSUPPORTED: &'static [&'static [UnsupportedField]] = &[&[
        ("lora", is_empty, "select the adapter with `model`: `MODEL:ADAPTER`"),
        ("suffix", is_empty, "put the model's fill-in-the-middle tokens into the prompt"),
        ("images", is_empty, "only text is possible"),
        ("template", is_empty, "use /v1/completions, which accepts any text"),
        ("raw", is_empty, "use /v1/completions, which accepts any text"),
        ("context", is_empty, "use /api/chat with the messages"),
        ("logprobs", is_empty, "use /v1/completions"),
    ]];
}

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaChat>,
) -> Result<Response, Error> {
    let message = |(at, message)| self::message(at, message);
    let messages = request.messages.into_iter().enumerate().map(message);
    let ask = Ask {
        messages: messages.collect::<Result<_, _>>()?,
        tools: tool_list(request.tools.unwrap_or_default())?,
        ..ask(request.model, "messages", request.format, request.think, request.options)?
    };
    answer(&app, ask, request.stream, Shape::Chat).await
}

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaGenerate>,
) -> Result<Response, Error> {
    let system = request.system.filter(|text| !text.is_empty());
    let system = system.map(|text| Message::new("system", text));
    let prompt = (!request.prompt.is_empty()).then(|| Message::new("user", request.prompt));
    // A request without a prompt loads the model.
    if prompt.is_none() {
        let name = request.model.as_deref().map(untagged);
        let served = Arc::clone(&params::admit(&app, name, 0).await?.served);
        let loaded = json!({
            "model": served.model.id, "created_at": now(), "response": "", "done": true, "done_reason": "load",
        });
        return Ok(Json(loaded).into_response());
    }
    let ask = Ask {
        messages: system.into_iter().chain(prompt).collect(),
        ..ask(request.model, "prompt", request.format, request.think, request.options)?
    };
    answer(&app, ask, request.stream, Shape::Generate).await
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": super::VERSION}))
}

/// Lists the models that can serve requests. Only the name is known of a model that is not loaded.
pub(super) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let entry = |one: Arc<Resident>| {
        let state = one.engine.snapshot().state;
        let Some(model) = residents::loaded(&state) else {
            let absent = || json!({"name": one.name, "model": one.name, "size": 0, "details": {}});
            return (!one.name.is_empty()).then(absent);
        };
        let at = one.loaded_at().and_then(|time| Timestamp::try_from(time).ok());
        Some(json!({
            "name": model.id, "model": model.id, "modified_at": at.unwrap_or_default().to_string(),
            "size": model.bytes, "digest": "", "details": details(model),
        }))
    };
    let models: Vec<Value> = app.residents.all().filter_map(entry).collect();
    Json(json!({"models": models}))
}

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaShow>,
) -> Result<Json<Value>, Error> {
    let name = request.model.as_deref().map(untagged);
    let served = Arc::clone(&params::admit(&app, name, 0).await?.served);
    let (model, text) = (&served.model, &served.text);
    let format = text.chat.format();
    let mut capabilities = vec!["completion"];
    capabilities.extend(model.embedding.map(|_| "embedding"));
    capabilities.extend(format.calls.map(|_| "tools"));
    capabilities.extend(format.can_think().then_some("thinking"));
    let architecture = &model.architecture;
    Ok(Json(json!({
        "modelfile": "", "parameters": "", "template": text.chat.source(),
        "details": details(model), "capabilities": capabilities,
        "model_info": {
            "general.architecture": architecture, "general.basename": model.name,
            "general.parameter_count": model.parameters,
            format!("{architecture}.context_length"): model.context,
        },
    })))
}

impl RejectsFields for api::OllamaShow {
    const UNSUPPORTED: &'static [&'static [UnsupportedField]] = &[];
}

pub(super) fn untagged(name: &str) -> &str {
    name.strip_suffix(TAG).unwrap_or(name)
}

fn details(model: &ModelInfo) -> Value {
    json!({
        "parent_model": "", "format": "gguf", "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": format!("{:.1}B", model.parameters as f64 / 1e9),
        "quantization_level": model.file_type,
    })
}

fn now() -> String {
    Timestamp::now().to_string()
}

/// Creates the [`Ask`] of either generating route.
fn ask(
    model: Option<String>,
    field: &'static str,
    format: Option<Value>,
    think: Option<Value>,
    options: Option<api::OllamaOptions>,
) -> Result<Ask, Error> {
    let options = options.unwrap_or_default();
    let form = match format {
        None | Some(Value::Null) => Form::Text,
        Some(Value::String(text)) if text.is_empty() => Form::Text,
        Some(Value::String(text)) if text == "json" => Form::json(),
        Some(schema @ Value::Object(_)) => Form::schema(schema),
        Some(other) => {
            let message = format!(
                "format: is {}; \"json\" and schemas are allowed",
                excerpt(&other.to_string())
            );
            return Err(Error::value("format", message));
        }
    };
    let thinking = match think {
        None | Some(Value::Null) => None,
        Some(Value::Bool(true)) => Some(Thinking::On),
        Some(Value::Bool(false)) => Some(Thinking::Off { must: true }),
        Some(Value::String(effort)) => Some(Thinking::Effort(effort)),
        Some(_) => return Err(Error::value("think", "think: true, false or an effort is needed")),
    };
    let max_tokens = match options.num_predict {
        None | Some(i64::MIN..0) => None,
        Some(number) => Some(u32::try_from(number).unwrap_or(u32::MAX)),
    };
    Ok(Ask {
        model: model.map(|name| untagged(&name).to_owned()),
        field,
        messages: Vec::new(),
        tools: Vec::new(),
        choice: Choice::Auto,
        parallel: true,
        form,
        thinking: thinking.map(|thinking| ("think", thinking)),
        variables: Map::new(),
        sampling: params::sampling(
            options.temperature,
            options.top_p,
            options.top_k,
            options.logits_options.min_p,
            options.seed,
        )?,
        logits_options: options.logits_options,
        lora: None,
        stop: params::stops(options.stop)?,
        max_tokens,
        // ollama ends an answer at the end of the context.
        at_most: true,
        ignore_end: false,
        logprobs: None,
        answers: 1,
    })
}

fn message(at: usize, message: api::OllamaMessage) -> Result<Message, Error> {
    let role = &*message.role;
    if !matches!(role, "system" | "user" | "assistant" | "tool") {
        let param = format!("messages[{at}].role");
        let allowed = "allowed are system, user, assistant, tool";
        let reason = format!("{param}: is `{}`; {allowed}", excerpt(role));
        return Err(Error::value(param, reason));
    }
    if message.images.is_some_and(|images| !images.is_empty()) {
        let param = format!("messages[{at}].images");
        return Err(Error::value(param.as_str(), format!("{param}: only text is possible")));
    }
    let call = |call: api::OllamaCall| Call {
        id: String::new(),
        name: call.function.name,
        arguments: call.function.arguments,
    };
    Ok(Message {
        reasoning: message.thinking.filter(|text| !text.is_empty()),
        calls: message.tool_calls.unwrap_or_default().into_iter().map(call).collect(),
        name: message.tool_name,
        ..Message::new(message.role, message.content)
    })
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Chat,
    Generate,
}

/// Answers an [`Ask`] in one of the two formats.
async fn answer(
    app: &Arc<App>,
    ask: Ask,
    stream: Option<bool>,
    shape: Shape,
) -> Result<Response, Error> {
    let Dialogue { served, updates, .. } = ask.start(app).await?;
    let model = served.model.id.clone();
    if !stream.unwrap_or(true) {
        let Some(answer) = gather(updates, 1).await?.pop() else {
            return Err(Error::internal("a generation ended without a final event"));
        };
        answer.end()?;
        return Ok(Json(line(&model, shape, answer)).into_response());
    }
    // Tool calls are collected and sent complete.
    let mut calls = Gathered::default();
    let mut failed = false;
    let lines = updates.scan((), move |(), (_, update)| {
        let text =
            if failed { None } else { Some(update.map(|update| pieces(update, &mut calls))) };
        let text = text.map(|made| match made {
            Ok(parts) => parts.into_iter().map(|part| line(&model, shape, part)).collect(),
            Err(error) => {
                failed = true;
                vec![json!({"error": error.body().error.message})]
            }
        });
        let bytes = text.map(|lines: Vec<Value>| {
            let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
            Ok::<_, std::convert::Infallible>(Bytes::from(lines))
        });
        std::future::ready(bytes)
    });
    let body =
        Body::from_stream(lines.filter(|bytes| {
            std::future::ready(bytes.as_ref().is_ok_and(|bytes| !bytes.is_empty()))
        }));
    Ok((StatusCode::OK, [(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// Returns the new parts. Collects calls, and returns them complete before the end.
fn pieces(update: Update, calls: &mut Gathered) -> Vec<Gathered> {
    let end = update.end.clone();
    let mut all = Gathered::default();
    all.add(Update { end: None, ..update.clone() });
    calls.add(Update { end: None, ..update });
    let new = Gathered { calls: Vec::new(), ..all };
    let says = !new.text.is_empty() || !new.reasoning.is_empty();
    let mut out: Vec<Gathered> = says.then_some(new).into_iter().collect();
    if end.is_some() {
        let called = std::mem::take(&mut calls.calls);
        if !called.is_empty() {
            out.push(Gathered { calls: called, ..Gathered::default() });
        }
        out.push(Gathered { end, ..Gathered::default() });
    }
    out
}

/// Returns one line of a streamed answer, or the complete answer.
fn line(model: &str, shape: Shape, part: Gathered) -> Value {
    let Gathered { reasoning, text, calls, end, .. } = part;
    let mut line = json!({"model": model, "created_at": now()});
    match shape {
        Shape::Generate => {
            line["response"] = text.into();
            if !reasoning.is_empty() {
                line["thinking"] = reasoning.into();
            }
        }
        Shape::Chat => {
            let mut message = json!({"role": "assistant", "content": text});
            if !reasoning.is_empty() {
                message["thinking"] = reasoning.into();
            }
            if !calls.is_empty() {
                let call = |(id, name, arguments): (String, String, String)| {
                    let function = json!({"name": name, "arguments": tools::arguments(&arguments)});
                    json!({"id": id, "function": function})
                };
                message["tool_calls"] = calls.into_iter().map(call).collect();
            }
            line["message"] = message;
        }
    }
    line["done"] = end.is_some().into();
    if let Some(End { reason, finished }) = end {
        let nanoseconds =
            |time: Duration| Value::from(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        line["done_reason"] = if reason == Reason::Length { "length" } else { "stop" }.into();
        line["total_duration"] = nanoseconds(finished.total);
        line["load_duration"] = 0.into();
        line["prompt_eval_count"] = finished.prompt_tokens.into();
        line["prompt_eval_duration"] =
            nanoseconds(finished.first_token.saturating_sub(finished.queued));
        line["eval_count"] = finished.completion_tokens.into();
        line["eval_duration"] = nanoseconds(finished.total.saturating_sub(finished.first_token));
    }
    line
}
