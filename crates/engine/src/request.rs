//! What goes into the engine and what comes out: plain types, no behaviour.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::devices::DeviceHealth;
use super::tuning::Tuning;
use device::Activity;
use device::first_light::Mode;
use device::tune::report::{Searching, Used};
use model::MAX_ADAPTERS;
use plan::Precision;
use plan::sample::Sampling;
use sampling::{Constraint, LogitsProcessors};

#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt's token ids; at least one.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; 0 only evaluates the prompt.
    pub max_tokens: u32,
    pub sampling: Sampling,
    /// Logit edits and host samplers, applied before `sampling`.
    pub processors: LogitsProcessors,
    /// Grammar of the answer.
    pub constraint: Option<Constraint>,
    /// Control tokens whose names are part of the text.
    pub shown: Vec<u32>,
    /// Texts that end the generation; they are not part of the answer.
    pub stop: Vec<String>,
    /// Generate on past end-of-generation tokens (benchmarks).
    pub ignore_end: bool,
    /// Report the log-probability of each generated token, with this many alternatives.
    pub logprobs: Option<u8>,
    /// Report log-probabilities of the prompt's tokens too, before the first token.
    pub prompt_logprobs: bool,
    /// What it takes of the model's adapters.
    pub adapters: Scales,
    /// Give the prompt's embedding, as the model's file says that it is made; nothing is generated.
    pub embed: bool,
}

/// How much of each of a model's adapters takes part in what a request computes: 0 for nothing, 1 for as much as it was
/// trained with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scales(pub [f32; MAX_ADAPTERS]);

impl Scales {
    /// Of no adapter anything.
    pub const NONE: Self = Self([0.0; MAX_ADAPTERS]);
}

/// An adapter that is to be loaded beside a model.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSpec {
    /// A GGUF file, or a name in the directory of the models.
    pub path: String,
    /// What requests take of it that do not choose.
    pub scale: f32,
}

impl AdapterSpec {
    /// `PATH`, with a scale of 1, or `PATH=SCALE`.
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
    /// Most alternatives reported per token.
    pub const MAX_LOGPROBS: u8 = 20;
}

#[derive(Clone, Debug, PartialEq)]
pub struct Logprob {
    pub id: u32,
    /// The token's bytes, which need not be UTF-8 on their own.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability (temperature 1, before any cut).
    pub logprob: f32,
}

/// Log-probabilities at one place of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token that stands there. Its `logprob` is NaN for a prompt's first token, which nothing
    /// predicts; then `top` is empty.
    pub token: Logprob,
    /// The most likely ones, most likely first.
    pub top: Vec<Logprob>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    pub id: u32,
    /// Text that became final with it: whole UTF-8 sequences, nothing that may yet turn out to be
    /// part of a stop text. May be empty.
    pub text: String,
    /// When asked for.
    pub logprobs: Option<TokenLogprobs>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation token.
    End { id: u32 },
    Stop {
        /// The request's stop text that was found.
        text: String,
    },
    /// The answer is complete: its grammar allows nothing more.
    Complete,
    /// `max_tokens`, or the end of the slot's context.
    Length,
    /// The client went away or the daemon is stopping.
    Cancelled,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    pub reason: FinishReason,
    /// Text held back until now.
    pub text: String,
    pub prompt_tokens: u32,
    /// Of these, the ones whose keys and values a slot still held.
    pub cached_tokens: u32,
    pub completion_tokens: u32,
    /// Tokens that were guessed, and evaluated in the step of the token before them.
    pub drafted_tokens: u32,
    /// Of these, the ones that came true: tokens of the answer.
    pub accepted_tokens: u32,
    /// From arrival to the start of the prompt's evaluation.
    pub queued: Duration,
    /// From arrival to the first token (or to the end of the prompt when none was asked for).
    pub first_token: Duration,
    /// From arrival to the end.
    pub total: Duration,
}

