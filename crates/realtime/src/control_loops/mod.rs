//! Control loops beside the model: networks of ONNX files that a client starts through memory that both share, each
//! prepared once and stepped by a thread of its own.
//!
//! `memory` is what both sides see, `socket` is where a client gets it, `step` is the thread, `latency` what came of its
//! deadlines. What a network means is `onnx`'s; nothing here knows of the language model.

mod latency;
mod memory;
mod socket;
mod step;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Sender, bounded};
use device::first_light::Chains;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::latency::Latency;
use self::memory::{Client, Layout};
pub use self::socket::ControlLoopServer;

/// The system does not give what a client of a lane needs.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("cannot {what}: {source}")]
struct Error {
    what: &'static str,
    source: nix::errno::Errno,
}

/// The socket of the lanes of the daemon that listens on `daemon`.
#[must_use]
pub fn socket(daemon: &Path) -> PathBuf {
    let mut name = daemon.as_os_str().to_owned();
    name.push(".lanes");
    name.into()
}

/// A control loop, and what came of its deadlines since the daemon's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub name: String,
    /// Its file.
    pub network: String,
    pub backend: String,
    pub state: LoopState,
    /// Process that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<i32>,
    /// Why it failed, or what it lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Steps a second that a client starts.
    pub rate_hz: u32,
    /// From a start to its answer.
    pub deadline_s: f64,
    /// How long a step waits at most for who else is on the same GPU, by a cautious estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind_s: Option<f64>,
    pub met: u64,
    pub missed: u64,
    /// Starts that came before the one before was answered.
    pub skipped: u64,
    /// Steps that the device failed.
    pub failed: u64,
    /// Times from start to answer; absent before the first.
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

/// The lanes of a daemon.
#[derive(Default)]
pub struct Lanes(Vec<Arc<Lane>>);

/// One of them.
pub struct Lane {
    pub config: config::Lane,
    /// The network's file.
    file: PathBuf,
    /// Where tuned choices are kept.
    tuned: Option<PathBuf>,
    state: Mutex<State>,
    latency: Latency,
}

/// What a lane does.
enum State {
    /// Its network is being prepared.
    Preparing,
    /// It waits for a client, or serves the process of that id.
    Ready {
        layout: Arc<Layout>,
        clients: Sender<Client>,
        held_by: Option<i32>,
        notes: Vec<String>,
    },
    Failed(String),
}

impl Lanes {
    /// Starts a thread for each, which prepares its network first.
    pub fn start(config: &config::Config) -> Arc<Self> {
        let lanes = config.lane.iter().map(|lane| {
            let lane = Arc::new(Lane {
                config: lane.clone(),
                file: config.network(&lane.network),
                tuned: config.tuned().map(Path::to_owned),
                state: Mutex::new(State::Preparing),
                latency: Latency::new(lane.deadline()),
            });
            // One at a time: who has a lane gives it back first.
            let (sender, clients) = bounded(1);
            step::spawn(&lane, sender, clients);
            lane
        });
        Arc::new(Self(lanes.collect()))
    }

    /// Whether there is any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lane of that name, or the names there are.
    fn find(&self, name: &str) -> Result<&Arc<Lane>, String> {
        let known = || self.0.iter().map(|lane| &*lane.config.name).collect::<Vec<_>>().join(", ");
        let found = self.0.iter().find(|lane| lane.config.name == name);
        found.ok_or_else(|| format!("there is no lane `{name}`; there are: {}", known()))
    }

    /// What each does and did, beside models that give a GPU such chains.
    #[must_use]
    pub fn status(&self, chains: Chains) -> Vec<Status> {
        let status = |lane: &Arc<Lane>| {
            let backend = &lane.config.backend;
            let same = self.0.iter().filter(|other| other.config.backend == *backend).count();
            lane.status(device::behind(backend, chains, same - 1))
        };
        self.0.iter().map(status).collect()
    }
}

impl Lane {
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
            backend: self.config.backend.clone(),
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
        tracing::error!(lane = self.config.name, why, "a lane cannot be used");
        *self.state.lock() = State::Failed(why);
    }
}
