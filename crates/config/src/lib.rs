//! The daemon's configuration: the settings of the TOML file and their defaults.
//!
//! `read` parses the file, `check` validates the values, `load` has the options of a load,
//! `environment` reads variables, `keys` lists the keys and what a reload
//! changes, `paths` has the default paths. `docs/configuration.md` describes every key; a test
//! compares it with the struct.

mod check;
mod environment;
mod keys;
mod load;
mod paths;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use model::synthetic;
use serde::{Deserialize, Serialize};

pub use self::check::check_name;
pub use self::environment::variable_of;
pub use self::keys::{Change, Effect, keys};
pub use self::load::{Backend, CpuIsa, KvType, LoadOptions, named, tokens};
pub use self::paths::{
    COMPILED, client_socket, client_state_dir, client_tune_dir, default_socket, default_tune_dir,
    fallback_folder,
};
use self::paths::{default_models_dir, default_prefix_cache_dir, default_state_dir};
pub use self::read::Error;

/// Settings of the daemon. Keys that are absent from the file have the value of
/// [`Config::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub socket: PathBuf,
    pub socket_mode: SocketMode,
    /// TCP address and port to listen on in addition, such as `127.0.0.1:8080`; empty: none.
    pub listen: String,
    /// File with the token that clients of the port must send; empty: none.
    pub token_file: PathBuf,
    /// Origins of web pages that may send requests, such as `https://chat.example`; `*`: all.
    pub allowed_origins: Vec<String>,
    /// Model to load at start: a GGUF file, `synthetic:NAME`, or empty.
    pub model: String,
    pub models_dir: PathBuf,
    /// Folder below which the ONNX networks lie that requests may name.
    pub network_root: PathBuf,
    /// Processor time to prepare a network that a request names.
    pub network_seconds: u64,
    /// Memory to prepare a network that a request names, beyond its weights.
    pub network_memory_mib: u64,
    pub backend: Backend,
    /// Limit on how much work is submitted to an Orin's GPU at once.
    pub gpu_mode: GpuMode,
    /// Memory that a model leaves free for the rest of the system, if its device shares memory with
    /// it.
    pub memory_reserve_mib: u64,
    /// Worker threads; 0: all allowed cores.
    pub threads: usize,
    pub cpu_isa: CpuIsa,
    pub slots: usize,
    /// Context length of a slot in tokens; 0: the model's own, cut to what fits into memory.
    pub context: usize,
    /// Maximum number of rows in a prefill chunk.
    pub prefill_chunk: usize,
    /// Maximum number of draft tokens; 0: no speculative decoding.
    pub draft_tokens: usize,
    /// Draft model for speculative decoding, or empty.
    pub draft_model: String,
    /// LoRA adapters of the model, each `PATH` or `PATH=SCALE`.
    pub lora: Vec<String>,
    /// Maximum delay of decoding by a prefill chunk in milliseconds; 0: no limit.
    pub stall_ms: u64,
    pub kv_type: KvType,
    /// Precision of GPU matrix products in prompts: in attention, and with F16 or BF16 weights.
    pub prompt_precision: PromptPrecision,
    /// Size of the prefix cache on disk in MiB; 0: none.
    pub prefix_cache_mib: u64,
    /// Directory of the prefix cache.
    pub prefix_cache_dir: PathBuf,
    /// Use of tuned kernels.
    pub tune: Tune,
    pub tune_dir: PathBuf,
    /// Directory of persistent data about the machine.
    pub state_dir: PathBuf,
    /// Describe tools in the system message to models whose chat templates know none; false: refuse
    /// such requests.
    pub generic_tools: bool,
    pub queue_limit: usize,
    pub max_connections: usize,
    /// Maximum size of a request body in bytes.
    pub max_body_bytes: usize,
    /// Time limit in seconds for a request's head, again for its body, and for an idle connection.
    pub request_timeout_s: u64,
    /// Seconds for requests in flight to finish when the daemon stops.
    pub shutdown_deadline_s: u64,
    /// Treatment of the line `x-anthropic-billing-header` in system prompts.
    pub billing_header: BillingHeader,
    pub ioctl_filter: IoctlFilter,
    /// Log level, or directives as in `RUST_LOG`.
    pub log: String,
    pub log_format: LogFormat,
    /// Additional models.
    pub resident: Vec<Resident>,
    /// Control loops.
    pub lane: Vec<ControlLoop>,
}

