//! Types of the HTTP API: one per request, answer and event, for server and client.
//!
//! Routes under `/orin/v1` are orind's own and reject unknown fields. The other routes follow their
//! dialects (OpenAI, Anthropic, ollama, llama.cpp), ignore unknown fields, and have a few
//! extensions, which are marked.

mod anthropic;
pub mod client;
mod embeddings;
pub mod folder;
mod infill;
mod lenient;
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
pub use infill::*;
pub use ollama::*;
pub use openai::*;
pub use prompt::Prompt;
pub use responses::*;
pub use run::*;
pub use telemetry::State as Machine;

pub mod route {
    /// `GET`: the web page.
    pub const PAGE: &str = "/";
    /// `GET`: 200 if the daemon can serve requests, else 503 with the reason.
    pub const HEALTH: &str = "/health";
    /// `GET`: Prometheus text.
    pub const METRICS: &str = "/metrics";
    /// `GET` [`super::Status`].
    pub const STATUS: &str = "/orin/v1/status";
    /// `GET` [`super::Models`]; `POST` [`super::LoadRequest`] is answered with events; `DELETE`
    /// with [`super::Unloaded`].
    pub const MODELS: &str = "/orin/v1/models";
    /// `DELETE` an additional model by name; answered with [`super::Unloaded`].
    pub const MODEL: &str = "/orin/v1/models/{*name}";
    /// `POST` a `bench::Spec`; answered with events.
    pub const BENCH: &str = "/orin/v1/bench";
    /// `GET` [`super::Tuned`]; `POST` a `tune::report::Spec`, answered with events.
    pub const TUNE: &str = "/orin/v1/tune";
    /// `POST` [`super::RunRequest`]; answered with [`super::RunAnswer`].
    pub const RUN: &str = "/orin/v1/run";
    /// `GET` [`super::ModelList`].
    pub const OPENAI_MODELS: &str = "/v1/models";
    /// `GET` [`super::ModelEntry`]; an id may contain slashes.
    pub const OPENAI_MODEL: &str = "/v1/models/{*id}";
    /// `POST` [`super::CompletionRequest`].
    pub const COMPLETIONS: &str = "/v1/completions";
    /// `POST` [`super::ChatRequest`].
    pub const CHAT: &str = "/v1/chat/completions";
    /// `POST` [`super::ResponsesRequest`].
    pub const RESPONSES: &str = "/v1/responses";
    /// `POST` [`super::ResponsesRequest`]: number of tokens of its prompt.
    pub const RESPONSE_TOKENS: &str = "/v1/responses/input_tokens";
    /// `GET` or `DELETE` a stored response.
    pub const RESPONSE: &str = "/v1/responses/{id}";
    /// `GET` the input of a stored response.
    pub const RESPONSE_INPUT: &str = "/v1/responses/{id}/input_items";
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
    /// `POST` [`super::OllamaEmbeddings`].
    pub const OLLAMA_EMBEDDINGS: &str = "/api/embeddings";
    /// `GET` the loaded models.
    pub const OLLAMA_PS: &str = "/api/ps";
    /// `POST` [`super::OllamaCreate`].
    pub const OLLAMA_CREATE: &str = "/api/create";
    /// `POST` [`super::OllamaCopy`].
    pub const OLLAMA_COPY: &str = "/api/copy";
    /// `DELETE` [`super::OllamaShow`].
    pub const OLLAMA_DELETE: &str = "/api/delete";
    /// `POST` [`super::OllamaShow`].
    pub const OLLAMA_PULL: &str = "/api/pull";
    /// `POST` [`super::OllamaShow`].
    pub const OLLAMA_PUSH: &str = "/api/push";
    /// `POST` [`super::InfillRequest`].
    pub const INFILL: &str = "/infill";
    /// `GET`: properties of the loaded model.
    pub const PROPS: &str = "/props";
    /// `GET`: slots of the loaded model.
    pub const SLOTS: &str = "/slots";
    /// `GET`: adapters of the loaded model.
    pub const LORA_ADAPTERS: &str = "/lora-adapters";
    /// `POST`: refused, no reranker is supported.
    pub const RERANK: [&str; 4] = ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"];
    /// `POST` [`super::TokenizeRequest`].
    pub const TOKENIZE: &str = "/tokenize";
    /// `POST` [`super::DetokenizeRequest`].
    pub const DETOKENIZE: &str = "/detokenize";
    /// `POST` [`super::ChatRequest`].
    pub const APPLY_TEMPLATE: &str = "/apply-template";

