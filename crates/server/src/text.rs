//! llama.cpp's routes for tokenizing, detokenizing and rendering the chat template.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};

use super::body::{JsonBody, heavy};
use super::error::Error;
use super::rejections::Checked;
use super::{App, openai, params, prompt};

pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<api::TokenizeRequest>,
) -> Result<Json<Tokenized>, Error> {
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
        return Ok(Json(Tokenized::Ids { tokens: ids }));
    }
    let piece = |id: u32| {
        let Some(bytes) = served.text.tokenizer.token_bytes(id) else {
            unreachable!("the tokenizer has just returned the id");
        };
        let text = std::str::from_utf8(bytes).map(str::to_owned);
        let piece = text.map_or_else(|_| Piece::Bytes(bytes.to_vec()), Piece::Text);
        Token { id, piece }
    };
    Ok(Json(Tokenized::Pieces { tokens: ids.into_iter().map(piece).collect() }))
}

/// Answer of [`tokenize`]. A tree of JSON values would take 18 bytes for each byte of its text.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Tokenized {
    Ids { tokens: Vec<u32> },
    Pieces { tokens: Vec<Token> },
}

#[derive(Serialize)]
pub(super) struct Token {
    id: u32,
    piece: Piece,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    /// Bytes that are not UTF-8.
    Bytes(Vec<u8>),
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
    let bytes = request.tokens.len() * size_of::<u32>();
    let content = heavy(bytes, || served.text.tokenizer.decode(&request.tokens));
    Ok(Json(json!({"content": content})))
}

pub(super) async fn apply_template(
    State(app): State<Arc<App>>,
    Checked(request): Checked<api::ChatRequest>,
) -> Result<Json<Value>, Error> {
    let prompt = openai::ask(request)?.text(&app).await?;
    Ok(Json(json!({"prompt": prompt})))
}