with_load_options! {
    /// An additional model, which requests select by name. Absent options have the first model's values.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct Resident {
        /// A GGUF file, a name in the models directory, or `synthetic:NAME`.
        pub model: String,
        /// Name in requests. Default: the file's stem.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Time of loading.
        #[serde(default)]
        pub load: LoadAt,
    }
}

/// Time at which an additional model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadAt {
    /// At the daemon's start. The model is never unloaded automatically.
    Start,
    /// At the first request for it. It is unloaded if another such model needs its memory.
    #[default]
    Request,
}

impl Resident {
    /// Name in requests.
    #[must_use]
    pub fn id(&self, models_dir: &Path) -> String {
        let id = || synthetic::default_id(&self.model, models_dir);
        self.name.clone().unwrap_or_else(id)
    }
}

/// A control loop: an ONNX network that a client starts periodically through shared memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlLoop {
    pub name: String,
    /// ONNX file: a path, or a name in the models directory.
    pub network: String,
    /// Steps per second that the client starts.
    #[serde(default = "ControlLoop::default_rate")]
    pub rate_hz: u32,
    /// Time allowed from a start to its answer in microseconds; 0: one period.
    #[serde(default)]
    pub deadline_us: u32,
    /// Any but [`Backend::Auto`].
    #[serde(default = "ControlLoop::default_backend")]
    pub backend: Backend,
    /// Core that its thread is pinned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
    /// Real-time priority of its thread; 0: none.
    #[serde(default)]
    pub priority: u8,
    /// Microseconds that its thread spins for the next start before it sleeps.
    #[serde(default)]
    pub spin_us: u32,
    /// Shapes of inputs that the file leaves open.
    #[serde(default)]
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Value of every element of an input that never changes, such as a sample rate.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fixed: BTreeMap<String, f32>,
    /// Value of every element of an output, for steps that fail or have an output that is not
    /// finite.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub safe: BTreeMap<String, f32>,
}

impl ControlLoop {
    const fn default_rate() -> u32 {
        1000
    }

    const fn default_backend() -> Backend {
        Backend::Cpu
    }

    /// Returns [`Self::deadline_us`], or one period if that is 0.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        match self.deadline_us {
            0 => Duration::from_secs(1) / self.rate_hz.max(1),
            us => Duration::from_micros(us.into()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: default_socket(),
            socket_mode: SocketMode(0o660),
            listen: String::new(),
            token_file: PathBuf::new(),
            allowed_origins: Vec::new(),
            model: String::new(),
            models_dir: default_models_dir(),
            network_root: "/".into(),
            network_seconds: 2,
            network_memory_mib: 64,
            backend: Backend::Auto,
            gpu_mode: GpuMode::Auto,
            memory_reserve_mib: 1024,
            threads: 0,
            cpu_isa: CpuIsa::Auto,
            slots: 4,
            context: 0,
            prefill_chunk: 256,
            draft_tokens: 7,
            draft_model: String::new(),
            lora: Vec::new(),
            stall_ms: 200,
            kv_type: KvType::F16,
            prompt_precision: PromptPrecision::Single,
            prefix_cache_mib: 0,
            prefix_cache_dir: default_prefix_cache_dir(),
            tune: Tune::Load,
            tune_dir: default_tune_dir(),
            state_dir: default_state_dir(),
            generic_tools: true,
            queue_limit: 64,
            max_connections: 256,
            max_body_bytes: 8 << 20,
            request_timeout_s: 30,
            shutdown_deadline_s: 10,
            billing_header: BillingHeader::Strip,
            ioctl_filter: IoctlFilter::Auto,
            log: "info".into(),
            log_format: LogFormat::Text,
            resident: Vec::new(),
            lane: Vec::new(),
        }
    }
}

