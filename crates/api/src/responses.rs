//! Request types of OpenAI's `/v1/responses`. The server writes the answers as JSON values.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::lenient;

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
    #[serde(default, deserialize_with = "lenient::limit")]
    pub max_output_tokens: Option<u32>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    /// Extension; as in [`crate::CompletionRequest`].
    #[serde(default, deserialize_with = "lenient::candidates")]
    pub top_k: Option<u32>,
    /// Extension; as in [`crate::CompletionRequest`].
    #[serde(default, deserialize_with = "lenient::seed")]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Item {
    /// Also names the item of a stored answer that an `item_reference` stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `message` (default), `function_call`, `function_call_output`, `custom_tool_call`,
    /// `custom_tool_call_output`, `reasoning`, `item_reference`, and items of tools that OpenAI runs.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<ItemContent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<Vec<ItemPart>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Namespace of the function that is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(deserialize_with = "lenient::json_text", skip_serializing_if = "String::is_empty")]
    pub arguments: String,
    /// Input of a `custom_tool_call`, which is no JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<ItemContent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of parts")]
pub enum ItemContent {
    Text(String),
    Parts(Vec<ItemPart>),
    /// Output of a tool that OpenAI runs.
    Other(serde_json::Map<String, Value>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemPart {
    /// `input_text`, `output_text`, `reasoning_text`, `summary_text`, `text`, `refusal`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, alias = "refusal", deserialize_with = "lenient::or_default")]
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResponseTool {
    /// `function`, or `namespace` with functions in `tools`. Tools of other types are skipped.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub parameters: Option<Value>,
    #[serde(default)]
    pub strict: Option<bool>,
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tools: Vec<ResponseTool>,
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
