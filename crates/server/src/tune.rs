//! `/orin/v1/tune`: searches for better kernels, and stored results.

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use parking_lot::MutexGuard;
use tokio::sync::mpsc::unbounded_channel;

use super::App;
use super::body::JsonBody;
use super::error::Error;
use super::events::{self, Step};
use super::run::{CancelOnDrop, RequestedBackend};
use device::Device;
use device::tune::Record;
use device::tune::report::{Network, Spec};
use engine::tuning::pace::Pace;
use engine::tuning::{self, Groups};
use realtime::sessions;

/// Interval at which a search checks whether the daemon is stopping.
const LOOK: Duration = Duration::from_millis(100);

pub(super) async fn search(
    State(app): State<Arc<App>>,
    JsonBody(spec): JsonBody<Spec>,
) -> Result<Response, Error> {
    spec.check().map_err(|(field, message)| Error::value(field, message))?;
    let network = match spec.network.clone() {
        Some(network) => Some(groups(&app, network).await?),
        None => None,
    };
    let (sender, steps) = unbounded_channel();
    let pace = Arc::new(Pace::default());
    app.searches().push(Arc::downgrade(&pace));
    let (listener, turns) = (sender.clone(), Arc::clone(&pace));
    let mut progress = move |step| {
        // A disconnected client is handled below.
        let _ = listener.send(Step::Progress(step));
    };
    let engine = &app.residents.first().engine;
    let result = match network {
        Some((device, groups)) => {
            let dir = app.config().tune_dir.clone();
            engine.tune_groups(device, groups, dir, spec, turns, progress)
        }
        None => engine.exclusive("tune", move |core| core.tune(&spec, &turns, &mut progress)),
    };
    tokio::spawn(async move {
        let mut result = std::pin::pin!(result);
        let mut look = tokio::time::interval(LOOK);
        let result = loop {
            tokio::select! {
                result = result.as_mut() => break result,
                // The client has disconnected: store the results so far and stop.
                () = sender.closed(), if !pace.is_stopped() => pace.stop(),
                _ = look.tick() => {
                    if app.residents.first().engine.snapshot().state == engine::State::Stopping {
                        pace.stop();
                    }
                }
            }
        };
        // The client may have disconnected.
        let _ = sender.send(Step::Done(events::outcome(result).map(Box::new)));
    });
    events::work(steps).await
}

/// Returns a network's kernel groups and their device.
async fn groups(app: &Arc<App>, network: Network) -> Result<(Arc<dyn Device>, Groups), Error> {
    let path = app.config().network(&network.file);
    let backend = network.backend.as_deref().map(config::named).transpose();
    let backend = backend
        .map_err(|allowed| Error::value("backend", format!("backend: is not known; {allowed}")))?;
    let asked = RequestedBackend::new(app, backend);
    let turn = app.runs.turn().await?;
    // Dropped with this future when the client disconnects.
    let cancellation = CancelOnDrop::default();
    let cancelled = Arc::clone(&cancellation.0);
    let work = move || {
        let _turn = turn;
        let plan =
            asked.with_target(|target| sessions::plan(&path, &network.shapes, target, &cancelled));
        let (device, plan) = plan.map_err(|error| asked.error(&path, &error))?;
        let groups = tuning::groups(&*device, &plan)?;
        Ok((device, groups))
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Error::internal("the network was not prepared"))?
}

/// Stops every search. Each is answered with its results so far.
pub(super) async fn stop(State(app): State<Arc<App>>) -> Json<api::Stopped> {
    let under_way: Vec<Arc<Pace>> = app.searches().iter().filter_map(Weak::upgrade).collect();
    under_way.iter().for_each(|pace| pace.stop());
    Json(api::Stopped { stopped: under_way.len() })
}

impl App {
    /// Returns the running and queued searches.
    fn searches(&self) -> MutexGuard<'_, Vec<Weak<Pace>>> {
        let mut searches = self.searches.lock();
        searches.retain(|pace| pace.strong_count() > 0);
        searches
    }
}

pub(super) async fn contents(State(app): State<Arc<App>>) -> Result<Json<api::Tuned>, Error> {
    let engine = app.residents.first().engine.clone();
    // Reading the file may take a while.
    let read = tokio::task::spawn_blocking(move || engine.tuned()).await;
    let (file, key, loaded) =
        read.map_err(|_| Error::internal("the store could not be read"))???;
    let current = loaded.current.into_iter().map(|record| entry(record, None));
    let stale = loaded.stale.into_iter().map(|(record, why)| entry(record, Some(why)));
    Ok(Json(api::Tuned {
        file,
        device: key.to_string(),
        damaged: loaded.damaged.map(|(_, why)| why),
        entries: current.chain(stale).collect(),
    }))
}

fn entry(record: Record, why: Option<String>) -> api::TunedEntry {
    api::TunedEntry {
        case: record.case.to_string(),
        current: why.is_none(),
        why,
        clock: record.cost.clock(),
        cost: record.cost.value(),
        heuristic_cost: record.heuristic.cost,
        choice: record.choice,
        heuristic: record.heuristic.choice,
        when: record.when.to_string(),
        clocks: record.clocks,
        candidates: record.candidates.to_string(),
    }
}

impl From<tuning::Error> for Error {
    fn from(error: tuning::Error) -> Self {
        let message = errors::one_line(&error);
        let (status, code) = match error {
            tuning::Error::Nothing(_) | tuning::Error::NoGroups { .. } => {
                (StatusCode::BAD_REQUEST, "nothing_to_tune")
            }
            tuning::Error::Uncounted(_) => (StatusCode::BAD_REQUEST, "nothing_counts"),
            tuning::Error::Store(_) => (StatusCode::INTERNAL_SERVER_ERROR, "tune_failed"),
        };
        Self::new(status, code, message)
    }
}
