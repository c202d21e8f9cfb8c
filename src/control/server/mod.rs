//! The server: routes, limits, and the life of connections. The modules below reach the engine only through
//! [`App`]. When a client goes away, everything that was done for it ends.

mod body;
mod error;
mod events;
mod generation;
mod gone;
mod host;
mod linger;
mod metrics;
mod openai;
mod own;
pub mod socket;
mod status;
pub mod tcp;
mod tune;

use std::hash::{BuildHasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::{Mutex, RwLock};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::error::Error;
use self::gone::Gone;
use self::metrics::Metrics;
pub use self::own::load_spec;
use self::tcp::Port;
use super::api::route;
use crate::config::Config;
use crate::engine::tuning::pace::Pace;
use crate::engine::{Handle, LoadError, LoadEvent, LoadSpec};
use telemetry::{Probe, Root};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Bytes of a request's head at most; hyper answers 431 beyond.
const MAX_HEAD: usize = 64 << 10;

/// How long the writing of a refusal may take.
const REFUSAL: Duration = Duration::from_secs(1);

pub struct App {
    engine: Handle,
    config: RwLock<Arc<Config>>,
    metrics: Metrics,
    started: Instant,
    last_load: Mutex<Option<Result<SystemTime, LoadError>>>,
    probe: Arc<Probe>,
    /// Bytes per second that the device of that name could read in the last bench.
    roof: Mutex<Option<(String, f64)>>,
    /// Searches for tuned choices, under way or waiting.
    searches: Mutex<Vec<Weak<Pace>>>,
}

impl App {
    /// An application that serves `engine`. `config` has been checked.
    pub fn new(engine: Handle, config: Config) -> Arc<Self> {
        let probe = Arc::new(Probe::new(Root::system()));
        let metrics = Metrics::new(engine.clone(), Arc::clone(&probe));
        let started = Instant::now();
        let config = RwLock::new(Arc::new(config));
        let (last_load, roof) = (Mutex::new(None), Mutex::new(None));
        let searches = Mutex::new(Vec::new());
        Arc::new(Self { engine, config, metrics, started, last_load, probe, roof, searches })
    }

    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read())
    }

    /// Takes over another configuration, which has been checked, for what begins from now on.
    pub fn reload(&self, config: Config) {
        self.engine.set_queue_limit(config.queue_limit);
        *self.config.write() = Arc::new(config);
    }

    /// Loads a model; the load goes on when nobody listens to its events. Needs a tokio runtime.
    pub fn load(self: &Arc<Self>, spec: LoadSpec) -> UnboundedReceiver<LoadEvent> {
        tracing::info!(model = spec.model, "loading");
        let mut events = self.engine.load(spec);
        let (forward, receiver) = unbounded_channel();
        let app = Arc::clone(self);
        tokio::spawn(async move {
            let mut over = false;
            while let Some(event) = events.recv().await {
                match &event {
                    LoadEvent::Progress { .. } | LoadEvent::Unloading { .. } => {}
                    LoadEvent::Loaded(_) => {
                        app.loaded(Ok(SystemTime::now()));
                        over = true;
                    }
                    LoadEvent::Failed(error) => {
                        app.loaded(Err(error.clone()));
                        over = true;
                    }
                }
                let _ = forward.send(event);
            }
            if !over {
                let _ = forward.send(LoadEvent::Failed(LoadError::Stopping));
            }
        });
        receiver
    }

    fn loaded(&self, result: Result<SystemTime, LoadError>) {
        *self.last_load.lock() = Some(result);
    }

    fn last_load(&self) -> Option<Result<SystemTime, LoadError>> {
        self.last_load.lock().clone()
    }

    /// Keeps what a bench could read, if it could.
    fn measured(&self, report: &crate::bench::Report) {
        let rate = report.roof.bytes_per_second;
        if rate > 0.0 {
            let device = report.manifest.device.clone();
            *self.roof.lock() = Some((device, rate));
        }
    }

    fn last_error(&self) -> Option<Error> {
        Some(self.last_load()?.err()?.into())
    }

    fn loaded_at(&self) -> Option<SystemTime> {
        self.last_load()?.ok()
    }
}

/// Random enough for ids and for seeds that nobody chose: two requests do not share one.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(route::HEALTH, get(own::health))
        .route(route::METRICS, get(own::metrics))
        .route(route::STATUS, get(own::status))
        .route(route::MODELS, get(own::models).post(own::load).delete(own::unload))
        .route(route::BENCH, post(own::bench))
        .route(route::TUNE, get(tune::contents).post(tune::search).delete(tune::stop))
        .route(route::OPENAI_MODELS, get(openai::models))
        .route(route::COMPLETIONS, post(openai::completions))
        .route(route::CHAT, post(openai::chat))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

async fn not_found(uri: Uri) -> Error {
    let message = format!("there is no route {}", uri.path());
    Error::new(StatusCode::NOT_FOUND, "route_not_found", message)
        .hint("docs/api.md lists the routes; GET /orin/v1/status is a good start")
}

async fn method_not_allowed(method: Method, uri: Uri) -> Error {
    let message = format!("{} does not take {method}", uri.path());
    Error::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        .hint("the header Allow says which methods it takes")
}

