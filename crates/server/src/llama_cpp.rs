//! llama.cpp's own routes: infill, and the properties that its clients ask for.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::dialect::Dialect;
use super::dialogue::{
    Ask, Choice, Dialogue, End, Part, PlainPrompt, Reason, Skipped, Update, gather,
};
use super::error::Error;
use super::rejections::Checked;
use super::{App, events, openai, params};
use engine::Served;

/// Fills the gap between two texts.
pub(super) async fn infill(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::InfillRequest>,
) -> Result<Response, Error> {
    let files = request.input_extra.into_iter().map(|file| file.text + "\n").collect();
    let prompt = PlainPrompt {
        text: request.input_prefix + &request.prompt,
        suffix: Some(request.input_suffix),
        files,
    };
    let ask = Ask {
        model: request.model,
        field: "input_prefix",
        messages: Vec::new(),
        tools: Vec::new(),
        skipped: Skipped::default(),
        choice: Choice::Auto,
        parallel: true,
        form: openai::form(request.grammar, request.json_schema, None)?,
        thinking: None,
        variables: Map::new(),
        sampling: params::sampling(
            request.temperature,
            request.top_p,
            request.top_k,
            request.logits_options.min_p,
            request.seed,
        )?,
        logits_options: request.logits_options,
        lora: None,
        stop: params::stops(request.stop)?,
        max_tokens: request.n_predict,
        ignore_end: false,
        logprobs: None,
        answers: 1,
    };
    let Dialogue { served, updates, .. } = prompt.start(&app, ask).await?;
    if request.stream.unwrap_or(false) {
        let part = move |(_, update): (usize, Result<Update, Error>)| {
            let Update { parts, end, .. } = update?;
            let text: String = parts.into_iter().filter_map(text).collect();
            Ok(vec![events::data(&body(&served, &text, end.as_ref()))])
        };
        return Ok(events::answer(events::until_error(updates, Dialect::OpenAi, part)));
    }
    let Some(answer) = gather(updates, 1).await?.pop() else {
        return Err(Error::internal("a generation ended without a final event"));
    };
    Ok(Json(body(&served, &answer.text, Some(answer.end()?))).into_response())
}

fn text(part: Part) -> Option<String> {
    match part {
        Part::Text(text) => Some(text),
        Part::Reasoning(_) | Part::Call { .. } | Part::Arguments { .. } => None,
    }
}

fn body(served: &Served, text: &str, end: Option<&End>) -> Value {
    let mut body = json!({"index": 0, "content": text, "tokens": [], "stop": end.is_some()});
    let Some(End { reason, finished }) = end else { return body };
    let (kind, word) = match reason {
        Reason::Stop | Reason::Calls => ("eos", ""),
        Reason::StopText(text) => ("word", text.as_str()),
        Reason::Length => ("limit", ""),
    };
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let prompt_ms = ms(finished.first_token.saturating_sub(finished.queued));
    body["model"] = served.model.id.as_str().into();
    body["stop_type"] = kind.into();
    body["stopping_word"] = word.into();
    body["truncated"] = false.into();
    body["tokens_predicted"] = finished.completion_tokens.into();
    body["tokens_evaluated"] = finished.prompt_tokens.into();
    body["tokens_cached"] = finished.cached_tokens.into();
    body["timings"] = json!({
        "prompt_n": finished.prompt_tokens - finished.cached_tokens, "prompt_ms": prompt_ms,
        "predicted_n": finished.completion_tokens,
        "predicted_ms": ms(finished.total.saturating_sub(finished.first_token)),
    });
    body
}

/// Returns the properties of the first model.
pub(super) async fn props(State(app): State<Arc<App>>) -> Result<Json<Value>, Error> {
    let served = Arc::clone(&params::admit(&app, None, 0).await?.served);
    let (model, tokenizer) = (&served.model, &served.text.tokenizer);
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
    let default = params::DEFAULT;
    Ok(Json(json!({
        "default_generation_settings": {
            "n_ctx": model.context,
            "params": {
                "temperature": default.temperature, "top_k": default.top_k, "top_p": default.top_p,
            },
        },
        "total_slots": model.slots, "model_alias": model.id, "model_path": model.path,
        "chat_template": served.text.chat.source(),
        "modalities": {"vision": false, "audio": false},
        "bos_token": text(tokenizer.begin()), "eos_token": text(tokenizer.end_ids().next()),
        "build_info": format!("orind-{}", super::VERSION),
    })))
}

/// Lists the slots of the first model.
pub(super) async fn slots(State(app): State<Arc<App>>) -> Result<Json<Value>, Error> {
    let model = params::admit(&app, None, 0).await?.served.model.clone();
    let active = app.residents.first().engine.snapshot().active;
    let slot = |id: usize| {
        json!({
            "id": id, "n_ctx": model.context, "speculative": model.draft.is_some(),
            "is_processing": id < active,
        })
    };
    Ok(Json((0..model.slots).map(slot).collect()))
}

/// Lists the adapters of the first model with their configured scales.
pub(super) async fn lora_adapters(State(app): State<Arc<App>>) -> Result<Json<Value>, Error> {
    let model = params::admit(&app, None, 0).await?.served.model.clone();
    let adapter = |(id, adapter): (usize, &engine::AdapterInfo)| json!({"id": id, "path": adapter.path, "scale": adapter.scale});
    Ok(Json(model.adapters.iter().enumerate().map(adapter).collect()))
}

pub(super) async fn scale_adapters() -> Error {
    unsupported("the scales of adapters are those of each request")
        .hint("send `lora` with the request, or name `MODEL:ADAPTER` as its model")
}

pub(super) async fn rerank(State(app): State<Arc<App>>) -> Error {
    match params::admit(&app, None, 0).await {
        Err(error) => error,
        Ok(admission) => {
            let model = &admission.served.model.id;
            unsupported(&format!("{model} is not a reranking model, and none is supported"))
                .param("model")
                .hint("compare embeddings of /v1/embeddings")
        }
    }
}

fn unsupported(message: &str) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "unsupported_operation", message)
}
