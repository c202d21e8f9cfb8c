//! The daemon's own routes: health, metrics, status, models, benchmarks.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::body::JsonBody;
use super::error::Error;
use super::events::Step;
use super::load_spec::load_spec;
use super::residents::{Resident, loaded};
use super::{App, events, metrics, params, status};
use engine::{self, LoadEvent, LoadSpec};
use errors::{invalid, printable};
use model::synthetic;

pub(super) async fn health(State(app): State<Arc<App>>) -> Result<Json<api::Health>, Error> {
    let unavailable =
        |code, message: String| Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, code, message));
    let first = app.residents.first();
    if let Some(seconds) = first.progress.stopped_for() {
        return unavailable("stuck", format!("the engine has made no progress for {seconds} s"));
    }
    if let Some(seconds) = app.prompts.stopped_for() {
        return unavailable("stuck", format!("no prompt has been prepared for {seconds} s"));
    }
    let now = first.engine.snapshot();
    let additional = app.residents.additional();
    // A daemon with only additional models is healthy.
    let none_is_first = first.loaded_at().is_none() && first.failed(&now).is_none();
    match &now.state {
        engine::State::Empty | engine::State::Ready(_) if app.residents.is_starting() => {
            unavailable("loading", "additional models are being loaded".into())
        }
        // The next request loads the model again.
        engine::State::Empty if app.keep_alive.unloaded().is_some() => {
            Ok(Json(api::Health { status: "ok".into() }))
        }
        engine::State::Empty if none_is_first && !additional.is_empty() => {
            Ok(Json(api::Health { status: "ok".into() }))
        }
        engine::State::Ready(_) | engine::State::Exclusive { .. } => {
            Ok(Json(api::Health { status: "ok".into() }))
        }
        engine::State::Loading(engine::Loading { model, progress }) => unavailable(
            "loading",
            format!("{model} is being loaded, {:.0} % done", progress * 100.0),
        ),
        engine::State::Empty => match first.failed(&now) {
            Some(error) => {
                unavailable("load_failed", format!("the model could not be loaded: {error}"))
            }
            None => Err(engine::GenerateError::NoModel.into()),
        },
        engine::State::Stopping => Err(engine::GenerateError::Stopping.into()),
    }
}

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Error> {
    let text = off_the_loop(move || app.metrics.text()).await?;
    let text = text.map_err(|e| Error::internal(e.to_string()))?;
    Ok(([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response())
}

pub(super) async fn status(State(app): State<Arc<App>>) -> Result<Json<api::Status>, Error> {
    Ok(Json(off_the_loop(move || status::status(&app)).await?))
}

/// Runs a blocking read of system files on another thread; some take milliseconds.
async fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Error::internal("reading the machine's state failed"))
}

/// Time limit for reading the models directory. A later result serves the next request.
const DIRECTORY: Duration = Duration::from_secs(10);

pub(super) async fn models(State(app): State<Arc<App>>) -> Result<Json<api::Models>, Error> {
    let loaded = loaded(&app.residents.first().engine.snapshot().state).cloned();
    let residents = status::residents(&app);
    let config = app.config();
    let models_dir = config.models_dir.clone();
    let list = async {
        // One reader at a time, so that a mount that does not respond blocks only one thread.
        let turn = Arc::clone(&app.available.turn).lock_owned().await;
        let app = Arc::clone(&app);
        let list = move || (app.available.list(&config), turn).0;
        tokio::task::spawn_blocking(list).await.unwrap_or_default()
    };
    let available = tokio::time::timeout(DIRECTORY, list).await.map_err(|_| {
        let (dir, seconds) = (models_dir.display(), DIRECTORY.as_secs());
        let message = format!("reading the models directory {dir} took longer than {seconds} s");
        Error::new(StatusCode::SERVICE_UNAVAILABLE, "directory_timeout", message)
            .hint("check whether it is on a mount that does not respond, or set another models_dir")
    })?;
    Ok(Json(api::Models { loaded, residents, models_dir, available }))
}

/// Maximum length of a model's name in bytes: that of a path.
const LONGEST_NAME: usize = 4096;

pub(super) async fn load(
    State(app): State<Arc<App>>,
    JsonBody(request): JsonBody<api::LoadRequest>,
) -> Result<Response, Error> {
    check_names(&request)?;
    let mut events = start_load(&app, request)?;
    let (sender, steps) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            // The client may have disconnected; the load continues.
            let _ = sender.send(match event {
                LoadEvent::Progress { phase, done, total } => Step::Progress(api::LoadProgress {
                    phase: phase.into(),
                    done,
                    total,
                    why: None,
                }),
                LoadEvent::Unloading { why, .. } => Step::Progress(api::LoadProgress {
                    phase: "unload".into(),
                    done: 0,
                    total: 0,
                    why: Some(why),
                }),
                LoadEvent::Loaded(info) => Step::Done(Ok(info)),
                LoadEvent::Failed(error) => Step::Done(Err(error.into())),
            });
        }
    });
    events::work(steps).await
}

