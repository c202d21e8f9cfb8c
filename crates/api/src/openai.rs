//! Types of OpenAI's API.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Prompt, lenient};

/// Answer of `GET /v1/models`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// Loaded models and their adapters.
    pub data: Vec<ModelEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelEntry {
    pub id: String,
    /// `model`.
    pub object: String,
    /// Load time in seconds since 1970.
    pub created: u64,
    /// `orind`.
    pub owned_by: String,
    /// For an adapter: the model that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// Scale of one LoRA adapter in a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// Index of the adapter, from 0.
    pub id: usize,
    pub scale: f32,
}

/// Defines a request body from its own fields and those that both generating routes share.
macro_rules! generating {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            /// Model id, or `MODEL:ADAPTER`. Default: the first model.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub model: Option<String>,
            $($own)*
            /// 0: greedy.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub temperature: Option<f32>,
            /// Nucleus sampling: smallest probability mass to sample from, above 0 to 1.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub top_p: Option<f32>,
            /// Number of most likely tokens to sample from; 0: all (extension).
            #[serde(
                default, deserialize_with = "lenient::candidates",
                skip_serializing_if = "Option::is_none"
            )]
            pub top_k: Option<u32>,
            /// The same request with the same seed gets the same answer.
            #[serde(
                default, deserialize_with = "lenient::seed",
                skip_serializing_if = "Option::is_none"
            )]
            pub seed: Option<i64>,
            /// Texts that end the answer. They are not part of it.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stop: Option<Stop>,
            /// Number of answers to each prompt.
            #[serde(
                default, deserialize_with = "lenient::count",
                skip_serializing_if = "Option::is_none"
            )]
            pub n: Option<u32>,
            /// Values to add to logits, by token id.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub logit_bias: Option<Map<String, Value>>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub presence_penalty: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub frequency_penalty: Option<f32>,
            /// Divides the logits of tokens in the prompt or answer (extension).
            #[serde(default, alias = "repeat_penalty", skip_serializing_if = "Option::is_none")]
            pub repetition_penalty: Option<f32>,
            /// Window of the repetition penalty in tokens; -1: all (extension).
            #[serde(
                default, deserialize_with = "lenient::signed",
                skip_serializing_if = "Option::is_none"
            )]
            pub repeat_last_n: Option<i32>,
            /// Minimum probability relative to the most likely token (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub min_p: Option<f32>,
            /// Locally typical sampling (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub typical_p: Option<f32>,
            /// 0 (off) or 2 (Mirostat 2) (extension).
            #[serde(
                default, deserialize_with = "lenient::count",
                skip_serializing_if = "Option::is_none"
            )]
            pub mirostat: Option<u32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub mirostat_tau: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub mirostat_eta: Option<f32>,
            /// XTC: exclude top choices (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub xtc_probability: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub xtc_threshold: Option<f32>,
            /// DRY: penalise repeated sequences (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_multiplier: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_base: Option<f32>,
            #[serde(
                default, deserialize_with = "lenient::count",
                skip_serializing_if = "Option::is_none"
            )]
            pub dry_allowed_length: Option<u32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_sequence_breakers: Option<Vec<String>>,
            /// Half-width of the dynamic temperature (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dynatemp_range: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dynatemp_exponent: Option<f32>,
            /// Grammar of the answer in Lark's notation (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub grammar: Option<String>,
            /// JSON schema of the answer (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub json_schema: Option<Value>,
            /// Scales of LoRA adapters; those not listed are off (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub lora: Option<Vec<Lora>>,
            /// Continue past end-of-generation tokens (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub ignore_eos: Option<bool>,
            /// Answer with server-sent events.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stream: Option<bool>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stream_options: Option<StreamOptions>,
        }

        impl $name {
            /// Moves the sampling fields out of the request.
            pub fn logits_options(&mut self) -> LogitsOptions {
                LogitsOptions {
                    logit_bias: self.logit_bias.take(),
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    repetition_penalty: self.repetition_penalty,
                    repeat_last_n: self.repeat_last_n,
                    min_p: self.min_p,
                    typical_p: self.typical_p,
                    mirostat: self.mirostat,
                    mirostat_tau: self.mirostat_tau,
                    mirostat_eta: self.mirostat_eta,
                    xtc_probability: self.xtc_probability,
                    xtc_threshold: self.xtc_threshold,
                    dry_multiplier: self.dry_multiplier,
                    dry_base: self.dry_base,
                    dry_allowed_length: self.dry_allowed_length,
                    dry_sequence_breakers: self.dry_sequence_breakers.take(),
                    dynatemp_range: self.dynatemp_range,
                    dynatemp_exponent: self.dynatemp_exponent,
                }
            }
        }
    };
}

