//! OpenAI's `/v1/responses`: answers items with items, and continues stored conversations.

mod answer;
mod functions;
mod items;
mod stored;
mod streaming;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use model::tokenizer::Message;
use serde_json::{Value, json};

pub(crate) use self::stored::{delete, get, input_items};

use self::answer::Answer;
use self::functions::Functions;
use self::stored::Store;
use self::streaming::Streaming;
use super::chat;
use crate::dialect::Dialect;
use crate::dialogue::{Ask, Dialogue, gather};
use crate::error::Error;
use crate::rejections::Checked;
use crate::{App, events, params};

const FIELD: &str = "input";

pub(crate) async fn responses(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::ResponsesRequest>,
) -> Result<Response, Error> {
    let streamed = request.stream.unwrap_or(false);
    let stores = request.store.unwrap_or(true);
    let Read { mut ask, mut answer, history, input } = read(&app, request)?;
    let skipped = std::mem::take(&mut ask.skipped);
    let Dialogue { served, updates, .. } = ask.start(&app).await?;
    answer.model.clone_from(&served.model.id);
    let store = stores.then(|| Store { app: Arc::clone(&app), history, input });
    if streamed {
        let mut stream = Streaming::new(answer, store);
        let first = stream.first();
        let parts = events::until_error(updates, Dialect::OpenAi, move |(_, update)| {
            // An update with an error is the last one.
            Ok(match update {
                Ok(update) => stream.parts(update),
                Err(error) => stream.failed(&error),
            })
        });
        return Ok(skipped.report(events::answer(stream::iter(first).chain(parts))));
    }
    let Some(whole) = gather(updates, 1).await?.pop() else {
        return Err(Error::internal("a generation ended without a final event"));
    };
    answer.fill(&whole);
    let body = answer.body(Some(whole.end()?));
    if let Some(store) = store {
        store.put(&answer, &body, whole);
    }
    Ok(skipped.report(Json(body).into_response()))
}

/// Counts the tokens of a request's prompt.
pub(crate) async fn input_tokens(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::ResponsesRequest>,
) -> Result<Json<Value>, Error> {
    let tokens = read(&app, request)?.ask.count(&app).await?;
    Ok(Json(json!({"object": "response.input_tokens", "input_tokens": tokens})))
}

/// A request, translated.
struct Read {
    ask: Ask,
    answer: Answer,
    /// The conversation without instructions, which apply to one answer only.
    history: Vec<Message>,
    input: Vec<Arc<api::Item>>,
}

fn read(app: &App, mut request: api::ResponsesRequest) -> Result<Read, Error> {
    let list = request.tools.clone().unwrap_or_default();
    let (mut tools, functions, skipped) = functions::read(list)?;
    let input = input(app, std::mem::take(&mut request.input))?;
    let history = history(app, request.previous_response_id.as_deref(), &input, &functions)?;
    let answer = Answer::new(&request, functions);
    let format = request.text.and_then(|text| text.format).map(|format| api::ResponseFormat {
        kind: format.kind,
        json_schema: None,
        schema: format.schema,
    });
    let instructions = request.instructions.filter(|text| !text.is_empty());
    let instructions = instructions.map(|text| Message::new("system", text));
    let messages = instructions.into_iter().chain(history.iter().cloned()).collect();
    let effort = request.reasoning.and_then(|reasoning| reasoning.effort);
    let choice = chat::choice(request.tool_choice, &mut tools)?;
    let ask = Ask {
        model: request.model,
        field: FIELD,
        messages,
        tools,
        skipped,
        choice,
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
        ignore_end: false,
        logprobs: None,
        answers: 1,
    };
    Ok(Read { ask, answer, history, input })
}

/// Returns the items of a request, with stored items in the place of references to them.
fn input(app: &App, input: api::Input) -> Result<Vec<Arc<api::Item>>, Error> {
    let items = match input {
        api::Input::Items(items) => items,
        api::Input::Text(text) => {
            let role = Some("user".into());
            let content = Some(api::ItemContent::Text(text));
            return Ok(vec![Arc::new(api::Item { role, content, ..api::Item::default() })]);
        }
    };
    let resolve = |(at, item): (usize, api::Item)| match items::is_reference(&item) {
        true => stored::referenced(app, at, &item),
        false => Ok(Arc::new(item)),
    };
    items.into_iter().enumerate().map(resolve).collect()
}

/// Returns a stored conversation, if the request continues one, with the items of the request.
fn history(
    app: &App,
    previous: Option<&str>,
    input: &[Arc<api::Item>],
    functions: &Functions,
) -> Result<Vec<Message>, Error> {
    let mut history = match previous {
        None => Vec::new(),
        Some(id) => {
            let stored = app.responses.lock().get(id);
            stored
                .ok_or_else(|| stored::not_found("previous_response_id", id))?
                .conversation
                .clone()
        }
    };
    for (at, item) in input.iter().enumerate() {
        items::append(at, item, functions, &mut history)?;
    }
    Ok(history)
}