    /// Routes that generate.
    pub const GENERATING: [&str; 7] =
        [COMPLETIONS, CHAT, RESPONSES, MESSAGES, OLLAMA_GENERATE, OLLAMA_CHAT, INFILL];

    /// All routes.
    pub const ALL: [&str; 44] = [
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
        RESPONSE_TOKENS,
        RESPONSE,
        RESPONSE_INPUT,
        EMBEDDINGS,
        MESSAGES,
        COUNT_TOKENS,
        OLLAMA_GENERATE,
        OLLAMA_CHAT,
        OLLAMA_TAGS,
        OLLAMA_SHOW,
        OLLAMA_VERSION,
        OLLAMA_EMBED,
        OLLAMA_EMBEDDINGS,
        OLLAMA_PS,
        OLLAMA_CREATE,
        OLLAMA_COPY,
        OLLAMA_DELETE,
        OLLAMA_PULL,
        OLLAMA_PUSH,
        TOKENIZE,
        DETOKENIZE,
        APPLY_TEMPLATE,
        INFILL,
        PROPS,
        SLOTS,
        LORA_ADAPTERS,
        RERANK[0],
        RERANK[1],
        RERANK[2],
        RERANK[3],
    ];
}

pub mod event {
    /// Progress so far. Sent any number of times.
    pub const PROGRESS: &str = "progress";
    /// The final result. Sent once.
    pub const RESULT: &str = "result";
    /// An [`super::ErrorBody`], sent instead of the result.
    pub const ERROR: &str = "error";
}

/// Body of every error answer and of `error` events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// Machine-readable code, such as `queue_full`; `docs/api.md` lists all.
    pub code: String,
    /// Message for people: what failed, the value, the limit.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// OpenAI's error class: `invalid_request_error`, `rate_limit_error`, `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Path of the invalid field: `messages[0].role`.
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
    /// Additional models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residents: Vec<Resident>,
    /// A load in progress while another model is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loading: Option<Loading>,
    pub requests: Requests,
    pub memory: ProcessMemory,
    /// The idle-time search for better kernels, if one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searching: Option<Searching>,
    /// Devices with problems or restrictions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceHealth>,
    #[serde(default)]
    pub machine: Machine,
    /// Upper bound of decoding speed; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roof: Option<Roof>,
    /// Control loops, in the order of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<realtime::control_loops::Status>,
}

/// An additional model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resident {
    /// Name in requests.
    pub name: String,
    /// Time of loading: `start` or `request`; absent for a model that was loaded through the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<LoadAt>,
    pub state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Model>,
    pub requests: Requests,
    /// Seconds since the last request for it.
    pub unused_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loading {
    pub model: String,
    /// Fraction done, 0 to 1.
    pub progress: f64,
}

/// Maximum rate at which weights can be read, in bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    pub bytes_per_second: f64,
    /// `bench` (measured by the last benchmark) or `memory clock` (peak bandwidth of an Orin's
    /// memory).
    pub source: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum State {
    Empty {
        /// Reason why the last load failed.
        last_error: Option<ErrorDetail>,
    },
    Loading {
        model: String,
        /// Fraction done, 0 to 1.
        progress: f64,
    },
    Ready,
    /// A benchmark or another exclusive task uses the device; requests wait.
    Exclusive {
        what: String,
    },
    /// The daemon finishes requests in flight and exits.
    Stopping,
}

