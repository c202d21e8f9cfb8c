//! Request bodies: JSON of limited size that must arrive within a time limit, possibly compressed.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::error::Error;
use super::{App, coding, json_bytes};
use errors::invalid;

pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = Error;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Error> {
        parse(&read(request, app).await?).map(Self)
    }
}

/// Bytes of a body that need no reservation.
const SMALL: usize = 64 << 10;

/// Memory limit of all larger bodies together, in bytes. A single body may always be as large as
/// `max_body_bytes`.
const LARGE: usize = 64 << 20;

/// Bytes of all larger bodies in memory.
pub(super) type Arriving = Arc<AtomicUsize>;

/// A body and its memory reservation.
pub(super) struct Arrived {
    bytes: Vec<u8>,
    counted: usize,
    all: Arriving,
    limit: usize,
}

impl Arrived {
    fn new(app: &App, limit: usize) -> Self {
        Self { bytes: Vec::new(), counted: 0, all: Arc::clone(&app.arriving), limit }
    }

    /// Returns an empty body with the same limits.
    pub(super) fn like(&self) -> Self {
        Self { bytes: Vec::new(), counted: 0, all: Arc::clone(&self.all), limit: self.limit }
    }

    /// Appends bytes, within the body's limit and that of all bodies together.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(too_large(&format!("more than {}", self.limit), self.limit));
        }
        self.reserve(bytes, LARGE.max(self.limit))
    }

    /// Appends bytes if all bodies together then have at most `most`.
    fn reserve(&mut self, bytes: &[u8], most: usize) -> Result<(), Error> {
        let len = self.bytes.len() + bytes.len();
        if len > SMALL {
            let more = len - self.counted;
            let grow = |all: usize| all.checked_add(more).filter(|all| *all <= most);
            if self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_err() {
                let message = format!(
                    "other large requests already use the {most} bytes of memory for bodies"
                );
                return Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
                    .retry_after(1)
                    .hint("try again in a second"));
            }
            self.counted = len;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.all.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl Deref for Arrived {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Arrived {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// Listener that a request arrived on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Socket,
    Port,
}

/// Returns true if the body's type is JSON. It may be absent on ollama's routes: some of its
/// clients, such as LiteLLM's, send none. `curl -d` calls every body a form; on the unix socket
/// that is accepted, because no page can send one there.
fn is_json(request: &Request) -> bool {
    let Some(kind) = request.headers().get(CONTENT_TYPE) else {
        return request.uri().path().starts_with("/api/");
    };
    let essence = kind.to_str().ok().and_then(|kind| kind.split(';').next()).unwrap_or_default();
    let is = |kind: &str| essence.trim().eq_ignore_ascii_case(kind);
    let on_socket = request.extensions().get() == Some(&Door::Socket);
    is("application/json") || on_socket && is("application/x-www-form-urlencoded")
}

fn too_large(size: &str, limit: usize) -> Error {
    let message = format!("the body has {size} bytes, the limit is {limit}");
    Error::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
        .hint("send less, or raise max_body_bytes in the configuration")
}

/// Reads a JSON body within the configured size and time, and decodes it.
pub(super) async fn read(request: Request, app: &App) -> Result<Arrived, Error> {
    if !is_json(&request) {
        let message = "the body must be JSON with the header Content-Type: application/json";
        return Err(Error::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_media_type",
            message,
        )
        .hint("with curl: -H 'Content-Type: application/json' -d '{..}'"));
    }
    let config = app.config();
    let limit = config.max_body_bytes;
    let coding = coding::of(request.headers())?;
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    if let Some(size) = declared.filter(|v| v.parse::<u64>().is_ok_and(|n| n > limit as u64)) {
        return Err(too_large(size, limit));
    }
    let mut arrived = Arrived::new(app, limit);
    let mut body = request.into_body();
    let all = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                let message = format!("the body could not be read: {error}");
                Error::new(StatusCode::BAD_REQUEST, "incomplete_body", message)
            })?;
            let Ok(bytes) = frame.into_data() else { continue };
            arrived.add(&bytes)?;
        }
        Ok(arrived)
    };
    let time = config.request_timeout();
    let arrived = tokio::time::timeout(time, all).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} s", time.as_secs());
        Err(Error::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message))
    })?;
    let mut json = match coding {
        None => arrived,
        Some(coding) => coding::decode(app, coding, arrived).await?,
    };
    let bytes = json.len();
    heavy(bytes, || json_bytes::prepare(&mut json)).map_err(|json_bytes::TooDeep| {
        let limit = json_bytes::NESTING;
        let message = format!("the body: is nested deeper than {limit} levels, the limit");
        Error::new(StatusCode::BAD_REQUEST, "invalid_value", message)
    })?;
    app.json_memory.reserve(&json).await?;
    Ok(json)
}

/// Runs work on `bytes` of a request. If they are many, other tasks of this thread move to another
/// one: health and events of other requests do not wait for it.
pub(super) fn heavy<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let can_move = || {
        let runtime = Handle::try_current();
        runtime.is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
    };
    if bytes > SMALL && can_move() { block_in_place(work) } else { work() }
}

/// Parses JSON. An error names line and column if the JSON is malformed, else the field.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    let malformed = |reason: String| {
        let message = format!("the body is not valid JSON: {reason}");
        Error::new(StatusCode::BAD_REQUEST, "malformed_json", message)
    };
    if body.is_empty() {
        return Err(malformed("it is empty".into()));
    }
    // A list would count as the fields of an object in order.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(wrong(".", "is a list, an object {..} is needed"));
    }
    let mut json = json_bytes::deserializer(body);
    let value = heavy(body.len(), || serde_path_to_error::deserialize(&mut json));
    let value = value.map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if !error.is_data() {
            return malformed(error.to_string());
        }
        wrong(&path, &invalid::json(&error))
    })?;
    json.end().map_err(|error| malformed(error.to_string()))?;
    Ok(value)
}

