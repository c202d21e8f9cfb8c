//! HTTP server: routes, and the state that all of them share. The modules below reach the engine
//! only through [`App`]. A client's disconnect cancels its work.

mod anthropic;
mod available;
mod body;
mod coding;
mod connections;
mod dialect;
mod dialogue;
mod disconnect;
mod embeddings;
mod error;
mod events;
mod fields;
mod generation;
mod graceful_close;
mod host;
mod json_bytes;
mod json_memory;
mod keep_alive;
mod llama_cpp;
mod load_spec;
mod metrics;
mod native;
mod ollama;
mod openai;
mod origin;
mod page;
mod params;
mod progress;
mod prompt;
mod prompt_queue;
mod rejections;
mod request_id;
mod residents;
mod response_store;
mod run;
mod run_answer;
pub mod socket;
mod status;
pub mod tcp;
mod text;
mod tool_format;
mod tune;
mod unread;

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use futures_util::FutureExt;
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::UnboundedReceiver;

use self::available::Available;
pub use self::connections::{Connections, Listeners, Stop, serve};
use self::error::Error;
pub use self::load_spec::load_spec;
use self::metrics::Metrics;
use self::request_id::RequestId;
use self::residents::Residents;
pub use self::residents::{load_request, wait_for_load};
use api::route;
use config::Config;
use engine::tuning::pace::Pace;
use engine::{Handle, LoadEvent, LoadSpec};
use errors::invalid::excerpt;
use realtime::control_loops::ControlLoops;
use realtime::sessions::Sessions;
use telemetry::{Probe, Root};

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub struct App {
    /// Commit that the program was built from.
    commit: Option<&'static str>,
    residents: Arc<Residents>,
    config: RwLock<Arc<Config>>,
    metrics: Metrics,
    started: Instant,
    available: Available,
    probe: Arc<Probe>,
    /// Device name and read bandwidth in bytes per second, measured by the last benchmark.
    roof: Mutex<Option<(String, f64)>>,
    /// Running and queued searches for tuned kernels.
    searches: Mutex<Vec<Weak<Pace>>>,
    arriving: body::Arriving,
    /// Conversations that requests can continue.
    responses: Mutex<response_store::ResponseStore>,
    /// Names that clients have created.
    names: ollama::names::Names,
    keep_alive: keep_alive::KeepAlive,
    prompts: prompt_queue::PromptQueue,
    json_memory: json_memory::JsonMemory,
    sessions: Sessions,
    unread: unread::UnreadAnswers,
    runs: run::RunQueue,
    lanes: Arc<ControlLoops>,
}

impl App {
    /// Creates an application that serves `engine` and additional models. `config` must have been
    /// checked. `commit` is the commit that the program was built from.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(
        engine: Handle,
        config: Config,
        commit: Option<&'static str>,
    ) -> io::Result<Arc<Self>> {
        let probe = Arc::new(Probe::new(Root::system()));
        let lanes = ControlLoops::start(&config);
        let residents = Arc::new(Residents::new(engine, &config)?);
        let metrics = Metrics::new(Arc::clone(&residents), Arc::clone(&probe), Arc::clone(&lanes));
        let started = Instant::now();
        let config = RwLock::new(Arc::new(config));
        Ok(Arc::new(Self {
            commit,
            residents,
            config,
            metrics,
            started,
            available: Available::default(),
            probe,
            roof: Mutex::new(None),
            searches: Mutex::default(),
            arriving: Arc::default(),
            responses: Mutex::default(),
            names: ollama::names::Names::default(),
            keep_alive: keep_alive::KeepAlive::default(),
            prompts: prompt_queue::PromptQueue::default(),
            json_memory: json_memory::JsonMemory::default(),
            sessions: Sessions::default(),
            unread: unread::UnreadAnswers::default(),
            runs: run::RunQueue::default(),
            lanes,
        }))
    }

    pub fn control_loops(&self) -> Arc<ControlLoops> {
        Arc::clone(&self.lanes)
    }

    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read())
    }

    /// Replaces the configuration, which must have been checked, for new requests.
    pub fn reload(&self, config: Config) {
        self.residents.all().for_each(|one| one.engine.set_queue_limit(config.queue_limit));
        *self.config.write() = Arc::new(config);
    }

    /// Loads the first model. The load continues if the event receiver is dropped. Needs a tokio
    /// runtime.
    pub fn load(&self, spec: LoadSpec) -> UnboundedReceiver<LoadEvent> {
        self.keep_alive.loads(&spec);
        self.residents.first().load(spec)
    }

    /// Loads the additional models configured with `load = "start"`. Returns when all have been
    /// loaded or have failed.
    pub async fn load_additional_models(self: &Arc<Self>) {
        self.residents.start(self).await;
    }

    /// Returns all engines, the first model's first.
    pub fn engines(&self) -> Vec<Handle> {
        self.residents.all().map(|one| one.engine.clone()).collect()
    }

    /// Requests a heartbeat from every engine thread and returns their counts; see
    /// [`Handle::heartbeat`]. Also observes the progress that `/health` reports. `None` if an engine has ended without being stopped.
    pub fn heartbeats(&self) -> Option<Vec<u64>> {
        self.prompts.observe();
        self.unread.trim();
        let beats = self.residents.all().filter_map(|one| match one.engine.heartbeat() {
            None if one.is_removed() => None,
            beats => {
                one.progress.observe(beats.unwrap_or(0), false);
                Some(beats)
            }
        });
        beats.collect()
    }

    /// Stores the bandwidth that a benchmark measured, if any.
    fn measured(&self, report: &bench::Report) {
        let rate = report.roof.bytes_per_second;
        if rate > 0.0 {
            let device = report.manifest.device.clone();
            *self.roof.lock() = Some((device, rate));
        }
    }
}