/// What the engine reports about a request; [`Event::Finished`] or [`Event::Failed`] is the last.
#[derive(Debug)]
pub enum Event {
    /// The prompt's log-probabilities, one entry per prompt token.
    Prompt(Vec<TokenLogprobs>),
    /// The prompt's embedding, of length 1.
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
        /// A guess from recent requests.
        retry_after: Duration,
    },
    #[error(
        "the prompt has {prompt} tokens and {max_tokens} more were asked for, but a slot holds {context}; shorten the prompt, lower max_tokens or load the model with a larger context"
    )]
    TooLong { prompt: usize, max_tokens: u32, context: usize },
    #[error("{field}: {reason}")]
    Invalid {
        field: &'static str,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    #[error("the engine is stopping or the model is being replaced; try again")]
    Stopping,
    /// Logits with a NaN or an infinity, from which no token follows.
    #[error(
        "the logits of {model} for the token at position {position} are not finite: the model's weights, which are, lead to a number that is too large{}",
        gpu.map_or_else(String::new, |gpu| format!(", or the memory of the GPU has a fault; `orinctl parity --devices {gpu}` and `orinctl doctor` tell more"))
    )]
    NotFinite {
        model: String,
        /// Tokens of prompt and answer before it.
        position: usize,
        /// The device, if it is one.
        gpu: Option<&'static str>,
    },
    /// The answer cannot go on within its grammar.
    #[error("the answer cannot be held to its grammar: {0}")]
    Constraint(String),
    #[error("the device failed: {0}")]
    Device(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct LoadSpec {
    /// A GGUF file, a name in `models_dir`, or `synthetic:NAME`.
    pub model: String,
    /// What requests call it, where that is not what [`synthetic::id_of`](model::synthetic::id_of) says.
    pub name: Option<String>,
    pub models_dir: PathBuf,
    /// `auto`, or a name of [`device::NAMES`].
    pub backend: String,
    /// Sequences served at once.
    pub slots: usize,
    /// Tokens a slot holds; 0 takes the model's own, at most 4096.
    pub context: usize,
    /// Rows of one prefill chunk.
    pub prefill_chunk: usize,
    /// The most tokens that are guessed, 0 for none.
    pub draft: usize,
    /// A model that guesses as well, if any; loaded beside this one.
    pub draft_model: Option<String>,
    /// Adapters beside it, in the order in which requests number them.
    pub adapters: Vec<AdapterSpec>,
    /// How long a chunk of a prompt may hold up those who decode; without a bound where it is zero.
    pub stall: Duration,
    /// What keys and values are stored in: `f16`, `q8_0` or `q4_0`.
    pub kv_type: String,
    /// What a GPU may multiply prompts in.
    pub precision: Precision,
    /// Worker threads; 0 takes the cores allowed.
    pub threads: usize,
    /// Instruction set of the CPU device: `auto` takes the best one, others by their names.
    pub cpu_isa: String,
    pub tuning: Tuning,
    pub light: Light,
    /// Bytes left to the rest of the system by a GPU that shares its memory.
    pub memory_reserve: u64,
    /// Where beginnings of conversations are kept from one start to the next, if anywhere.
    pub prefixes: Option<PrefixStore>,
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

/// Progress of a load. After [`LoadEvent::Loaded`] or [`LoadEvent::Failed`] nothing follows.
#[derive(Clone, Debug)]
pub enum LoadEvent {
    /// Work done of one phase, in bytes.
    Progress {
        /// `synthesise` or `load`.
        phase: &'static str,
        /// Bytes done.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// The model loaded until now has to go before there is room for this one.
    Unloading {
        model: String,
        why: String,
    },
    Loaded(Box<ModelInfo>),
    /// It is not; what was loaded before is still there unless it had to make room.
    Failed(LoadError),
}

/// Why a model cannot be loaded, as a whole chain of messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It does not fit; the arithmetic is in the message.
    #[error("{0}")]
    OutOfMemory(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Invalid(String),
    /// Something else was asked for before it was done.
    #[error("the load was given up: {0}")]
    GivenUp(&'static str),
    #[error("the engine is stopping")]
    Stopping,
    #[error("{0}")]
    Device(String),
}

/// A loaded model, as `/orin/v1/status` shows it too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// What requests call it: the file's stem, `synthetic:NAME`, or the name that it was given.
    pub id: String,
    /// `general.name`, or the id.
    pub name: String,
    /// `llama`, `qwen3`.
    pub architecture: String,
    /// The dominant weight type, as llama.cpp names files: `Q6_K`, `Q4_K_M`.
    pub file_type: String,
    pub path: PathBuf,
    /// True for seeded random weights: fit for measuring, not for reading.
    pub synthetic: bool,
    /// Bytes of tensor data.
    pub bytes: u64,
    pub parameters: u64,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// Tokens a slot holds.
    pub context: usize,
    /// Tokens the model was trained for.
    pub trained_context: usize,
    /// Sequences served at once.
    pub slots: usize,
    /// The model that guesses what this one will say, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// Adapters beside it, in the order in which requests number them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<AdapterInfo>,
    /// Numbers of an embedding, if it makes any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<usize>,
    pub device: DeviceInfo,
    pub memory: DeviceMemory,
    /// Which tuned choices it runs under.
    pub tuning: Used,
    /// Bytes of weights that a decode step of one sequence reads.
    #[serde(default)]
    pub step_bytes: u64,
    /// Seconds that loading took.
    pub load_s: f64,
}

/// An adapter beside a loaded model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdapterInfo {
    /// The file's stem: behind the model's id and a colon it is what a request names.
    pub name: String,
    pub path: PathBuf,
    /// What requests take of it that do not choose.
    pub scale: f32,
}

/// The device that a model is on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its name among the backends that `docs/configuration.md` lists.
    pub name: String,
    /// The device in one line.
    pub description: String,
    /// Why it was chosen.
    pub reason: String,
    pub threads: usize,
}

/// Memory reserved on a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    pub weights: u64,
    pub kv: u64,
    pub activations: u64,
    /// Machine code in a GPU's memory, once it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum State {
    #[default]
    Empty,
    /// Nothing is loaded, but will be.
    Loading(Loading),
    Ready(Box<ModelInfo>),
    /// A bench or another exclusive task runs.
    Exclusive {
        what: String,
        model: Box<ModelInfo>,
    },
    /// Finishing what is under way.
    Stopping,
}

/// A load under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Loading {
    pub model: String,
    /// Fraction done, 0 to 1.
    pub progress: f64,
}

/// Counters and state at one moment; cheap to take from any thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    pub state: State,
    /// The load under way, whether another model is served meanwhile or not.
    pub loading: Option<Loading>,
    pub active: usize,
    /// Requests waiting for a slot.
    pub queued: usize,
    /// Positions of the KV cache that the requests being served fill.
    pub kv_tokens: usize,
    /// Requests finished since start, whatever the reason.
    pub requests: u64,
    /// Requests accepted that failed since start.
    pub failures: u64,
    /// Prompt tokens evaluated since start.
    pub prompt_tokens: u64,
    /// Prompt tokens since start that needed not be evaluated.
    pub cached_tokens: u64,
    /// What has become of prefixes on disk.
    pub prefixes: PrefixCounts,
    /// Tokens generated since start.
    pub completion_tokens: u64,
    /// Steps submitted to the device since start.
    pub steps: u64,
    /// What the device has asked of its hardware since the model was loaded.
    pub activity: Activity,
    pub searching: Option<Searching>,
    pub devices: Vec<DeviceHealth>,
    /// Why a model that was loaded is not any more, where nobody asked for that.
    pub given_up: Option<LoadError>,
}
