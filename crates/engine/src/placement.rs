//! Placement of a model on a device: plans, memory, weights, and the runner that results.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::heartbeat::Heartbeat;
use super::model_files::{self, Opened, adapter_name};
use super::provenance::Provenance;
use super::runner::{Loaded, ModelRunner, PreparedPlans, plans};
use super::shared::Shared;
use super::tuning;
use super::{AdapterInfo, AdapterSpec, DeviceInfo, DeviceMemory, LoadError, LoadSpec, ModelInfo};
use device::tune::Case;
use device::tune::report::Used;
use device::{self, Device, Footprint, Instance, Request};
use errors::one_line;
use model::{self, Adapter, KvLayout, Model, mix, synthetic};
use plan::{Buffer, Plan, fuse};
use telemetry::memory;

/// A device, and the model's plans as fused for it.
pub(super) struct Fitted {
    pub(super) device: Arc<dyn Device>,
    pub(super) reason: String,
    pub(super) plans: Vec<Plan>,
}

/// Observer of a load, which may cancel it and unload the current model.
pub(super) trait Watch: Sync {
    /// Reports bytes done and in all of a phase.
    fn progress(&self, phase: &'static str, done: u64, total: u64);

    fn is_cancelled(&self) -> bool {
        false
    }

    /// Bytes of the memory of `device` that unloading the current model would free.
    fn resident(&self, _device: &dyn Device) -> u64 {
        0
    }

    /// Unloads the current model.
    fn make_room(&mut self, _why: &str) -> Result<(), LoadError> {
        unreachable!("no model is resident")
    }
}

/// Observer of a load that no client waits for: draft models and the model of first light.
struct Alone<'a>(&'a Shared);

impl Watch for Alone<'_> {
    fn progress(&self, _: &'static str, _: u64, _: u64) {
        self.0.load_beats.beat();
    }
}

/// Loads a model on a device, whether or not the device has passed first light. Another model may stay resident.
pub(super) fn on_device(
    device: &Arc<dyn Device>,
    spec: &LoadSpec,
    shared: &Shared,
) -> Result<ModelRunner, LoadError> {
    let (started, watch) = (Instant::now(), Alone(shared));
    let mut progress = |done, total| {
        watch.progress("synthesise", done, total);
        !watch.is_cancelled()
    };
    let Opened { model, text, layout } = model_files::open(spec, &mut progress)?;
    let mut fitted =
        fit(Arc::clone(device), String::new(), &model, spec, layout)?.map_err(device_error)?;
    let ready = bring_up(&mut fitted, &model, spec, layout, &watch, &shared.load_beats)
        .map_err(device_error)?;
    let opened = Opened { model, text, layout };
    let mut runner = ready.into_runner(fitted, opened, spec.clone(), &shared.heartbeat);
    runner.finish_load(started.elapsed()).map_err(device_error)?;
    Ok(runner)
}

/// Plans of a model for a device, and whether the device can run them.
pub(super) fn fit(
    device: Arc<dyn Device>,
    reason: String,
    model: &Model,
    spec: &LoadSpec,
    layout: KvLayout,
) -> Result<Result<Fitted, device::Error>, LoadError> {
    let chunk = spec.prefill_chunk.min(layout.context);
    let weights: Vec<Buffer> = model.weights().cloned().collect();
    let states = model.states(layout);
    let plans = plans::all(model, layout, chunk, device.skips_padding())
        .map_err(|e| LoadError::Invalid(one_line(&e)))?;
    let plans: Vec<Plan> = plans.iter().map(|plan| fuse(plan, device.fusions())).collect();
    let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
    Ok(device.footprint(&request).map(|_| Fitted { device, reason, plans }))
}

/// A model that is uploaded to a device, with prepared plans.
pub(super) struct Ready {
    instance: Box<dyn Instance>,
    plans: PreparedPlans,
    cases: Vec<Case>,
    used: Used,
    provenance: Provenance,
}

