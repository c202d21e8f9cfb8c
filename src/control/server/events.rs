//! Answers as server-sent events, with a comment now and then while there is nothing to say.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, StreamExt};
use serde::Serialize;

use super::error::Error;
use crate::control::api;

/// Time without an event after which a comment is sent, so that neither side takes the other for
/// dead.
const QUIET: Duration = Duration::from_secs(5);

/// An answer made of events. Dropped when the client goes away.
pub(super) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let keep_alive = KeepAlive::new().interval(QUIET).text("waiting");
    Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(keep_alive).into_response()
}

/// An event without a name, as OpenAI's streams have them.
pub(super) fn data(value: &impl Serialize) -> Event {
    match serde_json::to_string(value) {
        Ok(json) => Event::default().data(json),
        Err(failed) => error(&internal(&failed)),
    }
}

/// A `progress` or `result` event.
pub(super) fn named(name: &str, value: &impl Serialize) -> Event {
    match serde_json::to_string(value) {
        Ok(json) => Event::default().event(name).data(json),
        Err(failed) => error(&internal(&failed)),
    }
}

/// The error that ends a stream. OpenAI's clients know it by the field `error`.
pub(super) fn error(error: &Error) -> Event {
    // Strings only: always valid JSON.
    let json = serde_json::to_string(&error.body()).unwrap_or_default();
    Event::default().event(api::event::ERROR).data(json)
}

/// The mark that ends OpenAI's streams.
pub(super) fn done() -> Event {
    Event::default().data("[DONE]")
}

fn internal(error: &serde_json::Error) -> Error {
    Error::internal(format!("the answer could not be written: {error}"))
}
