//! Client of the daemon. Each call opens one connection. Dropping the call's future or stream
//! closes the connection, and the daemon cancels the work. Needs a tokio runtime with I/O and time
//! enabled.

mod address;
mod liveness;
pub mod private;
mod sse;
mod stream;
mod timed;

use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::task::AbortOnDropHandle;

use crate::folder::{self, Distrust};
use crate::{self as api, route};
pub use address::{Address, Token};
use errors::invalid::{excerpt, json};
pub use timed::Timed;

/// Maximum size of an answer in bytes.
const MAX_ANSWER: usize = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process listens: the socket is missing or stale.
    #[error("no daemon is listening on {daemon}")]
    NotRunning { daemon: Address, source: io::Error },
    /// Connecting failed for another reason.
    #[error("connecting to {daemon} failed: {source}")]
    Connect { daemon: Address, source: io::Error },
    /// The daemon hangs, or is stopped.
    #[error("{daemon} accepts connections, but has answered nothing for {seconds} s")]
    Silent { daemon: Address, seconds: u64 },
    /// Another user could be listening on the daemon's socket.
    #[error("the daemon's socket is not safe: {0}")]
    Distrusted(#[from] Distrust),
    #[error("the connection to the daemon broke")]
    Transport(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The daemon rejected the request or failed. Contains its message.
    #[error("{}", detail.message)]
    Api {
        /// HTTP status; 200 if the failure came after the answer had begun.
        status: u16,
        detail: Box<api::ErrorDetail>,
    },
    /// An error that is not in the daemon's format: from another server, or a proxy.
    #[error("unexpected answer from the daemon: {status}: {body}")]
    Refused { status: u16, body: String },
    #[error("unexpected answer from the daemon: {0}")]
    Protocol(String),
}

impl Error {
    /// The error code, if the daemon sent the error.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Api { detail, .. } => Some(&detail.code),
            _ => None,
        }
    }

    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Api { detail, .. } => detail.hint.as_deref(),
            Self::Connect { daemon: Address::Socket(_), .. } => {
                Some("check that this user may use it; the socket's owner and group may")
            }
            Self::NotRunning { .. } => Some("`orind` starts one; `orind --help` has examples"),
            Self::Silent { .. } => Some("see the daemon's log, and restart it"),
            Self::Distrusted(_) => Some("set XDG_RUNTIME_DIR, or name a socket with --socket"),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Client {
    pub daemon: Address,
}

