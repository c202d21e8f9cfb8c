//! Request types of Anthropic's `/v1/messages`. The server writes the answers as JSON values.

use serde::Deserialize;
use serde_json::Value;

/// Body of `POST /v1/messages` and `POST /v1/messages/count_tokens`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct MessagesRequest {
    #[serde(default)]
    pub model: Option<String>,
    pub messages: Vec<TurnMessage>,
    #[serde(default)]
    pub system: Option<Blocks>,
    /// Maximum number of tokens to generate. Capped at the space left in the slot.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    #[serde(default)]
    pub stop_sequences: Option<Vec<String>>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub temperature: Option<f32>,
    #[serde(default)]
    pub top_p: Option<f32>,
    #[serde(default)]
    pub top_k: Option<u32>,
    #[serde(default)]
    pub tools: Option<Vec<TurnTool>>,
    #[serde(default)]
    pub tool_choice: Option<TurnChoice>,
    #[serde(default)]
    pub thinking: Option<Thinking>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TurnMessage {
    /// `user`, `assistant`, `system`.
    pub role: String,
    pub content: Blocks,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of content blocks")]
pub enum Blocks {
    Text(String),
    List(Vec<Block>),
}

/// A content block. Its type decides which fields it has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Block {
    /// `text`, `thinking`, `redacted_thinking`, `tool_use`, `tool_result`.
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
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct TurnTool {
    /// `custom` or absent. Other tool types run on Anthropic's machines.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    #[serde(default)]
    pub input_schema: Option<Value>,
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
