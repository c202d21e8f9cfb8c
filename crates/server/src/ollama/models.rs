//! ollama's routes about models: lists, properties, and names for models.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::names::Named;
use super::untagged;
use crate::body::JsonBody;
use crate::error::Error;
use crate::rejections::Checked;
use crate::residents::{self, Resident};
use crate::{App, params};
use engine::ModelInfo;

/// Time at which a model without a limited time is unloaded.
const NEVER: &str = "9999-12-30T00:00:00Z";

/// Lists the models that can serve requests. Only the name is known of a model that is not loaded.
pub(crate) async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let entry = |one: Arc<Resident>| {
        let state = one.engine.snapshot().state;
        let Some(model) = residents::loaded(&state) else {
            let first = one.name.is_empty().then(|| app.keep_alive.unloaded()).flatten();
            let name = first.unwrap_or_else(|| one.name.clone());
            return (!name.is_empty()).then(|| absent(&name));
        };
        Some(present(&one, model, &model.id))
    };
    let models = app.residents.all().filter_map(entry);
    let named = app.names.all().into_iter().map(|(name, named)| {
        let of = app.residents.named(Some(&named.from));
        match residents::loaded(&of.engine.snapshot().state) {
            Some(model) => present(&of, model, &name),
            None => absent(&name),
        }
    });
    let models: Vec<Value> = models.chain(named).collect();
    Json(json!({"models": models}))
}

fn present(one: &Resident, model: &ModelInfo, name: &str) -> Value {
    json!({
        "name": name, "model": name, "modified_at": time(one.loaded_at()), "size": model.bytes,
        "digest": digest(model), "details": details(model),
    })
}

fn absent(name: &str) -> Value {
    json!({
        "name": name, "model": name, "modified_at": time(None), "size": 0,
        "digest": hash(name), "details": {},
    })
}

/// Lists the loaded models.
pub(crate) async fn ps(State(app): State<Arc<App>>) -> Json<Value> {
    let entry = |one: Arc<Resident>| {
        let state = one.engine.snapshot().state;
        let model = residents::loaded(&state)?;
        let on_gpu = !["cpu", "reference"].contains(&model.device.name.as_str());
        let until = app.keep_alive.until(&one.name);
        let mut entry = present(&one, model, &model.id);
        entry["expires_at"] = until.map_or_else(|| NEVER.to_owned(), |at| time(Some(at))).into();
        entry["size_vram"] = if on_gpu { model.bytes } else { 0 }.into();
        entry["context_length"] = model.context.into();
        Some(entry)
    };
    let models: Vec<Value> = app.residents.all().filter_map(entry).collect();
    Json(json!({"models": models}))
}

pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaShow>,
) -> Result<Json<Value>, Error> {
    let wanted = request.model.as_deref().map(untagged);
    let named = wanted.and_then(|wanted| app.names.get(wanted));
    let name = named.as_ref().map_or(wanted, |named| Some(named.from.as_str()));
    let served = Arc::clone(&params::admit(&app, name, 0).await?.served);
    let (model, text) = (&served.model, &served.text);
    let format = text.chat.format();
    let mut capabilities = vec!["completion"];
    capabilities.extend(model.embedding.map(|_| "embedding"));
    capabilities.extend(format.calls.map(|_| "tools"));
    capabilities.extend(format.can_think().then_some("thinking"));
    capabilities.extend(text.infill.map(|_| "insert"));
    let architecture = &model.architecture;
    let at = app.residents.named(name).loaded_at();
    let (template, from) = (text.chat.source(), named.as_ref().map(|named| named.from.clone()));
    let from = from.unwrap_or_else(|| model.path.display().to_string());
    let Named { system, options, .. } = named.unwrap_or_default();
    let parameters = parameters(&options, model);
    let system = system.unwrap_or_default();
    let mut modelfile = format!("FROM {from}\nTEMPLATE \"\"\"{template}\"\"\"\n");
    if !system.is_empty() {
        modelfile.push_str(&format!("SYSTEM \"\"\"{system}\"\"\"\n"));
    }
    parameters.iter().for_each(|line| modelfile.push_str(&format!("PARAMETER {line}\n")));
    Ok(Json(json!({
        "modelfile": modelfile, "parameters": parameters.join("\n"), "template": template,
        "system": system, "license": "", "modified_at": time(at),
        "details": details(model), "capabilities": capabilities,
        "model_info": {
            "general.architecture": architecture, "general.basename": model.name,
            "general.parameter_count": model.parameters,
            format!("{architecture}.context_length"): model.context,
            format!("{architecture}.vocab_size"): model.vocabulary,
        },
    })))
}

