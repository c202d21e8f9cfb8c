//! Handle to the engine thread: cheap to clone, usable from any thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, unbounded};
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use super::admission::Admission;
use super::command::{Command, PendingLoad};
use super::load;
use super::runner::ModelRunner;
use super::scheduler::Scheduler;
use super::shared::{Shared, TunedDevice};
use super::tuning::pace::Pace;
use super::tuning::{self, Cases, Groups};
use super::{Events, GenerateError, LoadError, LoadEvent, LoadSpec, Request, Snapshot, State};
use device::Device;
use device::tune::report::{Progress, Report, Spec};
use device::tune::store::Loaded;
use device::tune::{DeviceKey, Store};

/// Settings of the engine that do not depend on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Requests that may wait for a slot.
    pub queue_limit: usize,
}

#[derive(Clone)]
pub struct Handle {
    commands: Sender<Command>,
    pub(super) shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Handle {
    /// Starts the engine thread, with nothing loaded.
    pub fn start(settings: Settings) -> std::io::Result<Self> {
        Self::with(Shared::new(settings.queue_limit))
    }

    /// Starts another engine of this process, for an additional model. The engines share the health of devices,
    /// and no engine runs idle tuning while another one is busy.
    pub fn beside(&self) -> std::io::Result<Self> {
        Self::with(self.shared.for_another_engine())
    }

    fn with(shared: Shared) -> std::io::Result<Self> {
        let (commands, receiver) = unbounded();
        let shared = Arc::new(shared);
        let scheduler = Scheduler::new(receiver, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("engine".into()).spawn(|| scheduler.run())?;
        Ok(Self { commands, shared, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Reserves places for a number of requests to the current model, before any work for them.
    pub fn admit(&self, requests: usize) -> Result<Admission, GenerateError> {
        Admission::new(&self.commands, &self.shared, requests)
    }

    /// Queues a generation. Dropping its events cancels it.
    pub fn generate(&self, request: Request) -> Result<Events, GenerateError> {
        self.admit(1)?.generate(request)
    }

    /// Loads a model and replaces the current one when its requests are done. If memory is too small for both, the
    /// current model is unloaded first. Cancels a load in progress.
    #[must_use]
    pub fn load(&self, spec: LoadSpec) -> UnboundedReceiver<LoadEvent> {
        let (events, receiver) = unbounded_channel();
        self.shared.announce(&spec.model);
        let pending = PendingLoad { spec: Arc::new(spec), events };
        if let Err(refused) = self.commands.send(Command::Load(pending))
            && let Command::Load(pending) = refused.into_inner()
        {
            pending.report(LoadEvent::Failed(LoadError::Stopping));
        }
        receiver
    }

    /// Cancels a load in progress, and unloads the model when its requests are done. True if there was a model.
    pub async fn unload(&self) -> bool {
        let (done, receiver) = oneshot::channel();
        self.commands.send(Command::Unload(done)).is_ok() && receiver.await.unwrap_or(false)
    }

    /// Runs a task on the engine thread with exclusive use of the loaded model, after the requests and the load in
    /// progress are done. New requests wait.
    pub fn exclusive<T: Send + 'static>(
        &self,
        what: &str,
        task: impl FnOnce(&mut ModelRunner) -> T + Send + 'static,
    ) -> oneshot::Receiver<Result<T, GenerateError>> {
        self.alone(what, |core| core.map(task).ok_or(GenerateError::NoModel))
    }

    /// Like [`Self::exclusive`], for a task that needs no model.
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
        task: impl FnOnce(Option<&mut ModelRunner>) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (done, receiver) = oneshot::channel();
        let task = Box::new(move |core: Option<&mut ModelRunner>| {
            // The caller may have disconnected.
            let _ = done.send(task(core));
        });
        // If the thread has ended, dropping the task closes the receiver.
        let _ = self.commands.send(Command::Exclusive(what.to_owned(), task));
        receiver
    }

    /// Opens the first usable device of a load, for other computations. Takes seconds if the device has not passed
    /// first light yet.
    ///
    /// # Errors
    /// No device is usable.
    pub fn device(&self, spec: &LoadSpec) -> Result<Arc<dyn Device>, LoadError> {
        load::device(spec, &self.shared)
    }

    /// Searches the best choices for fused groups of tensor operations and stores them below `dir`. Runs on the engine
    /// thread, so that no model runs at the same time.
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

    /// Excludes a device from the next load on; errors of loads report the reason.
    pub fn disable(&self, device: &'static str, reason: &str) {
        self.shared.devices.disable(device, reason.to_owned());
    }

    /// Sets the number of requests that may wait for a slot; requests that already wait are not removed.
    pub fn set_queue_limit(&self, limit: usize) {
        self.shared.queue_limit.store(limit, Ordering::Relaxed);
    }

    /// Requests a heartbeat and returns the number of earlier ones. The engine thread is stuck if the number does
    /// not grow between calls that are further apart than the duration of a step. `None` if the thread has ended.
    pub fn heartbeat(&self) -> Option<u64> {
        self.commands.send(Command::Heartbeat).ok()?;
        Some(self.shared.heartbeat.beats())
    }

    /// Number of heartbeats of loads. If it does not grow during a load, a file or a device does not respond.
    pub fn load_beats(&self) -> u64 {
        self.shared.load_beats.beats()
    }

    /// Current state and counters; cheap, from any thread.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Reads the tuning file of the loaded model's device: its path, the hardware, the entries.
    pub fn tuned(
        &self,
    ) -> Result<Result<(PathBuf, DeviceKey, Loaded), tuning::Error>, GenerateError> {
        let tuned = self.shared.tuned_device.lock().clone();
        let TunedDevice { device, tuning } = tuned.ok_or(GenerateError::NoModel)?;
        Ok(tuning::contents(&*device, &tuning))
    }

    /// Stops admitting requests and reports that state.
    pub fn stopping(&self) {
        self.shared.set_state(State::Stopping);
    }

    /// Stops admitting requests, cancels a load in progress, lets requests finish until the deadline, cancels the
    /// others, and waits for the thread.
    pub fn stop(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.stopping();
        if self.commands.send(Command::Stop(until)).is_err() {
            return;
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A step in flight at the deadline needs some time.
            while !thread.is_finished() && Instant::now() < until + Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() && thread.join().is_err() {
                tracing::error!("the engine thread panicked");
            }
        }
    }
}
