//! Control loops: ONNX networks that a client steps through shared memory, each prepared once and
//! run by its own thread.
//!
//! `memory` is the shared memory, `socket` sends it to clients, `step` is the thread, `latency`
//! counts met and missed deadlines. Independent of language models.

mod latency;
mod memory;
mod socket;
mod step;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use config::Backend;
use crossbeam::channel::{Sender, bounded};
use device::first_light::Chains;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::latency::Latency;
use self::memory::{Client, Layout};
pub use self::socket::ControlLoopServer;

/// The system cannot provide memory or counters for a client.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
struct Error {
    what: &'static str,
    source: nix::errno::Errno,
}

/// Path of the control loops' socket, for the daemon that listens on `daemon`.
#[must_use]
pub fn socket(daemon: &Path) -> PathBuf {
    let mut name = daemon.as_os_str().to_owned();
    name.push(".lanes");
    name.into()
}

/// State of a control loop, and its deadlines since the daemon's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    /// Path of the ONNX file.
    pub network: String,
    pub backend: Backend,
    pub state: LoopState,
    /// Process id of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<i32>,
    /// Reason of a failure, or warnings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Steps per second that the client starts.
    pub rate_hz: u32,
    /// Time allowed from a start to its answer.
    pub deadline_s: f64,
    /// Upper bound of the time that a step waits for other work on the same GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_s: Option<f64>,
    pub met: u64,
    pub missed: u64,
    /// Starts that arrived before the previous one was answered.
    pub skipped: u64,
    /// Steps that failed on the device.
    pub failed: u64,
    /// Latency from start to answer; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst_s: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopState {
    Preparing,
    Ready,
    Failed,
}

/// All control loops of a daemon.
#[derive(Default)]
pub struct ControlLoops(Vec<Arc<ControlLoop>>);

/// A control loop: its configuration, state and latency.
pub struct ControlLoop {
    pub config: config::ControlLoop,
    /// Path of the ONNX file.
    file: PathBuf,
    /// Directory of tuned kernel choices.
    tuned: Option<PathBuf>,
    state: Mutex<State>,
    latency: Latency,
}

/// State of the loop's thread.
enum State {
    /// The network is being prepared.
    Preparing,
    /// The loop waits for a client, or serves the process `held_by`.
    Ready {
        layout: Arc<Layout>,
        clients: Sender<Client>,
        held_by: Option<i32>,
        notes: Vec<String>,
    },
    Failed(String),
}

impl ControlLoops {
    /// Starts a thread per loop, which prepares its network first.
    pub fn start(config: &config::Config) -> Arc<Self> {
        let loops = config.lane.iter().map(|lane| {
            let control_loop = Arc::new(ControlLoop {
                config: lane.clone(),
                file: config.network(&lane.network),
                tuned: config.tuned().map(Path::to_owned),
                state: Mutex::new(State::Preparing),
                latency: Latency::new(lane.deadline()),
            });
            // One client at a time: it must disconnect before the next one connects.
            let (sender, clients) = bounded(1);
            step::spawn(&control_loop, sender, clients);
            control_loop
        });
        Arc::new(Self(loops.collect()))
    }

    /// Returns true if none is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the loop of that name. The error lists the known names.
    fn find(&self, name: &str) -> Result<&Arc<ControlLoop>, String> {
        let known = || self.0.iter().map(|one| &*one.config.name).collect::<Vec<_>>().join(", ");
        let found = self.0.iter().find(|one| one.config.name == name);
        found.ok_or_else(|| format!("there is no control loop `{name}`; configured: {}", known()))
    }

    /// Returns the status of every loop. `chains` is how the language models submit work to a GPU.
    #[must_use]
    pub fn status(&self, chains: Chains) -> Vec<Status> {
        let status = |control_loop: &Arc<ControlLoop>| {
            let backend = control_loop.config.backend;
            let same = self.0.iter().filter(|other| other.config.backend == backend).count();
            control_loop.status(device::behind(backend.into(), chains, same - 1))
        };
        self.0.iter().map(status).collect()
    }
}

impl ControlLoop {
    fn status(&self, behind: Option<Duration>) -> Status {
        let (state, held_by, notes) = match &*self.state.lock() {
            State::Preparing => (LoopState::Preparing, None, Vec::new()),
            State::Ready { held_by, notes, .. } => (LoopState::Ready, *held_by, notes.clone()),
            State::Failed(why) => (LoopState::Failed, None, vec![why.clone()]),
        };
        let seconds = |time: Duration| time.as_secs_f64();
        Status {
            name: self.config.name.clone(),
            network: self.file.display().to_string(),
            backend: self.config.backend,
            state,
            held_by,
            notes,
            rate_hz: self.config.rate_hz,
            deadline_s: seconds(self.config.deadline()),
            behind_s: behind.map(seconds),
            met: self.latency.met(),
            missed: self.latency.missed(),
            skipped: self.latency.skipped(),
            failed: self.latency.failed(),
            p50_s: self.latency.quantile(0.5).map(seconds),
            p999_s: self.latency.quantile(0.999).map(seconds),
            worst_s: self.latency.worst().map(seconds),
        }
    }

    fn fail(&self, why: String) {
        tracing::error!(lane = self.config.name, why, "a control loop cannot be used");
        *self.state.lock() = State::Failed(why);
    }
}
