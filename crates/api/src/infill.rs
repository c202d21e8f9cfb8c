//! Request type of llama.cpp's `/infill`.

use serde::Deserialize;
use serde_json::Value;

use super::{LogitsOptions, Stop, lenient};

/// Body of `POST /infill`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct InfillRequest {
    #[serde(default)]
    pub model: Option<String>,
    /// Text before the answer.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub input_prefix: String,
    /// Text after the answer.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub input_suffix: String,
    /// Further text before the answer.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub prompt: String,
    /// Other files of the project, which precede both texts.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub input_extra: Vec<InfillFile>,
    #[serde(default, alias = "max_tokens", deserialize_with = "lenient::limit")]
    pub n_predict: Option<u32>,
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
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    pub grammar: Option<String>,
    #[serde(default)]
    pub json_schema: Option<Value>,
    #[serde(flatten)]
    pub logits_options: LogitsOptions,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct InfillFile {
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub filename: String,
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub text: String,
}
