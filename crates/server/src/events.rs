//! Answers as server-sent events, with comments as keep-alive.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot::error::RecvError;

use super::dialect::Dialect;
use super::error::Error;
use engine::GenerateError;

/// Time without an event until a keep-alive comment is sent.
const QUIET: Duration = Duration::from_secs(5);

/// Returns an answer that streams events. The stream is dropped when the client disconnects.
pub(super) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let keep_alive = KeepAlive::new().interval(QUIET).text("waiting");
    Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(keep_alive).into_response()
}

/// Maximum wait for the first event. An error within this time gets its own HTTP status instead of
/// 200 and an `error` event.
const SOON: Duration = Duration::from_secs(1);

/// An event of a long-running task.
pub(super) enum Step<P, R> {
    Progress(P),
    Done(Result<R, Error>),
}

/// Returns an answer of any number of `progress` events and one `result`.
pub(super) async fn work<P, R>(mut steps: UnboundedReceiver<Step<P, R>>) -> Result<Response, Error>
where
    P: Serialize + Send + 'static,
    R: Serialize + Send + 'static,
{
    let first = tokio::time::timeout(SOON, steps.recv()).await.ok().flatten();
    if let Some(Step::Done(Err(error))) = first {
        return Err(error);
    }
    let rest = stream::poll_fn(move |context| steps.poll_recv(context));
    Ok(answer(stream::iter(first).chain(rest).map(|step| match step {
        Step::Progress(progress) => named(api::event::PROGRESS, &progress),
        Step::Done(Ok(result)) => named(api::event::RESULT, &result),
        Step::Done(Err(failed)) => error(&failed),
    })))
}

/// Unwraps the result of a task that had exclusive use of the engine.
pub(super) fn outcome<T, E: Into<Error>>(
    task: Result<Result<Result<T, E>, GenerateError>, RecvError>,
) -> Result<T, Error> {
    task.map_err(|_| GenerateError::Stopping)??.map_err(Into::into)
}

/// Returns an event without a name, as in OpenAI's streams.
pub(super) fn data(value: &impl Serialize) -> Event {
    match serde_json::to_string(value) {
        Ok(json) => Event::default().data(json),
        Err(failed) => error(&internal(&failed)),
    }
}

/// Returns a `progress` or `result` event.
pub(super) fn named(name: &str, value: &impl Serialize) -> Event {
    match serde_json::to_string(value) {
        Ok(json) => Event::default().event(name).data(json),
        Err(failed) => error(&internal(&failed)),
    }
}

/// Returns the error event that ends a stream. OpenAI's clients recognise it by the field `error`.
pub(super) fn error(error: &Error) -> Event {
    // Contains only strings, so it is always valid JSON.
    let json = serde_json::to_string(&error.body()).unwrap_or_default();
    Event::default().event(api::event::ERROR).data(json)
}

/// Maps items to events, up to and including the first error.
pub(super) fn until_error<T>(
    items: impl Stream<Item = T> + Send + 'static,
    dialect: Dialect,
    mut step: impl FnMut(T) -> Result<Vec<Event>, Error> + Send + 'static,
) -> impl Stream<Item = Event> + Send + 'static {
    let mut failed = false;
    let made = items.scan((), move |(), item| {
        let made = (!failed).then(|| {
            step(item).unwrap_or_else(|reason| {
                failed = true;
                vec![named(api::event::ERROR, &dialect.error(&reason))]
            })
        });
        std::future::ready(made)
    });
    made.flat_map(stream::iter)
}

/// Returns the marker that ends OpenAI's streams.
pub(super) fn done() -> Event {
    Event::default().data("[DONE]")
}

fn internal(error: &serde_json::Error) -> Error {
    Error::internal(format!("the answer could not be written: {error}"))
}
