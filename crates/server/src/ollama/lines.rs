//! Answers of ollama's generating routes: one object, or lines of JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream::StreamExt;
use serde_json::{Value, json};

use super::now;
use crate::dialect::Dialect;
use crate::dialogue::{Dialogue, End, Gathered, Reason, Update, gather, tools};
use crate::error::Error;
use crate::keep_alive::Expiry;

#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Chat,
    Generate,
}

/// Sends an answer in one of the two formats. `model` is its name in the request, if that is not
/// the model's own. `expiry` is dropped at the end of the answer.
pub(super) async fn send(
    dialogue: Dialogue,
    model: Option<String>,
    stream: Option<bool>,
    shape: Shape,
    expiry: Arc<Expiry>,
) -> Result<Response, Error> {
    let Dialogue { served, updates, .. } = dialogue;
    let model = model.unwrap_or_else(|| served.model.id.clone());
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
    let lines = updates.scan(expiry, move |_, (_, update)| {
        let text =
            if failed { None } else { Some(update.map(|update| pieces(update, &mut calls))) };
        let text = text.map(|made| match made {
            Ok(parts) => parts.into_iter().map(|part| line(&model, shape, part)).collect(),
            Err(error) => {
                failed = true;
                vec![Dialect::Ollama.error(&error)]
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
