//! Files of a load: opens the model, its adapters and its draft model, and applies the options that change them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::draft_model;
use super::text::{self, Text};
use super::{AdapterSpec, LoadError, LoadSpec};
use errors::{about, one_line};
use model::gguf::Gguf;
use model::{self, Adapter, AdapterError, KvLayout, Model, synthetic};

const MAX_SLOTS: usize = 256;

/// Opens and checks a model's file without a device.
pub fn inspect(path: &Path) -> Result<(Model, Text), LoadError> {
    interpret(path, Gguf::open(path))
}

/// Like [`inspect`], but does not create the file of a synthetic model.
pub(super) fn outline(spec: &LoadSpec) -> Result<(Model, Text), LoadError> {
    let path = PathBuf::from(&spec.model);
    if !synthetic::is_synthetic(&spec.model) {
        return inspect(&path);
    }
    let outline = synthetic::Spec::parse(&spec.model).and_then(|spec| spec.outline());
    interpret(&path, Ok(outline.map_err(synthetic_error)?))
}

/// `draft_model` that disables draft models and the nextn layer.
const NO_DRAFT: &str = "none";

/// Adds the nextn layer of the model's file, unless another model drafts.
fn with_nextn(model: Model, spec: &LoadSpec) -> Result<Model, LoadError> {
    if spec.draft == 0 || spec.draft_model.is_some() {
        return Ok(model);
    }
    model.with_nextn().map_err(|error| {
        let why = about("the nextn layer", &error);
        LoadError::Invalid(format!("{why}; `draft_model = \"{NO_DRAFT}\"` disables it"))
    })
}

/// Load of the draft model, and its name, if there is one.
pub(super) fn draft(spec: &LoadSpec) -> Option<(LoadSpec, &str)> {
    let name = spec.draft_model.as_deref().filter(|name| *name != NO_DRAFT)?;
    let model = synthetic::resolve(name, &spec.models_dir);
    let alone = LoadSpec { name: None, adapters: Vec::new(), prefixes: None, ..spec.clone() };
    Some((LoadSpec { model, slots: 1, draft: 0, draft_model: None, ..alone }, name))
}

/// Rejects an unsuitable draft model before anything is loaded.
pub(super) fn check_draft(
    spec: &LoadSpec,
    text: &Text,
    find: impl FnOnce(&LoadSpec) -> Result<(Model, Text), LoadError>,
) -> Result<(), LoadError> {
    let Some((spec, name)) = draft(spec) else { return Ok(()) };
    let (ours, text_in_draft) = find(&spec).map_err(|error| in_draft(name, error))?;
    let why = if ours.can_resume_at(2, 1) {
        draft_model::disagreement(&text_in_draft.tokenizer, &text.tokenizer)
    } else {
        Some("its recurrent state cannot rewind after a rejected draft".to_owned())
    };
    why.map_or(Ok(()), |why| Err(in_draft(name, LoadError::Invalid(why))))
}

pub(super) fn in_draft(name: &str, error: LoadError) -> LoadError {
    let located = |why: String| format!("draft model {name}: {why}");
    match error {
        LoadError::OutOfMemory(why) => LoadError::OutOfMemory(located(why)),
        LoadError::NotFound(why) => LoadError::NotFound(located(why)),
        LoadError::Invalid(why) => LoadError::Invalid(located(why)),
        LoadError::Device(why) => LoadError::Device(located(why)),
        error @ (LoadError::GivenUp(_) | LoadError::Stopping) => error,
    }
}

/// Interprets an opened file.
fn interpret(
    path: &Path,
    opened: Result<Gguf, model::gguf::Error>,
) -> Result<(Model, Text), LoadError> {
    let model = opened.map_err(model::Error::from).and_then(Model::from_gguf);
    let model = model.map_err(|e| match e {
        model::Error::Gguf(model::gguf::Error::Open { .. }) => LoadError::NotFound(one_line(&e)),
        e => LoadError::Invalid(about(&path.display().to_string(), &e)),
    })?;
    let text = text::read(path, model.gguf())?;
    Ok((model, text))
}

