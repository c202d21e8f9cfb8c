//! What goes over the wire: one type per request, answer and event, for the server and the client.
//!
//! Routes under `/orin/v1` are the daemon's own and refuse unknown fields; the others follow the shapes of
//! their dialects, ignore fields nobody knows and carry a few extensions, each named here.

mod anthropic;
pub mod client;
mod embeddings;
pub mod folder;
mod ollama;
mod openai;
mod prompt;
mod responses;
mod run;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use device::Activity;
use device::tune::Clock;
use device::tune::report::{Mode, Searching};

pub use anthropic::*;
pub use config::LoadAt;
pub use embeddings::*;
pub use engine::{DeviceHealth, DeviceInfo as Device, ModelInfo as Model};
pub use ollama::*;
pub use openai::*;
pub use prompt::Prompt;
pub use responses::*;
pub use run::*;
pub use telemetry::State as Machine;

pub mod route {
    /// `GET`: a page for people.
    pub const PAGE: &str = "/";
    /// `GET`: 200 when a generation would be served, else 503 with the reason.
    pub const HEALTH: &str = "/health";
    /// `GET`: Prometheus text.
    pub const METRICS: &str = "/metrics";
    /// `GET` [`super::Status`].
    pub const STATUS: &str = "/orin/v1/status";
    /// `GET` [`super::Models`]; `POST` [`super::LoadRequest`] answers with events; `DELETE`
    /// answers with [`super::Unloaded`].
    pub const MODELS: &str = "/orin/v1/models";
    /// `DELETE` a model beside the first, by its name; answers with [`super::Unloaded`].
    pub const MODEL: &str = "/orin/v1/models/{*name}";
    /// `POST` a `bench::Spec`, answers with events.
    pub const BENCH: &str = "/orin/v1/bench";
    /// `GET` [`super::Tuned`]; `POST` a `tune::report::Spec` answers with events.
    pub const TUNE: &str = "/orin/v1/tune";
    /// `POST` [`super::RunRequest`], answers with [`super::RunAnswer`].
    pub const RUN: &str = "/orin/v1/run";
    /// `GET` [`super::ModelList`].
    pub const OPENAI_MODELS: &str = "/v1/models";
    /// `GET` [`super::ModelEntry`]; an id may have slashes.
    pub const OPENAI_MODEL: &str = "/v1/models/{*id}";
    /// `POST` [`super::CompletionRequest`].
    pub const COMPLETIONS: &str = "/v1/completions";
    /// `POST` [`super::ChatRequest`].
    pub const CHAT: &str = "/v1/chat/completions";
    /// `POST` [`super::ResponsesRequest`].
    pub const RESPONSES: &str = "/v1/responses";
    /// `POST` [`super::EmbeddingsRequest`].
    pub const EMBEDDINGS: &str = "/v1/embeddings";
    /// `POST` [`super::MessagesRequest`].
    pub const MESSAGES: &str = "/v1/messages";
    /// `POST` [`super::MessagesRequest`].
    pub const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
    /// `POST` [`super::OllamaGenerate`].
    pub const OLLAMA_GENERATE: &str = "/api/generate";
    /// `POST` [`super::OllamaChat`].
    pub const OLLAMA_CHAT: &str = "/api/chat";
    /// `GET`.
    pub const OLLAMA_TAGS: &str = "/api/tags";
    /// `POST` [`super::OllamaShow`].
    pub const OLLAMA_SHOW: &str = "/api/show";
    /// `GET`.
    pub const OLLAMA_VERSION: &str = "/api/version";
    /// `POST` [`super::OllamaEmbed`].
    pub const OLLAMA_EMBED: &str = "/api/embed";
    /// `POST` [`super::TokenizeRequest`].
    pub const TOKENIZE: &str = "/tokenize";
    /// `POST` [`super::DetokenizeRequest`].
    pub const DETOKENIZE: &str = "/detokenize";
    /// `POST` [`super::ChatRequest`].
    pub const APPLY_TEMPLATE: &str = "/apply-template";

    /// Routes that generate.
    pub const GENERATING: [&str; 6] =
        [COMPLETIONS, CHAT, RESPONSES, MESSAGES, OLLAMA_GENERATE, OLLAMA_CHAT];

