//! Idle tuning: searches kernel choices on its own thread while the engine has no requests.
//!
//! The engine pauses the search's [`Pace`] while it is busy, so that no sample is taken during a request.
//! The next load uses the results.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::shared::Shared;
use super::tuning::bench::WallClock;
use super::tuning::pace::Pace;
use super::tuning::{self, Cases, Tuning};
use device::Device;
use device::tune::report::{Mode, Progress, Searching, Spec};
use device::tune::{Case, Store};

/// Measuring time per load, in seconds.
const BUDGET_SECONDS: f64 = 300.0;

/// A search in progress; dropping it ends it.
pub(super) struct IdleTuning {
    pace: Arc<Pace>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl IdleTuning {
    /// Starts a paused search if the mode is `auto` and the model has tunable cases.
    pub(super) fn start(
        (device, cases, tuning): (Arc<dyn Device>, &[Case], &Tuning),
        shared: &Arc<Shared>,
    ) -> Option<Self> {
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
                tracing::warn!(%error, "no idle tuning: cannot start its thread");
                None
            }
        }
    }

    /// True if the search is paused.
    pub(super) fn is_paused(&self) -> bool {
        self.pace.is_held()
    }
}

impl Drop for IdleTuning {
    fn drop(&mut self) {
        self.pace.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("idle tuning panicked");
        }
        *self.shared.searching.lock() = None;
    }
}

fn search(device: &dyn Device, cases: &[Case], settings: &Tuning, pace: &Pace, shared: &Shared) {
    let spec =
        Spec { budget_seconds: BUDGET_SECONDS, cold_bytes: settings.cold_bytes, ..Spec::default() };
    let store = Store::new(&settings.dir);
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
                tracing::info!(%case, state = ?row.state, gain, why = row.why, "idle tuning: case done");
            }
        }
        state.turns = pace.turns();
        *shared.searching.lock() = Some(state.clone());
    };
    let mut watch = WallClock::default();
    let cases = Cases::Products(cases);
    match tuning::run(device, cases, &store, &spec, pace, &mut watch, &mut progress) {
        Ok(report) => {
            let (found, left, file) = (report.rows.len(), report.left, &report.file);
            tracing::info!(found, left, file = %file.display(), remembered = report.remembered, "idle tuning is done");
        }
        Err(error) => tracing::warn!(%error, "idle tuning failed"),
    }
}
