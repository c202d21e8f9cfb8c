//! Request types of ollama's API. The server writes the answers as JSON values.

use serde::Deserialize;
use serde_json::Value;

use super::{LogitsOptions, Stop};

/// Body of `POST /api/chat`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaChat {
    #[serde(default)]
    pub model: Option<String>,
    pub messages: Vec<OllamaMessage>,
    #[serde(default)]
    pub tools: Option<Vec<super::ChatTool>>,
    /// Default: true.
    #[serde(default)]
    pub stream: Option<bool>,
    /// `"json"`, or a JSON schema.
    #[serde(default)]
    pub format: Option<Value>,
    /// Reasoning: true, false, or an effort.
    #[serde(default)]
    pub think: Option<Value>,
    #[serde(default)]
    pub options: Option<OllamaOptions>,
}

/// Body of `POST /api/generate`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaGenerate {
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub prompt: String,
    #[serde(default)]
    pub system: Option<String>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub format: Option<Value>,
    #[serde(default)]
    pub think: Option<Value>,
    #[serde(default)]
    pub options: Option<OllamaOptions>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaMessage {
    /// `system`, `user`, `assistant`, `tool`.
    pub role: String,
    #[serde(default)]
    pub content: String,
    #[serde(default)]
    pub thinking: Option<String>,
    #[serde(default)]
    pub tool_calls: Option<Vec<OllamaCall>>,
    #[serde(default)]
    pub tool_name: Option<String>,
    #[serde(default)]
    pub images: Option<Vec<Value>>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OllamaCall {
    pub function: OllamaFunction,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OllamaFunction {
    pub name: String,
    #[serde(default)]
    pub arguments: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaOptions {
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default)]
    pub top_k: Option<u32>,
    #[serde(default)]
    pub seed: Option<i64>,
    #[serde(default)]
    pub stop: Option<Stop>,
    /// Maximum number of tokens to generate; -1: the rest of the slot.
    #[serde(default)]
    pub num_predict: Option<i64>,
    #[serde(flatten)]
    pub logits_options: LogitsOptions,
}

/// Body of `POST /api/show`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaShow {
    /// `name` in older clients.
    #[serde(default, alias = "name")]
    pub model: Option<String>,
}
