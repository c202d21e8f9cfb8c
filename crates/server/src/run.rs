//! `/orin/v1/run`: runs an ONNX network on inputs from the request.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use onnx::{Array, Elem};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::App;
use super::body::JsonBody;
use super::error::Error;
use super::load_spec::load_spec;
use super::run_answer;
use config::Backend;
use engine::{Handle, LoadSpec};
use errors::invalid::excerpt;
use errors::one_line;
use realtime::sessions::{self, Cancellation, Target};

pub(super) async fn run(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<api::RunRequest>,
) -> Result<Response, Error> {
    let encoded = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message =
                format!("encoding_format: is `{}`; float and base64 are possible", excerpt(other));
            return Err(Error::value("encoding_format", message));
        }
    };
    let inputs = request.inputs.into_iter().map(|(name, input)| {
        let array = array(&name, input)?;
        Ok((name, array))
    });
    let inputs = inputs.collect::<Result<BTreeMap<_, _>, Error>>()?;
    let path = app.config().network(&request.model);
    let turn = app.runs.turn().await?;
    let asked = RequestedBackend::new(&app, request.backend);
    // Dropped with this future when the client disconnects.
    let cancellation = CancelOnDrop::default();
    let cancelled = Arc::clone(&cancellation.0);
    let work = move || {
        let _turn = turn;
        let answer =
            asked.with_target(|target| app.sessions.run(&path, inputs, target, &cancelled));
        let answer = answer.map_err(|error| asked.error(&path, &error))?;
        Ok(run_answer::response(&path.display().to_string(), answer, encoded, &app.unread))
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Error::internal("the network's run failed"))?
}

/// Cancels a run when it is dropped.
#[derive(Default)]
pub(super) struct CancelOnDrop(pub(super) Arc<Cancellation>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Limits runs of networks: one at a time, and a few that wait. A waiting run occupies no thread,
/// and leaves the queue when its client disconnects.
pub(super) struct RunQueue {
    turn: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// Most runs that wait.
const WAITING: usize = 64;

impl Default for RunQueue {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), waiting: Arc::new(Semaphore::new(WAITING)) }
    }
}

impl RunQueue {
    /// Waits until it is this run's turn.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit, Error> {
        let Ok(_waiting) = self.waiting.try_acquire() else {
            let message = format!("{WAITING} runs of networks are waiting already");
            let error = Error::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message);
            return Err(error.retry_after(1).hint("retry later"));
        };
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        turn.map_err(|_| Error::internal("the queue of runs was closed"))
    }
}