impl Ready {
    pub(super) fn into_runner(
        self,
        fitted: Fitted,
        opened: Opened,
        spec: LoadSpec,
        heartbeat: &Heartbeat,
    ) -> ModelRunner {
        let Self { instance, plans, cases, used, provenance } = self;
        let Opened { model, text, layout } = opened;
        let Fitted { device, reason, .. } = fitted;
        let footprint = instance.footprint();
        let described = describe(&spec, &model, &*device, reason, layout, footprint);
        let mut info = ModelInfo { tuning: used, ..described };
        info.memory.code = instance.code();
        let heartbeat = heartbeat.clone();
        ModelRunner::new(Loaded {
            info,
            text,
            model,
            device,
            instance,
            plans,
            layout,
            heartbeat,
            cases,
            spec,
            provenance,
        })
    }
}

/// Reserves memory, uploads the weights, prepares the plans.
pub(super) fn bring_up(
    fitted: &mut Fitted,
    model: &Model,
    spec: &LoadSpec,
    layout: KvLayout,
    watch: &dyn Watch,
    heartbeat: &Heartbeat,
) -> Result<Ready, device::Error> {
    let Fitted { device, plans, .. } = fitted;
    let weights: Vec<Buffer> = model.weights().cloned().collect();
    let states = model.states(layout);
    let request = Request { weights: &weights, states: &states, plans, choices: None };
    let cases = tuning::cases(&**device, &request)?;
    let (choices, used) = tuning::choices(&**device, &cases, &spec.tuning, &|| heartbeat.beat());
    let provenance = Provenance::of(model, &**device, &cases, &choices);
    leave(&**device, &request, spec.memory_reserve, watch.resident(&**device) > 0)?;
    let mut instance = device.open(&Request { choices: Some(&choices), ..request })?;
    if let Some(dir) = &spec.light.dir {
        instance.write_fault_bundles(dir);
    }
    let crowded = crowds(model.weight_bytes(), memory::available());
    move_weights(&mut *instance, model, watch, crowded)?;
    let plans = PreparedPlans::prepare(&mut *instance, std::mem::take(plans), heartbeat)?;
    Ok(Ready { instance, plans, cases, used, provenance })
}

/// Reads the weights from their file to the device. If memory is `crowded`, drops the file from the page cache after each
/// weight.
fn move_weights(
    instance: &mut dyn Instance,
    model: &Model,
    watch: &dyn Watch,
    crowded: bool,
) -> Result<(), device::Error> {
    let total = model.weight_bytes();
    let done = AtomicU64::new(0);
    for Buffer { name, .. } in model.weights() {
        let read = |at, bytes: &mut [u8]| {
            if watch.is_cancelled() {
                return Err("the load was cancelled".into());
            }
            Ok(model.read_weight(name, at, bytes)?)
        };
        let report = |bytes: u64| {
            watch.progress("load", done.fetch_add(bytes, Ordering::Relaxed) + bytes, total);
        };
        instance.upload(name, &read, &report)?;
        if crowded {
            model.gguf().forget();
        }
    }
    Ok(())
}

/// True if memory is too small for the weights and their file in the page cache. Otherwise the system would drop other
/// pages to make room for the weights.
fn crowds(weights: u64, available: Option<u64>) -> bool {
    available.is_some_and(|available| weights.saturating_mul(2) > available)
}

/// Memory that a model needs, if it is free.
pub(super) fn has_room(
    device: &dyn Device,
    request: &Request<'_>,
    reserve: u64,
) -> Result<Footprint, device::Error> {
    leave(device, request, reserve, false)?;
    let footprint = device.footprint(request)?;
    // Some drivers report free memory only when the model is loaded.
    let free = device.gpu_memory().or_else(device::available).filter(|free| *free > 0);
    footprint.fits(free.unwrap_or(u64::MAX))?;
    Ok(footprint)
}