    /// All routes.
    pub const ALL: [&str; 26] = [
        PAGE,
        HEALTH,
        METRICS,
        STATUS,
        MODELS,
        MODEL,
        BENCH,
        TUNE,
        RUN,
        OPENAI_MODELS,
        OPENAI_MODEL,
        COMPLETIONS,
        CHAT,
        RESPONSES,
        EMBEDDINGS,
        MESSAGES,
        COUNT_TOKENS,
        OLLAMA_GENERATE,
        OLLAMA_CHAT,
        OLLAMA_TAGS,
        OLLAMA_SHOW,
        OLLAMA_VERSION,
        OLLAMA_EMBED,
        TOKENIZE,
        DETOKENIZE,
        APPLY_TEMPLATE,
    ];
}

pub mod event {
    /// Work done so far; any number of them.
    pub const PROGRESS: &str = "progress";
    /// The one final answer.
    pub const RESULT: &str = "result";
    /// In its place, an [`super::ErrorBody`].
    pub const ERROR: &str = "error";
}

/// Body of every answer that is not a success, and of `error` events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// For programs: `queue_full`, `model_not_found`; listed in `docs/api.md`.
    pub code: String,
    /// For people: the thing, the value, the limit.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// OpenAI's coarse class: `invalid_request_error`, `rate_limit_error`, `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The field of the request that is wrong, as a path: `messages[0].role`.
    #[serde(default)]
    pub param: Option<String>,
}

/// Answer of `GET /orin/v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub version: String,
    pub pid: u32,
    pub uptime_s: f64,
    pub state: State,
    pub model: Option<Model>,
    /// Models beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residents: Vec<Resident>,
    /// The load of another model under way, while this one is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading: Option<Loading>,
    pub requests: Requests,
    pub memory: ProcessMemory,
    /// The search in idle time, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searching: Option<Searching>,
    /// Devices of which there is more to tell than that they work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceHealth>,
    #[serde(default)]
    pub machine: Machine,
    /// What decoding is held against; absent while nothing tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roof: Option<Roof>,
    /// Control loops beside the model, in the order of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<realtime::control_loops::Status>,
}

/// A model beside the first one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resident {
    /// What requests call it.
    pub name: String,
    /// When it is loaded: `start`, `request`; absent for one that was loaded by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadAt>,
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    pub requests: Requests,
    /// Seconds since somebody has asked for it.
    pub unused_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loading {
    pub model: String,
    /// Fraction done, 0 to 1.
    pub progress: f64,
}

/// Bytes per second that weights can be read with at best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    pub bytes_per_second: f64,
    /// `bench`, measured by the last one; `memory clock`, what an Orin's pins can move.
    pub source: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum State {
    Empty {
        /// Why the last load failed, if one did.
        last_error: Option<ErrorDetail>,
    },
    Loading {
        model: String,
        /// Fraction done, 0 to 1.
        progress: f64,
    },
    Ready,
    /// A bench or another exclusive task has the device; requests wait.
    Exclusive {
        what: String,
    },
    /// The daemon finishes what is under way and exits.
    Stopping,
}

/// Load and counters since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    pub active: usize,
    /// Generations waiting for a slot.
    pub queued: usize,
    pub queue_limit: usize,
    /// Positions of the KV cache that generations in flight fill, of `slots` x `context`.
    #[serde(default)]
    pub kv_tokens: usize,
    /// Generations finished, whatever the reason.
    pub finished: u64,
    /// Generations accepted that failed.
    pub failed: u64,
    /// Generations that were not accepted: wrong, too long, one too many, or without a model.
    #[serde(default)]
    pub refused: u64,
    /// Prompt tokens evaluated.
    pub prompt_tokens: u64,
    /// Prompt tokens that a slot still held.
    #[serde(default)]
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Steps submitted to the device.
    pub steps: u64,
    /// What the GPU has been asked to do since the model was loaded; absent on a device without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Activity>,
}

/// Memory in bytes; `None` where the system does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Resident set of the daemon now.
    pub resident: Option<u64>,
    /// Its largest resident set so far.
    pub peak_resident: Option<u64>,
    /// What the machine (or the daemon's cgroup) has left.
    pub available: Option<u64>,
}