/// Checks names and paths of a load, which are repeated in the log, the status and errors.
fn check_names(request: &api::LoadRequest) -> Result<(), Error> {
    if request.model.is_empty() {
        return Err(Error::value("model", "model: is empty; a file or `synthetic:NAME` is needed"));
    }
    let adapters = request.lora.iter().flatten().map(|path| ("lora", path));
    let draft = request.draft_model.iter().map(|path| ("draft_model", path));
    for (field, path) in [("model", &request.model)].into_iter().chain(draft).chain(adapters) {
        let bytes = path.len();
        if bytes > LONGEST_NAME {
            let message =
                format!("{field}: has {bytes} bytes, at most {LONGEST_NAME} are possible");
            return Err(Error::value(field, message));
        }
        if path.contains(printable::is_control) {
            let path = invalid::excerpt(path);
            let message = format!("{field}: `{path}` has control characters; rename the file");
            return Err(Error::value(field, message));
        }
    }
    let checked = request.name.as_deref().map_or(Ok(()), config::check_name);
    checked.map_err(|allowed| {
        let name = invalid::excerpt(request.name.as_deref().unwrap_or_default());
        Error::value("name", format!("name: is `{name}`; {allowed}"))
    })
}

/// Loads a model: replaces the first one, adds it, or reloads the one of that name.
fn start_load(
    app: &Arc<App>,
    request: api::LoadRequest,
) -> Result<UnboundedReceiver<LoadEvent>, Error> {
    let (config, residents) = (app.config(), &app.residents);
    app.sessions.drop_idle();
    if let Some(existing) = residents.additional_named(&request.model) {
        return Ok(existing.load_again(&config, request));
    }
    let id = || synthetic::default_id(&request.model, &config.models_dir);
    let name = request.name.clone().unwrap_or_else(id);
    if !request.beside && residents.additional_named(&name).is_none() {
        return Ok(app.load(load_spec(&config, request)));
    }
    let first = residents.first().engine.snapshot().state;
    if loaded(&first).is_some_and(|first| first.id == name) {
        let name = invalid::excerpt(&name);
        let message = format!("name: the first model already has the name `{name}`");
        return Err(Error::value("name", message).hint("choose another `name`"));
    }
    let placed = residents.get_or_add(name.clone(), request.clone());
    let resident =
        placed.map_err(|error| Error::internal(format!("cannot start an engine: {error}")))?;
    let events = resident.load(LoadSpec { name: Some(name), ..load_spec(&config, request) });
    Ok(remove_on_failure(Arc::clone(app), resident, events))
}

/// Removes a model that has never been loaded when its load fails, before the client learns of it.
fn remove_on_failure(
    app: Arc<App>,
    resident: Arc<Resident>,
    mut events: UnboundedReceiver<LoadEvent>,
) -> UnboundedReceiver<LoadEvent> {
    let (forward, receiver) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            if matches!(event, LoadEvent::Failed(_)) && resident.loaded_at().is_none() {
                app.residents.remove(&resident, Duration::ZERO);
            }
            // The client may have disconnected; the load continues.
            let _ = forward.send(event);
        }
    });
    receiver
}

pub(super) async fn unload(State(app): State<Arc<App>>) -> Json<api::Unloaded> {
    app.keep_alive.forget();
    Json(api::Unloaded { unloaded: app.residents.first().unload().await })
}

pub(super) async fn unload_one(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<api::Unloaded>, Error> {
    let first = app.residents.first();
    let is_first = loaded(&first.engine.snapshot().state).is_some_and(|m| m.id == name);
    let resident = match app.residents.additional_named(&name) {
        Some(resident) => resident,
        None if is_first => Arc::clone(first),
        None => return Err(params::model_not_found(&app, &name)),
    };
    if is_first {
        app.keep_alive.forget();
    }
    let unloaded = resident.unload().await;
    app.residents.remove(&resident, Duration::from_secs(app.config().shutdown_deadline_s));
    Ok(Json(api::Unloaded { unloaded }))
}

pub(super) async fn bench(
    State(app): State<Arc<App>>,
    JsonBody(spec): JsonBody<bench::Spec>,
) -> Result<Response, Error> {
    spec.check()?;
    let engine = &app.residents.first().engine;
    if let Some(model) = loaded(&engine.snapshot().state) {
        spec.fits(model.slots, model.context)?;
    }
    let (sender, steps) = unbounded_channel();
    let progress = sender.clone();
    let probe = Arc::clone(&app.probe);
    let result = engine.exclusive("bench", move |core| {
        // The client has disconnected: stop the benchmark.
        bench::run(core, &probe, &spec, &mut |step| match progress.send(Step::Progress(step)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        })
    });
    tokio::spawn(async move {
        let mut result = events::outcome(result.await).map(Box::new);
        if let Ok(report) = &mut result {
            report.manifest.commit = app.commit.map(Into::into);
            app.measured(report);
        }
        // The client may have disconnected.
        let _ = sender.send(Step::Done(result));
    });
    events::work(steps).await
}

impl From<bench::Error> for Error {
    fn from(error: bench::Error) -> Self {
        let message = error.to_string();
        let refused = |code, field: &str, message| {
            Self::new(StatusCode::BAD_REQUEST, code, message).param(field)
        };
        let (status, code) = match error {
            bench::Error::Invalid { field, .. } => return Self::value(field, message),
            bench::Error::TooLong { field, .. } => {
                return refused("context_length_exceeded", field, message);
            }
            bench::Error::TooManySequences { field, .. } => {
                return refused("too_many_sequences", field, message);
            }
            bench::Error::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "cancelled"),
            bench::Error::Roof(_) | bench::Error::Engine(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "bench_failed")
            }
        };
        Self::new(status, code, message)
    }
}