/// Logits processor settings. They have the same names in every dialect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogitsOptions {
    pub logit_bias: Option<Map<String, Value>>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    #[serde(deserialize_with = "lenient::signed")]
    pub repeat_last_n: Option<i32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    #[serde(deserialize_with = "lenient::count")]
    pub mirostat: Option<u32>,
    pub mirostat_tau: Option<f32>,
    pub mirostat_eta: Option<f32>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub dry_multiplier: Option<f32>,
    pub dry_base: Option<f32>,
    #[serde(deserialize_with = "lenient::count")]
    pub dry_allowed_length: Option<u32>,
    pub dry_sequence_breakers: Option<Vec<String>>,
    pub dynatemp_range: Option<f32>,
    pub dynatemp_exponent: Option<f32>,
}

impl LogitsOptions {
    /// Returns the options with those of `defaults` in the place of absent ones.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            logit_bias: self.logit_bias.or(defaults.logit_bias),
            presence_penalty: self.presence_penalty.or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(defaults.frequency_penalty),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty),
            repeat_last_n: self.repeat_last_n.or(defaults.repeat_last_n),
            min_p: self.min_p.or(defaults.min_p),
            typical_p: self.typical_p.or(defaults.typical_p),
            mirostat: self.mirostat.or(defaults.mirostat),
            mirostat_tau: self.mirostat_tau.or(defaults.mirostat_tau),
            mirostat_eta: self.mirostat_eta.or(defaults.mirostat_eta),
            xtc_probability: self.xtc_probability.or(defaults.xtc_probability),
            xtc_threshold: self.xtc_threshold.or(defaults.xtc_threshold),
            dry_multiplier: self.dry_multiplier.or(defaults.dry_multiplier),
            dry_base: self.dry_base.or(defaults.dry_base),
            dry_allowed_length: self.dry_allowed_length.or(defaults.dry_allowed_length),
            dry_sequence_breakers: self.dry_sequence_breakers.or(defaults.dry_sequence_breakers),
            dynatemp_range: self.dynatemp_range.or(defaults.dynatemp_range),
            dynatemp_exponent: self.dynatemp_exponent.or(defaults.dynatemp_exponent),
        }
    }
}

generating! {
    /// Body of `POST /v1/completions`.
    pub struct CompletionRequest {
        pub prompt: Prompt,
        /// Maximum number of tokens to generate. Default: the rest of the slot's context. 0 only
        /// evaluates the prompt.
        #[serde(
            default, deserialize_with = "lenient::limit",
            skip_serializing_if = "Option::is_none"
        )]
        pub max_tokens: Option<u32>,
        /// Text that follows the answer, for models trained to fill in the middle.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub suffix: Option<String>,
        /// Prepend the prompt to the answer. With `logprobs`, also report the prompt's tokens.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub echo: Option<bool>,
        /// Report log-probabilities, with this many alternatives per token, 0 to 20.
        #[serde(
            default, deserialize_with = "lenient::count",
            skip_serializing_if = "Option::is_none"
        )]
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
    /// Send the token counts in an extra event before the end.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub include_usage: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    #[serde(default)]
    pub prompt_tokens_details: PromptTokensDetails,
    #[serde(default)]
    pub completion_tokens_details: CompletionTokensDetails,
}

/// Outcome of speculative decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompletionTokensDetails {
    /// Accepted draft tokens. They are part of the answer.
    pub accepted_prediction_tokens: u64,
    pub rejected_prediction_tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptTokensDetails {
    /// Prompt tokens read from the prefix cache.
    pub cached_tokens: u64,
    /// Position of the first token that differs from the most similar prompt in the cache
    /// (extension).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diverged_at: Option<u32>,
}

/// Milliseconds since the request's arrival (extension).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Start of prompt evaluation.
    pub queued_ms: f64,
    /// First token.
    pub first_token_ms: f64,
    /// End of the answer.
    pub total_ms: f64,
}

/// Fields that every answer under `/v1` begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub id: String,
    /// `text_completion`, `chat.completion` or, in a chat's stream, `chat.completion.chunk`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Id of the model that answers.
    pub model: String,
    /// Build of the daemon.
    pub system_fingerprint: String,
}

