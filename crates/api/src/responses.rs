//! Request types of OpenAI's `/v1/responses`. The server writes the answers as JSON values.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Body of `POST /v1/responses`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ResponsesRequest {
    #[serde(default)]
    pub model: Option<String>,
    pub input: Input,
    #[serde(default)]
    pub instructions: Option<String>,
    /// Id of the answer that this request continues.
    #[serde(default)]
    pub previous_response_id: Option<String>,
    /// Store the answer, so that another request can continue it. Default: true.
    #[serde(default)]
    pub store: Option<bool>,
    #[serde(default)]
    pub tools: Option<Vec<ResponseTool>>,
    #[serde(default)]
    pub tool_choice: Option<Value>,
    #[serde(default)]
    pub parallel_tool_calls: Option<bool>,
    #[serde(default)]
    pub max_output_tokens: Option<u32>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    /// Extension; as in [`crate::CompletionRequest`].
    #[serde(default)]
    pub top_k: Option<u32>,
    /// Extension; as in [`crate::CompletionRequest`].
    #[serde(default)]
    pub seed: Option<i64>,
    #[serde(default)]
    pub text: Option<TextOptions>,
    #[serde(default)]
    pub reasoning: Option<ReasoningOptions>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub metadata: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of items")]
pub enum Input {
    Text(String),
    Items(Vec<Item>),
}

impl Default for Input {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// An item of a conversation. Its type decides which fields it has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Item {
    /// `message` (default), `function_call`, `function_call_output`, `reasoning`.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    #[serde(default)]
    pub role: Option<String>,
    #[serde(default)]
    pub content: Option<ItemContent>,
    #[serde(default)]
    pub summary: Option<Vec<ItemPart>>,
    #[serde(default)]
    pub call_id: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub arguments: Option<String>,
    #[serde(default)]
    pub output: Option<ItemContent>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts")]
pub enum ItemContent {
    Text(String),
    Parts(Vec<ItemPart>),
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ItemPart {
    /// `input_text`, `output_text`, `reasoning_text`, `summary_text`, `text`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseTool {
    /// `function`. Other types are rejected.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub parameters: Option<Value>,
    #[serde(default)]
    pub strict: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TextOptions {
    #[serde(default)]
    pub format: Option<TextFormat>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TextFormat {
    /// `text`, `json_object`, `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub schema: Option<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ReasoningOptions {
    #[serde(default)]
    pub effort: Option<String>,
}
