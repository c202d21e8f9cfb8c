//! The door to the engine thread: cheap to clone, usable from any thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, unbounded};
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use super::admission::{Admission, Served};
use super::core::Core;
use super::devices::Devices;
use super::heartbeat::Heartbeat;
use super::load;
use super::loader::Asked;
use super::prefixes::Directories;
use super::scheduler::{Command, Scheduler};
use super::tuning::pace::Pace;
use super::tuning::{self, Cases, Groups, Quiet, Tuning};
use super::{
    Event, GenerateError, LoadError, LoadEvent, LoadSpec, Loading, PrefixCounts, Request, Snapshot,
    State,
};
use device::tune::report::{Progress, Report, Searching, Spec};
use device::tune::store::Loaded;
use device::tune::{DeviceKey, Store};
use device::{Activity, Device};

/// How the engine behaves, whatever model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Requests that may wait for a slot.
    pub queue_limit: usize,
}

/// What the thread tells and everybody may read.
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
    /// Moving average of the time a request holds its slot, in milliseconds.
    pub(super) service_ms: AtomicU64,
    pub(super) queue_limit: AtomicUsize,
    pub(super) heartbeat: Heartbeat,
    /// The same of a load's thread.
    pub(super) load_beats: Heartbeat,
    pub(super) devices: Arc<Devices>,
    pub(super) quiet: Arc<Quiet>,
    pub(super) directories: Arc<Directories>,
    /// Why the engine gave up a model that was loaded, until the next load.
    pub(super) given_up: Mutex<Option<LoadError>>,
}

#[derive(Clone)]
pub(super) struct TunedDevice {
    pub(super) device: Arc<dyn Device>,
    pub(super) tuning: Tuning,
}

impl Shared {
    pub(super) fn set_state(&self, state: State) {
        *self.state.lock() = state;
    }

    /// A load is on its way: from now on, not only when the thread comes to it.
    fn announce(&self, model: &str) {
        let announced = || Loading { model: model.to_owned(), progress: 0.0 };
        self.loading.lock().get_or_insert_with(announced);
    }

    pub(super) fn state(&self) -> State {
        match (&*self.state.lock(), &*self.loading.lock()) {
            (State::Empty, Some(loading)) => State::Loading(loading.clone()),
            (state, _) => state.clone(),
        }
    }

    /// Counts a step of the device, before anybody hears of its tokens.
    pub(super) fn stepped(&self, core: &Core) {
        self.steps.store(core.steps(), Ordering::Relaxed);
        *self.activity.lock() = core.activity();
    }

    pub(super) fn count_tokens(&self, tokens: u32) {
        self.completion_tokens.fetch_add(u64::from(tokens), Ordering::Relaxed);
    }

    /// A request is over; `served` is how long it held a slot.
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
}

#[derive(Clone)]
pub struct Handle {
    pub(super) commands: Sender<Command>,
    pub(super) shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Handle {
    /// Starts the engine thread, with nothing loaded.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        let queue_limit = AtomicUsize::new(settings.queue_limit);
        Self::with(Shared { queue_limit, ..Shared::default() })
    }

    /// Starts another engine of this process, for a model beside the others: they learn of devices together, and
    /// none searches in idle time while another has something to do.
    pub fn beside(&self) -> std::io::Result<Self> {
        let Shared { devices, quiet, directories, queue_limit, .. } = &*self.shared;
        Self::with(Shared {
            queue_limit: AtomicUsize::new(queue_limit.load(Ordering::Relaxed)),
            devices: Arc::clone(devices),
            quiet: Arc::clone(quiet),
            directories: Arc::clone(directories),
            ..Shared::default()
        })
    }