/// Answer of `POST /v1/completions`, and each event of its stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    #[serde(flatten)]
    pub head: Head,
    /// One per prompt; in a stream, only new text.
    pub choices: Vec<CompletionChoice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Present in the last event of a request with one prompt (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    pub index: usize,
    /// The text; in a stream, only new text.
    pub text: String,
    /// If requested.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop`, `length`, `tool_calls`; `null` until the end.
    pub finish_reason: Option<String>,
}

/// Log-probabilities of a completion: parallel lists with one entry per token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionLogprobs {
    /// Text of the token; `bytes:\xNN..` if it is not UTF-8 on its own.
    pub tokens: Vec<String>,
    /// Log-probability of the token; `null` for a prompt's first token.
    pub token_logprobs: Vec<Option<f32>>,
    /// Alternatives by text; `null` for a prompt's first token.
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Offset of the token in prompt and answer, in characters.
    pub text_offset: Vec<usize>,
    /// Token id (extension).
    pub token_ids: Vec<u32>,
    /// Alternatives with their ids, most likely first (extension).
    pub top: Vec<Vec<TokenLogprob>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Token id (extension).
    pub id: u32,
    /// Text of the token; `bytes:\xNN..` if it is not UTF-8 on its own.
    pub token: String,
    /// Natural logarithm of its probability at temperature 1; at least -9999.
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

generating! {
    /// Body of `POST /v1/chat/completions`.
    pub struct ChatRequest {
        pub messages: Vec<ChatMessage>,
        /// Maximum number of tokens to generate. Default: the rest of the slot's context.
        #[serde(
            default, deserialize_with = "lenient::limit",
            skip_serializing_if = "Option::is_none"
        )]
        pub max_completion_tokens: Option<u32>,
        /// Older name of `max_completion_tokens`.
        #[serde(
            default, deserialize_with = "lenient::limit",
            skip_serializing_if = "Option::is_none"
        )]
        pub max_tokens: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub logprobs: Option<bool>,
        /// Number of alternatives per token, 0 to 20.
        #[serde(
            default, deserialize_with = "lenient::count",
            skip_serializing_if = "Option::is_none"
        )]
        pub top_logprobs: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tools: Option<Vec<ChatTool>>,
        /// `auto`, `none`, `required`, or a function.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tool_choice: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub parallel_tool_calls: Option<bool>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub response_format: Option<ResponseFormat>,
        /// Reasoning effort; `none` disables reasoning.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reasoning_effort: Option<String>,
        /// Variables of the chat template (extension).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub chat_template_kwargs: Option<Map<String, Value>>,
    }
}

/// A tool: `{"type": "function", "function": {..}}`. Tools of other types have other fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatTool {
    /// `function` (default). Tools of other types are skipped.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// Name of a tool of another type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
    /// Refuse a schema that cannot be enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseFormat {
    /// `text`, `json_object`, `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<JsonSchema>,
    /// Schema of the answer outside of `json_schema`, as llama.cpp, Together and Fireworks take it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

impl ResponseFormat {
    /// Returns the schema of the answer, if there is one.
    #[must_use]
    pub fn schema(self) -> Option<Value> {
        self.json_schema.and_then(|wrapper| wrapper.schema).or(self.schema)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JsonSchema {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant`, `tool`.
    pub role: String,
    /// Required, except in messages of the assistant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Reasoning of the assistant (extension).
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Id of the call that a `tool` message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A tool call; in a stream, only its new part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Index of the call in the answer, in a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub function: CalledFunction,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CalledFunction {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// JSON text.
    #[serde(default, deserialize_with = "lenient::json_text")]
    pub arguments: String,
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
    /// `text`. Other types are rejected.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient::or_default")]
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
    pub index: usize,
    pub message: AssistantMessage,
    /// If requested.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    /// `null` if the message has only tool calls.
    pub content: Option<String>,
    /// Always `null`. Clients expect the field.
    pub refusal: Option<String>,
    /// Reasoning of the model (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
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
    /// Alternatives, most likely first.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// One event of a chat's stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatChunk {
    #[serde(flatten)]
    pub head: Head,
    /// One; none in the event with the token counts.
    pub choices: Vec<ChatChunkChoice>,
    /// In the last event, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// In the last event of the answer (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatChunkChoice {
    pub index: usize,
    pub delta: Delta,
    /// If requested.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length`, `tool_calls`; `null` until the end.
    pub finish_reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// `assistant`, in the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Reasoning of the model (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}
