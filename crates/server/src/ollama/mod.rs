//! ollama's API: generate and chat. `lines` has the answers, `models` the routes about models.

mod lines;
pub(super) mod models;
pub(super) mod names;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use model::tokenizer::{self, Message};
use serde_json::{Map, Value, json};

use self::lines::Shape;
use self::names::Named;
use super::dialogue::{Ask, Choice, Form, PlainPrompt, Skipped, Thinking};
use super::error::Error;
use super::keep_alive::{self, Expiry};
use super::openai::tool_list;
use super::rejections::Checked;
use super::{App, params};
use errors::invalid::excerpt;

/// Tag that ollama appends to a name without one.
const TAG: &str = ":latest";

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaChat>,
) -> Result<Response, Error> {
    let Call { model, name, named, expiry } =
        call(&app, request.model.as_deref(), request.keep_alive.as_ref())?;
    if request.messages.is_empty() {
        return load(&app, model.as_deref(), name, &expiry, Shape::Chat).await;
    }
    let message = |(at, message)| self::message(at, message);
    let messages = request.messages.into_iter().enumerate().map(message);
    let mut messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    if !messages.iter().any(|message| message.role == "system") {
        messages.splice(..0, named.system.map(|text| Message::new("system", text)));
    }
    let (tools, skipped) = tool_list(request.tools.unwrap_or_default())?;
    let options = request.options.unwrap_or_default().or(named.options);
    let ask =
        Ask { messages, tools, ..ask(model, "messages", request.format, request.think, options)? };
    let dialogue = ask.start(&app).await?;
    let answer = lines::send(dialogue, name, request.stream, Shape::Chat, expiry).await?;
    Ok(skipped.report(answer))
}

pub(super) async fn generate(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaGenerate>,
) -> Result<Response, Error> {
    let Call { model, name, named, expiry } =
        call(&app, request.model.as_deref(), request.keep_alive.as_ref())?;
    let suffix = request.suffix.filter(|suffix| !suffix.is_empty());
    if request.prompt.is_empty() && suffix.is_none() {
        return load(&app, model.as_deref(), name, &expiry, Shape::Generate).await;
    }
    let options = request.options.unwrap_or_default().or(named.options);
    let ask = ask(model, "prompt", request.format, request.think, options)?;
    let dialogue = if request.raw.unwrap_or(false) || suffix.is_some() {
        PlainPrompt { text: request.prompt, suffix, files: Vec::new() }.start(&app, ask).await?
    } else {
        let system = request.system.or(named.system).filter(|text| !text.is_empty());
        let system = system.map(|text| Message::new("system", text));
        let prompt = Message::new("user", request.prompt);
        let messages = system.into_iter().chain([prompt]).collect();
        Ask { messages, ..ask }.start(&app).await?
    };
    lines::send(dialogue, name, request.stream, Shape::Generate, expiry).await
}

/// The model of a request, and the time that it stays loaded.
struct Call {
    /// Name of the model. `None`: the first one.
    model: Option<String>,
    /// Name in the request, if it was created through the API.
    name: Option<String>,
    named: Named,
    expiry: Arc<Expiry>,
}

fn call(app: &Arc<App>, model: Option<&str>, keep_alive: Option<&Value>) -> Result<Call, Error> {
    let time = keep_alive.map(keep_alive::parse).transpose()?.flatten();
    let wanted = model.map(untagged);
    let named = wanted.and_then(|wanted| app.names.get(wanted));
    let name = named.is_some().then(|| wanted.unwrap_or_default().to_owned());
    let model = match &named {
        Some(named) => Some(named.from.clone()),
        None => wanted.map(str::to_owned),
    };
    let expiry = Arc::new(Expiry::new(app, model.clone(), time));
    Ok(Call { model, name, named: named.unwrap_or_default(), expiry })
}

/// Answers a request without a prompt, which loads the model, or unloads it.
async fn load(
    app: &Arc<App>,
    model: Option<&str>,
    name: Option<String>,
    expiry: &Expiry,
    shape: Shape,
) -> Result<Response, Error> {
    let (id, reason) = if expiry.is_now() {
        (expiry.unload().await?, "unload")
    } else {
        (params::admit(app, model, 0).await?.served.model.id.clone(), "load")
    };
    let mut body = json!({
        "model": name.unwrap_or(id), "created_at": now(), "done": true, "done_reason": reason,
    });
    match shape {
        Shape::Chat => body["message"] = json!({"role": "assistant", "content": ""}),
        Shape::Generate => body["response"] = "".into(),
    }
    Ok(Json(body).into_response())
}

/// Version of ollama with the same routes. Clients refuse an older one: Codex before 0.13.4.
const OLLAMA: &str = "0.14.0";

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": OLLAMA, "orind": super::VERSION}))
}

pub(super) fn untagged(name: &str) -> &str {
    name.strip_suffix(TAG).unwrap_or(name)
}

/// Returns the model's own name for a name in a request.
pub(super) fn own_name(app: &App, wanted: Option<&str>) -> Option<String> {
    let wanted = untagged(wanted?);
    Some(app.names.get(wanted).map_or_else(|| wanted.to_owned(), |named| named.from))
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
    options: api::OllamaOptions,
) -> Result<Ask, Error> {
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
    Ok(Ask {
        model,
        field,
        messages: Vec::new(),
        tools: Vec::new(),
        skipped: Skipped::default(),
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
        max_tokens: options.num_predict,
        ignore_end: false,
        logprobs: None,
        answers: 1,
    })
}

fn message(at: usize, message: api::OllamaMessage) -> Result<Message, Error> {
    let role = match &*message.role {
        "developer" => "system",
        role @ ("system" | "user" | "assistant" | "tool") => role,
        role => {
            let param = format!("messages[{at}].role");
            let allowed = "allowed are system, developer, user, assistant, tool";
            let reason = format!("{param}: is `{}`; {allowed}", excerpt(role));
            return Err(Error::value(param, reason));
        }
    };
    if message.images.is_some_and(|images| !images.is_empty()) {
        let param = format!("messages[{at}].images");
        return Err(Error::value(param.as_str(), format!("{param}: only text is possible")));
    }
    let call = |call: api::OllamaCall| tokenizer::Call {
        id: String::new(),
        name: call.function.name,
        arguments: call.function.arguments,
    };
    Ok(Message {
        reasoning: message.thinking.filter(|text| !text.is_empty()),
        calls: message.tool_calls.unwrap_or_default().into_iter().map(call).collect(),
        name: message.tool_name,
        ..Message::new(role, message.content)
    })
}