/// Returns the error for a missing, unknown or invalid field of the object at `path`.
fn wrong(path: &str, detail: &str) -> Error {
    let object = if path == "." { "" } else { path };
    if let Some(field) = detail.strip_suffix(" is missing") {
        let field = if object.is_empty() { field.to_owned() } else { format!("{object}.{field}") };
        return Error::value(field.as_str(), format!("{field}: is missing"));
    }
    if path == "." {
        return Error::new(StatusCode::BAD_REQUEST, "invalid_value", format!("the body: {detail}"));
    }
    let path = invalid::excerpt(path);
    // The parser repeats the name of an unknown field.
    let name = path.rsplit('.').next().map(|name| format!("`{name}` "));
    let detail = name.and_then(|name| detail.strip_prefix(&name)).unwrap_or(detail);
    Error::value(path.as_str(), format!("{path}: {detail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: DeserializeOwned>(body: &str) -> api::ErrorDetail {
        parse::<T>(body.as_bytes()).err().unwrap().body().error
    }

    #[test]
    fn large_bodies_are_counted_until_they_are_dropped() {
        let all = Arriving::default();
        let arrive = |frames: &[usize]| {
            let (all, limit) = (Arc::clone(&all), usize::MAX);
            let mut body = Arrived { bytes: Vec::new(), counted: 0, all, limit };
            let mut add = |&bytes: &usize| body.reserve(&vec![b' '; bytes], 5 * SMALL);
            frames.iter().try_for_each(&mut add).map(|()| body)
        };
        let counted = || all.load(Ordering::Relaxed);
        let small = arrive(&[SMALL / 2, SMALL / 2]).ok().unwrap();
        assert_eq!(counted(), 0);
        let one = arrive(&[SMALL / 2, SMALL / 2, SMALL]).ok().unwrap();
        let another = arrive(&[3 * SMALL]).ok().unwrap();
        assert_eq!(counted(), 5 * SMALL);
        assert!(arrive(&[SMALL, 1]).is_err(), "there is no room");
        assert_eq!(counted(), 5 * SMALL, "what was refused takes none");
        drop(another);
        assert_eq!(counted(), 2 * SMALL);
        assert!(arrive(&[SMALL, 1]).is_ok());
        drop((small, one));
        assert_eq!(counted(), 0);
    }

    #[test]
    fn malformed_json_errors_name_line_and_column() {
        let error = refused::<api::CompletionRequest>("{\"prompt\": \"x\",\n  oops}");
        assert_eq!(error.code, "malformed_json");
        assert!(error.message.contains("line 2 column 3"), "{}", error.message);
        assert_eq!(refused::<api::LoadRequest>("").code, "malformed_json");
        assert_eq!(refused::<api::LoadRequest>("{\"model\":\"a\"} x").code, "malformed_json");
    }

    #[test]
    fn errors_name_the_invalid_field() {
        let error = refused::<api::ChatRequest>(r#"{"messages": [{"role": 1, "content": ""}]}"#);
        assert_eq!(
            (error.code.as_str(), error.param.as_deref()),
            ("invalid_value", Some("messages[0].role"))
        );
        let error = refused::<api::CompletionRequest>(r#"{"prompt": {"a": 1}}"#);
        assert_eq!(error.param.as_deref(), Some("prompt"));
        assert!(error.message.contains("list of token ids"), "{}", error.message);
        for (body, param, message) in [
            (r#"{"max_tokens": 4}"#, "prompt", "prompt: is missing"),
            (
                r#"{"prompt": "", "max_tokens": "a"}"#,
                "max_tokens",
                "max_tokens: is \"a\", a whole number is needed",
            ),
            (r#"{"prompt": "", "top_p": [1]}"#, "top_p", "top_p: is a list, a number is needed"),
        ] {
            let error = refused::<api::CompletionRequest>(body);
            assert_eq!((error.param.as_deref(), error.message.as_str()), (Some(param), message));
        }
        let error = refused::<api::ChatRequest>(r#"{"messages": [{"content": "a"}]}"#);
        assert_eq!(error.message, "messages[0].role: is missing");
        let error = refused::<api::CompletionRequest>("7");
        assert_eq!(error.message, "the body: is 7, an object {..} is needed");
    }

    #[test]
    fn only_native_routes_reject_unknown_fields() {
        let error = refused::<api::LoadRequest>(r#"{"model": "a", "slot": 3}"#);
        assert!(
            error.message.starts_with("slot: is not known; possible: model, "),
            "{}",
            error.message
        );
        assert_eq!(error.param.as_deref(), Some("slot"));
        parse::<api::CompletionRequest>(br#"{"prompt": "a", "whatever": 3}"#).ok().unwrap();
    }

    #[test]
    fn all_forms_of_prompts_are_accepted() {
        let prompt = |json: &str| {
            parse::<api::CompletionRequest>(format!("{{\"prompt\":{json}}}").as_bytes())
                .ok()
                .unwrap()
                .prompt
        };
        assert_eq!(prompt("\"a\""), api::Prompt::Text("a".into()));
        assert_eq!(prompt("[\"a\",\"b\"]"), api::Prompt::Texts(vec!["a".into(), "b".into()]));
        assert_eq!(prompt("[1,2]"), api::Prompt::Ids(vec![1, 2]));
        assert_eq!(prompt("[[1],[2,3]]"), api::Prompt::IdLists(vec![vec![1], vec![2, 3]]));
    }
}
