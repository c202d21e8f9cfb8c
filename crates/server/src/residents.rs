//! Resident models, each with its own engine: the first one, which serves requests without a
//! model name, and additional ones. Loads configured models on request, and unloads such models to
//! free memory. Independent of routes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::App;
use super::load_spec::load_spec;
use super::progress::Progress;
use api::LoadRequest;
use config::{Config, LoadAt};
use engine::{Handle, LoadError, LoadEvent, LoadSpec, ModelInfo, PrefixCounts, Snapshot, State};

/// Results of loads.
#[derive(Default)]
struct Loads {
    /// Time of the last successful load.
    loaded_at: Option<SystemTime>,
    /// Error of the last load, until the next load or unload.
    failed: Option<LoadError>,
}

/// A load that requests wait for.
type PendingLoad = Shared<BoxFuture<'static, Result<(), LoadError>>>;

/// A model's engine, and how the model is loaded into it.
pub(super) struct Resident {
    pub(super) engine: Handle,
    /// Name in requests. Empty for the first model, which is named after what it has loaded.
    pub(super) name: String,
    /// Request that loads it on demand. `None` for the first model, which is only loaded
    /// explicitly.
    request_on_demand: Mutex<Option<LoadRequest>>,
    /// Configured time of loading.
    pub(super) at: Option<LoadAt>,
    loads: Mutex<Loads>,
    pending: Mutex<Option<PendingLoad>>,
    used: Mutex<Instant>,
    removed: AtomicBool,
    /// Heartbeats of its engine thread.
    pub(super) progress: Progress,
}