/// Counts and logs every answer, and turns a panic into one.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let method = match *request.method() {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    };
    let path = request.extensions().get::<MatchedPath>().cloned();
    let path = path.as_ref().map_or("other", MatchedPath::as_str);
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let response = answer.unwrap_or_else(|_| Error::internal("the request failed").into_response());
    let status = response.status();
    app.metrics.answered(method, path, status.as_u16());
    let ms = started.elapsed().as_millis() as u64;
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        tracing::warn!(method, path, status = status.as_u16(), ms, "request failed");
    } else {
        tracing::debug!(method, path, status = status.as_u16(), ms, "request");
    }
    response
}

#[derive(Debug)]
pub struct Connections(JoinSet<()>);

impl Connections {
    /// Lets every connection finish what it is answering, for `limit` at most; then cuts them.
    pub async fn drain(mut self, limit: Duration) {
        let all = async { while self.0.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(limit, all).await;
    }
}

/// How a server is told to stop.
#[derive(Clone, Default)]
pub struct Stop {
    draining: CancellationToken,
    closed: CancellationToken,
}

impl Stop {
    /// From now on idle connections are closed, and busy ones after their answer. Whoever still comes gets one
    /// answer, so that health checks hear that the daemon stops.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// From now on nobody is heard.
    pub fn close(&self) {
        self.closed.cancel();
    }
}

pub struct Listeners {
    pub unix: UnixListener,
    pub tcp: Option<Port>,
}

/// Serves until `stop` is closed.
pub async fn serve(listeners: Listeners, app: Arc<App>, stop: Stop) -> Connections {
    let Listeners { unix, tcp } = listeners;
    let open = router(Arc::clone(&app));
    let keep = middleware::map_request_with_state(Arc::clone(&app), linger::keep);
    let token = tcp.as_ref().and_then(Port::token);
    let guarded = open.clone().layer(middleware::from_fn_with_state(token, tcp::guard));
    let [open, guarded] = [open, guarded]
        .map(|routes| routes.layer(middleware::from_fn(host::check)).layer(keep.clone()));
    let mut server = Server { app, connections: JoinSet::new(), stop };
    loop {
        let accept_tcp = async {
            match &tcp {
                Some(port) => port.accept().await,
                None => std::future::pending().await,
            }
        };
        let accepted = tokio::select! {
            biased;
            () = server.stop.closed.cancelled() => return Connections(server.connections),
            Some(ended) = server.connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection panicked");
                }
                continue;
            }
            accepted = unix.accept() => accepted.map(|(stream, _)| {
                introduce(&stream);
                let gone = Gone::watch(&stream).inspect_err(|error| {
                    tracing::warn!(%error, "a client that shuts down its sending side counts as gone");
                });
                server.admit(stream, gone.ok(), &open);
            }),
            accepted = accept_tcp => accepted.map(|(stream, peer)| {
                tracing::debug!(%peer, "connected");
                server.admit(stream, None, &guarded);
            }),
        };
        if let Err(error) = accepted {
            // Out of file descriptors, most likely: give connections time to end.
            tracing::warn!(%error, "accepting a connection failed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Logs who has connected, as the kernel knows them.
fn introduce(stream: &UnixStream) {
    match stream.peer_cred() {
        Ok(peer) => {
            tracing::debug!(pid = peer.pid(), uid = peer.uid(), gid = peer.gid(), "connected");
        }
        Err(error) => tracing::debug!(%error, "connected; by whom is not known"),
    }
}

struct Server {
    app: Arc<App>,
    connections: JoinSet<()>,
    stop: Stop,
}

impl Server {
    /// Serves a connection, or says that there is one too many.
    fn admit<S>(&mut self, stream: S, gone: Option<Gone>, router: &Router)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let config = self.app.config();
        if self.connections.len() < config.max_connections {
            let (router, stop) = (router.clone(), self.stop.clone());
            self.connections.spawn(connection(
                stream,
                gone,
                router,
                config.request_timeout(),
                stop,
            ));
        } else {
            self.connections.spawn(refuse(stream, config.max_connections));
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    gone: Option<Gone>,
    router: Router,
    timeout: Duration,
    stop: Stop,
) {
    let draining = stop.draining.is_cancelled();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(!draining)
        .header_read_timeout(timeout)
        .max_header_size(MAX_HEAD)
        .max_buf_size(2 * MAX_HEAD)
        .half_close(gone.is_some())
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let served = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.draining.cancelled(), if !draining => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    tokio::select! {
        biased;
        ended = served => if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        },
        () = Gone::wait(gone.as_ref()) => tracing::debug!("the client is gone"),
    }
}

/// Answers one connection too many without reading from it.
async fn refuse(mut stream: impl AsyncWrite + Unpin, limit: usize) {
    let message = format!("{limit} connections are open, which is the limit");
    let error = Error::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message)
        .hint("close idle connections, or raise max_connections in the configuration");
    // Strings only: always valid JSON.
    let body = serde_json::to_string(&error.body()).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let write = async {
        stream.write_all((head + &body).as_bytes()).await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(REFUSAL, write).await;
}