/// Answer of `GET /orin/v1/models`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Models {
    pub loaded: Option<Model>,
    /// Models beside it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residents: Vec<Resident>,
    /// The directory that `available` files are from.
    pub models_dir: PathBuf,
    /// What there is to load by name, synthetic models last.
    pub available: Vec<Available>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    /// The name for [`LoadRequest::model`].
    pub model: String,
    /// Size of its file or files in bytes; `None` for a synthetic model.
    pub bytes: Option<u64>,
    /// True for seeded random weights.
    pub synthetic: bool,
    /// Why it cannot be loaded; absent where nothing is known against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Answer of `GET /orin/v1/tune`: what the store holds about the loaded model's device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    pub file: PathBuf,
    /// The hardware that it is about.
    pub device: String,
    /// Why nothing of it can be used, if so.
    pub damaged: Option<String>,
    pub entries: Vec<TunedEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedEntry {
    /// The case: family, type, shape.
    pub case: String,
    /// False for an entry that is not used.
    pub current: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub choice: BTreeMap<String, u32>,
    pub heuristic: BTreeMap<String, u32>,
    /// `measured` (nanoseconds) or `counted`.
    pub clock: Clock,
    /// What the best choice costs.
    pub cost: f64,
    /// What the heuristic's does.
    pub heuristic_cost: f64,
    pub when: String,
    pub clocks: String,
    /// Where the candidates came from.
    pub candidates: String,
}

/// Body of `POST /orin/v1/models`. What is not given comes from the daemon's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadRequest {
    /// A path, the name of a file in the models directory, or `synthetic:NAME`.
    pub model: String,
    /// What requests call it, where that is not the file's stem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Beside the models that are there, and not in place of the first one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
    /// One of the backends that `docs/configuration.md` lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Sequences served at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<usize>,
    /// Tokens a slot holds; 0 takes the model's own, at most 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Rows of one prefill chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_chunk: Option<usize>,
    /// A draft model; empty for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// LoRA adapters beside it, each `PATH` or `PATH=SCALE`; none where the list is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Vec<String>>,
    /// What keys and values are stored in: `f16`, `q8_0`, `q4_0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_type: Option<String>,
    /// Worker threads; 0 takes the cores allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Instruction set of the CPU device: `auto`, `amx`, `avx512`, `avx2`, `neon`, `scalar`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_isa: Option<String>,
    /// `off`, `load` or `auto`: what is done with tuned choices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tune: Option<Mode>,
    /// Parameters of kernels set by hand, for every kernel that has them: `threads_per_row`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub force: BTreeMap<String, u32>,
}

impl LoadRequest {
    /// With what `other` says where this one says nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            model: self.model,
            name: self.name.or(other.name),
            beside: self.beside || other.beside,
            backend: self.backend.or(other.backend),
            slots: self.slots.or(other.slots),
            context: self.context.or(other.context),
            prefill_chunk: self.prefill_chunk.or(other.prefill_chunk),
            draft: self.draft.or(other.draft),
            lora: self.lora.or(other.lora),
            kv_type: self.kv_type.or(other.kv_type),
            threads: self.threads.or(other.threads),
            cpu_isa: self.cpu_isa.or(other.cpu_isa),
            tune: self.tune.or(other.tune),
            force: if self.force.is_empty() { other.force } else { self.force },
        }
    }
}

/// A `progress` event of a load. The `result` event is a [`Model`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadProgress {
    /// `synthesise`, `load`, or `unload`: the model served until now has to make room.
    pub phase: String,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Why the other model goes, in phase `unload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Answer of `DELETE /orin/v1/models`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unloaded {
    /// False when nothing was loaded.
    pub unloaded: bool,
}

/// Answer of `DELETE /orin/v1/tune`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Searches that were under way or waiting.
    pub stopped: usize,
}

/// Answer of `GET /health` when all is well; otherwise an [`ErrorBody`] with status 503.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok`.
    pub status: String,
}

/// Body of `POST /tokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct TokenizeRequest {
    #[serde(default)]
    pub model: Option<String>,
    pub content: String,
    /// Put the tokens in front that every text begins with; false where absent.
    #[serde(default)]
    pub add_special: Option<bool>,
    /// Find control tokens by their names; true where absent.
    #[serde(default)]
    pub parse_special: Option<bool>,
    #[serde(default)]
    pub with_pieces: Option<bool>,
}

/// Body of `POST /detokenize`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct DetokenizeRequest {
    #[serde(default)]
    pub model: Option<String>,
    pub tokens: Vec<u32>,
}
