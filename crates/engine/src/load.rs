//! Loads of models: opens the files, selects a device that has passed first light, and uploads the model.

use std::sync::Arc;
use std::time::Instant;

use super::auto_context;
use super::backend::{Candidates, Found, Pass};
use super::draft_model::DraftModel;
use super::first_light;
use super::loaded_model::LoadedModel;
use super::model_files::{self, Opened, check_draft, in_draft};
use super::placement::{self, Fitted, Watch, bring_up, check_cache, device_error};
use super::runner::Reusable;
use super::shared::Shared;
use super::{LoadError, LoadSpec, ModelInfo};
use device::{self, Device, Footprint, Request};
use errors::one_line;
use model::{KvLayout, Model, synthetic};
use plan::Buffer;

/// A model that is opened, checked and fitted to a device, before it occupies device memory.
pub(super) struct Pending {
    spec: LoadSpec,
    started: Instant,
    opened: Opened,
    candidates: Candidates,
    fitted: Fitted,
}

/// Opens and checks everything that can be checked before memory is reserved.
pub(super) fn open(
    spec: &LoadSpec,
    shared: &Shared,
    watch: &dyn Watch,
) -> Result<Pending, LoadError> {
    let started = Instant::now();
    model_files::check_ranges(spec)?;
    let model = synthetic::resolve(&spec.model, &spec.models_dir);
    let spec = LoadSpec { model, ..spec.clone() };
    let mut candidates = Candidates::new(&spec, shared.devices.disabled_for(&spec.model));
    if synthetic::is_missing(&spec.model) {
        // Refuse a model that is too large before its file is written.
        check_beside(&spec, &|device| watch.resident(device))?;
    }
    let mut progress = |done, total| {
        watch.progress("synthesise", done, total);
        !watch.is_cancelled()
    };
    let mut opened = model_files::open(&spec, &mut progress)?;
    check_draft(&spec, &opened.text, |spec| {
        model_files::inspect(&model_files::locate(spec, &mut progress)?)
    })?;
    let pass = admitted(&spec, shared);
    let first = candidates.next(&pass)?;
    let resident = watch.resident(&*first.device);
    opened.layout = layout(&opened.model, &spec, &*first.device, resident);
    check_cache(&opened.model, opened.layout, resident)?;
    let fitted = fit(&mut candidates, first, &opened.model, &spec, opened.layout, &pass)?;
    drop(pass);
    Ok(Pending { spec, started, opened, candidates, fitted })
}

/// Prepares a model for another load after its device was lost. Only the weights are read from the file again.
pub(super) fn reopen(
    lost: LoadedModel,
    shared: &Shared,
    watch: &dyn Watch,
) -> Result<Pending, LoadError> {
    let started = Instant::now();
    // Free the memory before another instance allocates some.
    let LoadedModel { runner, speculation } = lost;
    drop(speculation);
    let Reusable { spec, model, text, layout } = runner.into_reusable();
    let mut candidates = Candidates::new(&spec, shared.devices.disabled_for(&spec.model));
    let pass = admitted(&spec, shared);
    let first = candidates.next(&pass)?;
    watch.progress("load", 0, model.weight_bytes());
    let fitted = fit(&mut candidates, first, &model, &spec, layout, &pass)?;
    drop(pass);
    let opened = Opened { model, text, layout };
    Ok(Pending { spec, started, opened, candidates, fitted })
}

/// Layout of the KV cache with the requested context, or the longest that fits.
fn layout(model: &Model, spec: &LoadSpec, device: &dyn Device, resident: u64) -> KvLayout {
    let own = model.hyperparameters().context;
    if spec.context == 0 {
        return auto_context::layout(model, spec, device, resident);
    }
    if spec.context > own {
        tracing::warn!(
            context = spec.context,
            own,
            "the context is longer than the model was trained for; answers beyond it may be poor"
        );
    }
    model_files::layout(model, spec)
}

/// Admits devices that have passed first light.
fn admitted<'a>(
    spec: &'a LoadSpec,
    shared: &'a Shared,
) -> impl Fn(&Arc<dyn Device>) -> Result<Arc<dyn Device>, String> + 'a {
    |device| first_light::pass(device, &spec.light, shared)
}

/// Opens the first usable device.
pub(super) fn device(spec: &LoadSpec, shared: &Shared) -> Result<Arc<dyn Device>, LoadError> {
    let mut candidates = Candidates::new(spec, shared.devices.disabled_for(&spec.model));
    Ok(candidates.next(&admitted(spec, shared))?.device)
}

