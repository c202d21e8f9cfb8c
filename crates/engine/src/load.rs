//! From a [`LoadSpec`] to a [`Core`]: find the model, choose the device, plan memory, move the weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::backend::{Candidates, Found, Pass};
use super::core::{Core, Entries, Loaded};
use super::drafter::{self, Drafter};
use super::first_light;
use super::handle::Shared;
use super::heartbeat::Heartbeat;
use super::plans;
use super::provenance::Provenance;
use super::tuning;
use super::{
    AdapterInfo, AdapterSpec, DeviceInfo, DeviceMemory, Grammars, Infill, LoadError, LoadSpec,
    ModelInfo,
};
use device::tune::Case;
use device::tune::report::Used;
use device::{self, Device, Footprint, Instance, Request};
use errors::{about, one_line};
use model::gguf::Gguf;
use model::tokenizer::{self, ChatTemplate, Specials, Tokenizer, Vocabulary};
use model::{self, Adapter, AdapterError, KvLayout, Model, mix, synthetic};
use plan::{Buffer, DType, Plan, fuse};
use telemetry::memory;

/// Context of a slot when none is configured and the model allows it.
const DEFAULT_CONTEXT: usize = 4096;
const MAX_SLOTS: usize = 256;

#[derive(Debug)]
pub struct Text {
    pub tokenizer: Arc<Tokenizer>,
    pub chat: ChatTemplate,
    /// Control tokens that tell the parts of an answer apart, with their names.
    pub marks: Vec<(&'static str, u32)>,
    pub grammars: Grammars,
    /// How it is asked for what stands between two texts, if it can be.
    pub infill: Option<Infill>,
}

impl Text {
    /// The control token of that name, if it tells parts of an answer apart.
    pub fn mark(&self, name: &str) -> Option<u32> {
        self.marks.iter().find(|(mark, _)| *mark == name).map(|(_, id)| *id)
    }
}

/// A model that has been opened and checked, but takes no device memory yet.
pub(super) struct Opened {
    spec: LoadSpec,
    started: Instant,
    model: Model,
    text: Arc<Text>,
    layout: KvLayout,
    candidates: Candidates,
    fitted: Fitted,
}

/// A device, and the model's plans in the steps that it knows.
struct Fitted {
    device: Arc<dyn Device>,
    reason: String,
    plans: Vec<Plan>,
}

/// Who is told how a load goes on, who can give it up, and what is loaded beside it.
pub(super) trait Watch: Sync {
    /// Bytes done of one phase, and in all.
    fn progress(&self, phase: &'static str, done: u64, total: u64);

    /// Whether nobody wants the model any more.
    fn is_given_up(&self) -> bool {
        false
    }

    /// Bytes of the memory of `device` that the model loaded now would give back.
    fn beside(&self, _device: &dyn Device) -> u64 {
        0
    }

    /// Has that model unloaded.
    fn make_room(&mut self, _why: &str) -> Result<(), LoadError> {
        unreachable!("nothing is loaded beside")
    }
}

/// Nobody: for the tiny model of first light.
struct Alone<'a>(&'a Shared);

impl Watch for Alone<'_> {
    fn progress(&self, _: &'static str, _: u64, _: u64) {
        self.0.load_beats.beat();
    }
}

/// Opens and checks everything that can be checked before memory is reserved.
pub(super) fn open(
    spec: &LoadSpec,
    shared: &Shared,
    watch: &dyn Watch,
) -> Result<Opened, LoadError> {
    let started = Instant::now();
    check_ranges(spec)?;
    let model = synthetic::resolve(&spec.model, &spec.models_dir);
    let spec = &LoadSpec { model, ..spec.clone() };
    let mut candidates = Candidates::new(spec, shared.devices.disabled_for(&spec.model))?;
    let Read { model, text, layout } = read(spec, watch)?;
    check_draft(spec, &text, |spec| inspect(&locate(spec, watch)?))?;
    let first = candidates.next(&lit(spec, shared))?;
    check_cache(&model, layout, watch.beside(&*first.device))?;
    let fitted = fit(&mut candidates, first, &model, spec, layout, &lit(spec, shared))?;
    Ok(Opened { spec: spec.clone(), started, model, text, candidates, fitted, layout })
}

