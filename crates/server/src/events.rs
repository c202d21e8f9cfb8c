//! Answers as server-sent events, with a comment now and then while there is nothing to say.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot::error::RecvError;

use super::error::Error;
use engine::GenerateError;

/// Time without an event after which a comment is sent, so that neither side takes the other for dead.
const QUIET: Duration = Duration::from_secs(5);

/// An answer made of events. Dropped when the client goes away.
pub(super) fn answer(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let keep_alive = KeepAlive::new().interval(QUIET).text("waiting");
    Sse::new(events.map(Ok::<_, Infallible>)).keep_alive(keep_alive).into_response()
}

/// How long an answer waits for a first event that may turn out to be an error, which then gets a
/// status of its own instead of 200 and an `error` event.
const SOON: Duration = Duration::from_secs(1);

/// What work of some length sends on its way.
pub(super) enum Step<P, R> {
    Progress(P),
    Done(Result<R, Error>),
}

/// An answer of any number of `progress` events and one `result`.
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

/// What came of a task that had the engine to itself.
pub(super) fn outcome<T, E: Into<Error>>(
    task: Result<Result<Result<T, E>, GenerateError>, RecvError>,
) -> Result<T, Error> {
    task.map_err(|_| GenerateError::Stopping)??.map_err(Into::into)
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

/// The events that `step` makes of each item, up to the first error, which is sent as one.
pub(super) fn until_error<T>(
    items: impl Stream<Item = T> + Send + 'static,
    mut step: impl FnMut(T) -> Result<Vec<Event>, Error> + Send + 'static,
) -> impl Stream<Item = Event> + Send + 'static {
    let mut failed = false;
    let made = items.scan((), move |(), item| {
        let made = (!failed).then(|| {
            step(item).unwrap_or_else(|reason| {
                failed = true;
                vec![error(&reason)]
            })
        });
        std::future::ready(made)
    });
    made.flat_map(stream::iter)
}

/// The mark that ends OpenAI's streams.
pub(super) fn done() -> Event {
    Event::default().data("[DONE]")
}

fn internal(error: &serde_json::Error) -> Error {
    Error::internal(format!("the answer could not be written: {error}"))
}