impl Client {
    /// Creates a client of the daemon on `socket`. Does not connect.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { daemon: Address::Socket(socket.into()) }
    }

    /// Creates a client of the daemon on a port, `HOST:PORT`. Does not connect. The token is sent
    /// unencrypted: use it only on trusted networks or through a tunnel.
    pub fn tcp(authority: impl Into<String>, token: Option<Token>) -> Self {
        Self { daemon: Address::Port { authority: authority.into(), token } }
    }

    /// Waits for a starting daemon. Returns [`Error::NotRunning`] if no process listens after
    /// `limit`.
    pub async fn wait_until_up(&self, limit: Duration) -> Result<api::Status, Error> {
        let start = Instant::now();
        loop {
            match self.status().await {
                Err(Error::NotRunning { .. }) if start.elapsed() < limit => {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                other => return other,
            }
        }
    }

    /// Requests the daemon's status.
    pub async fn status(&self) -> Result<api::Status, Error> {
        self.call(Method::GET, route::STATUS).await
    }

    /// Requests the loaded models and those that can be loaded.
    pub async fn models(&self) -> Result<api::Models, Error> {
        self.call(Method::GET, route::MODELS).await
    }

    /// Replaces the loaded model. Dropping the future does not cancel the load.
    pub async fn load(
        &self,
        request: &api::LoadRequest,
        on_progress: impl FnMut(api::LoadProgress),
    ) -> Result<api::Model, Error> {
        self.work(route::MODELS, request, on_progress).await
    }

    /// Unloads the named model, or the first one. Returns false if it was not loaded.
    pub async fn unload(&self, name: Option<&str>) -> Result<bool, Error> {
        let path = match name {
            None => route::MODELS.to_owned(),
            Some(name) => {
                format!("{}/{}", route::MODELS, utf8_percent_encode(name, NON_ALPHANUMERIC))
            }
        };
        let answer: api::Unloaded = self.call(Method::DELETE, &path).await?;
        Ok(answer.unloaded)
    }

    /// Runs a benchmark. `spec` is a `bench::Spec`, progress a `bench::Progress`, the result a
    /// `bench::Report`. Dropping the future cancels the benchmark.
    pub async fn bench<P: DeserializeOwned, R: DeserializeOwned>(
        &self,
        spec: &impl Serialize,
        on_progress: impl FnMut(P),
    ) -> Result<R, Error> {
        self.work(route::BENCH, spec, on_progress).await
    }

    /// Tunes the kernels of the loaded model. `spec` is a `tune::report::Spec`, progress a
    /// `tune::report::Progress`, the result a `tune::report::Report`. Dropping the future stops the
    /// search; results found so far are stored.
    pub async fn tune<P: DeserializeOwned, R: DeserializeOwned>(
        &self,
        spec: &impl Serialize,
        on_progress: impl FnMut(P),
    ) -> Result<R, Error> {
        self.work(route::TUNE, spec, on_progress).await
    }

    /// Stops all running and queued searches; each stores its results. Returns their number.
    pub async fn stop_tuning(&self) -> Result<usize, Error> {
        let answer: api::Stopped = self.call(Method::DELETE, route::TUNE).await?;
        Ok(answer.stopped)
    }

    /// Requests the tuning results stored for the loaded model's device.
    pub async fn tuned(&self) -> Result<api::Tuned, Error> {
        self.call(Method::GET, route::TUNE).await
    }

    /// Completes a prompt. Always streams, regardless of `request.stream`.
    pub async fn completions(
        &self,
        request: &api::CompletionRequest,
    ) -> Result<Stream<api::Completion>, Error> {
        let request = api::CompletionRequest { stream: Some(true), ..request.clone() };
        Ok(Stream::new(self.post(route::COMPLETIONS, &request).await?))
    }

    /// Answers a conversation. Always streams, regardless of `request.stream`.
    pub async fn chat(&self, request: &api::ChatRequest) -> Result<Stream<api::ChatChunk>, Error> {
        let request = api::ChatRequest { stream: Some(true), ..request.clone() };
        Ok(Stream::new(self.post(route::CHAT, &request).await?))
    }

    /// Posts to any path and returns an SSE stream that ends with `[DONE]`, for servers with an
    /// OpenAI-compatible API.
    pub async fn stream<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<Stream<T>, Error> {
        Ok(Stream::new(self.post(path, request).await?))
    }

    /// Posts to any path and returns the complete answer.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(request).map_err(|e| Error::Protocol(e.to_string()))?;
        let answer = self.send(Method::POST, path, Some(body)).await?.collect().await?;
        serde_json::from_slice(&answer)
            .map_err(|e| Error::Protocol(format!("{path}: {}", json(&e))))
    }

    /// Gets any path and returns the complete answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::GET, path).await
    }

    /// Sends a request without a body and returns the complete answer.
    async fn call<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, Error> {
        let body = self.send(method, path, None).await?.collect().await?;
        serde_json::from_slice(&body).map_err(|e| Error::Protocol(format!("{path}: {}", json(&e))))
    }

    /// Sends a request that is answered with progress events and one result event.
    async fn work<P: DeserializeOwned, R: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
        mut on_progress: impl FnMut(P),
    ) -> Result<R, Error> {
        let mut events = self.post(path, request).await?;
        while let Some(event) = events.next().await? {
            match event.name.as_str() {
                api::event::PROGRESS => on_progress(parse(&event.data)?),
                api::event::RESULT => return parse(&event.data),
                _ => {}
            }
        }
        Err(Error::Protocol(format!("{path}: the events ended without a result")))
    }

    async fn post(&self, path: &str, request: &impl Serialize) -> Result<Events, Error> {
        let body = serde_json::to_vec(request).map_err(|e| Error::Protocol(e.to_string()))?;
        let response = self.send(Method::POST, path, Some(body)).await?;
        Ok(Events { response, parser: sse::Parser::default() })
    }

    /// Sends a request and returns the answer's beginning, or the error that the daemon answers.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Response, Error> {
        let (status, response) = self.while_alive(self.request(method, path, body)).await?;
        if status.is_success() {
            return Ok(response);
        }
        Err(refused(status, &response.collect().await?))
    }

    /// Sends a request and returns the answer's status and beginning.
    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<(StatusCode, Response), Error> {
        if let Address::Socket(path) = &self.daemon
            && folder::is_fallback(path)
        {
            folder::check(path)?;
        }
        let daemon = || self.daemon.clone();
        let stream = self.daemon.connect().await.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Error::NotRunning { daemon: daemon(), source }
            }
            _ => Error::Connect { daemon: daemon(), source },
        })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream::Stream(stream)))
                .await
                .map_err(transport)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // Connection errors reach the caller through the request and the body.
            let _ = connection.await;
        }));
        let mut request =
            Request::builder().method(method).uri(path).header(HOST, self.daemon.host());
        if let Address::Port { token: Some(token), .. } = &self.daemon {
            request = request.header(AUTHORIZATION, token.header());
        }
        if body.is_some() {
            request = request
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "text/event-stream, application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|e| Error::Protocol(e.to_string()))?;
        let (head, body) = sender.send_request(request).await.map_err(transport)?.into_parts();
        Ok((head.status, Response { body, client: self.clone(), _connection: connection }))
    }
}

