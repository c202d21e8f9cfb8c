//! Request types of the embedding routes, and OpenAI's answer.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Prompt, lenient};

/// Body of `POST /v1/embeddings`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct EmbeddingsRequest {
    #[serde(default)]
    pub model: Option<String>,
    /// Texts, or token ids, which are used unchanged.
    pub input: Prompt,
    /// `float` (default), or `base64` of little-endian `f32`.
    #[serde(default)]
    pub encoding_format: Option<String>,
    /// Number of dimensions. Embeddings are truncated and normalised again. Default: all.
    #[serde(default, deserialize_with = "lenient::size")]
    pub dimensions: Option<usize>,
}

/// Body of `POST /api/embed`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct OllamaEmbed {
    #[serde(default)]
    pub model: Option<String>,
    /// One or several texts. A text that is too long is rejected, regardless of `truncate`.
    pub input: Prompt,
    #[serde(default, deserialize_with = "lenient::size")]
    pub dimensions: Option<usize>,
}

/// Body of `POST /api/embeddings`, the older route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct OllamaEmbeddings {
    #[serde(default)]
    pub model: Option<String>,
    pub prompt: String,
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
    /// List of numbers, or a base64 string.
    pub embedding: Value,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbeddingsUsage {
    pub prompt_tokens: u64,
    pub total_tokens: u64,
}
