//! Loads on a thread of their own, so that requests are served meanwhile and a file or device that does not respond
//! delays only the load. The engine thread starts a load, cancels it, frees memory for it, and receives its result.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, bounded};

use super::command::{Command, PendingLoad};
use super::load;
use super::loaded_model::LoadedModel;
use super::placement::Watch;
use super::shared::Shared;
use super::{LoadError, LoadEvent, Loading};
use device::Device;

/// Longest wait for a cancelled load to end. It checks for cancellation after every piece of a weight, but a read may
/// not return.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) enum Job {
    New(PendingLoad),
    /// A loaded model whose device was lost.
    Again(Box<LoadedModel>),
}

/// The current model while another one is loading.
pub(super) struct Resident {
    pub(super) model: String,
    pub(super) device: Arc<dyn Device>,
    pub(super) bytes: u64,
}

/// A load in progress.
pub(super) struct Loader {
    /// Number that no other load of this engine has.
    pub(super) order: u64,
    pub(super) pending: Option<PendingLoad>,
    cancelled: Arc<AtomicBool>,
    thread: Thread,
}

/// The thread of a load.
pub(super) struct Thread(JoinHandle<()>);

impl Thread {
    /// Waits until it ends, for a limited time.
    pub(super) fn settle(self) {
        let until = Instant::now() + PATIENCE;
        while !self.0.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Loader {
    /// Starts a load when the thread of the load `before` it has ended. It reports by commands.
    pub(super) fn start(
        order: u64,
        job: Job,
        resident: Option<Resident>,
        before: Option<Thread>,
        (shared, reports): (Arc<Shared>, Sender<Command>),
    ) -> io::Result<Self> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let pending = if let Job::New(pending) = &job { Some(pending.clone()) } else { None };
        let mut job_state = LoadJob {
            order,
            resident,
            pending: pending.clone(),
            cancelled: Arc::clone(&cancelled),
            shared,
            reports,
        };
        let body = move || {
            if let Some(before) = before {
                before.settle();
            }
            let run = AssertUnwindSafe(|| job_state.run(job));
            let result = std::panic::catch_unwind(run)
                .unwrap_or_else(|_| Err(LoadError::Device("loading panicked; see the log".into())));
            // The engine may have stopped.
            let _ = job_state.reports.send(Command::Loaded(order, Box::new(result)));
        };
        let thread = Thread(thread::Builder::new().name("load".into()).spawn(body)?);
        Ok(Self { order, pending, cancelled, thread })
    }

    /// Cancels the load. Returns the request and the thread.
    pub(super) fn cancel(self) -> (Option<PendingLoad>, Thread) {
        self.cancelled.store(true, Ordering::Relaxed);
        (self.pending, self.thread)
    }
}

/// State of the thread of a load.
struct LoadJob {
    order: u64,
    resident: Option<Resident>,
    pending: Option<PendingLoad>,
    cancelled: Arc<AtomicBool>,
    shared: Arc<Shared>,
    reports: Sender<Command>,
}

impl LoadJob {
    fn run(&mut self, job: Job) -> Result<LoadedModel, LoadError> {
        let shared = Arc::clone(&self.shared);
        let opened = match job {
            Job::New(pending) => load::open(&pending.spec, &shared, self),
            Job::Again(lost) => load::reopen(*lost, &shared, self),
        };
        load::upload(opened?, &shared, self)
    }
}

impl Watch for LoadJob {
    fn progress(&self, phase: &'static str, done: u64, total: u64) {
        if self.is_cancelled() {
            return;
        }
        self.shared.load_beats.beat();
        let fraction = if total == 0 { 0.0 } else { done as f64 / total as f64 };
        if let Some(Loading { progress, .. }) = &mut *self.shared.loading.lock() {
            *progress = fraction;
        }
        if let Some(pending) = &self.pending {
            pending.report(LoadEvent::Progress { phase, done, total });
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn resident(&self, device: &dyn Device) -> u64 {
        let resident =
            self.resident.as_ref().filter(|resident| same_memory(&*resident.device, device));
        resident.map_or(0, |resident| resident.bytes)
    }

    fn make_room(&mut self, why: &str) -> Result<(), LoadError> {
        let Some(Resident { model, .. }) = self.resident.take() else {
            unreachable!("only a resident model takes room");
        };
        tracing::info!(model, why, "unloaded first: no room for both models");
        if let Some(pending) = &self.pending {
            let why = format!("no room for both models: {why}");
            pending.report(LoadEvent::Unloading { model, why });
        }
        let (done, made) = bounded(1);
        let pending = self.reports.send(Command::MakeRoom(self.order, done));
        // A cancelled load gets no answer.
        pending.ok().and_then(|()| made.recv().ok()).ok_or(LoadError::Stopping)
    }
}

/// True if two devices allocate from the same memory.
fn same_memory(one: &dyn Device, other: &dyn Device) -> bool {
    one.shares_memory() && other.shares_memory() || one.info().name == other.info().name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tests::Gpu;

    #[test]
    fn only_a_model_in_the_same_memory_makes_room() {
        let gpu = |name, shares| Gpu { name, shares };
        let (own, shared) = (gpu("cuda", false), gpu("nv", true));
        assert!(same_memory(&own, &own));
        assert!(same_memory(&shared, &gpu("cpu", true)));
        assert!(!same_memory(&own, &shared) && !same_memory(&shared, &own));
        assert!(!same_memory(&own, &gpu("other", false)));
    }
}