fn transport(error: hyper::Error) -> Error {
    Error::Transport(Box::new(error))
}

fn parse<T: DeserializeOwned>(data: &str) -> Result<T, Error> {
    let protocol = |e| Error::Protocol(format!("{} in {}", json(&e), excerpt(data)));
    serde_json::from_str(data).map_err(protocol)
}

fn refused(status: StatusCode, body: &[u8]) -> Error {
    match serde_json::from_slice::<api::ErrorBody>(body) {
        Ok(body) => Error::Api { status: status.as_u16(), detail: Box::new(body.error) },
        Err(_) => Error::Refused {
            status: status.as_u16(),
            body: excerpt(&String::from_utf8_lossy(body)),
        },
    }
}

/// An answer. Owns its connection.
#[derive(Debug)]
struct Response {
    body: Incoming,
    client: Client,
    _connection: AbortOnDropHandle<()>,
}

impl Response {
    /// Returns the body, unless it exceeds [`MAX_ANSWER`].
    async fn collect(self) -> Result<Bytes, Error> {
        let body = async {
            let body = Limited::new(self.body, MAX_ANSWER).collect().await;
            body.map_err(|error| match error.is::<LengthLimitError>() {
                true => Error::Protocol(format!("more than {} MiB", MAX_ANSWER >> 20)),
                false => Error::Transport(error),
            })
        };
        Ok(self.client.while_alive(body).await?.to_bytes())
    }
}

#[derive(Debug)]
struct Events {
    response: Response,
    parser: sse::Parser,
}

impl Events {
    /// Returns the next event. An `error` event or an OpenAI error becomes an `Err`.
    async fn next(&mut self) -> Result<Option<sse::Event>, Error> {
        loop {
            if let Some(event) = self.parser.next() {
                let failed = event.name == api::event::ERROR;
                return if failed {
                    Err(refused(StatusCode::OK, event.data.as_bytes()))
                } else {
                    Ok(Some(event))
                };
            }
            let Response { body, client, .. } = &mut self.response;
            let frame = async { body.frame().await.transpose().map_err(transport) };
            let Some(frame) = client.while_alive(frame).await? else { return Ok(None) };
            let Ok(data) = frame.into_data() else { continue };
            if !self.parser.push(&data) {
                return Err(Error::Protocol("an event without end".into()));
            }
        }
    }
}

/// A streamed generation. Dropping it cancels the generation.
#[derive(Debug)]
pub struct Stream<T> {
    events: Events,
    done: bool,
    item: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Stream<T> {
    fn new(events: Events) -> Self {
        Self { events, done: false, item: PhantomData }
    }

    /// Returns the next part; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        if self.done {
            return Ok(None);
        }
        let event = self.events.next().await;
        self.done = !matches!(&event, Ok(Some(event)) if event.data != "[DONE]");
        match event? {
            Some(event) if event.data != "[DONE]" => parse(&event.data).map(Some),
            Some(_) => Ok(None),
            None => Err(Error::Protocol("the stream ended without `[DONE]`".into())),
        }
    }
}
