//! Conversion of the engines' state to `GET /orin/v1/status`.

use std::sync::Arc;

use engine::{Loading, ModelInfo, Snapshot, State};
use telemetry::memory;

use super::App;
use super::error::Error;
use super::load_spec::gpu_mode;
use super::residents::{Resident, loaded};

/// Returns the complete status.
pub(super) fn status(app: &App) -> api::Status {
    let first = app.residents.first();
    let now = first.engine.snapshot();
    let machine = app.probe.state();
    api::Status {
        version: super::VERSION.into(),
        pid: std::process::id(),
        uptime_s: app.started.elapsed().as_secs_f64(),
        model: loaded(&now.state).cloned(),
        residents: residents(app),
        loading: loading(&now),
        requests: requests(&now, app.metrics.all_refused(), app),
        memory: api::ProcessMemory {
            resident: memory::resident(),
            peak_resident: memory::peak_resident(),
            available: memory::available(),
        },
        searching: now.searching.clone(),
        devices: now.devices.clone(),
        roof: roof(app, loaded(&now.state), &machine),
        machine,
        lanes: app.lanes.status(gpu_mode(app.config().gpu_mode).chains),
        state: state(now, first),
    }
}

/// The additional models.
pub(super) fn residents(app: &App) -> Vec<api::Resident> {
    let of = |one: &Arc<Resident>| {
        let now = one.engine.snapshot();
        api::Resident {
            name: one.name.clone(),
            load: one.at,
            model: loaded(&now.state).cloned(),
            requests: requests(&now, 0, app),
            state: state(now, one),
            unused_s: one.unused().as_secs_f64(),
        }
    };
    app.residents.additional().iter().map(of).collect()
}

/// Read bandwidth of the model's current device: measured by the last benchmark, else the memory's
/// peak.
fn roof(app: &App, model: Option<&ModelInfo>, machine: &api::Machine) -> Option<api::Roof> {
    let measured = app.roof.lock().clone();
    let measured =
        measured.filter(|(device, _)| model.is_none_or(|model| model.device.name == *device));
    let roof =
        |bytes_per_second, source: &str| api::Roof { bytes_per_second, source: source.into() };
    let pins = || machine.pin_rate().map(|rate| roof(rate, "memory clock"));
    measured.map(|(_, rate)| roof(rate, "bench")).or_else(pins)
}

fn state(now: Snapshot, resident: &Resident) -> api::State {
    match now.state {
        State::Empty => {
            let failed = resident.failed(&now).map(Error::from);
            api::State::Empty { last_error: failed.map(|error| error.body().error) }
        }
        State::Loading(Loading { model, progress }) => api::State::Loading { model, progress },
        State::Ready(_) => api::State::Ready,
        State::Exclusive { what, .. } => api::State::Exclusive { what },
        State::Stopping => api::State::Stopping,
    }
}

/// Returns a load in progress while another model is served.
fn loading(now: &Snapshot) -> Option<api::Loading> {
    let other_is_served = |_: &&Loading| !matches!(now.state, State::Loading(_));
    let Loading { model, progress } = now.loading.as_ref().filter(other_is_served)?;
    Some(api::Loading { model: model.clone(), progress: *progress })
}

fn requests(now: &Snapshot, refused: u64, app: &App) -> api::Requests {
    api::Requests {
        queue_limit: app.config().queue_limit,
        refused,
        active: now.active,
        queued: now.queued,
        kv_tokens: now.kv_tokens,
        finished: now.requests,
        failed: now.failures,
        prompt_tokens: now.prompt_tokens,
        cached_tokens: now.cached_tokens,
        completion_tokens: now.completion_tokens,
        steps: now.steps,
        gpu: (now.activity.submits > 0).then_some(now.activity),
    }
}