/// Permission bits of the socket, in octal as for `chmod`: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SocketMode(pub u32);

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match u32::from_str_radix(&text, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(format!("`{text}` is not a mode in octal digits, such as \"0660\"")),
        }
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> Self {
        mode.to_string()
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// Treatment of the line `x-anthropic-billing-header` that Claude Code writes into its system
/// prompt. It differs in every request, so nothing after it would come from the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BillingHeader {
    #[default]
    Strip,
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoctlFilter {
    /// On, unless models may run on CUDA.
    Auto,
    /// On. The start fails if the filter cannot be installed.
    On,
    Off,
}

impl FromStr for IoctlFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err("allowed are auto, on, off".into()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    Text,
    /// One JSON object per line.
    Json,
}

/// Use of tuned kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tune {
    /// Use the heuristics only.
    Off,
    /// Use stored results.
    #[default]
    Load,
    /// As `load`, and search for better kernels while the daemon is idle.
    Auto,
}

/// Number of launches submitted to an Orin's GPU at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuMode {
    /// The default for the device.
    #[default]
    Auto,
    /// A whole step, as far as chains of this length have been proven on the GPU.
    Full,
    /// Chains of 32 launches. Other programs can run between them.
    Split,
    /// One launch.
    Serial,
}

/// Precision of GPU matrix products in prompts: in attention, and with F16 or BF16 weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptPrecision {
    /// Single precision: bit-identical on all devices.
    #[default]
    Single,
    /// Half precision on tensor cores: faster, with different rounding.
    Half,
}

impl Config {
    /// Options of loads that set none of their own.
    #[must_use]
    pub fn options(&self) -> LoadOptions {
        LoadOptions {
            backend: Some(self.backend),
            slots: Some(self.slots),
            context: Some(self.context),
            prefill_chunk: Some(self.prefill_chunk),
            draft_model: Some(self.draft_model.clone()),
            lora: Some(self.lora.clone()),
            kv_type: Some(self.kv_type),
            threads: Some(self.threads),
            cpu_isa: Some(self.cpu_isa),
        }
    }

    /// Replaces those that are set.
    pub fn set_options(&mut self, options: LoadOptions) {
        let options = options.or(self.options());
        self.backend = options.backend.unwrap_or_default();
        self.slots = options.slots.unwrap_or(self.slots);
        self.context = options.context.unwrap_or(self.context);
        self.prefill_chunk = options.prefill_chunk.unwrap_or(self.prefill_chunk);
        self.draft_model = options.draft_model.unwrap_or_default();
        self.lora = options.lora.unwrap_or_default();
        self.kv_type = options.kv_type.unwrap_or_default();
        self.threads = options.threads.unwrap_or(self.threads);
        self.cpu_isa = options.cpu_isa.unwrap_or_default();
    }

    /// Returns the directory of tuned kernels, unless tuning is off.
    pub fn tuned(&self) -> Option<&Path> {
        (self.tune != Tune::Off).then_some(&*self.tune_dir)
    }

    /// Resolves a network's name: a path, or a file in the models directory, with or without
    /// `.onnx`.
    pub fn network(&self, name: &str) -> PathBuf {
        if name.contains('/') {
            return name.into();
        }
        [name.to_owned(), format!("{name}.onnx")]
            .iter()
            .map(|file| self.models_dir.join(file))
            .find(|path| path.is_file())
            .unwrap_or_else(|| name.into())
    }

    /// Returns [`Self::request_timeout_s`] as a duration.
    pub const fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.request_timeout_s)
    }
}
