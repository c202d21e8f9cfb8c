//! What goes over the wire: one type per request, answer and event, for the server and the client.
//!
//! Routes under `/orin/v1` are the daemon's own and refuse unknown fields; routes under `/v1` follow
//! OpenAI's shapes, ignore fields nobody knows and carry a few extensions, each named here.

mod prompt;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use device::Activity;
use device::tune::Clock;
use device::tune::report::{Mode, Searching};

pub use crate::engine::{DeviceHealth, DeviceInfo as Device, ModelInfo as Model};
pub use prompt::Prompt;
pub use telemetry::State as Machine;

pub mod route {
    /// `GET`: 200 when a generation would be served, else 503 with the reason.
    pub const HEALTH: &str = "/health";
    /// `GET`: Prometheus text.
    pub const METRICS: &str = "/metrics";
    /// `GET` [`super::Status`].
    pub const STATUS: &str = "/orin/v1/status";
    /// `GET` [`super::Models`]; `POST` [`super::LoadRequest`] answers with events; `DELETE`
    /// answers with [`super::Unloaded`].
    pub const MODELS: &str = "/orin/v1/models";
    /// `POST` a `bench::Spec`, answers with events.
    pub const BENCH: &str = "/orin/v1/bench";
    /// `GET` [`super::Tuned`]; `POST` a `tune::report::Spec` answers with events.
    pub const TUNE: &str = "/orin/v1/tune";
    /// `GET` [`super::ModelList`].
    pub const OPENAI_MODELS: &str = "/v1/models";
    /// `GET` [`super::ModelEntry`]; an id may have slashes.
    pub const OPENAI_MODEL: &str = "/v1/models/{*id}";
    /// `POST` [`super::CompletionRequest`].
    pub const COMPLETIONS: &str = "/v1/completions";
    /// `POST` [`super::ChatRequest`].
    pub const CHAT: &str = "/v1/chat/completions";
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
    pub prompt_tokens: u64,
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

/// Answer of `GET /v1/models`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The loaded model, or nothing.
    pub data: Vec<ModelEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelEntry {
    pub id: String,
    /// `model`.
    pub object: String,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// `orind`.
    pub owned_by: String,
}

/// A body with fields of its own between those that both generating routes have.
macro_rules! generating {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            /// The id of the loaded model; may be left out.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub model: Option<String>,
            $($own)*
            /// 0 is greedy.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub temperature: Option<f32>,
            /// Smallest probability mass to choose from, over 0 to 1.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub top_p: Option<f32>,
            /// Number of tokens to choose from; 0 is all (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub top_k: Option<u32>,
            /// Same seed, same request, same answer.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub seed: Option<i64>,
            /// Texts that end the answer and are not part of it.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stop: Option<Stop>,
            /// Generate on past end-of-generation tokens (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub ignore_eos: Option<bool>,
            /// Answer with server-sent events.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stream: Option<bool>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stream_options: Option<StreamOptions>,
        }
    };
}

generating! {
    /// Body of `POST /v1/completions`.
    pub struct CompletionRequest {
        pub prompt: Prompt,
        /// Tokens to generate at most; the rest of the slot's context when not given. 0 only
        /// evaluates the prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_tokens: Option<u32>,
        /// Put the prompt before the answer; with `logprobs`, report the prompt's tokens too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub echo: Option<bool>,
        /// Report log-probabilities, with this many alternatives per token, 0 to 20.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub logprobs: Option<u32>,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamOptions {
    /// Send the token counts in one more event before the end.
    #[serde(default)]
    pub include_usage: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt or prompts.
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
}

/// When things happened, in milliseconds from the request's arrival (extension).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Until the prompt's evaluation began.
    pub queued_ms: f64,
    /// Until the first token.
    pub first_token_ms: f64,
    /// Until the end.
    pub total_ms: f64,
}

/// What every answer under `/v1` begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub id: String,
    /// `text_completion`, `chat.completion` or, in a chat's stream, `chat.completion.chunk`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// The build that answers.
    pub system_fingerprint: String,
}

/// Answer of `POST /v1/completions`, and each event of its stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    #[serde(flatten)]
    pub head: Head,
    /// One per prompt; in a stream, what is new.
    pub choices: Vec<CompletionChoice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Of a request with one prompt, with its end (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    pub index: usize,
    /// The text; in a stream, what is new.
    pub text: String,
    /// When asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop`, `length`, or `null` while it goes on.
    pub finish_reason: Option<String>,
}

/// Log-probabilities of a completion: parallel lists, one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionLogprobs {
    /// The token's text; `bytes:\xNN..` when it is not UTF-8 on its own.
    pub tokens: Vec<String>,
    /// Its log-probability; `null` for a prompt's first token.
    pub token_logprobs: Vec<Option<f32>>,
    /// The alternatives by text; `null` for a prompt's first token.
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where the token begins in prompt and answer together, in characters.
    pub text_offset: Vec<usize>,
    /// The token's id (extension).
    pub token_ids: Vec<u32>,
    /// The alternatives by id, most likely first (extension).
    pub top: Vec<Vec<TokenLogprob>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Its id (extension).
    pub id: u32,
    /// Its text; `bytes:\xNN..` when it is not UTF-8 on its own.
    pub token: String,
    /// Natural logarithm of its probability at temperature 1; at least -9999.
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

generating! {
    /// Body of `POST /v1/chat/completions`.
    pub struct ChatRequest {
        pub messages: Vec<ChatMessage>,
        /// Tokens to generate at most; the rest of the slot's context when not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_completion_tokens: Option<u32>,
        /// The older name of `max_completion_tokens`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_tokens: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub logprobs: Option<bool>,
        /// With this many alternatives per token, 0 to 20.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub top_logprobs: Option<u32>,
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant`.
    pub role: String,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string or a list of parts {\"type\": \"text\", \"text\": ..}"
)]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentPart {
    /// `text`; nothing else can be read.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub text: String,
}

/// Answer of `POST /v1/chat/completions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chat {
    #[serde(flatten)]
    pub head: Head,
    pub choices: Vec<ChatChoice>,
    pub usage: Usage,
    pub timings: Timings,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChoice {
    /// 0.
    pub index: usize,
    pub message: AssistantMessage,
    /// When asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop` or `length`.
    pub finish_reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    pub content: String,
    /// Always `null`: the shape has it.
    pub refusal: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatLogprobs {
    /// One entry per token.
    pub content: Vec<ChatTokenLogprobs>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatTokenLogprobs {
    #[serde(flatten)]
    pub token: TokenLogprob,
    /// The alternatives, most likely first.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// One event of a chat's stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChunk {
    #[serde(flatten)]
    pub head: Head,
    /// One, or none in the event with the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// In the last event, when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// With the end of the answer (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatChunkChoice {
    /// 0.
    pub index: usize,
    pub delta: Delta,
    /// When asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length`, or `null` while it goes on.
    pub finish_reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// `assistant`, in the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}