/// Rejects a model that leaves the rest of the system less memory than the reserve. Memory of the CPU device can be
/// swapped, so there the check applies only if another model can make room.
fn leave(
    device: &dyn Device,
    request: &Request<'_>,
    reserve: u64,
    resident: bool,
) -> Result<(), device::Error> {
    let free = match device.gpu_memory() {
        Some(free) if free > 0 && device.shares_memory() => {
            free.saturating_sub(device::cpu::promised())
        }
        None if resident => device::available().unwrap_or(u64::MAX),
        _ => return Ok(()),
    };
    let fits = device.footprint(request)?.fits(free.saturating_sub(reserve));
    fits.map_err(|error| match error {
        device::Error::OutOfMemory { what, need, have } => {
            let what = format!("{what}, with memory_reserve_mib = {}", reserve >> 20);
            let have = if device.gpu_memory().is_some() { have } else { free };
            device::Error::OutOfMemory { what, need, have }
        }
        other => other,
    })
}

/// Checks that the KV cache fits before anything is built for it; `resident` bytes can be freed.
pub(super) fn check_cache(model: &Model, layout: KvLayout, resident: u64) -> Result<(), LoadError> {
    let layers = model.hyperparameters().caches().count().max(1);
    let per_layer = model.state_bytes_per_token() / (2 * layers as u64);
    let have = device::available().unwrap_or(u64::MAX).saturating_add(resident);
    let (rings, longest) = model.rings(layout);
    let bounded = match rings {
        0 => String::new(),
        _ => format!(" ({rings} of them with {longest} tokens)"),
    };
    let arithmetic = format!(
        "KV cache: {} slots x {} tokens x {layers} layers{bounded} x 2 x {per_layer} bytes",
        layout.slots, layout.context
    );
    match model.state_bytes(layout) {
        Some(need) if need <= have => Ok(()),
        Some(need) => Err(LoadError::OutOfMemory(format!(
            "{arithmetic} = {} needed, {} available; lower `context` or `slots`",
            mib(need),
            mib(have)
        ))),
        None => Err(LoadError::OutOfMemory(format!(
            "{arithmetic} exceeds any memory; lower `context` or `slots`"
        ))),
    }
}

pub(super) fn describe(
    spec: &LoadSpec,
    model: &Model,
    device: &dyn Device,
    reason: String,
    layout: KvLayout,
    footprint: Footprint,
) -> ModelInfo {
    let gguf = model.gguf();
    let synthetic = synthetic::is_synthetic(&spec.model);
    let id = || synthetic::default_id(&spec.model, &spec.models_dir);
    let id = spec.name.clone().unwrap_or_else(id);
    let info = device.info();
    ModelInfo {
        name: gguf.metadata().str("general.name").map_or_else(|_| id.clone(), str::to_owned),
        id,
        architecture: model.architecture().name().to_owned(),
        file_type: mix::name_of(gguf).to_owned(),
        path: gguf.path().to_owned(),
        synthetic,
        bytes: gguf.tensors().iter().map(|t| t.bytes).sum(),
        parameters: model.parameters(),
        vocabulary: model.hyperparameters().vocabulary,
        context: layout.context,
        trained_context: model.hyperparameters().context,
        slots: layout.slots,
        adapters: model.adapters().zip(&spec.adapters).map(adapter_info).collect(),
        embedding: model.pooling().map(|_| model.hyperparameters().width),
        device: DeviceInfo {
            name: info.name.to_owned(),
            description: info.description,
            reason,
            threads: info.threads,
        },
        memory: DeviceMemory {
            weights: footprint.weights,
            kv: footprint.state,
            activations: footprint.activations,
            code: None,
        },
        ..ModelInfo::default()
    }
}

fn adapter_info((adapter, spec): (&Adapter, &AdapterSpec)) -> AdapterInfo {
    let path = adapter.path().to_owned();
    AdapterInfo { name: adapter_name(&path.to_string_lossy()), path, scale: spec.scale }
}

