//! Data shared by the engine thread, loads and handles: counters, the served model, the engine's state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::devices::Devices;
use super::heartbeat::Heartbeat;
use super::prefix_files::Directories;
use super::text::Text;
use super::tuning::{Quiet, Tuning};
use super::{LoadError, Loading, ModelInfo, PrefixCounts, Snapshot, State};
use device::tune::report::Searching;
use device::{Activity, Device};

/// The model that requests are admitted to.
#[derive(Clone, Debug)]
pub struct Served {
    pub model: ModelInfo,
    pub text: Arc<Text>,
    /// Number of the load that created it.
    pub(super) load: u64,
}

/// State that the engine thread writes and other threads read.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) loading: Mutex<Option<Loading>>,
    pub(super) served: Mutex<Option<Arc<Served>>>,
    /// Requests accepted and not yet over.
    pub(super) in_flight: AtomicUsize,
    pub(super) active: AtomicUsize,
    pub(super) kv_tokens: AtomicUsize,
    requests: AtomicU64,
    failures: AtomicU64,
    pub(super) prompt_tokens: AtomicU64,
    pub(super) cached_tokens: AtomicU64,
    pub(super) prefixes: Mutex<PrefixCounts>,
    completion_tokens: AtomicU64,
    steps: AtomicU64,
    activity: Mutex<Activity>,
    pub(super) tuned_device: Mutex<Option<TunedDevice>>,
    pub(super) searching: Mutex<Option<Searching>>,
    /// Moving average of the time for which a request occupies its slot, in milliseconds.
    pub(super) service_ms: AtomicU64,
    pub(super) queue_limit: AtomicUsize,
    pub(super) heartbeat: Heartbeat,
    /// Heartbeat of the thread that loads a model.
    pub(super) load_beats: Heartbeat,
    pub(super) devices: Arc<Devices>,
    pub(super) quiet: Arc<Quiet>,
    pub(super) directories: Arc<Directories>,
    /// Reason for dropping the loaded model without a request, until the next load.
    pub(super) given_up: Mutex<Option<LoadError>>,
}

#[derive(Clone)]
pub(super) struct TunedDevice {
    pub(super) device: Arc<dyn Device>,
    pub(super) tuning: Tuning,
}

impl Shared {
    pub(super) fn new(queue_limit: usize) -> Self {
        Self { queue_limit: AtomicUsize::new(queue_limit), ..Self::default() }
    }

    /// State of another engine of this process, which shares what is known about devices and files.
    pub(super) fn for_another_engine(&self) -> Self {
        Self {
            devices: Arc::clone(&self.devices),
            quiet: Arc::clone(&self.quiet),
            directories: Arc::clone(&self.directories),
            ..Self::new(self.queue_limit.load(Ordering::Relaxed))
        }
    }

    pub(super) fn set_state(&self, state: State) {
        *self.state.lock() = state;
    }

    /// Reports a load as soon as it is requested, before the engine thread starts it.
    pub(super) fn announce(&self, model: &str) {
        let announced = || Loading { model: model.to_owned(), progress: 0.0 };
        self.loading.lock().get_or_insert_with(announced);
    }

    pub(super) fn state(&self) -> State {
        match (&*self.state.lock(), &*self.loading.lock()) {
            (State::Empty, Some(loading)) => State::Loading(loading.clone()),
            (state, _) => state.clone(),
        }
    }

    /// Publishes the number of steps and the device's activity, before clients see the tokens of the step.
    pub(super) fn count_steps(&self, steps: u64, activity: Activity) {
        self.steps.store(steps, Ordering::Relaxed);
        *self.activity.lock() = activity;
    }

    pub(super) fn count_tokens(&self, tokens: u32) {
        self.completion_tokens.fetch_add(u64::from(tokens), Ordering::Relaxed);
    }

    /// Counts a finished request; `served` is the time it occupied a slot.
    pub(super) fn finished(&self, served: Option<Duration>) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(served) = served {
            let (old, new) = (self.service_ms.load(Ordering::Relaxed), served.as_millis() as u64);
            self.service_ms
                .store(if old == 0 { new } else { (3 * old + new) / 4 }, Ordering::Relaxed);
        }
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.finished(None);
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let active = self.active.load(Ordering::Relaxed);
        Snapshot {
            state: self.state(),
            loading: self.loading.lock().clone(),
            active,
            queued: self.in_flight.load(Ordering::Relaxed).saturating_sub(active),
            kv_tokens: self.kv_tokens.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            prompt_tokens: self.prompt_tokens.load(Ordering::Relaxed),
            cached_tokens: self.cached_tokens.load(Ordering::Relaxed),
            prefixes: *self.prefixes.lock(),
            completion_tokens: self.completion_tokens.load(Ordering::Relaxed),
            steps: self.steps.load(Ordering::Relaxed),
            activity: *self.activity.lock(),
            searching: self.searching.lock().clone(),
            devices: self.devices.health(),
            given_up: self.given_up.lock().clone(),
        }
    }
}
