//! What a network out of an ONNX file is asked, and its answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Body of `POST /orin/v1/run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// An ONNX file, or its name in the models directory, with or without `.onnx`.
    pub model: String,
    /// By name, all that the network takes.
    pub inputs: BTreeMap<String, RunInput>,
    /// The device, as a load names it; the daemon's own where absent.
    #[serde(default)]
    pub backend: Option<String>,
    /// `float` where absent, or `base64` of little-endian `f32`.
    #[serde(default)]
    pub encoding_format: Option<String>,
}

/// One of `values` and `data` with their `shape`, or `npy` alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunInput {
    #[serde(default)]
    pub shape: Option<Vec<usize>>,
    /// In the order of the shape, the last axis first.
    #[serde(default)]
    pub values: Option<Vec<f32>>,
    /// The same as little-endian `f32` in base 64.
    #[serde(default)]
    pub data: Option<String>,
    /// The bytes of a `.npy` file in base 64.
    #[serde(default)]
    pub npy: Option<String>,
}

/// Answer of `POST /orin/v1/run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunAnswer {
    /// The file.
    pub model: String,
    /// What ran it, in a line.
    pub device: String,
    /// Whether the network was prepared by an earlier request.
    pub prepared: bool,
    /// Milliseconds of the run alone.
    pub run_ms: f64,
    pub outputs: BTreeMap<String, RunOutput>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunOutput {
    /// As ONNX names it: `float`, `int64`.
    #[serde(rename = "type")]
    pub elem: String,
    pub shape: Vec<usize>,
    /// Numbers, or a text of them in base 64.
    pub values: Value,
}
