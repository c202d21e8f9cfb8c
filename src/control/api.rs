//! What goes over the wire: one type per request, answer and event, for the server and the client.
//!
//! Routes under `/orin/v1` are the daemon's own and refuse unknown fields; routes under `/v1` follow
//! OpenAI's shapes, ignore fields nobody knows and carry a few extensions, each named here.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use device::tune::Clock;
use device::tune::report::{Mode, Searching, Used};

pub use telemetry::State as Machine;

/// Routes of the daemon.
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
    /// `POST` [`super::CompletionRequest`].
    pub const COMPLETIONS: &str = "/v1/completions";
    /// `POST` [`super::ChatRequest`].
    pub const CHAT: &str = "/v1/chat/completions";
}

/// Names of server-sent events on `/orin/v1` streams.
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

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorDetail {
    /// For programs: `queue_full`, `model_not_found`; listed in `docs/api.md`.
    pub code: String,
    /// For people: the thing, the value, the limit.
    pub message: String,
    /// What to do about it.
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
    /// Version of the daemon.
    pub version: String,
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// What it is doing.
    pub state: State,
    pub model: Option<Model>,
    /// What was and is being served.
    pub requests: Requests,
    /// Memory of the process and the machine, in bytes.
    pub memory: ProcessMemory,
    /// The search in idle time, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searching: Option<Searching>,
    /// The machine: power mode, clocks, temperatures, rails.
    #[serde(default)]
    pub machine: Machine,
    /// What decoding is held against; absent while nothing tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roof: Option<Roof>,
}

/// Bytes per second that weights can be read with at best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roof {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// `bench`, measured by the last one; `memory clock`, what an Orin's pins can move.
    pub source: String,
}

/// What the daemon is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum State {
    /// No model is loaded.
    Empty {
        /// Why the last load failed, if one did.
        last_error: Option<ErrorDetail>,
    },
    /// A model is being loaded.
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
    /// Most that may wait.
    pub queue_limit: usize,
    /// Positions of the KV cache that generations in flight fill, of `slots` x `context`.
    #[serde(default)]
    pub kv_tokens: usize,
    /// Generations finished, whatever the reason.
    pub finished: u64,
    /// Generations refused or failed.
    pub failed: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Steps submitted to the device.
    pub steps: u64,
    /// What the device asked of its GPU; absent on a device without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
}

/// What a GPU has been asked to do since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    pub launches: u64,
    /// Hand-overs to its queue, one for each step.
    pub submits: u64,
    pub doorbells: u64,
    /// Times that waiting for it slept.
    pub sleeps: u64,
    /// Times that its channels were rebuilt after a fault.
    pub rebuilds: u64,
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

/// A loaded model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The id for `model` in requests: the file's stem, or `synthetic:NAME`.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// `llama`, `qwen3`.
    pub architecture: String,
    /// The dominant weight type: `Q6_K`.
    pub file_type: String,
    /// Where it was read from.
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
    pub device: Device,
    /// Memory reserved for it on the device, in bytes.
    pub memory: DeviceMemory,
    /// The tuned choices that it runs under.
    pub tuning: Used,
    /// Bytes of weights that one step reads.
    #[serde(default)]
    pub step_bytes: u64,
    /// Seconds that loading took.
    pub load_s: f64,
}

/// The device of a loaded model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name among the backends that `docs/configuration.md` lists.
    pub name: String,
    /// The device in one line.
    pub description: String,
    pub reason: String,
    pub threads: usize,
}

/// Memory reserved on a device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    pub weights: u64,
    pub kv: u64,
    pub activations: u64,
}

/// Answer of `GET /orin/v1/models`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Models {
    pub loaded: Option<Model>,
    /// The directory that `available` files are from.
    pub models_dir: PathBuf,
    /// What can be loaded by name, synthetic models last.
    pub available: Vec<Available>,
}

/// A model that can be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Available {
    /// The name for [`LoadRequest::model`].
    pub model: String,
    /// Size of its file or files in bytes; `None` for a synthetic model.
    pub bytes: Option<u64>,
    /// True for seeded random weights.
    pub synthetic: bool,
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

/// One entry of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedEntry {
    /// The case: family, type, shape.
    pub case: String,
    /// False for an entry that is not used.
    pub current: bool,
    /// Why it is not.
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
    /// When it was found.
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
    /// Instruction set of the CPU device: `auto`, `avx512`, `avx2`, `neon`, `scalar`.
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
    /// `synthesise` or `load`.
    pub phase: String,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
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

/// One entry of [`ModelList`].
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

/// Body of `POST /v1/completions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionRequest {
    /// The id of the loaded model; may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    pub prompt: Prompt,
    /// Tokens to generate at most; the rest of the slot's context when not given. 0 only evaluates
    /// the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// Put the prompt before the answer; with `logprobs`, report the prompt's tokens too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    /// Report log-probabilities, with this many alternatives per token, 0 to 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
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
    /// Everything else: refused where it would change the answer, else ignored.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A prompt: text or token ids, one or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of lists of token ids"
)]
pub enum Prompt {
    Text(String),
    /// One list of token ids, taken as they are.
    Ids(Vec<u32>),
    Texts(Vec<String>),
    /// Several lists of token ids.
    IdLists(Vec<Vec<u32>>),
}

impl Default for Prompt {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// One stop text, or several.
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

/// Token counts.
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

/// Answer of `POST /v1/completions`, and each event of its stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The build that answered.
    pub system_fingerprint: String,
    /// One per prompt; in a stream, what is new.
    pub choices: Vec<CompletionChoice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Of a request with one prompt, with its end (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// The answer to one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// A token and its log-probability.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Its id (extension).
    pub id: u32,
    /// Its text; `bytes:\xNN..` when it is not UTF-8 on its own.
    pub token: String,
    /// Natural logarithm of its probability at temperature 1; at least -9999.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Body of `POST /v1/chat/completions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatRequest {
    /// The id of the loaded model; may be left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
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
    /// Everything else: refused where it would change the answer, else ignored.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant`.
    pub role: String,
    pub content: Content,
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string or a list of parts {\"type\": \"text\", \"text\": ..}"
)]
pub enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

/// A part of a message.
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
    pub id: String,
    /// `chat.completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The build that answered.
    pub system_fingerprint: String,
    pub choices: Vec<ChatChoice>,
    pub usage: Usage,
    pub timings: Timings,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChoice {
    /// 0.
    pub index: usize,
    /// What the model says.
    pub message: AssistantMessage,
    /// When asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop` or `length`.
    pub finish_reason: String,
}

/// What the model says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    pub content: String,
    /// Always `null`: the shape has it.
    pub refusal: Option<String>,
}

/// Log-probabilities of a chat answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatLogprobs {
    /// One entry per token.
    pub content: Vec<ChatTokenLogprobs>,
}

/// Log-probabilities of one token.
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
    pub id: String,
    /// `chat.completion.chunk`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answers.
    pub model: String,
    /// The build that answers.
    pub system_fingerprint: String,
    /// One, or none in the event with the usage.
    pub choices: Vec<ChatChunkChoice>,
    /// In the last event, when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// With the end of the answer (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// What is new in a chat's stream.
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

/// The new part of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// `assistant`, in the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}
