//! Data types of the engine's interface: requests, events, loads, errors and state. No behaviour.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::devices::DeviceHealth;
use super::tuning::Tuning;
use config::{Backend, CpuIsa, KvType};
use device::Activity;
use device::first_light::Mode;
use device::tune::report::{Searching, Used};
use model::MAX_ADAPTERS;
use plan::Precision;
use plan::sample::Sampling;
use sampling::{Constraint, LogitsProcessors};

#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Largest number of tokens to generate; 0 only evaluates the prompt.
    pub max_tokens: u32,
    pub sampling: Sampling,
    /// Logit edits and host samplers, applied before `sampling`.
    pub processors: LogitsProcessors,
    /// Grammar of the answer.
    pub constraint: Option<Constraint>,
    /// Control tokens whose names are part of the text.
    pub shown: Vec<u32>,
    /// Stop texts, which are not part of the answer.
    pub stop: Vec<String>,
    /// Continue behind end-of-sequence tokens, for benchmarks.
    pub ignore_end: bool,
    /// Report the log-probability of each generated token, with this many alternatives.
    pub logprobs: Option<u8>,
    /// Report log-probabilities of the prompt's tokens too, before the first token.
    pub prompt_logprobs: bool,
    /// Scales of the adapters.
    pub adapters: Scales,
    /// Compute the embedding of the prompt, with the pooling of the model; generate nothing.
    pub embed: bool,
}

/// Scale of each of the model's adapters: 0 disables it, 1 is the trained strength.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scales(pub [f32; MAX_ADAPTERS]);

impl Scales {
    /// All adapters disabled.
    pub const NONE: Self = Self([0.0; MAX_ADAPTERS]);
}

/// An adapter to load with a model.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSpec {
    /// GGUF file, or a name in the models directory.
    pub path: String,
    /// Default scale for requests.
    pub scale: f32,
}

impl AdapterSpec {
    /// Parses `PATH`, with a scale of 1, or `PATH=SCALE`.
    #[must_use]
    pub fn written(text: &str) -> Self {
        let scaled = text.rsplit_once('=').and_then(|(path, scale)| {
            let scale = scale.parse().ok().filter(|scale: &f32| scale.is_finite())?;
            Some(Self { path: path.to_owned(), scale })
        });
        scaled.unwrap_or_else(|| Self { path: text.to_owned(), scale: 1.0 })
    }
}

impl Request {
    /// Largest number of alternatives per token.
    pub const MAX_LOGPROBS: u8 = 20;
}

#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    pub id: u32,
    /// Bytes of the token, which may be a part of a UTF-8 sequence.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability, at temperature 1 and before any sampler.
    pub logprob: f32,
}

/// Log-probabilities at one position of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Token at the position. Its `logprob` is NaN for the first token of a prompt, which has no prediction;
    /// then `top` is empty.
    pub token: Logprob,
    /// Most likely tokens, in descending order.
    pub top: Vec<Logprob>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    pub id: u32,
    /// Text that became final with this token: whole UTF-8 sequences that cannot be part of a stop text. May
    /// be empty.
    pub text: String,
    /// Present on request.
    pub logprobs: Option<TokenLogprobs>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// End-of-sequence token.
    End { id: u32 },
    Stop {
        /// Stop text that was found.
        text: String,
    },
    /// The grammar allows no further token.
    Complete,
    /// Limit of `max_tokens` or the context.
    Length,
    /// The client disconnected, or the daemon is stopping.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub reason: FinishReason,
    /// Text that was buffered as a possible part of a stop text.
    pub text: String,
    pub prompt_tokens: u32,
    /// Number of prompt tokens from the cache.
    pub cached_tokens: u32,
    /// Position of the first prompt token that differs from the most similar prompt in the cache; `None` if the prompt
    /// continues that one, or if the cache is empty.
    pub diverged_at: Option<u32>,
    pub completion_tokens: u32,
    /// Number of draft tokens.
    pub drafted_tokens: u32,
    /// Number of accepted draft tokens.
    pub accepted_tokens: u32,
    /// Time from arrival to the start of the prompt's evaluation.
    pub queued: Duration,
    /// Time from arrival to the first token, or to the end of a prompt without answer.
    pub first_token: Duration,
    /// Time from arrival to the end.
    pub total: Duration,
}