/// The same for a model that its device has lost. Nothing of it is read from the file again but the weights.
pub(super) fn reopen(lost: Core, shared: &Shared, watch: &dyn Watch) -> Result<Opened, LoadError> {
    let started = Instant::now();
    // Its memory is free before another instance asks for some.
    let Loaded { spec, model, text, layout, .. } = lost.into_loaded();
    let mut candidates = Candidates::new(&spec, shared.devices.disabled_for(&spec.model))?;
    let first = candidates.next(&lit(&spec, shared))?;
    watch.progress("load", 0, model.weight_bytes());
    let fitted = fit(&mut candidates, first, &model, &spec, layout, &lit(&spec, shared))?;
    Ok(Opened { spec, started, model, text, candidates, fitted, layout })
}

/// A model on this device, whatever it has yet to show.
pub(super) fn on(
    device: &Arc<dyn Device>,
    spec: &LoadSpec,
    shared: &Shared,
) -> Result<Core, LoadError> {
    let started = Instant::now();
    let mut watch = Alone(shared);
    let Read { model, text, layout } = read(spec, &watch)?;
    let mut candidates = Candidates::none();
    let found = Found { device: Arc::clone(device), reason: String::new() };
    let fitted = fit(&mut candidates, found, &model, spec, layout, &lit(spec, shared))?;
    let opened = Opened { spec: spec.clone(), started, model, text, candidates, fitted, layout };
    upload(opened, shared, &mut watch)
}

/// What lets a device be used.
fn lit<'a>(
    spec: &'a LoadSpec,
    shared: &'a Shared,
) -> impl Fn(&Arc<dyn Device>) -> Result<Arc<dyn Device>, String> + 'a {
    |device| first_light::pass(device, &spec.light, shared)
}

/// The first device that may be used, whatever is to run there.
pub(super) fn device(spec: &LoadSpec, shared: &Shared) -> Result<Arc<dyn Device>, LoadError> {
    let mut candidates = Candidates::new(spec, shared.devices.disabled_for(&spec.model))?;
    Ok(candidates.next(&lit(spec, shared))?.device)
}

/// What can be known of a model's file without a device: a load begins with it.
pub fn inspect(path: &Path) -> Result<(Model, Text), LoadError> {
    understand(path, Gguf::open(path))
}

/// The same, without making a synthetic model.
fn outline(spec: &LoadSpec) -> Result<(Model, Text), LoadError> {
    let path = PathBuf::from(&spec.model);
    if !synthetic::is_synthetic(&spec.model) {
        return inspect(&path);
    }
    let outline = synthetic::Spec::parse(&spec.model).and_then(|spec| spec.outline());
    understand(&path, Ok(outline.map_err(synthetic_error)?))
}

/// The draft model's name where there is to be none, and no nextn layer either.
const NO_DRAFT: &str = "none";

/// The model with the layer of its file that guesses, where no other model is to.
fn foreseeing(model: Model, spec: &LoadSpec) -> Result<Model, LoadError> {
    if spec.draft == 0 || spec.draft_model.is_some() {
        return Ok(model);
    }
    model.with_nextn().map_err(|error| {
        let told = about("the nextn layer", &error);
        LoadError::Invalid(format!("{told}; with `draft_model = \"{NO_DRAFT}\"` it is left out"))
    })
}

/// What loads the draft model of a load, and its name, if there is one.
fn draft(spec: &LoadSpec) -> Option<(LoadSpec, &str)> {
    let name = spec.draft_model.as_deref().filter(|name| *name != NO_DRAFT)?;
    let model = synthetic::resolve(name, &spec.models_dir);
    let alone = LoadSpec { name: None, adapters: Vec::new(), prefixes: None, ..spec.clone() };
    Some((LoadSpec { model, slots: 1, draft: 0, draft_model: None, ..alone }, name))
}

/// Refuses a draft model that cannot guess for the served one, before anything is loaded.
fn check_draft(
    spec: &LoadSpec,
    text: &Text,
    find: impl FnOnce(&LoadSpec) -> Result<(Model, Text), LoadError>,
) -> Result<(), LoadError> {
    let Some((spec, name)) = draft(spec) else { return Ok(()) };
    let (ours, words) = find(&spec).map_err(|error| of_draft(name, error))?;
    let why = if ours.goes_on(2, 1) {
        drafter::disagreement(&words.tokenizer, &text.tokenizer)
    } else {
        Some("it keeps a state of fixed size, and cannot go back behind a guess".to_owned())
    };
    why.map_or(Ok(()), |why| Err(of_draft(name, LoadError::Invalid(why))))
}