/// Returns a number for ids and default seeds. Two requests do not get the same one.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(route::PAGE, get(page::page))
        .route(route::HEALTH, get(native::health))
        .route(route::METRICS, get(native::metrics))
        .route(route::STATUS, get(native::status))
        .route(route::MODELS, get(native::models).post(native::load).delete(native::unload))
        .route(route::MODEL, delete(native::unload_one))
        .route(route::BENCH, post(native::bench))
        .route(route::RUN, post(run::run))
        .route(route::TUNE, get(tune::contents).post(tune::search).delete(tune::stop))
        .route(route::OPENAI_MODELS, get(openai::models))
        .route(route::OPENAI_MODEL, get(openai::model))
        .route(route::COMPLETIONS, post(openai::completions))
        .route(route::CHAT, post(openai::chat))
        .route(route::RESPONSES, post(openai::responses))
        .route(route::RESPONSE_TOKENS, post(openai::input_tokens))
        .route(route::RESPONSE, get(openai::response).delete(openai::delete_response))
        .route(route::RESPONSE_INPUT, get(openai::response_input))
        .route(route::EMBEDDINGS, post(embeddings::openai))
        .route(route::MESSAGES, post(anthropic::messages))
        .route(route::COUNT_TOKENS, post(anthropic::count_tokens))
        .route(route::OLLAMA_GENERATE, post(ollama::generate))
        .route(route::OLLAMA_CHAT, post(ollama::chat))
        .route(route::OLLAMA_TAGS, get(ollama::models::tags))
        .route(route::OLLAMA_PS, get(ollama::models::ps))
        .route(route::OLLAMA_SHOW, post(ollama::models::show))
        .route(route::OLLAMA_CREATE, post(ollama::models::create))
        .route(route::OLLAMA_COPY, post(ollama::models::copy))
        .route(route::OLLAMA_DELETE, delete(ollama::models::delete))
        .route(route::OLLAMA_PULL, post(ollama::models::pull))
        .route(route::OLLAMA_PUSH, post(ollama::models::push))
        .route(route::OLLAMA_VERSION, get(ollama::version))
        .route(route::OLLAMA_EMBED, post(embeddings::ollama))
        .route(route::OLLAMA_EMBEDDINGS, post(embeddings::ollama_single))
        .route(route::TOKENIZE, post(text::tokenize))
        .route(route::DETOKENIZE, post(text::detokenize))
        .route(route::APPLY_TEMPLATE, post(text::apply_template))
        .route(route::INFILL, post(llama_cpp::infill))
        .route(route::PROPS, get(llama_cpp::props))
        .route(route::SLOTS, get(llama_cpp::slots))
        .route(route::LORA_ADAPTERS, get(llama_cpp::lora_adapters).post(llama_cpp::scale_adapters))
        .route(route::RERANK[0], post(llama_cpp::rerank))
        .route(route::RERANK[1], post(llama_cpp::rerank))
        .route(route::RERANK[2], post(llama_cpp::rerank))
        .route(route::RERANK[3], post(llama_cpp::rerank))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

async fn not_found(uri: Uri) -> Error {
    let message = format!("there is no route {}", excerpt(uri.path()));
    Error::new(StatusCode::NOT_FOUND, "route_not_found", message)
        .hint("docs/api.md lists the routes; GET /orin/v1/status is a good start")
}

async fn method_not_allowed(method: Method, uri: Uri) -> Error {
    let message = format!("{} does not take {}", uri.path(), excerpt(method.as_str()));
    Error::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        .hint("the header Allow says which methods it takes")
}

/// Counts and logs every answer. Turns a panic into an error answer.
async fn observe(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = RequestId::of(request.headers());
    let method = match *request.method() {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        _ => "other",
    };
    let path = request.extensions().get::<MatchedPath>().cloned();
    let path = path.as_ref().map_or("other", MatchedPath::as_str);
    let answer = AssertUnwindSafe(json_memory::scope(next.run(request))).catch_unwind();
    let (answer, tools) = tool_format::observe(answer).await;
    let mut response =
        answer.unwrap_or_else(|_| Error::internal("the request failed").into_response());
    let status = response.status();
    app.metrics.answered(method, path, status.as_u16());
    if let Some(code) = response.extensions().get().map(Error::code) {
        let generates = method == "POST" && route::GENERATING.contains(&path);
        if generates && (status.is_client_error() || ["no_model", "loading"].contains(&code)) {
            app.metrics.refused(code);
        }
    }
    let ms = started.elapsed().as_millis() as u64;
    if status.is_server_error() && status != StatusCode::SERVICE_UNAVAILABLE {
        tracing::warn!(
            id = id.as_str(),
            method,
            path,
            status = status.as_u16(),
            ms,
            "request failed"
        );
    } else {
        tracing::debug!(id = id.as_str(), method, path, status = status.as_u16(), ms, "request");
    }
    id.put(response.headers_mut());
    tool_format::put(tools, response.headers_mut());
    app.unread.count(response).await
}