/// Event of a request; [`Event::Finished`] or [`Event::Failed`] is the last one.
#[derive(Debug)]
pub enum Event {
    /// Log-probabilities of the prompt, one entry per token.
    Prompt(Vec<TokenLogprobs>),
    /// Embedding of the prompt, of length 1.
    Embedding(Vec<f32>),
    Token(TokenEvent),
    Finished(Finished),
    Failed(GenerateError),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    #[error("no model is loaded; load one with `orinctl load MODEL`")]
    NoModel,
    #[error("{queued} requests are waiting already, the limit is {limit}; try again in {} s", retry_after.as_secs())]
    QueueFull {
        queued: usize,
        limit: usize,
        /// Estimate from recent requests.
        retry_after: Duration,
    },
    #[error(
        "the prompt has {prompt} tokens and {max_tokens} more were asked for, but a slot holds {context}; shorten the prompt, lower max_tokens or load the model with a larger context"
    )]
    TooLong { prompt: usize, max_tokens: u32, context: usize },
    #[error("{field}: {reason}")]
    Invalid {
        field: &'static str,
        /// The problem, and the allowed values.
        reason: String,
    },
    #[error("the engine is stopping or the model is being replaced; try again")]
    Stopping,
    /// Logits with a NaN or an infinity, which yield no token.
    #[error(
        "the logits of {model} for the token at position {position} are not finite: the model's weights, which are, lead to a number that is too large{}",
        gpu.map_or_else(String::new, |gpu| format!(", or the memory of the GPU has a fault; `orinctl parity --devices {gpu}` and `orinctl doctor` tell more"))
    )]
    NotFinite {
        model: String,
        /// Number of tokens of prompt and answer before it.
        position: usize,
        /// Name of the device if it is a GPU.
        gpu: Option<&'static str>,
    },
    /// No token continues the answer within its grammar.
    #[error("the answer cannot be held to its grammar: {0}")]
    Constraint(String),
    #[error("the device failed: {0}")]
    Device(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct LoadSpec {
    /// GGUF file, name in `models_dir`, or `synthetic:NAME`.
    pub model: String,
    /// Name in requests; [`synthetic::default_id`](model::synthetic::default_id) if absent.
    pub name: Option<String>,
    pub models_dir: PathBuf,
    pub backend: Backend,
    /// Number of sequences served at once.
    pub slots: usize,
    /// Context of a slot in tokens; 0 for the model's own, cut to what fits into memory.
    pub context: usize,
    /// Largest number of rows of a prefill chunk.
    pub prefill_chunk: usize,
    /// Largest number of draft tokens; 0 disables drafts.
    pub draft: usize,
    /// Draft model, if any.
    pub draft_model: Option<String>,
    /// Adapters, in the order of their numbers in requests.
    pub adapters: Vec<AdapterSpec>,
    /// Longest delay of decode steps by a chunk of a prompt; zero for no limit.
    pub stall: Duration,
    /// Type of keys and values.
    pub kv_type: KvType,
    /// Precision of prompt matmuls on a GPU.
    pub precision: Precision,
    /// Number of worker threads; 0 for all allowed cores.
    pub threads: usize,
    /// Instruction set of the CPU device.
    pub cpu_isa: CpuIsa,
    pub tuning: Tuning,
    pub light: Light,
    /// Bytes that a GPU with shared memory leaves to the rest of the system.
    pub memory_reserve: u64,
    /// Prefix cache on disk, if any.
    pub prefixes: Option<PrefixStore>,
}

impl Default for LoadSpec {
    /// One slot on one thread, without drafts, adapters, prefix cache and first light.
    fn default() -> Self {
        Self {
            model: String::new(),
            name: None,
            models_dir: PathBuf::new(),
            backend: Backend::Auto,
            slots: 1,
            context: 0,
            prefill_chunk: 256,
            draft: 0,
            draft_model: None,
            adapters: Vec::new(),
            stall: Duration::ZERO,
            kv_type: KvType::F16,
            precision: Precision::Single,
            threads: 1,
            cpu_isa: CpuIsa::Auto,
            tuning: Tuning::default(),
            light: Light::default(),
            memory_reserve: 0,
            prefixes: None,
        }
    }
}

/// Settings of first light.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Light {
    /// State directory. Without one no tests run, and devices use the wanted mode.
    pub dir: Option<PathBuf>,
    /// Highest mode of a device that has modes.
    pub wanted: Mode,
}

/// Directory of the prefix cache on disk, and its size limit in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixStore {
    pub dir: PathBuf,
    pub limit: u64,
}

/// Counters of the prefix cache on disk since the engine started; `bytes` is the current size of all files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    pub read: u64,
    pub written: u64,
    /// Damaged or foreign files.
    pub refused: u64,
    /// Failed writes.
    pub failed: u64,
    pub bytes: u64,
}