/// Current load, and counters since the daemon's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    pub active: usize,
    /// Generations that wait for a slot.
    pub queued: usize,
    pub queue_limit: usize,
    /// KV cache positions used by generations in flight, of `slots` x `context`.
    #[serde(default)]
    pub kv_tokens: usize,
    /// Finished generations, for any reason.
    pub finished: u64,
    /// Accepted generations that failed.
    pub failed: u64,
    /// Rejected generations: invalid, too long, queue full, or no model.
    #[serde(default)]
    pub refused: u64,
    /// Prompt tokens evaluated.
    pub prompt_tokens: u64,
    /// Prompt tokens read from the prefix cache.
    #[serde(default)]
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Steps submitted to the device.
    pub steps: u64,
    /// GPU activity since the model was loaded; absent on other devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Activity>,
}

/// Memory in bytes; `None` if the system does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Current resident set of the daemon.
    pub resident: Option<u64>,
    /// Peak resident set of the daemon.
    pub peak_resident: Option<u64>,
    /// Memory available to the machine, or to the daemon's cgroup.
    pub available: Option<u64>,
}

/// Answer of `GET /orin/v1/models`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Models {
    pub loaded: Option<Model>,
    /// Additional models.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residents: Vec<Resident>,
    /// Directory of the files in `available`.
    pub models_dir: PathBuf,
    /// Models that can be loaded by name, synthetic models last.
    pub available: Vec<Available>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    /// Name for [`LoadRequest::model`].
    pub model: String,
    /// Size of its files in bytes; `None` for a synthetic model.
    pub bytes: Option<u64>,
    /// True for seeded random weights.
    pub synthetic: bool,
    /// Reason why it cannot be loaded; absent if no problem is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Answer of `GET /orin/v1/tune`: tuning results stored for the loaded model's device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    pub file: PathBuf,
    /// Hardware that the results apply to.
    pub device: String,
    /// Reason why the file cannot be used, if it is damaged.
    pub damaged: Option<String>,
    pub entries: Vec<TunedEntry>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedEntry {
    /// Family, type and shape of the kernel.
    pub case: String,
    /// False for a stale entry, which is not used.
    pub current: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    pub choice: BTreeMap<String, u32>,
    pub heuristic: BTreeMap<String, u32>,
    /// `measured` (nanoseconds) or `counted`.
    pub clock: Clock,
    /// Cost of the best choice.
    pub cost: f64,
    /// Cost of the heuristic's choice.
    pub heuristic_cost: f64,
    pub when: String,
    pub clocks: String,
    /// Source of the candidates.
    pub candidates: String,
}

config::with_load_options! {
    /// Body of `POST /orin/v1/models`. Defaults come from the daemon's configuration.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct LoadRequest {
        /// A path, the name of a file in the models directory, or `synthetic:NAME`.
        pub model: String,
        /// Name in requests. Default: the file's stem.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// Load as an additional model instead of replacing the first one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub beside: bool,
        /// Use of tuned kernels: `off`, `load` or `auto`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tune: Option<Mode>,
        /// Kernel parameters set by hand, such as `threads_per_row`. Applied to every kernel that has
        /// them.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        pub force: BTreeMap<String, u32>,
    }
}

impl LoadRequest {
    /// Fills absent fields from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let options = self.options().or(other.options());
        let force = if self.force.is_empty() { other.force } else { self.force };
        Self {
            name: self.name.or(other.name),
            beside: self.beside || other.beside,
            tune: self.tune.or(other.tune),
            force,
            ..Self { model: self.model, ..Self::default() }
        }
        .with_options(options)
    }
}

/// A `progress` event of a load. The `result` event is a [`Model`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadProgress {
    /// `synthesise`, `load`, or `unload` (another model is unloaded to free memory).
    pub phase: String,
    /// Bytes done.
    pub done: u64,
    /// Total bytes.
    pub total: u64,
    /// Reason for unloading the other model, in phase `unload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Answer of `DELETE /orin/v1/models`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unloaded {
    /// False if no model was loaded.
    pub unloaded: bool,
}

/// Answer of `DELETE /orin/v1/tune`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Number of running and queued searches that were stopped.
    pub stopped: usize,
}

/// Answer of `GET /health` if the daemon can serve; otherwise an [`ErrorBody`] with status 503.
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
    /// Prepend the tokens that every text begins with, such as BOS. Default: false.
    #[serde(default)]
    pub add_special: Option<bool>,
    /// Parse the names of control tokens. Default: true.
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