impl Resident {
    fn new(
        engine: Handle,
        name: String,
        request_on_demand: Option<LoadRequest>,
        at: Option<LoadAt>,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine,
            name,
            request_on_demand: Mutex::new(request_on_demand),
            at,
            loads: Mutex::default(),
            pending: Mutex::default(),
            used: Mutex::new(Instant::now()),
            removed: AtomicBool::new(false),
            progress: Progress::default(),
        })
    }

    /// Loads a model into its engine. The load continues if the event receiver is dropped. Needs a
    /// tokio runtime.
    pub(super) fn load(self: &Arc<Self>, spec: LoadSpec) -> UnboundedReceiver<LoadEvent> {
        tracing::info!(model = spec.model, "loading");
        let mut events = self.engine.load(spec);
        let (forward, receiver) = unbounded_channel();
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let mut over = false;
            while let Some(event) = events.recv().await {
                match &event {
                    LoadEvent::Progress { .. } | LoadEvent::Unloading { .. } => {}
                    LoadEvent::Loaded(_) => {
                        let loaded_at = Some(SystemTime::now());
                        *this.loads.lock() = Loads { loaded_at, failed: None };
                        over = true;
                    }
                    LoadEvent::Failed(error) => {
                        this.loads.lock().failed = Some(error.clone());
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

    /// Loads its model again with the settings of `request`, which override the earlier ones.
    pub(super) fn load_again(
        self: &Arc<Self>,
        config: &Config,
        request: LoadRequest,
    ) -> UnboundedReceiver<LoadEvent> {
        let earlier = self.request_on_demand.lock().clone().unwrap_or_default();
        let spec =
            load_spec(config, LoadRequest { model: earlier.model.clone(), ..request.or(earlier) });
        self.load(LoadSpec { name: Some(self.name.clone()), ..spec })
    }

    /// Unloads its model after the requests in flight. Returns true if one was loaded.
    pub(super) async fn unload(&self) -> bool {
        let unloaded = self.engine.unload().await;
        // The unload is now the reason why no model is loaded.
        self.loads.lock().failed = None;
        unloaded
    }

    /// Reason why no model is loaded.
    pub(super) fn failed(&self, now: &Snapshot) -> Option<LoadError> {
        now.given_up.clone().or_else(|| self.loads.lock().failed.clone())
    }

    pub(super) fn loaded_at(&self) -> Option<SystemTime> {
        self.loads.lock().loaded_at
    }

    /// Records a request for it.
    pub(super) fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    /// Time since the last request for it.
    pub(super) fn unused(&self) -> Duration {
        self.used.lock().elapsed()
    }

    /// True after it was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Returns true if no load is needed or possible: a model is loaded or loading, or this is the
    /// first one.
    fn needs_no_load(&self) -> bool {
        let now = self.engine.snapshot();
        self.request_on_demand.lock().is_none()
            || loaded(&now.state).is_some()
            || now.loading.is_some()
    }

    /// Waits until its model is loaded. The first request for it starts the load.
    ///
    /// # Errors
    /// The load failed.
    pub(super) async fn ready(self: &Arc<Self>, app: &Arc<App>) -> Result<(), LoadError> {
        let pending = {
            let mut pending = self.pending.lock();
            match pending.as_ref().filter(|pending| pending.peek().is_none()) {
                Some(under_way) => under_way.clone(),
                None if self.needs_no_load() => return Ok(()),
                None => pending.insert(load_on_demand(Arc::clone(self), Arc::clone(app))).clone(),
            }
        };
        pending.await
    }
}

/// Load request of a configured additional model.
pub fn load_request(resident: &config::Resident) -> LoadRequest {
    LoadRequest { model: resident.model.clone(), ..LoadRequest::default() }
        .with_options(resident.options())
}

/// Loads a model on demand. The load continues if no request waits for it.
fn load_on_demand(resident: Arc<Resident>, app: Arc<App>) -> PendingLoad {
    let load = tokio::spawn(async move {
        let request = resident.request_on_demand.lock().clone().unwrap_or_default();
        app.sessions.drop_idle();
        loop {
            if resident.is_removed() {
                return Err(LoadError::GivenUp("the model was unloaded"));
            }
            let mut spec = load_spec(&app.config(), request.clone());
            spec.name = Some(resident.name.clone());
            let why = match wait_for_load(&mut resident.load(spec)).await {
                Ok(_) => return Ok(()),
                Err(LoadError::OutOfMemory(why)) => why,
                Err(error) => return Err(error),
            };
            let Some(other) = app.residents.eviction_candidate(&resident) else {
                return Err(LoadError::OutOfMemory(why));
            };
            tracing::info!(model = other.name, why, "unloaded to free memory for another model");
            other.unload().await;
        }
    });
    async move { load.await.unwrap_or(Err(LoadError::Stopping)) }.boxed().shared()
}

/// Waits for the end of a load.
///
/// # Errors
/// The load failed.
pub async fn wait_for_load(
    events: &mut UnboundedReceiver<LoadEvent>,
) -> Result<Box<ModelInfo>, LoadError> {
    loop {
        match events.recv().await {
            Some(LoadEvent::Progress { .. } | LoadEvent::Unloading { .. }) => {}
            Some(LoadEvent::Loaded(model)) => return Ok(model),
            Some(LoadEvent::Failed(error)) => return Err(error),
            None => return Err(LoadError::Stopping),
        }
    }
}

/// All resident models of the daemon.
pub(super) struct Residents {
    first: Arc<Resident>,
    additional: RwLock<Vec<Arc<Resident>>>,
    /// True until the models with `load = "start"` have been loaded.
    starting: AtomicBool,
    /// Counters of removed models.
    removed_counts: Mutex<Counts>,
}

/// Counters and current load of engines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) active: usize,
    pub(super) queued: usize,
    pub(super) kv_tokens: usize,
    pub(super) requests: u64,
    pub(super) failures: u64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) completion_tokens: u64,
    pub(super) steps: u64,
    pub(super) prefixes: PrefixCounts,
}

impl Counts {
    fn add(&mut self, now: &Snapshot) {
        self.active += now.active;
        self.queued += now.queued;
        self.kv_tokens += now.kv_tokens;
        self.requests += now.requests;
        self.failures += now.failures;
        self.prompt_tokens += now.prompt_tokens;
        self.cached_tokens += now.cached_tokens;
        self.completion_tokens += now.completion_tokens;
        self.steps += now.steps;
        let (all, own) = (&mut self.prefixes, &now.prefixes);
        all.read += own.read;
        all.written += own.written;
        all.refused += own.refused;
        all.failed += own.failed;
        // The models share one directory.
        all.bytes = all.bytes.max(own.bytes);
    }
}

impl Residents {
    /// Creates a resident for `engine`, and one with its own engine for each configured additional
    /// model.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn new(engine: Handle, config: &Config) -> io::Result<Self> {
        let additional = config.resident.iter().map(|resident| {
            let request = load_request(resident);
            let name = resident.id(&config.models_dir);
            Ok(Resident::new(engine.beside()?, name, Some(request), Some(resident.load)))
        });
        let additional = RwLock::new(additional.collect::<io::Result<_>>()?);
        let first = Resident::new(engine, String::new(), None, None);
        let starts = config.resident.iter().any(|one| one.load == LoadAt::Start);
        let starting = AtomicBool::new(starts);
        Ok(Self { first, additional, starting, removed_counts: Mutex::default() })
    }

    /// Loads the models with `load = "start"`, one after another. Returns when all have been loaded
    /// or have failed.
    pub(super) async fn start(&self, app: &Arc<App>) {
        let starts = |one: &Arc<Resident>| one.at == Some(LoadAt::Start);
        for resident in self.additional().into_iter().filter(starts) {
            // Status and log report the result.
            let _ = resident.ready(app).await;
        }
        self.starting.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_starting(&self) -> bool {
        self.starting.load(Ordering::Relaxed)
    }

    pub(super) const fn first(&self) -> &Arc<Resident> {
        &self.first
    }

    /// The additional models.
    pub(super) fn additional(&self) -> Vec<Arc<Resident>> {
        self.additional.read().clone()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Arc<Resident>> {
        std::iter::once(Arc::clone(&self.first)).chain(self.additional())
    }

    /// Returns the model that a request is for: the first one, unless the request names another
    /// or an adapter of another.
    pub(super) fn named(&self, wanted: Option<&str>) -> Arc<Resident> {
        let name = wanted.unwrap_or_default();
        let first = || {
            let state = self.first.engine.snapshot().state;
            let knows = |model: &ModelInfo| {
                model.id == name || adapter_ids(model).any(|adapter| adapter == name)
            };
            loaded(&state).is_some_and(knows).then(|| Arc::clone(&self.first))
        };
        // Ids may contain colons too: match an adapter only if no model has the name.
        let adapters = |resident: &Arc<Resident>| {
            name.strip_prefix(&resident.name).is_some_and(|rest| rest.starts_with(':'))
        };
        self.additional_named(name)
            .or_else(first)
            .or_else(|| self.additional().into_iter().find(adapters))
            .unwrap_or_else(|| Arc::clone(&self.first))
    }

    /// Returns the additional model of that name.
    pub(super) fn additional_named(&self, name: &str) -> Option<Arc<Resident>> {
        self.additional().into_iter().find(|resident| resident.name == name)
    }

    /// Returns the additional model of that name, or adds one.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn get_or_add(
        &self,
        name: String,
        request: LoadRequest,
    ) -> io::Result<Arc<Resident>> {
        let mut additional = self.additional.write();
        if let Some(existing) = additional.iter().find(|resident| resident.name == name) {
            *existing.request_on_demand.lock() = Some(request);
            return Ok(Arc::clone(existing));
        }
        let resident = Resident::new(self.first.engine.beside()?, name, Some(request), None);
        additional.push(Arc::clone(&resident));
        Ok(resident)
    }

    /// Removes a model that is not configured. Its engine stops after its current work.
    pub(super) fn remove(&self, resident: &Arc<Resident>, deadline: Duration) {
        if resident.at.is_some() || resident.name.is_empty() {
            return;
        }
        resident.removed.store(true, Ordering::Relaxed);
        let mut additional = self.additional.write();
        let count = additional.len();
        additional.retain(|other| !Arc::ptr_eq(other, resident));
        if additional.len() == count {
            return;
        }
        self.removed_counts.lock().add(&resident.engine.snapshot());
        drop(additional);
        let engine = resident.engine.clone();
        tokio::task::spawn_blocking(move || engine.stop(deadline));
    }

    /// Counters of all models, including removed ones.
    pub(super) fn counts(&self) -> Counts {
        let all = self.all().collect::<Vec<_>>();
        let mut counts = *self.removed_counts.lock();
        all.iter().for_each(|one| counts.add(&one.engine.snapshot()));
        counts
    }

    /// Names that requests may use: loaded or configured models, and adapters of loaded ones.
    pub(super) fn names(&self) -> Vec<String> {
        let names_of = |resident: Arc<Resident>| {
            let state = resident.engine.snapshot().state;
            let model = loaded(&state);
            let absent = || (!resident.name.is_empty()).then(|| resident.name.clone());
            let id = model.map(|model| model.id.clone()).or_else(absent);
            let adapters: Vec<String> = model.into_iter().flat_map(adapter_ids).collect();
            id.into_iter().chain(adapters).collect::<Vec<_>>()
        };
        self.all().flat_map(names_of).collect()
    }

    /// Returns the on-demand model to unload: idle ones first, then the least recently used.
    fn eviction_candidate(&self, to: &Arc<Resident>) -> Option<Arc<Resident>> {
        let evictable =
            |other: &Arc<Resident>| other.at == Some(LoadAt::Request) && !Arc::ptr_eq(other, to);
        let candidates = self.additional().into_iter().filter(evictable).filter_map(|other| {
            let now = other.engine.snapshot();
            let is_there = matches!(now.state, State::Ready(_));
            is_there.then(|| (now.active + now.queued == 0, other.unused(), other))
        });
        candidates.max_by_key(|(idle, unused, _)| (*idle, *unused)).map(|(.., other)| other)
    }
}

/// Returns the loaded model, if any.
pub(super) fn loaded(state: &State) -> Option<&ModelInfo> {
    match state {
        State::Ready(model) | State::Exclusive { model, .. } => Some(model),
        State::Empty | State::Loading(_) | State::Stopping => None,
    }
}

/// Names by which requests select a model's adapters.
pub(super) fn adapter_ids(model: &ModelInfo) -> impl Iterator<Item = String> {
    model.adapters.iter().map(|adapter| format!("{}:{}", model.id, adapter.name))
}