/// Returns the default options of a model, one a line.
fn parameters(options: &api::OllamaOptions, model: &ModelInfo) -> Vec<String> {
    let default = params::DEFAULT;
    let mut lines = vec![
        format!("temperature {}", options.temperature.unwrap_or(default.temperature)),
        format!("top_k {}", options.top_k.unwrap_or(default.top_k)),
        format!("top_p {}", options.top_p.unwrap_or(default.top_p)),
        format!("num_ctx {}", model.context),
    ];
    let mut more = |name: &str, value: Option<String>| {
        lines.extend(value.map(|value| format!("{name} {value}")));
    };
    more("seed", options.seed.map(|seed| seed.to_string()));
    more("num_predict", options.num_predict.map(|number| number.to_string()));
    match &options.stop {
        None => {}
        Some(api::Stop::One(stop)) => more("stop", Some(json!(stop).to_string())),
        Some(api::Stop::Many(stops)) => {
            stops.iter().for_each(|stop| more("stop", Some(json!(stop).to_string())));
        }
    }
    // The names and values of the others, as the client sent them.
    if let Ok(Value::Object(others)) = serde_json::to_value(&options.logits_options) {
        let set = others.into_iter().filter(|(_, value)| !value.is_null());
        set.for_each(|(name, value)| more(&name, Some(value.to_string())));
    }
    lines
}

/// Creates a name for a model.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaCreate>,
) -> Result<Response, Error> {
    let name = required("model", request.model)?;
    let from = required("from", request.from)?;
    let Named { from, system, options } = existing(&app, &from, "from")?;
    let system = request.system.filter(|text| !text.is_empty()).or(system);
    let options = request.parameters.unwrap_or_default().or(options);
    add(&app, "model", &name, Named { from, system, options })?;
    Ok(success(request.stream))
}

/// Gives a model another name.
pub(crate) async fn copy(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<api::OllamaCopy>,
) -> Result<StatusCode, Error> {
    let named = existing(&app, &request.source, "source")?;
    add(&app, "destination", &request.destination, named)?;
    Ok(StatusCode::OK)
}

/// Deletes a name. Files of models stay.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaShow>,
) -> Result<StatusCode, Error> {
    let name = required("model", request.model)?;
    if app.names.remove(untagged(&name)) {
        return Ok(StatusCode::OK);
    }
    existing(&app, &name, "model")?;
    Err(refused("the daemon deletes no files of models")
        .hint("unload it with `orinctl unload`, and delete the file"))
}

/// Reports success for a model that is there. The daemon has no network.
pub(crate) async fn pull(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::OllamaShow>,
) -> Result<Response, Error> {
    let name = required("model", request.model)?;
    if existing(&app, &name, "model").is_ok() {
        return Ok(success(request.stream));
    }
    Err(refused("the daemon downloads no models")
        .hint("`orinctl pull NAME` downloads one, `orinctl load NAME` loads it"))
}

pub(crate) async fn push() -> Error {
    refused("the daemon uploads no models").hint("copy the file")
}

fn refused(message: &str) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "unsupported_operation", message)
}

fn required(field: &str, name: Option<String>) -> Result<String, Error> {
    name.filter(|name| !name.is_empty())
        .ok_or_else(|| Error::value(field, format!("{field}: is missing")))
}

/// Returns the meaning of a name: one that was created, or a model's own.
fn existing(app: &App, name: &str, field: &str) -> Result<Named, Error> {
    let name = untagged(name);
    let named = app.names.get(name);
    let own = || {
        let is_there = app.residents.names().iter().any(|one| one == name)
            || app.keep_alive.unloaded().is_some_and(|unloaded| unloaded == name);
        is_there.then(|| Named { from: name.to_owned(), ..Named::default() })
    };
    named.or_else(own).ok_or_else(|| params::model_not_found(app, name).param(field))
}

fn add(app: &App, field: &str, name: &str, named: Named) -> Result<(), Error> {
    let name = untagged(name);
    if app.residents.names().iter().any(|one| one == name) {
        let message = format!("{field}: a loaded model has the name `{name}`");
        return Err(Error::value(field, message));
    }
    app.names.put(field, name, named)
}

fn success(stream: Option<bool>) -> Response {
    let body = json!({"status": "success"});
    if stream == Some(false) {
        return Json(body).into_response();
    }
    let line = Body::from(format!("{body}\n"));
    (StatusCode::OK, [(CONTENT_TYPE, "application/x-ndjson")], line).into_response()
}

fn time(at: Option<SystemTime>) -> String {
    at.and_then(|time| Timestamp::try_from(time).ok()).unwrap_or_default().to_string()
}

fn hash(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a digest of a model's description. Hashing the file would take minutes.
fn digest(model: &ModelInfo) -> String {
    let ModelInfo { id, architecture, file_type, bytes, parameters, .. } = model;
    hash(&format!("{id}\n{architecture}\n{file_type}\n{bytes}\n{parameters}"))
}

fn details(model: &ModelInfo) -> Value {
    let parameters = model.parameters as f64;
    let size = match model.parameters {
        1_000_000_000.. => format!("{:.1}B", parameters / 1e9),
        _ => format!("{:.2}M", parameters / 1e6),
    };
    json!({
        "parent_model": "", "format": "gguf", "family": model.architecture,
        "families": [model.architecture], "parameter_size": size,
        "quantization_level": model.file_type,
    })
}