/// Progress of a load; [`LoadEvent::Loaded`] or [`LoadEvent::Failed`] is the last event.
#[derive(Clone, Debug)]
pub enum LoadEvent {
    /// Progress of one phase, in bytes.
    Progress {
        /// `synthesise` or `load`.
        phase: &'static str,
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The current model is unloaded first, because memory is too small for both.
    Unloading {
        model: String,
        why: String,
    },
    Loaded(Box<ModelInfo>),
    /// The load failed. The current model stays loaded, unless it was unloaded to make room.
    Failed(LoadError),
}

/// Error of a load, with all its causes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The model does not fit; the message contains the sizes.
    #[error("{0}")]
    OutOfMemory(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Invalid(String),
    /// Another command cancelled the load.
    #[error("the load was given up: {0}")]
    GivenUp(&'static str),
    #[error("the engine is stopping")]
    Stopping,
    #[error("{0}")]
    Device(String),
}

/// Description of a loaded model, as in `/orin/v1/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Name in requests: the stem of the file, `synthetic:NAME`, or the configured name.
    pub id: String,
    /// `general.name`, or the id.
    pub name: String,
    /// `llama`, `qwen3`.
    pub architecture: String,
    /// Dominant weight type, as in llama.cpp's file names: `Q6_K`, `Q4_K_M`.
    pub file_type: String,
    pub path: PathBuf,
    /// True for seeded random weights: useful for measurements only.
    pub synthetic: bool,
    /// Bytes of tensor data.
    pub bytes: u64,
    pub parameters: u64,
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Context of a slot in tokens.
    pub context: usize,
    /// Context that the model was trained with.
    pub trained_context: usize,
    /// Number of sequences served at once.
    pub slots: usize,
    /// Draft model, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// Adapters, in the order of their numbers in requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<AdapterInfo>,
    /// Width of embeddings, if the model computes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<usize>,
    pub device: DeviceInfo,
    pub memory: DeviceMemory,
    /// Tuned choices in use.
    pub tuning: Used,
    /// Bytes of weights that a decode step of one sequence reads.
    #[serde(default)]
    pub step_bytes: u64,
    /// Duration of the load in seconds.
    pub load_s: f64,
}

/// An adapter of a loaded model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdapterInfo {
    /// Stem of the file. A request selects it as `MODEL:NAME`.
    pub name: String,
    pub path: PathBuf,
    /// Default scale for requests.
    pub scale: f32,
}

/// Device of a loaded model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Name, one of the backends that `docs/configuration.md` lists.
    pub name: String,
    /// Description in one line.
    pub description: String,
    /// Reason for its selection.
    pub reason: String,
    pub threads: usize,
}

/// Memory reserved on a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    pub weights: u64,
    pub kv: u64,
    pub activations: u64,
    /// Bytes of machine code in GPU memory, once it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum State {
    #[default]
    Empty,
    /// The first model is loading.
    Loading(Loading),
    Ready(Box<ModelInfo>),
    /// A benchmark or another exclusive task runs.
    Exclusive {
        what: String,
        model: Box<ModelInfo>,
    },
    /// Finishing active requests.
    Stopping,
}

/// A load in progress.
#[derive(Clone, Debug, PartialEq)]
pub struct Loading {
    pub model: String,
    /// Fraction done, 0 to 1.
    pub progress: f64,
}

/// Counters and state at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub state: State,
    /// Load in progress, whether or not another model is served.
    pub loading: Option<Loading>,
    pub active: usize,
    /// Number of requests that wait for a slot.
    pub queued: usize,
    /// Number of positions of the KV cache that active requests occupy.
    pub kv_tokens: usize,
    /// Number of requests finished since start, for any reason.
    pub requests: u64,
    /// Number of accepted requests that failed since start.
    pub failures: u64,
    /// Number of prompt tokens evaluated since start.
    pub prompt_tokens: u64,
    /// Number of prompt tokens from the cache since start.
    pub cached_tokens: u64,
    /// Counters of the prefix cache on disk.
    pub prefixes: PrefixCounts,
    /// Number of tokens generated since start.
    pub completion_tokens: u64,
    /// Number of steps submitted to the device since start.
    pub steps: u64,
    /// Activity of the device since the model was loaded.
    pub activity: Activity,
    pub searching: Option<Searching>,
    pub devices: Vec<DeviceHealth>,
    /// Error that dropped the loaded model, if no client requested it.
    pub given_up: Option<LoadError>,
}