pub(super) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[expect(clippy::needless_pass_by_value, reason = "callers pass it to `map_err`")]
pub(super) fn device_error(error: device::Error) -> LoadError {
    match &error {
        device::Error::OutOfMemory { what, need, have } => LoadError::OutOfMemory(format!(
            "{what}: {} needed, {} available; lower `context` or `slots`, or use a smaller model",
            mib(*need),
            mib(*have)
        )),
        // The file has changed or is invalid.
        device::Error::Weight { source, .. } if source.is::<model::Error>() => {
            LoadError::Invalid(one_line(&error))
        }
        _ => LoadError::Device(one_line(&error)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroUsize;
    use std::path::Path;

    use super::*;
    use device::Tunable;
    use device::cpu::{Cpu, Isa};
    use orind_testing::page_cache::{cold, resident};
    use orind_testing::tiny;
    use parking_lot::Mutex;
    use plan::Fusions;

    /// A GPU with 3 GiB free and an instance of 2.
    pub(crate) struct Gpu {
        pub(crate) name: &'static str,
        pub(crate) shares: bool,
    }

    impl Device for Gpu {
        fn info(&self) -> device::Info {
            device::Info { name: self.name, description: String::new(), threads: 0 }
        }

        fn fusions(&self) -> Fusions {
            Fusions::ALL
        }

        fn footprint(&self, _: &Request<'_>) -> device::Result<Footprint> {
            Ok(Footprint { weights: 2 << 30, ..Footprint::default() })
        }

        fn open(&self, _: &Request<'_>) -> device::Result<Box<dyn Instance>> {
            unreachable!("the tests open no instance")
        }

        fn gpu_memory(&self) -> Option<u64> {
            Some(3 << 30)
        }

        fn shares_memory(&self) -> bool {
            self.shares
        }

        fn tunable(&self) -> Option<&dyn Tunable> {
            None
        }
    }

    #[test]
    fn a_gpu_with_shared_memory_leaves_the_reserve() {
        let request = Request { weights: &[], states: &[], plans: &[], choices: None };
        let leave =
            |shares, mib: u64| leave(&Gpu { name: "cuda", shares }, &request, mib << 20, false);
        assert!(leave(true, 1024).is_ok() && leave(false, 4096).is_ok());
        let error = device_error(leave(true, 1025).unwrap_err()).to_string();
        assert!(
            error.contains("memory_reserve_mib = 1025") && error.contains("2047.0 MiB"),
            "{error}"
        );
        assert!(leave(true, 4096).is_err(), "the reserve exceeds the free memory");
    }

    #[test]
    fn a_file_stays_in_the_page_cache_if_memory_fits_it_and_its_weights() {
        let gib = |n: u64| n << 30;
        assert!(crowds(gib(20), Some(gib(30))) && crowds(u64::MAX, Some(gib(30))));
        assert!(!crowds(gib(14), Some(gib(30))) && !crowds(gib(20), None));
    }

    /// Records the resident pages of a file before each read of a weight.
    struct Residents<'a>(&'a Path, Mutex<Vec<usize>>);

    impl Watch for Residents<'_> {
        fn progress(&self, _: &'static str, _: u64, _: u64) {}

        fn is_cancelled(&self) -> bool {
            self.1.lock().push(resident(self.0, usize::MAX));
            false
        }
    }

    #[test]
    fn crowded_memory_drops_the_file_after_each_weight() {
        // Next to this program, because the temporary directory may be in memory.
        let program = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let Some(file) = cold(&tiny("tiny-qwen3-Q4_K_M"), dir.path()) else { return };
        let weights = |crowded| {
            let model = Model::open(&file).unwrap();
            let weights: Vec<Buffer> = model.weights().cloned().collect();
            let request = Request { weights: &weights, states: &[], plans: &[], choices: None };
            let mut instance = Cpu::new(Isa::detect(), NonZeroUsize::MIN).open(&request).unwrap();
            let residents = Residents(&file, Mutex::default());
            model.gguf().forget();
            move_weights(&mut *instance, &model, &residents, crowded).unwrap();
            let cold = residents.1.lock().iter().filter(|pages| **pages == 0).count();
            (cold, weights.len(), resident(&file, usize::MAX))
        };
        let (cold, count, kept) = weights(true);
        assert!(cold >= count && kept == 0, "{cold} of {count}, {kept} pages kept");
        let (cold, _, kept) = weights(false);
        assert!(cold < count && kept > 0, "{cold} of {count}, {kept} pages kept");
    }
}