    fn with(shared: Shared) -> std::io::Result<Self> {
        let (commands, receiver) = unbounded();
        let shared = Arc::new(shared);
        let scheduler = Scheduler::new(receiver, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("engine".into()).spawn(|| scheduler.run())?;
        Ok(Self { commands, shared, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Takes places for so many requests to the model that is served now, before anything is done for them.
    pub fn admit(&self, requests: usize) -> Result<Admission, GenerateError> {
        Admission::new(self, requests)
    }

    /// Queues a generation. Its events come through the receiver; dropping that cancels it.
    pub fn generate(&self, request: Request) -> Result<UnboundedReceiver<Event>, GenerateError> {
        self.admit(1)?.generate(request)
    }

    /// Loads a model beside the loaded one, and puts it in its place once the requests in flight are done;
    /// before that only where there is no room for both. A load under way is given up for it.
    #[must_use]
    pub fn load(&self, spec: LoadSpec) -> UnboundedReceiver<LoadEvent> {
        let (events, receiver) = unbounded_channel();
        self.shared.announce(&spec.model);
        let asked = Asked { spec: Arc::new(spec), events };
        if let Err(refused) = self.commands.send(Command::Load(asked))
            && let Command::Load(asked) = refused.into_inner()
        {
            asked.tell(LoadEvent::Failed(LoadError::Stopping));
        }
        receiver
    }

    /// Gives up the load under way, and unloads the model once the requests in flight are done. True when
    /// there was one.
    pub async fn unload(&self) -> bool {
        let (done, receiver) = oneshot::channel();
        self.commands.send(Command::Unload(done)).is_ok() && receiver.await.unwrap_or(false)
    }

    /// Runs a task with the loaded model to itself, on the engine thread, once the requests in flight and
    /// the load under way are done. Requests that come meanwhile wait.
    pub fn exclusive<T: Send + 'static>(
        &self,
        what: &str,
        task: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> oneshot::Receiver<Result<T, GenerateError>> {
        self.alone(what, |core| core.map(task).ok_or(GenerateError::NoModel))
    }

    /// The same of a task that needs no model.
    fn aside<T: Send + 'static>(
        &self,
        what: &str,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<Result<T, GenerateError>> {
        self.alone(what, |_| Ok(task()))
    }

    fn alone<T: Send + 'static>(
        &self,
        what: &str,
        task: impl FnOnce(Option<&mut Core>) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (done, receiver) = oneshot::channel();
        let task = Box::new(move |core: Option<&mut Core>| {
            // The asker may have gone.
            let _ = done.send(task(core));
        });
        // When the thread is gone, dropping the task closes the receiver.
        let _ = self.commands.send(Command::Exclusive(what.to_owned(), task));
        receiver
    }

    /// The device that a load of this begins with, having shown that it works: for what is computed beside models.
    /// Where it has yet to show that, this takes seconds.
    ///
    /// # Errors
    /// Why there is none.
    pub fn device(&self, spec: &LoadSpec) -> Result<Arc<dyn Device>, LoadError> {
        load::device(spec, &self.shared)
    }

    /// Searches the best choices for groups of tensor operations, and remembers them below `dir`: on the engine thread, so
    /// that no model runs beside it, whether or not one is loaded.
    pub fn tune_groups(
        &self,
        device: Arc<dyn Device>,
        groups: Groups,
        dir: PathBuf,
        spec: Spec,
        pace: Arc<Pace>,
        mut progress: impl FnMut(Progress) + Send + 'static,
    ) -> oneshot::Receiver<Result<Result<Report, tuning::Error>, GenerateError>> {
        let heartbeat = self.shared.heartbeat.clone();
        self.aside("tune", move || {
            pace.listen(move || heartbeat.beat());
            let mut watch = tuning::stopwatch(&spec)?;
            let store = Store::new(dir);
            tuning::run(
                &*device,
                Cases::Groups(&groups),
                &store,
                &spec,
                &pace,
                &mut *watch,
                &mut progress,
            )
        })
    }

    /// From the next load on, does not use the device of that name; loads are told why.
    pub fn disable(&self, device: &'static str, reason: &str) {
        self.shared.devices.disable(device, reason.to_owned());
    }

    /// Changes how many requests may wait for a slot; those that wait already keep their place.
    pub fn set_queue_limit(&self, limit: usize) {
        self.shared.queue_limit.store(limit, Ordering::Relaxed);
    }

    /// Asks the engine thread for a heartbeat, and returns how many there were: a number that does not
    /// grow from one call to the next, with more time between them than a step takes, means that the
    /// thread is stuck. `None` when the thread has ended.
    pub fn heartbeat(&self) -> Option<u64> {
        self.commands.send(Command::Heartbeat).ok()?;
        Some(self.shared.heartbeat.beats())
    }

    /// How often loads have come further: a number that does not grow during a load means that a file or a
    /// device does not answer.
    pub fn load_beats(&self) -> u64 {
        self.shared.load_beats.beats()
    }

    pub fn snapshot(&self) -> Snapshot {
        let shared = &self.shared;
        let active = shared.active.load(Ordering::Relaxed);
        Snapshot {
            state: shared.state(),
            loading: shared.loading.lock().clone(),
            active,
            queued: shared.in_flight.load(Ordering::Relaxed).saturating_sub(active),
            kv_tokens: shared.kv_tokens.load(Ordering::Relaxed),
            requests: shared.requests.load(Ordering::Relaxed),
            failures: shared.failures.load(Ordering::Relaxed),
            prompt_tokens: shared.prompt_tokens.load(Ordering::Relaxed),
            cached_tokens: shared.cached_tokens.load(Ordering::Relaxed),
            prefixes: *shared.prefixes.lock(),
            completion_tokens: shared.completion_tokens.load(Ordering::Relaxed),
            steps: shared.steps.load(Ordering::Relaxed),
            activity: *shared.activity.lock(),
            searching: shared.searching.lock().clone(),
            devices: shared.devices.health(),
            given_up: shared.given_up.lock().clone(),
        }
    }

    /// What the store holds about the loaded model's device: its file, the hardware, the entries. Reads a
    /// file; disturbs nobody.
    pub fn tuned(
        &self,
    ) -> Result<Result<(PathBuf, DeviceKey, Loaded), tuning::Error>, GenerateError> {
        let tuned = self.shared.tuned_device.lock().clone();
        let TunedDevice { device, tuning } = tuned.ok_or(GenerateError::NoModel)?;
        Ok(tuning::contents(&*device, &tuning))
    }

    /// Stops admitting; says so from now on.
    pub fn stopping(&self) {
        self.shared.set_state(State::Stopping);
    }

    /// Stops admitting, gives up a load under way, lets what is in flight finish until the deadline, cancels
    /// the rest, and waits for the thread.
    pub fn stop(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.stopping();
        if self.commands.send(Command::Stop(until)).is_err() {
            return;
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // One step may be under way at the deadline: give it a moment.
            while !thread.is_finished() && Instant::now() < until + Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() && thread.join().is_err() {
                tracing::error!("the engine thread panicked");
            }
        }
    }
}
