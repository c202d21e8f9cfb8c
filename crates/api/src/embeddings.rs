//! What both routes for embeddings are asked, and OpenAI's answer.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Prompt;

/// Body of `POST /v1/embeddings`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct EmbeddingsRequest {
    #[serde(default)]
    pub model: Option<String>,
    /// Texts, or token ids, which are taken as they are.
    pub input: Prompt,
    /// `float` where absent, or `base64` of little-endian `f32`.
    #[serde(default)]
    pub encoding_format: Option<String>,
    /// Numbers of each embedding: the first ones, made of length 1 again; all where absent.
    #[serde(default)]
    pub dimensions: Option<usize>,
}

/// Body of `POST /api/embed`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaEmbed {
    #[serde(default)]
    pub model: Option<String>,
    /// A text or several; one that is too long is refused, whatever `truncate` says.
    pub input: Prompt,
    #[serde(default)]
    pub dimensions: Option<usize>,
}

/// Answer of `POST /v1/embeddings`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embeddings {
    /// `list`.
    pub object: String,
    pub data: Vec<Embedding>,
    pub model: String,
    pub usage: EmbeddingsUsage,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embedding {
    /// `embedding`.
    pub object: String,
    pub index: usize,
    /// Numbers, or a text of them in base 64.
    pub embedding: Value,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingsUsage {
    pub prompt_tokens: u64,
    pub total_tokens: u64,
}
