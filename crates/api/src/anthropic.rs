//! Request types of Anthropic's `/v1/messages`. The server writes the answers as JSON values.

use serde::Deserialize;
use serde_json::Value;

use super::lenient;

/// Body of `POST /v1/messages` and `POST /v1/messages/count_tokens`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct MessagesRequest {
    #[serde(default)]
    pub model: Option<String>,
    pub messages: Vec<TurnMessage>,
    #[serde(default)]
    pub system: Option<Blocks>,
    /// Maximum number of tokens to generate. Capped at the space left in the slot.
    #[serde(default, deserialize_with = "lenient::limit")]
    pub max_tokens: Option<u32>,
    #[serde(default)]
    pub stop_sequences: Option<Vec<String>>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default, deserialize_with = "lenient::candidates")]
    pub top_k: Option<u32>,
    #[serde(default)]
    pub tools: Option<Vec<TurnTool>>,
    #[serde(default)]
    pub tool_choice: Option<TurnChoice>,
    #[serde(default)]
    pub thinking: Option<Thinking>,
    /// Servers of tools, which Anthropic calls. They are skipped.
    #[serde(default)]
    pub mcp_servers: Option<Vec<Value>>,
    #[serde(default)]
    pub output_config: Option<OutputConfig>,
    /// Older place of [`OutputConfig::format`].
    #[serde(default)]
    pub output_format: Option<OutputFormat>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OutputConfig {
    /// Required format of the answer. The other fields are ignored.
    #[serde(default)]
    pub format: Option<OutputFormat>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OutputFormat {
    /// `json_schema`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub schema: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TurnMessage {
    /// `user`, `assistant`, `system`, `developer`.
    pub role: String,
    pub content: Blocks,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of content blocks")]
pub enum Blocks {
    Text(String),
    List(Vec<Block>),
    /// Content of a tool that Anthropic runs, such as an error.
    Other(serde_json::Map<String, Value>),
}

/// A content block. Its type decides which fields it has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Block {
    /// `text`, `document`, `thinking`, `redacted_thinking`, `tool_use`, `tool_result`, and blocks of
    /// tools that Anthropic runs.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub text: Option<String>,
    #[serde(default)]
    pub thinking: Option<String>,
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub input: Option<Value>,
    #[serde(default)]
    pub tool_use_id: Option<String>,
    #[serde(default)]
    pub content: Option<Blocks>,
    /// Content of a document.
    #[serde(default)]
    pub source: Option<Value>,
    /// Name in a `tool_reference`.
    #[serde(default)]
    pub tool_name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TurnTool {
    /// `custom` or absent. Tools of other types are skipped: they run on Anthropic's machines, or
    /// their schema is known to Anthropic's models only.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub input_schema: Option<Value>,
    /// Refuse a schema that cannot be enforced.
    #[serde(default)]
    pub strict: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TurnChoice {
    /// `auto`, `any`, `tool`, `none`.
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub disable_parallel_tool_use: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Thinking {
    /// `enabled`, `adaptive`, `disabled`.
    #[serde(rename = "type")]
    pub kind: String,
}
