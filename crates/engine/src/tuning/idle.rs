//! The search that goes on while nobody asks for anything, with a thread and device memory of its own. The
//! engine holds its [`Pace`] while it has something to do, so that no sample is taken while a request runs or
//! waits. What is found is used at the next load.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::bench::WallClock;
use super::pace::Pace;
use super::{Cases, Tuning};
use crate::core::Core;
use crate::handle::Shared;
use device::Device;
use device::tune::report::{Mode, Progress, Searching, Spec};
use device::tune::{Case, Store};

/// Seconds of measuring after a load.
const BUDGET_SECONDS: f64 = 300.0;

/// A search under way. Dropping it ends it.
pub(crate) struct Idle {
    pace: Arc<Pace>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Idle {
    /// Begins, held, where the load asks for it and something can be tuned.
    pub(crate) fn start(core: &Core, shared: &Arc<Shared>) -> Option<Self> {
        let (device, cases, tuning) = core.tunable();
        if tuning.mode != Mode::Auto || cases.is_empty() {
            return None;
        }
        let pace = Arc::new(Pace::default());
        shared.quiet.join(&pace);
        let body = {
            let (pace, shared, cases) = (Arc::clone(&pace), Arc::clone(shared), cases.to_vec());
            let tuning = tuning.clone();
            move || search(&*device, &cases, &tuning, &pace, &shared)
        };
        match std::thread::Builder::new().name("tune".into()).spawn(body) {
            Ok(thread) => Some(Self { pace, shared: Arc::clone(shared), thread: Some(thread) }),
            Err(error) => {
                tracing::warn!(%error, "no search in idle time: its thread could not be started");
                None
            }
        }
    }

    /// Whether nothing is measured, and nothing can be.
    pub(crate) fn is_held(&self) -> bool {
        self.pace.is_held()
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.pace.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the search in idle time panicked");
        }
        *self.shared.searching.lock() = None;
    }
}

fn search(device: &dyn Device, cases: &[Case], tuning: &Tuning, pace: &Pace, shared: &Shared) {
    let spec =
        Spec { budget_seconds: BUDGET_SECONDS, cold_bytes: tuning.cold_bytes, ..Spec::default() };
    let store = Store::new(&tuning.dir);
    let mut state = Searching::default();
    let mut progress = |step: Progress| {
        match step {
            Progress::Begun { cases, known } => {
                state = Searching { cases, known, ..Searching::default() };
            }
            Progress::Candidate { .. } => {}
            Progress::Case { row } => {
                state.count(row.state);
                let (case, gain) = (&row.case, row.gain);
                tracing::info!(%case, state = ?row.state, gain, why = row.why, "tuned in idle time");
            }
        }
        state.turns = pace.turns();
        *shared.searching.lock() = Some(state.clone());
    };
    let mut watch = WallClock::default();
    let cases = Cases::Products(cases);
    match super::run(device, cases, &store, &spec, pace, &mut watch, &mut progress) {
        Ok(report) => {
            let (found, left, file) = (report.rows.len(), report.left, &report.file);
            tracing::info!(found, left, file = %file.display(), remembered = report.remembered, "search in idle time is over");
        }
        Err(error) => tracing::warn!(%error, "search in idle time failed"),
    }
}
