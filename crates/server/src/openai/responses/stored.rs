//! Stored responses: their routes, and the storing of answers.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use model::tokenizer::{Call, Message};
use serde_json::{Value, json};

use super::answer::Answer;
use crate::dialogue::{Gathered, tools};
use crate::error::Error;
use crate::response_store::{ResponseStore, Stored};
use crate::{App, unique};
use errors::invalid::excerpt;

/// Largest part of an input that one answer lists.
const LISTED: usize = 100;
/// Default size of that part, the same as OpenAI's.
const PART: usize = 20;

/// Conversation and input that are stored with an answer.
pub(super) struct Store {
    pub(super) app: Arc<App>,
    pub(super) history: Vec<Message>,
    pub(super) input: Vec<Arc<api::Item>>,
}

impl Store {
    /// Stores an answer.
    pub(super) fn put(self, answer: &Answer, body: &Value, whole: Gathered) {
        let mut conversation = self.history;
        let call = |(id, name, arguments): (String, String, String)| Call {
            id,
            name,
            arguments: tools::arguments(&arguments),
        };
        conversation.push(Message {
            reasoning: Some(whole.reasoning).filter(|text| !text.is_empty()),
            calls: whole.calls.into_iter().map(call).collect(),
            ..Message::new("assistant", whole.text)
        });
        // The daemon has made the items, so they can be parsed.
        let item = |item: &super::answer::Item| serde_json::from_value(item.value("completed"));
        let output = answer.items.iter().filter_map(|one| item(one).ok()).map(Arc::new).collect();
        let input = self.input.into_iter().map(identified).collect();
        let stored = Stored { conversation, body: body.to_string(), input, output };
        self.app.responses.lock().put(answer.id.clone(), stored);
    }
}

/// Returns an item of an input with an id, and its content as a list.
fn identified(item: Arc<api::Item>) -> Arc<api::Item> {
    let mut item = Arc::unwrap_or_clone(item);
    let is_message = item.kind.as_deref().unwrap_or("message") == "message";
    item.id.get_or_insert_with(|| {
        format!("{}_{:016x}", if is_message { "msg" } else { "item" }, unique())
    });
    if is_message {
        item.kind = Some("message".into());
        let kind =
            if item.role.as_deref() == Some("assistant") { "output_text" } else { "input_text" };
        if let Some(api::ItemContent::Text(text)) = item.content {
            let part = api::ItemPart { kind: kind.into(), text };
            item.content = Some(api::ItemContent::Parts(vec![part]));
        }
    }
    Arc::new(item)
}

/// Error for a response that is not stored. `field` names its id in the request.
pub(super) fn not_found(field: &str, id: &str) -> Error {
    let message = format!(
        "{field}: no answer `{}` is stored; the daemon stores the latest {}, up to {} MiB, while it runs",
        excerpt(id),
        ResponseStore::ANSWERS,
        ResponseStore::BYTES >> 20
    );
    Error::new(StatusCode::NOT_FOUND, "response_not_found", message)
        .param(field)
        .hint("send the whole conversation as `input`")
}

/// Returns the item that a reference stands for.
pub(super) fn referenced(app: &App, at: usize, item: &api::Item) -> Result<Arc<api::Item>, Error> {
    let field = format!("input[{at}].id");
    let Some(id) = &item.id else {
        return Err(Error::value(field.as_str(), format!("{field}: is missing")));
    };
    app.responses.lock().item(id).ok_or_else(|| {
        let message = format!("{field}: no item `{}` is stored", excerpt(id));
        Error::new(StatusCode::NOT_FOUND, "item_not_found", message)
            .param(field.as_str())
            .hint("send the item itself, or do not set `store` to false")
    })
}

fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query().into_iter().flat_map(|query| query.split('&'));
    pairs.filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
}

/// Answers with a stored response.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Response, Error> {
    if parameter(&uri, "stream") == Some("true") {
        return Err(Error::value("stream", "stream: a stored answer cannot be streamed again"));
    }
    let stored = app.responses.lock().get(&id).ok_or_else(|| not_found("id", &id))?;
    Ok(([(CONTENT_TYPE, "application/json")], stored.body.clone()).into_response())
}

/// Deletes a stored response.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Error> {
    match app.responses.lock().delete(&id) {
        true => Ok(Json(json!({"id": id, "object": "response", "deleted": true}))),
        false => Err(not_found("id", &id)),
    }
}

/// Lists the input of a stored response.
pub(crate) async fn input_items(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    uri: Uri,
) -> Result<Json<Value>, Error> {
    let stored = app.responses.lock().get(&id).ok_or_else(|| not_found("id", &id))?;
    let limit = match parameter(&uri, "limit").map(str::parse) {
        None => PART,
        Some(Ok(limit @ 1..=LISTED)) => limit,
        Some(_) => {
            let message = format!("limit: 1 to {LISTED} are allowed");
            return Err(Error::value("limit", message));
        }
    };
    let mut items: Vec<&Arc<api::Item>> = stored.input.iter().collect();
    if parameter(&uri, "order") != Some("asc") {
        items.reverse();
    }
    if let Some(after) = parameter(&uri, "after") {
        let at = items.iter().position(|item| item.id.as_deref() == Some(after));
        items.drain(..at.map_or(0, |at| at + 1));
    }
    let more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&&Arc<api::Item>>| item.and_then(|item| item.id.clone());
    let (first, last) = (id_of(items.first()), id_of(items.last()));
    let data: Vec<&api::Item> = items.iter().map(|item| &***item).collect();
    Ok(Json(json!({
        "object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more,
    })))
}