fn of_draft(name: &str, error: LoadError) -> LoadError {
    let told = |why: String| format!("draft model {name}: {why}");
    match error {
        LoadError::OutOfMemory(why) => LoadError::OutOfMemory(told(why)),
        LoadError::NotFound(why) => LoadError::NotFound(told(why)),
        LoadError::Invalid(why) => LoadError::Invalid(told(why)),
        LoadError::Device(why) => LoadError::Device(told(why)),
        error @ (LoadError::GivenUp(_) | LoadError::Stopping) => error,
    }
}

/// What a file says of its model.
fn understand(
    path: &Path,
    opened: Result<Gguf, model::gguf::Error>,
) -> Result<(Model, Text), LoadError> {
    let model = opened.map_err(model::Error::from).and_then(Model::from_gguf);
    let model = model.map_err(|e| match e {
        model::Error::Gguf(model::gguf::Error::Open { .. }) => LoadError::NotFound(one_line(&e)),
        e => LoadError::Invalid(about(&path.display().to_string(), &e)),
    })?;
    let text = read_text(path, model.gguf())?;
    Ok((model, text))
}

/// A model's file, without its weights.
struct Read {
    model: Model,
    text: Arc<Text>,
    layout: KvLayout,
}

fn read(spec: &LoadSpec, watch: &dyn Watch) -> Result<Read, LoadError> {
    let (model, text) = inspect(&locate(spec, watch)?)?;
    let layout = layout(&model, spec);
    let model = adapted(cached(foreseeing(model, spec)?, spec)?, spec)?;
    let model = model.in_precision(spec.precision);
    Ok(Read { model, text: Arc::new(text), layout })
}

/// The model with its keys and values in the type that is asked for.
fn cached(model: Model, spec: &LoadSpec) -> Result<Model, LoadError> {
    let dtype: DType = spec.kv_type.parse().map_err(|_| {
        LoadError::Invalid(format!("kv_type is `{}`; allowed are f16, q8_0, q4_0", spec.kv_type))
    })?;
    model.cached_in(dtype).map_err(|error| LoadError::Invalid(format!("kv_type: {error}")))
}

/// The model with the adapters that are to stand beside it.
fn adapted(model: Model, spec: &LoadSpec) -> Result<Model, LoadError> {
    if spec.adapters.is_empty() {
        return Ok(model);
    }
    let mut names: Vec<String> = Vec::new();
    let mut opened = Vec::new();
    for AdapterSpec { path, .. } in &spec.adapters {
        let found = synthetic::resolve(path, &spec.models_dir);
        let adapter = Adapter::open(&found).map_err(|error| of_adapter(path, &error))?;
        let name = adapter_name(&found);
        if names.contains(&name) {
            let told = format!("adapter {path}: another one has the name `{name}` already");
            return Err(LoadError::Invalid(told));
        }
        names.push(name);
        opened.push(adapter);
    }
    model.with_adapters(opened).map_err(|error| match error {
        model::Error::Adapter(AdapterError::Of { path, defect }) => of_adapter(&path, &defect),
        error => LoadError::Invalid(one_line(&error)),
    })
}

fn of_adapter(path: &str, error: &AdapterError) -> LoadError {
    let told = about(&format!("adapter {path}"), error);
    match error {
        AdapterError::Gguf(model::gguf::Error::Open { .. }) => LoadError::NotFound(told),
        _ => LoadError::Invalid(told),
    }
}

