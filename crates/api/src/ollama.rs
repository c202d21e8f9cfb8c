//! Request types of ollama's API. The server writes the answers as JSON values.

use serde::Deserialize;
use serde_json::Value;

use super::{LogitsOptions, Stop, lenient};

/// Body of `POST /api/chat`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaChat {
    #[serde(default)]
    pub model: Option<String>,
    /// Without messages the request only loads the model.
    #[serde(default, deserialize_with = "lenient::or_default")]
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
    /// Time until the model is unloaded: seconds, or a text such as `5m`. Negative: never.
    #[serde(default)]
    pub keep_alive: Option<Value>,
}

/// Body of `POST /api/generate`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaGenerate {
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub prompt: String,
    /// Text that follows the answer, for models trained to fill in the middle.
    #[serde(default)]
    pub suffix: Option<String>,
    #[serde(default)]
    pub system: Option<String>,
    /// Use the prompt as it is, without the chat template.
    #[serde(default)]
    pub raw: Option<bool>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub format: Option<Value>,
    #[serde(default)]
    pub think: Option<Value>,
    #[serde(default)]
    pub options: Option<OllamaOptions>,
    /// As in [`OllamaChat`].
    #[serde(default)]
    pub keep_alive: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaMessage {
    /// `system`, `developer`, `user`, `assistant`, `tool`.
    pub role: String,
    #[serde(default, deserialize_with = "lenient::or_default")]
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
    #[serde(default, deserialize_with = "lenient::candidates")]
    pub top_k: Option<u32>,
    #[serde(default, deserialize_with = "lenient::seed")]
    pub seed: Option<i64>,
    #[serde(default)]
    pub stop: Option<Stop>,
    /// Maximum number of tokens to generate; -1: the rest of the slot.
    #[serde(default, deserialize_with = "lenient::limit")]
    pub num_predict: Option<u32>,
    #[serde(flatten)]
    pub logits_options: LogitsOptions,
}

impl OllamaOptions {
    /// Returns the options with those of `defaults` in the place of absent ones.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            temperature: self.temperature.or(defaults.temperature),
            top_p: self.top_p.or(defaults.top_p),
            top_k: self.top_k.or(defaults.top_k),
            seed: self.seed.or(defaults.seed),
            stop: self.stop.or(defaults.stop),
            num_predict: self.num_predict.or(defaults.num_predict),
            logits_options: self.logits_options.or(defaults.logits_options),
        }
    }
}

/// Body of `POST /api/create`: a name for a model with a system prompt and parameters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaCreate {
    /// `name` in older clients.
    #[serde(default, alias = "name")]
    pub model: Option<String>,
    /// Existing name.
    #[serde(default)]
    pub from: Option<String>,
    #[serde(default)]
    pub system: Option<String>,
    /// Default `options` of its requests.
    #[serde(default)]
    pub parameters: Option<OllamaOptions>,
    #[serde(default)]
    pub stream: Option<bool>,
}

/// Body of `POST /api/copy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct OllamaCopy {
    pub source: String,
    pub destination: String,
}

/// Body of `POST /api/show`, `POST /api/pull`, `POST /api/push` and `DELETE /api/delete`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaShow {
    /// `name` in older clients.
    #[serde(default, alias = "name")]
    pub model: Option<String>,
    #[serde(default)]
    pub stream: Option<bool>,
}