/// An opened model, without its weights.
pub(super) struct Opened {
    pub(super) model: Model,
    pub(super) text: Arc<Text>,
    pub(super) layout: KvLayout,
}

/// Opens the model of a load. `progress` receives bytes done and in all while a synthetic model is created, and
/// returns false to cancel that.
pub(super) fn open(
    spec: &LoadSpec,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Opened, LoadError> {
    let (model, text) = inspect(&locate(spec, progress)?)?;
    let layout = layout(&model, spec);
    let model = configure(model, spec)?.with_precision(spec.precision);
    Ok(Opened { model, text: Arc::new(text), layout })
}

/// Applies the options of a load that change the model: nextn layer, cache type, adapters.
pub(super) fn configure(model: Model, spec: &LoadSpec) -> Result<Model, LoadError> {
    with_adapters(with_cache_type(with_nextn(model, spec)?, spec)?, spec)
}

/// Sets the type of keys and values.
fn with_cache_type(model: Model, spec: &LoadSpec) -> Result<Model, LoadError> {
    model
        .with_cache_type(spec.kv_type.into())
        .map_err(|error| LoadError::Invalid(format!("kv_type: {error}")))
}

/// Adds the adapters of the load.
fn with_adapters(model: Model, spec: &LoadSpec) -> Result<Model, LoadError> {
    if spec.adapters.is_empty() {
        return Ok(model);
    }
    let mut names: Vec<String> = Vec::new();
    let mut opened = Vec::new();
    for AdapterSpec { path, .. } in &spec.adapters {
        let found = synthetic::resolve(path, &spec.models_dir);
        let adapter = Adapter::open(&found).map_err(|error| in_adapter(path, &error))?;
        let name = adapter_name(&found);
        if names.contains(&name) {
            let why = format!("adapter {path}: duplicate name `{name}`");
            return Err(LoadError::Invalid(why));
        }
        names.push(name);
        opened.push(adapter);
    }
    model.with_adapters(opened).map_err(|error| match error {
        model::Error::Adapter(AdapterError::File { path, defect }) => in_adapter(&path, &defect),
        error => LoadError::Invalid(one_line(&error)),
    })
}

fn in_adapter(path: &str, error: &AdapterError) -> LoadError {
    let why = about(&format!("adapter {path}"), error);
    match error {
        AdapterError::Gguf(model::gguf::Error::Open { .. }) => LoadError::NotFound(why),
        _ => LoadError::Invalid(why),
    }
}

/// Name of an adapter in requests: the stem of its file.
pub(super) fn adapter_name(path: &str) -> String {
    Path::new(path).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Layout of the KV cache with the requested context, or the model's own.
pub(super) fn layout(model: &Model, spec: &LoadSpec) -> KvLayout {
    match spec.context {
        0 => layout_of(spec, model.hyperparameters().context),
        given => layout_of(spec, given),
    }
}

/// Layout of the KV cache with a context.
pub(super) fn layout_of(spec: &LoadSpec, context: usize) -> KvLayout {
    KvLayout { slots: spec.slots, context, ring: Some(spec.prefill_chunk.min(context)) }
}

/// Finds the file of a model by name. Creates a synthetic one that is not cached.
pub(super) fn locate(
    spec: &LoadSpec,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<PathBuf, LoadError> {
    synthetic::locate_while(&spec.model, progress).map_err(synthetic_error)
}

fn synthetic_error(error: synthetic::Error) -> LoadError {
    match error {
        synthetic::Error::Unknown { .. } => LoadError::NotFound(error.to_string()),
        synthetic::Error::Cancelled => LoadError::Stopping,
        error => LoadError::Invalid(one_line(&error)),
    }
}

pub(super) fn check_ranges(spec: &LoadSpec) -> Result<(), LoadError> {
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
