//! Request and answer of `/orin/v1/run`, which runs an ONNX network.

use std::collections::BTreeMap;

use config::Backend;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Body of `POST /orin/v1/run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// An ONNX file, or its name in the models directory, with or without `.onnx`.
    pub model: String,
    /// Values of all inputs, by name.
    pub inputs: BTreeMap<String, RunInput>,
    /// Backend. Default: the daemon's.
    #[serde(default)]
    pub backend: Option<Backend>,
    /// Encoding of outputs: `float` (default), or `base64` of little-endian `f32`.
    #[serde(default)]
    pub encoding_format: Option<String>,
}

/// An input: `shape` with `values` or `data`, or `npy` alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunInput {
    #[serde(default)]
    pub shape: Option<Vec<usize>>,
    /// Row-major values; the last axis varies fastest.
    #[serde(default)]
    pub values: Option<Vec<f32>>,
    /// Little-endian `f32` in base64.
    #[serde(default)]
    pub data: Option<String>,
    /// Bytes of a `.npy` file in base64.
    #[serde(default)]
    pub npy: Option<String>,
}

/// Answer of `POST /orin/v1/run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunAnswer {
    /// Path of the file.
    pub model: String,
    /// Description of the device that ran it.
    pub device: String,
    /// True if an earlier request had prepared the network.
    pub prepared: bool,
    /// Duration of the run in milliseconds, without preparation.
    pub run_ms: f64,
    pub outputs: BTreeMap<String, RunOutput>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunOutput {
    /// ONNX element type: `float`, `int64`.
    #[serde(rename = "type")]
    pub elem: String,
    pub shape: Vec<usize>,
    /// List of numbers, or a base64 string.
    pub values: Value,
}