/// Returns the values of an input. The network defines their type.
fn array(name: &str, input: api::RunInput) -> Result<Array, Error> {
    let wrong = |field: &str, what: String| {
        let field = format!("inputs.{name}{field}");
        Error::value(field.clone(), format!("{field}: {what}"))
    };
    let decoded = |field: &str, text: &str| {
        STANDARD.decode(text).map_err(|error| wrong(field, format!("is not base64: {error}")))
    };
    let (shape, values) = match input {
        api::RunInput { npy: Some(text), shape: None, values: None, data: None } => {
            let bytes = decoded(".npy", &text)?;
            let read = nn::files::parse_npy(Path::new(name), &bytes);
            let array = read.map_err(|error| wrong(".npy", one_line(&error)))?;
            (array.shape, array.values)
        }
        api::RunInput { values: Some(values), shape: Some(shape), data: None, npy: None } => {
            (shape, values)
        }
        api::RunInput { data: Some(text), shape: Some(shape), values: None, npy: None } => {
            let bytes = decoded(".data", &text)?;
            let (whole, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() {
                return Err(wrong(
                    ".data",
                    format!("has {} bytes, which is not a multiple of 4", bytes.len()),
                ));
            }
            (shape, whole.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        }
        _ => {
            let what = "shape with values or data, or npy alone, is expected";
            return Err(wrong("", what.into()));
        }
    };
    let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
    if count != Some(values.len()) {
        return Err(wrong("", format!("has {} values, but shape {shape:?}", values.len())));
    }
    Ok(Array { elem: Elem::F32, shape, values })
}

/// Backend that a request selects for its network.
pub(super) struct RequestedBackend {
    engine: Handle,
    spec: LoadSpec,
    root: PathBuf,
    tuned: Option<PathBuf>,
    time: Duration,
    memory: u64,
    /// True if the request named the backend.
    named: bool,
}

impl RequestedBackend {
    /// Selects the backend of the request, else that of the configuration.
    pub(super) fn new(app: &App, backend: Option<Backend>) -> Self {
        let (config, named) = (app.config(), backend.is_some());
        let load = api::LoadRequest { backend, ..api::LoadRequest::default() };
        let tuned = config.tuned().map(Path::to_owned);
        let engine = app.residents.first().engine.clone();
        let root = config.network_root.clone();
        let time = Duration::from_secs(config.network_seconds);
        let memory = config.network_memory_mib << 20;
        Self { engine, spec: load_spec(&config, load), root, tuned, time, memory, named }
    }

    pub(super) fn with_target<T>(&self, work: impl FnOnce(&Target<'_>) -> T) -> T {
        let device = |backend| {
            let spec = LoadSpec { backend, ..self.spec.clone() };
            self.engine.device(&spec).map_err(|error| error.to_string())
        };
        work(&Target {
            backend: self.spec.backend,
            device: &device,
            root: &self.root,
            reserve: self.spec.memory_reserve,
            tuned: self.tuned.as_deref(),
            time: self.time,
            memory: self.memory,
        })
    }

    pub(super) fn error(&self, path: &Path, error: &sessions::Error) -> Error {
        let why = match error {
            // The decoder's reasons contain bytes of the file.
            sessions::Error::Network(error @ onnx::Error::Decode(_)) => error.to_string(),
            error => one_line(error),
        };
        let message = format!("{}: {why}", path.display());
        let invalid =
            |message| Error::new(StatusCode::BAD_REQUEST, "invalid_model", message).param("model");
        match (error, error.device_error()) {
            (sessions::Error::Cancelled | sessions::Error::Network(onnx::Error::Cancelled), _) => {
                Error::new(StatusCode::SERVICE_UNAVAILABLE, "cancelled", message)
            }
            (sessions::Error::Network(onnx::Error::Outside), _) => Error::value("inputs", message),
            (sessions::Error::Network(onnx::Error::Limit { .. }), _) => {
                Error::new(StatusCode::BAD_REQUEST, "network_refused", message).param("model").hint(
                    "raise `network_seconds` or `network_memory_mib` in the configuration, \
                     or split the network",
                )
            }
            (sessions::Error::OutsideRoot { .. }, _) => {
                Error::new(StatusCode::FORBIDDEN, "foreign_file", message)
                    .param("model")
                    .hint("`network_root` in the configuration names the folder")
            }
            (sessions::Error::Backend(why), _) if self.named => Error::value("backend", why),
            (sessions::Error::Backend(why), _) => {
                Error::new(StatusCode::SERVICE_UNAVAILABLE, "no_device", why)
                    .hint("`orinctl doctor` reports why; select another `backend` in the request")
            }
            (_, Some(device::Error::OutOfMemory { .. })) => {
                Error::new(StatusCode::INSUFFICIENT_STORAGE, "out_of_memory", message)
                    .hint("unload a model, or give the network smaller inputs")
            }
            (_, Some(device::Error::Unsupported { .. })) => invalid(message),
            (_, Some(_)) => Error::new(StatusCode::INTERNAL_SERVER_ERROR, "device_error", message)
                .hint("retry: the next request prepares the network again"),
            (sessions::Error::Network(onnx::Error::Io { source, .. }), _)
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Error::new(StatusCode::NOT_FOUND, "model_not_found", message)
                    .hint("give the path of an ONNX file, or put it into the models directory")
            }
            (sessions::Error::Network(onnx::Error::Input { name, .. }), _) => {
                Error::value(format!("inputs.{name}"), message)
            }
            _ => invalid(message),
        }
    }
}