/// What requests call it.
fn adapter_name(path: &str) -> String {
    Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn layout(model: &Model, spec: &LoadSpec) -> KvLayout {
    let trained = model.hyperparameters().context;
    let context = match spec.context {
        0 => trained.min(DEFAULT_CONTEXT),
        given => given,
    };
    KvLayout { slots: spec.slots, context, ring: Some(spec.prefill_chunk.min(context)) }
}

/// Does all that a load does before it reserves memory and reads weights: what it gives is what the load would
/// give, on the machine as it is now. Nothing is run on a device, and a synthetic model is not made.
///
/// # Errors
/// Those of the load.
pub fn check(spec: &LoadSpec) -> Result<ModelInfo, LoadError> {
    check_ranges(spec)?;
    let name = synthetic::resolve(&spec.model, &spec.models_dir);
    let spec = &LoadSpec { model: name, ..spec.clone() };
    let (model, text) = outline(spec)?;
    check_draft(spec, &text, outline)?;
    let layout = layout(&model, spec);
    let model = adapted(cached(foreseeing(model, spec)?, spec)?, spec)?;
    let mut candidates = Candidates::new(spec, Vec::new())?;
    let may = |device: &Arc<dyn Device>| first_light::may_be_used(device, &spec.light);
    let mut found = candidates.next(&may)?;
    check_cache(&model, layout, 0)?;
    let weights: Vec<Buffer> = model.weights().cloned().collect();
    loop {
        let Fitted { device, reason, plans } =
            fit(&mut candidates, found, &model, spec, layout, &may)?;
        let states = model.states(layout);
        let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
        match has_room(&*device, &request, spec.memory_reserve) {
            Ok(footprint) => {
                return Ok(describe(spec, &model, &*device, reason, layout, footprint));
            }
            Err(error) if candidates.has_more() => {
                candidates.refuse(device.info().name, &one_line(&error));
                found = candidates.next(&may)?;
            }
            Err(error) => return Err(device_error(error)),
        }
    }
}

/// The memory that a model takes, where there is as much.
fn has_room(
    device: &dyn Device,
    request: &Request<'_>,
    reserve: u64,
) -> Result<Footprint, device::Error> {
    leave(device, request, reserve, false)?;
    let footprint = device.footprint(request)?;
    // A driver that does not tell is asked for it when the model is loaded.
    let free = device.gpu_memory().or_else(device::available).filter(|free| *free > 0);
    footprint.fits(free.unwrap_or(u64::MAX))?;
    Ok(footprint)
}

/// Plans for the first device from `found` on that can run the model.
fn fit(
    candidates: &mut Candidates,
    mut found: Found,
    model: &Model,
    spec: &LoadSpec,
    layout: KvLayout,
    pass: Pass<'_>,
) -> Result<Fitted, LoadError> {
    let chunk = spec.prefill_chunk.min(layout.context);
    let weights: Vec<Buffer> = model.weights().cloned().collect();
    loop {
        let Found { device, reason } = found;
        let states = model.states(layout);
        let plans = plans::all(model, layout, chunk, device.skips_padding())
            .map_err(|e| LoadError::Invalid(one_line(&e)))?;
        let plans: Vec<Plan> = plans.iter().map(|plan| fuse(plan, device.fusions())).collect();
        let request = Request { weights: &weights, states: &states, plans: &plans, choices: None };
        match device.footprint(&request) {
            Err(error) if candidates.has_more() => {
                candidates.refuse(device.info().name, &one_line(&error));
                found = candidates.next(pass)?;
            }
            Err(error) => return Err(device_error(error)),
            Ok(_) => return Ok(Fitted { device, reason, plans }),
        }
    }
}

/// Brings a model onto its device, beside what is loaded where there is room for both.
pub(super) fn upload(
    opened: Opened,
    shared: &Shared,
    watch: &mut dyn Watch,
) -> Result<Core, LoadError> {
    let Opened { spec, started, model, text, mut candidates, mut fitted, layout } = opened;
    let ready = loop {
        let beside = watch.beside(&*fitted.device);
        match bring_up(&mut fitted, &model, &spec, layout, watch, &shared.load_beats) {
            Ok(ready) => break ready,
            Err(_) if watch.is_given_up() => return Err(LoadError::Stopping),
            Err(device::Error::OutOfMemory { what, need, have })
                if beside > 0 && need <= have.saturating_add(beside) =>
            {
                watch.make_room(&format!(
                    "{what}: {} are needed, {} free",
                    mib(need),
                    mib(have)
                ))?;
                let Fitted { device, reason, .. } = fitted;
                let found = Found { device, reason };
                fitted = fit(
                    &mut Candidates::none(),
                    found,
                    &model,
                    &spec,
                    layout,
                    &lit(&spec, shared),
                )?;
            }
            // The next device would read the same file.
            Err(error @ device::Error::Weight { .. }) => return Err(device_error(error)),
            // Too small, in use by others, or lost.
            Err(error) if candidates.has_more() => {
                candidates.refuse(fitted.device.info().name, &one_line(&error));
                let next = candidates.next(&lit(&spec, shared))?;
                fitted = fit(&mut candidates, next, &model, &spec, layout, &lit(&spec, shared))?;
            }
            Err(error) => return Err(device_error(error)),
        }
    };
    let Ready { instance, entries, cases, used, provenance } = ready;
    let Fitted { device, reason, .. } = fitted;
    let footprint = instance.footprint();
    let mut info =
        ModelInfo { tuning: used, ..describe(&spec, &model, &*device, reason, layout, footprint) };
    info.memory.code = instance.code();
    let heartbeat = shared.heartbeat.clone();
    let loaded =
        Loaded { info, text, model, device, instance, layout, heartbeat, cases, spec, provenance };
    let mut core = Core::new(loaded, entries);
    if let Some((draft, name)) = draft(core.spec()) {
        let draft = LoadSpec { context: core.context(), ..draft };
        let device = Arc::clone(core.device_of());
        let loaded = on(&device, &draft, shared).map_err(|error| of_draft(name, error))?;
        core.draft_with(Drafter::new(loaded));
    }
    core.finish_load(started.elapsed()).map_err(device_error)?;
    Ok(core)
}

/// What a device has of a model when it can run it.
struct Ready {
    instance: Box<dyn Instance>,
    entries: Entries,
    cases: Vec<Case>,
    used: Used,
    provenance: Provenance,
}

/// Reserves memory, moves the weights, prepares the plans.
fn bring_up(
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
    leave(&**device, &request, spec.memory_reserve, watch.beside(&**device) > 0)?;
    let mut instance = device.open(&Request { choices: Some(&choices), ..request })?;
    if let Some(dir) = &spec.light.dir {
        instance.keep_faults(dir);
    }
    let crowded = crowds(model.weight_bytes(), memory::available());
    move_weights(&mut *instance, model, watch, crowded)?;
    let entries = Entries::prepare(&mut *instance, std::mem::take(plans), heartbeat)?;
    Ok(Ready { instance, entries, cases, used, provenance })
}

/// Reads the weights from their file onto the device. Where it is `crowded`, what the system keeps of the file is let go
/// after each.
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
            if watch.is_given_up() {
                return Err("the load was given up".into());
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

/// Whether there is no room for weights beside their file: then the file's pages are let go as they have been read,
/// since the system would have to make room for weights by dropping others.
fn crowds(weights: u64, available: Option<u64>) -> bool {
    available.is_some_and(|available| weights.saturating_mul(2) > available)
}

/// Refuses what would leave the rest of the system less memory than the reserve. The CPU's pages can be
/// swapped: there it is asked for only where another model could make room.
fn leave(
    device: &dyn Device,
    request: &Request<'_>,
    reserve: u64,
    beside: bool,
) -> Result<(), device::Error> {
    let free = match device.gpu_memory() {
        Some(free) if free > 0 && device.shares_memory() => {
            free.saturating_sub(device::cpu::promised())
        }
        None if beside => device::available().unwrap_or(u64::MAX),
        _ => return Ok(()),
    };
    let fits = device.footprint(request)?.fits(free.saturating_sub(reserve));
    fits.map_err(|error| match error {
        device::Error::OutOfMemory { what, need, have } => {
            let what = format!("{what}, beside memory_reserve_mib = {}", reserve >> 20);
            let have = if device.gpu_memory().is_some() { have } else { free };
            device::Error::OutOfMemory { what, need, have }
        }
        other => other,
    })
}

fn check_ranges(spec: &LoadSpec) -> Result<(), LoadError> {
    let range = |name: &str, value: usize, low: usize, high: usize| {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        Err(LoadError::Invalid(format!("{name} is {value}, {low} to {high} are possible")))
    };
    range("slots", spec.slots, 1, MAX_SLOTS)?;
    range("prefill_chunk", spec.prefill_chunk, 2, 4096)?;
    range("threads", spec.threads, 0, 1024)?;
    if spec.context != 0 {
        range("context", spec.context, 16, 1 << 24)?;
    }
    Ok(())
}

/// The KV cache alone must fit, before anything is built for it; `beside` bytes can be given back.
fn check_cache(model: &Model, layout: KvLayout, beside: u64) -> Result<(), LoadError> {
    let layers = model.hyperparameters().caches().count().max(1);
    let per_layer = model.state_bytes_per_token() / (2 * layers as u64);
    let have = device::available().unwrap_or(u64::MAX).saturating_add(beside);
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
            "{arithmetic} = {} are needed, {} are available; lower `context` or `slots`",
            mib(need),
            mib(have)
        ))),
        None => Err(LoadError::OutOfMemory(format!(
            "{arithmetic} is more than any memory; lower `context` or `slots`"
        ))),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// The file behind a model's name; synthetic ones are made when they are not cached.
