//! A load, on a thread of its own. What is being served goes on beside it, and a file or a device that does
//! not answer keeps only those waiting who asked for it. The engine thread starts a load, gives it up, makes
//! room for it, and takes over what it has brought.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, bounded};
use tokio::sync::mpsc::UnboundedSender;

use super::core::Core;
use super::handle::Shared;
use super::load::{self, Watch};
use super::scheduler::Command;
use super::{LoadError, LoadEvent, LoadSpec, Loading};
use device::Device;

/// How long a load that was given up may take to end before nobody waits for it any more. It notices after
/// every piece of a weight, unless a read does not return.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a client has asked for, and where it hears how that goes.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) spec: Arc<LoadSpec>,
    pub(super) events: UnboundedSender<LoadEvent>,
}

impl Asked {
    /// Tells what has come of it; the client may have gone.
    pub(super) fn tell(&self, event: LoadEvent) {
        let _ = self.events.send(event);
    }
}

pub(super) enum Job {
    New(Asked),
    /// The model of a core whose device was lost.
    Again(Box<Core>),
}

/// The model that is loaded while another one is being loaded.
pub(super) struct Beside {
    pub(super) model: String,
    pub(super) device: Arc<dyn Device>,
    pub(super) bytes: u64,
}

/// A load under way.
pub(super) struct Loader {
    /// No other load of this engine has it.
    pub(super) order: u64,
    pub(super) asked: Option<Asked>,
    given_up: Arc<AtomicBool>,
    thread: Thread,
}

/// The thread of a load.
pub(super) struct Thread(JoinHandle<()>);

impl Thread {
    /// Waits for its end, if that is near.
    pub(super) fn settle(self) {
        let until = Instant::now() + PATIENCE;
        while !self.0.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Loader {
    /// Starts a load. It reports by commands, and starts when the thread of the one `before` it has ended.
    pub(super) fn start(
        order: u64,
        job: Job,
        beside: Option<Beside>,
        before: Option<Thread>,
        (shared, reports): (Arc<Shared>, Sender<Command>),
    ) -> io::Result<Self> {
        let given_up = Arc::new(AtomicBool::new(false));
        let asked = if let Job::New(asked) = &job { Some(asked.clone()) } else { None };
        let mut errand = Errand {
            order,
            beside,
            asked: asked.clone(),
            given_up: Arc::clone(&given_up),
            shared,
            reports,
        };
        let body = move || {
            if let Some(before) = before {
                before.settle();
            }
            let run = AssertUnwindSafe(|| errand.run(job));
            let result = std::panic::catch_unwind(run).unwrap_or_else(|_| {
                Err(LoadError::Device("loading panicked; the log says where".into()))
            });
            // The engine may have stopped.
            let _ = errand.reports.send(Command::Loaded(order, Box::new(result)));
        };
        let thread = Thread(thread::Builder::new().name("load".into()).spawn(body)?);
        Ok(Self { order, asked, given_up, thread })
    }

    /// From now on nobody wants what it brings. Gives back what was asked for.
    pub(super) fn give_up(self) -> (Option<Asked>, Thread) {
        self.given_up.store(true, Ordering::Relaxed);
        (self.asked, self.thread)
    }
}

/// What the thread of a load knows.
struct Errand {
    order: u64,
    beside: Option<Beside>,
    asked: Option<Asked>,
    given_up: Arc<AtomicBool>,
    shared: Arc<Shared>,
    reports: Sender<Command>,
}

impl Errand {
    fn run(&mut self, job: Job) -> Result<Core, LoadError> {
        let shared = Arc::clone(&self.shared);
        let opened = match job {
            Job::New(asked) => load::open(&asked.spec, &shared, self),
            Job::Again(lost) => load::reopen(*lost, &shared, self),
        };
        load::upload(opened?, &shared, self)
    }
}

impl Watch for Errand {
    fn progress(&self, phase: &'static str, done: u64, total: u64) {
        if self.is_given_up() {
            return;
        }
        self.shared.load_beats.beat();
        let fraction = if total == 0 { 0.0 } else { done as f64 / total as f64 };
        if let Some(Loading { progress, .. }) = &mut *self.shared.loading.lock() {
            *progress = fraction;
        }
        if let Some(asked) = &self.asked {
            asked.tell(LoadEvent::Progress { phase, done, total });
        }
    }

    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }

    fn beside(&self, device: &dyn Device) -> u64 {
        let held = self.beside.as_ref().filter(|held| same_memory(&*held.device, device));
        held.map_or(0, |held| held.bytes)
    }

    fn make_room(&mut self, why: &str) -> Result<(), LoadError> {
        let Some(Beside { model, .. }) = self.beside.take() else {
            unreachable!("room is asked for where a model takes some");
        };
        tracing::info!(model, why, "unloaded first: there is no room for both");
        if let Some(asked) = &self.asked {
            let why = format!("there is no room for both: {why}");
            asked.tell(LoadEvent::Unloading { model, why });
        }
        let (done, made) = bounded(1);
        let asked = self.reports.send(Command::MakeRoom(self.order, done));
        // Nobody answers a load that was given up.
        asked.ok().and_then(|()| made.recv().ok()).ok_or(LoadError::Stopping)
    }
}

/// Whether what one device holds the other lacks.
fn same_memory(one: &dyn Device, other: &dyn Device) -> bool {
    one.shares_memory() && other.shares_memory() || one.info().name == other.info().name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::Gpu;

    #[test]
    fn only_what_lies_in_the_same_memory_makes_room() {
        let gpu = |name, shares| Gpu { name, shares };
        let (own, shared) = (gpu("cuda", false), gpu("nv", true));
        assert!(same_memory(&own, &own));
        assert!(same_memory(&shared, &gpu("cpu", true)));
        assert!(!same_memory(&own, &shared) && !same_memory(&shared, &own));
        assert!(!same_memory(&own, &gpu("other", false)));
    }
}
