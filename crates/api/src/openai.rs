//! OpenAI's shapes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Prompt;

/// Answer of `GET /v1/models`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelList {
    /// `list`.
    pub object: String,
    /// The loaded model and its adapters, or nothing.
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
    /// Of an adapter the model that it stands beside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

/// What a request takes of one of the model's adapters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// Its number, from 0.
    pub id: usize,
    pub scale: f32,
}

/// A body with fields of its own between those that both generating routes have.
macro_rules! generating {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct $name {
            /// The id of the loaded model, or with a colon and the name of an adapter behind it; may be left out.
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
            /// Answers to each prompt.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub n: Option<u32>,
            /// Numbers to add to the logits of token ids.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub logit_bias: Option<Map<String, Value>>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub presence_penalty: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub frequency_penalty: Option<f32>,
            /// Divides the logits of tokens that prompt and answer have (extension).
            #[serde(default, alias = "repeat_penalty", skip_serializing_if = "Option::is_none")]
            pub repetition_penalty: Option<f32>,
            /// Tokens that it looks back at, -1 for all (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub repeat_last_n: Option<i32>,
            /// Least probability beside the largest (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub min_p: Option<f32>,
            /// Locally typical sampling (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub typical_p: Option<f32>,
            /// 0, or 2 for Mirostat 2 (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub mirostat: Option<u32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub mirostat_tau: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub mirostat_eta: Option<f32>,
            /// Exclude top choices (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub xtc_probability: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub xtc_threshold: Option<f32>,
            /// Don't repeat yourself (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_multiplier: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_base: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_allowed_length: Option<u32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dry_sequence_breakers: Option<Vec<String>>,
            /// Half of the span of a dynamic temperature (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dynatemp_range: Option<f32>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dynatemp_exponent: Option<f32>,
            /// A grammar of the answer in Lark's notation (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub grammar: Option<String>,
            /// A schema that the answer, JSON, follows (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub json_schema: Option<Value>,
            /// What is taken of each adapter; of those that are not listed nothing (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub lora: Option<Vec<Lora>>,
            /// Generate on past end-of-generation tokens (extension).
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub ignore_eos: Option<bool>,
            /// Answer with server-sent events.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stream: Option<bool>,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub stream_options: Option<StreamOptions>,
        }

        impl $name {
            /// What is done to logits, and its places in the request.
            pub fn shaping(&mut self) -> Shaping {
                Shaping {
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

/// What is done to logits before a token is chosen; the same names in every dialect that has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shaping {
    pub logit_bias: Option<Map<String, Value>>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    #[serde(alias = "repeat_penalty")]
    pub repetition_penalty: Option<f32>,
    pub repeat_last_n: Option<i32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub mirostat: Option<u32>,
    pub mirostat_tau: Option<f32>,
    pub mirostat_eta: Option<f32>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub dry_multiplier: Option<f32>,
    pub dry_base: Option<f32>,
    pub dry_allowed_length: Option<u32>,
    pub dry_sequence_breakers: Option<Vec<String>>,
    pub dynatemp_range: Option<f32>,
    pub dynatemp_exponent: Option<f32>,
}

generating! {
    /// Body of `POST /v1/completions`.
    pub struct CompletionRequest {
        pub prompt: Prompt,
        /// Tokens to generate at most; the rest of the slot's context when not given. 0 only
        /// evaluates the prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub max_tokens: Option<u32>,
        /// What stands behind the answer, for models that can be asked for what is between two texts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub suffix: Option<String>,
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
    #[serde(default)]
    pub prompt_tokens_details: PromptTokensDetails,
    #[serde(default)]
    pub completion_tokens_details: CompletionTokensDetails,
}

/// What became of the tokens that were guessed ahead of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompletionTokensDetails {
    /// Those that came true: tokens of the answer.
    pub accepted_prediction_tokens: u64,
    pub rejected_prediction_tokens: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PromptTokensDetails {
    /// Tokens of the prompt that a slot still held, so that they were not evaluated again.
    pub cached_tokens: u64,
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
    /// `stop`, `length`, `tool_calls`, or `null` while it goes on.
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
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tools: Option<Vec<ChatTool>>,
        /// `auto`, `none`, `required`, or a function.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub tool_choice: Option<Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub parallel_tool_calls: Option<bool>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub response_format: Option<ResponseFormat>,
        /// How much a model thinks; `none` is not at all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reasoning_effort: Option<String>,
        /// Variables of the chat template (extension).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub chat_template_kwargs: Option<Map<String, Value>>,
    }
}

/// A tool: `{"type": "function", "function": {..}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChatTool {
    #[serde(rename = "type")]
    pub kind: String,
    pub function: Function,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseFormat {
    /// `text`, `json_object`, `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_schema: Option<JsonSchema>,
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
    /// Only a message with calls may lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// What the assistant thought (extension).
    #[serde(default, alias = "reasoning", skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The call that a tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A call; in a stream, what is new of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Which of the answer's calls it is, in a stream.
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
    #[serde(default)]
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
    pub index: usize,
    pub message: AssistantMessage,
    /// When asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// `assistant`.
    pub role: String,
    /// `null` where there are only calls.
    pub content: Option<String>,
    /// Always `null`: the shape has it.
    pub refusal: Option<String>,
    /// What a model that thinks has thought (extension).
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
    pub index: usize,
    pub delta: Delta,
    /// When asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length`, `tool_calls`, or `null` while it goes on.
    pub finish_reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// `assistant`, in the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// (extension)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}
