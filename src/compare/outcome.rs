//! What a peer gives: speeds and times of one round, and what it answers to prompts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::facts::Facts;

/// One round of one peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    pub facts: Facts,
    /// Tokens per second by the test's name.
    pub speeds: BTreeMap<String, f64>,
    /// Seconds from starting the process to a model that is ready.
    pub load: Option<f64>,
    /// Seconds from sending a prompt that it has not seen to its first token; the first is the first
    /// after the start.
    pub first_token: Vec<f64>,
    /// Seconds between two tokens that follow each other, in order, from the first of each answer.
    pub between: Vec<Vec<f64>>,
    pub memory: Memory,
    /// Prompt tokens that it took from a cache, as far as it tells.
    pub cached: Option<u64>,
    /// Read bandwidth measured in this round, in bytes per second.
    pub roof: Option<f64>,
    /// Bytes that a decoded token reads.
    pub bytes_per_token: Option<f64>,
    /// Joules per token by the test's name.
    pub joules: BTreeMap<String, f64>,
    /// Why the round says nothing: the machine changed.
    pub invalid: Vec<String>,
}

/// In bytes; what is not told is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Largest resident set of its processes.
    pub peak: Option<u64>,
    pub weights: Option<u64>,
    pub kv: Option<u64>,
    pub activations: Option<u64>,
    /// Kernels and other code.
    pub code: Option<u64>,
    /// What it reserved on a GPU.
    pub gpu: Option<u64>,
}

/// What it answers, greedily, to each prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub tokens: Vec<u32>,
    /// For each token the most likely ones with their log-probability at temperature 1, best first.
    pub top: Vec<Vec<(u32, f64)>>,
}