fn locate(spec: &LoadSpec, watch: &dyn Watch) -> Result<PathBuf, LoadError> {
    let mut progress = |done, total| watch.progress("synthesise", done, total);
    synthetic::locate(&spec.model, &mut progress).map_err(synthetic_error)
}

fn synthetic_error(error: synthetic::Error) -> LoadError {
    match error {
        synthetic::Error::Unknown { .. } => LoadError::NotFound(error.to_string()),
        error => LoadError::Invalid(one_line(&error)),
    }
}

/// Whether another file could do better.
const fn is_the_files(error: &tokenizer::Error) -> bool {
    !matches!(error, tokenizer::Error::TemplateThread(_))
}

fn read_text(path: &Path, gguf: &Gguf) -> Result<Text, LoadError> {
    let said = |error: &dyn std::error::Error| about(&path.display().to_string(), error);
    let vocabulary = Vocabulary::from_metadata(gguf.metadata())
        .map_err(|error| LoadError::Invalid(said(&error)))?;
    let chat = ChatTemplate::new(&vocabulary).map_err(|error| match is_the_files(&error) {
        true => LoadError::Invalid(said(&error)),
        false => LoadError::OutOfMemory(said(&error)),
    })?;
    let tokenizer = Tokenizer::new(vocabulary).map_err(|error| LoadError::Invalid(said(&error)))?;
    let tokenizer = Arc::new(tokenizer);
    let mark = |name: &'static str| match *tokenizer.encode(name, Specials::Parse, false).ok()? {
        [id] => tokenizer.is_control(id).then_some((name, id)),
        _ => None,
    };
    let marks = chat.format().marks().filter_map(mark).collect();
    let grammars = Grammars::new(Arc::clone(&tokenizer));
    let infill = Infill::of(gguf, &tokenizer)
        .map_err(|why| LoadError::Invalid(format!("{}: {why}", path.display())))?;
    Ok(Text { tokenizer, chat, marks, grammars, infill })
}