/// Fits a model to the first device from `found` on that can run it.
fn fit(
    candidates: &mut Candidates,
    mut found: Found,
    model: &Model,
    spec: &LoadSpec,
    layout: KvLayout,
    pass: Pass<'_>,
) -> Result<Fitted, LoadError> {
    loop {
        let Found { device, reason } = found;
        let name = device.info().name;
        match placement::fit(device, reason, model, spec, layout)? {
            Ok(fitted) => return Ok(fitted),
            Err(error) if candidates.has_more() => {
                candidates.refuse(name, &one_line(&error));
                found = candidates.next(pass)?;
            }
            Err(error) => return Err(device_error(error)),
        }
    }
}

/// Performs all checks of a load before it reserves memory or reads weights. The result is that of a load on the machine
/// in its current state. Runs nothing on a device, and does not create the file of a synthetic model.
///
/// # Errors
/// Errors of the load.
pub fn check(spec: &LoadSpec) -> Result<ModelInfo, LoadError> {
    model_files::check_ranges(spec)?;
    let name = synthetic::resolve(&spec.model, &spec.models_dir);
    check_beside(&LoadSpec { model: name, ..spec.clone() }, &|_| 0)
}

/// Checks a load that may unload a model with `resident` bytes on its device.
fn check_beside(
    spec: &LoadSpec,
    resident: &dyn Fn(&dyn Device) -> u64,
) -> Result<ModelInfo, LoadError> {
    let (model, text) = model_files::outline(spec)?;
    check_draft(spec, &text, model_files::outline)?;
    let model = model_files::configure(model, spec)?;
    let mut candidates = Candidates::new(spec, Vec::new());
    let may = |device: &Arc<dyn Device>| first_light::may_be_used(device, &spec.light);
    let mut found = candidates.next(&may)?;
    let beside = resident(&*found.device);
    let layout = layout(&model, spec, &*found.device, beside);
    check_cache(&model, layout, beside)?;
    let weights: Vec<Buffer> = model.weights().cloned().collect();
    loop {
        let Fitted { device, reason, plans } =
            fit(&mut candidates, found, &model, spec, layout, &may)?;
        let states = model.states(layout);
        let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
        let room = match placement::has_room(&*device, &request, spec.memory_reserve) {
            Err(device::Error::OutOfMemory { need, have, .. })
                if need > have && need <= have.saturating_add(resident(&*device)) =>
            {
                Ok(Footprint::default())
            }
            room => room,
        };
        match room {
            Ok(footprint) => {
                let info = placement::describe(spec, &model, &*device, reason, layout, footprint);
                return Ok(info);
            }
            Err(error) if candidates.has_more() => {
                candidates.refuse(device.info().name, &one_line(&error));
                found = candidates.next(&may)?;
            }
            Err(error) => return Err(device_error(error)),
        }
    }
}

/// Uploads a model to its device. The current model stays resident if memory is large enough for both.
pub(super) fn upload(
    pending: Pending,
    shared: &Shared,
    watch: &mut dyn Watch,
) -> Result<LoadedModel, LoadError> {
    let Pending { spec, started, opened, mut candidates, mut fitted } = pending;
    let Opened { model, layout, .. } = &opened;
    let ready = loop {
        let resident = watch.resident(&*fitted.device);
        match bring_up(&mut fitted, model, &spec, *layout, watch, &shared.load_beats) {
            Ok(ready) => break ready,
            Err(_) if watch.is_cancelled() => return Err(LoadError::Stopping),
            Err(device::Error::OutOfMemory { what, need, have })
                if resident > 0 && need <= have.saturating_add(resident) =>
            {
                let [need, have] = [need, have].map(placement::mib);
                watch.make_room(&format!("{what}: {need} needed, {have} free"))?;
                let Fitted { device, reason, .. } = fitted;
                fitted =
                    placement::fit(device, reason, model, &spec, *layout)?.map_err(device_error)?;
            }
            // The next device would read the same file.
            Err(error @ device::Error::Weight { .. }) => return Err(device_error(error)),
            // The device is too small, in use by others, or lost.
            Err(error) if candidates.has_more() => {
                candidates.refuse(fitted.device.info().name, &one_line(&error));
                let pass = admitted(&spec, shared);
                let next = candidates.next(&pass)?;
                fitted = fit(&mut candidates, next, model, &spec, *layout, &pass)?;
            }
            Err(error) => return Err(device_error(error)),
        }
    };
    let mut runner = ready.into_runner(fitted, opened, spec, &shared.heartbeat);
    let draft_model = match model_files::draft(runner.spec()) {
        None => None,
        Some((draft, name)) => {
            let draft = LoadSpec { context: runner.context(), ..draft };
            let loaded = placement::on_device(runner.device_of(), &draft, shared)
                .map_err(|error| in_draft(name, error))?;
            Some(DraftModel::new(loaded))
        }
    };
    runner.finish_load(started.elapsed()).map_err(device_error)?;
    Ok(LoadedModel::new(runner, draft_model))
}
