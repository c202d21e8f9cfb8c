//! llama.cpp's routes for tokenizing, detokenizing and rendering the chat template.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::body::JsonBody;
use super::error::Error;
use super::rejections::Checked;
use super::{App, openai, params, prompt};

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<api::TokenizeRequest>,
) -> Result<Json<Value>, Error> {
    let served = Arc::clone(&params::admit(&app, request.model.as_deref(), 0).await?.served);
    let ids = prompt::tokens(
        &app,
        &served,
        "content",
        request.content,
        request.parse_special.unwrap_or(true),
        request.add_special.unwrap_or(false),
    )
    .await?;
    if !request.with_pieces.unwrap_or(false) {
        return Ok(Json(json!({"tokens": ids})));
    }
    let piece = |id: &u32| {
        let Some(bytes) = served.text.tokenizer.token_bytes(*id) else {
            unreachable!("the tokeniser has just given the id");
        };
        let piece = std::str::from_utf8(bytes).map_or_else(|_| json!(bytes), Value::from);
        json!({"id": id, "piece": piece})
    };
    Ok(Json(json!({"tokens": ids.iter().map(piece).collect::<Vec<_>>()})))
}

pub(super) async fn detokenize(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<api::DetokenizeRequest>,
) -> Result<Json<Value>, Error> {
    let served = Arc::clone(&params::admit(&app, request.model.as_deref(), 0).await?.served);
    // A model may have embedding rows for more ids than its vocabulary has tokens.
    let size = served.text.tokenizer.vocab_size();
    if let Some((at, id)) = request.tokens.iter().enumerate().find(|(_, id)| **id as usize >= size)
    {
        let param = format!("tokens[{at}]");
        let message = format!("{param}: is {id}; token ids are below {size}");
        return Err(Error::value(param, message));
    }
    Ok(Json(json!({"content": served.text.tokenizer.decode(&request.tokens)})))
}

pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::ChatRequest>,
) -> Result<Json<Value>, Error> {
    let prompt = openai::ask(request)?.text(&app).await?;
    Ok(Json(json!({"prompt": prompt})))
}