fn describe(
    spec: &LoadSpec,
    model: &Model,
    device: &dyn Device,
    reason: String,
    layout: KvLayout,
    footprint: Footprint,
) -> ModelInfo {
    let gguf = model.gguf();
    let synthetic = synthetic::is_synthetic(&spec.model);
    let id = || synthetic::id_of(&spec.model, &spec.models_dir);
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

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands it over")]
fn device_error(error: device::Error) -> LoadError {
    match &error {
        device::Error::OutOfMemory { what, need, have } => LoadError::OutOfMemory(format!(
            "{what}: {} are needed, {} are available; lower `context` or `slots`, or take a smaller model",
            mib(*need),
            mib(*have)
        )),
        // The file is not what it was, or never was.
        device::Error::Weight { source, .. } if source.is::<model::Error>() => {
            LoadError::Invalid(one_line(&error))
        }
        _ => LoadError::Device(one_line(&error)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroUsize;

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
            unreachable!("it is asked before")
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
    fn a_gpu_that_shares_memory_leaves_some_of_it() {
        let request = Request { weights: &[], states: &[], plans: &[], choices: None };
        let leave =
            |shares, mib: u64| leave(&Gpu { name: "cuda", shares }, &request, mib << 20, false);
        assert!(leave(true, 1024).is_ok() && leave(false, 4096).is_ok());
        let told = device_error(leave(true, 1025).unwrap_err()).to_string();
        assert!(
            told.contains("memory_reserve_mib = 1025") && told.contains("2047.0 MiB"),
            "{told}"
        );
        assert!(leave(true, 4096).is_err(), "more than there is");
    }

    #[test]
    fn a_file_is_kept_in_memory_where_there_is_room_for_it_beside_its_weights() {
        let gib = |n: u64| n << 30;
        assert!(crowds(gib(20), Some(gib(30))) && crowds(u64::MAX, Some(gib(30))));
        assert!(!crowds(gib(14), Some(gib(30))) && !crowds(gib(20), None));
    }

    /// How much of a file is in memory before each read of a weight.
    struct Residents<'a>(&'a Path, Mutex<Vec<usize>>);

    impl Watch for Residents<'_> {
        fn progress(&self, _: &'static str, _: u64, _: u64) {}

        fn is_given_up(&self) -> bool {
            self.1.lock().push(resident(self.0, usize::MAX));
            false
        }
    }

    #[test]
    fn where_it_is_crowded_no_weight_is_read_while_the_file_of_another_is_in_memory() {
        // Beside this program, since the folder for temporary files may be in memory.
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

    #[test]
    fn a_lack_of_threads_is_no_fault_of_the_file() {
        let none = std::io::Error::from_raw_os_error(libc::EAGAIN);
        assert!(!is_the_files(&tokenizer::Error::TemplateThread(none)));
        assert!(is_the_files(&tokenizer::Error::TemplateLength { bytes: 2, limit: 1 }));
    }
}
