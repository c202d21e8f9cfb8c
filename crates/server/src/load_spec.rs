//! Conversion of load requests and the configuration to the engine's [`LoadSpec`].

use std::time::Duration;

use config::{Config, GpuMode, PromptPrecision, Tune};
use device::first_light::{Chains, Mode};
use engine::tuning::Tuning;
use engine::{AdapterSpec, Light, LoadSpec, PrefixStore, at_most_processors};
use plan::Precision;

/// Merges a request with the configuration's defaults.
pub fn load_spec(config: &Config, request: api::LoadRequest) -> LoadSpec {
    let options = request.options().or(config.options());
    let adapters = options.lora.unwrap_or_default();
    LoadSpec {
        model: request.model,
        name: request.name,
        models_dir: config.models_dir.clone(),
        backend: options.backend.unwrap_or_default(),
        slots: options.slots.unwrap_or(config.slots),
        context: options.context.unwrap_or(config.context),
        prefill_chunk: options.prefill_chunk.unwrap_or(config.prefill_chunk),
        draft: config.draft_tokens,
        draft_model: options.draft_model.filter(|model| !model.is_empty()),
        adapters: adapters.iter().map(|text| AdapterSpec::written(text)).collect(),
        stall: Duration::from_millis(config.stall_ms),
        kv_type: options.kv_type.unwrap_or_default(),
        precision: match config.prompt_precision {
            PromptPrecision::Single => Precision::Single,
            PromptPrecision::Half => Precision::Half,
        },
        threads: at_most_processors(options.threads.unwrap_or(config.threads)),
        cpu_isa: options.cpu_isa.unwrap_or_default(),
        tuning: Tuning {
            mode: request.tune.unwrap_or_else(|| tune_mode(config.tune)),
            dir: config.tune_dir.clone(),
            force: request.force,
            cold_bytes: None,
        },
        light: Light { dir: Some(config.state_dir.clone()), wanted: gpu_mode(config.gpu_mode) },
        memory_reserve: config.memory_reserve_mib << 20,
        prefixes: (config.prefix_cache_mib > 0).then(|| PrefixStore {
            dir: config.prefix_cache_dir.clone(),
            limit: config.prefix_cache_mib << 20,
        }),
    }
}

/// Converts the configuration's tuning mode to the device's type.
const fn tune_mode(tune: Tune) -> device::tune::report::Mode {
    use device::tune::report::Mode;
    match tune {
        Tune::Off => Mode::Off,
        Tune::Load => Mode::Load,
        Tune::Auto => Mode::Auto,
    }
}

/// Converts the configuration's GPU mode to the device's type.
pub(super) fn gpu_mode(mode: GpuMode) -> Mode {
    let (chains, longest) = match mode {
        GpuMode::Auto => return Mode::default(),
        GpuMode::Full => (Chains::Full, u32::MAX),
        GpuMode::Split => (Chains::Split, Mode::default().longest),
        GpuMode::Serial => (Chains::Serial, 1),
    };
    Mode { chains, longest, ..Mode::default() }
}
