//! Measurements of one engine in one round: speeds, latencies and memory; and its answers to the
//! test prompts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::process::ProcessMemory;
use analysis::statistics::median;

/// One round of one peer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    pub facts: Facts,
    /// Tokens per second by test name.
    pub speeds: BTreeMap<String, f64>,
    /// Seconds from starting the process until the model was ready.
    pub load: Option<f64>,
    /// Seconds from sending a new prompt to its first token; the first entry is the first prompt
    /// after the start.
    pub first_token: Vec<f64>,
    /// Seconds between consecutive tokens of each answer, in order.
    pub between: Vec<Vec<f64>>,
    pub memory: Memory,
    /// Prompt tokens that came from a cache, if known.
    pub cached: Option<u64>,
    /// Read bandwidth measured in this round, in bytes per second.
    pub roof: Option<f64>,
    /// Bytes that a decoded token reads.
    pub bytes_per_token: Option<f64>,
    /// Joules per token by test name.
    pub joules: BTreeMap<String, f64>,
    /// Reasons why the round is invalid: the machine changed.
    pub invalid: Vec<String>,
}

/// Minimum number of token gaps in the half of an answer that counts as sustained.
const SUSTAINED: usize = 8;

impl Outcome {
    /// Tokens per second in the second halves of all answers but the first after the start, pauses
    /// included.
    pub(super) fn sustained(&self) -> Option<f64> {
        let halves = self.between.iter().skip(1).map(|gaps| &gaps[gaps.len() / 2..]);
        let long = halves.filter(|half| half.len() >= SUSTAINED).flatten();
        let (tokens, seconds) = long.fold((0.0, 0.0), |(n, sum), gap| (n + 1.0, sum + gap));
        (seconds > 0.0).then(|| tokens / seconds)
    }

    /// Median time between tokens of all answers but the first.
    pub(super) fn between_tokens(&self) -> Option<f64> {
        median(&self.between.iter().skip(1).flatten().copied().collect::<Vec<_>>())
    }
}

/// Memory in bytes; unknown parts are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Largest resident set of the processes.
    pub peak: Option<u64>,
    pub weights: Option<u64>,
    pub kv: Option<u64>,
    pub activations: Option<u64>,
    /// Executable mappings of the processes: programs, libraries, and kernels compiled at run time.
    pub code: Option<u64>,
    /// Memory reserved on a GPU.
    pub gpu: Option<u64>,
    /// Machine code of kernels within that.
    pub gpu_code: Option<u64>,
}

/// A kind of memory and the bytes of each of its parts; unknown parts are `None`.
pub(super) type MemoryParts = (&'static str, [(&'static str, Option<u64>); 5]);

impl Memory {
    pub(super) fn seen(&mut self, held: ProcessMemory) {
        self.peak = Some(held.peak);
        self.code = (held.code > 0).then_some(held.code);
    }

    /// Total: the largest resident set plus memory reserved on a GPU.
    pub(super) fn all(&self) -> Option<u64> {
        Some(self.peak? + self.gpu.unwrap_or(0))
    }

    /// Parts by kind of memory; the rest is the total minus all known parts.
    pub(super) fn places(&self) -> Vec<MemoryParts> {
        let place = |name, [weights, kv, activations, code]: [Option<u64>; 4], all: Option<u64>| {
            let told = [weights, kv, activations, code].into_iter().flatten().sum();
            let rest = all.map(|all| all.saturating_sub(told));
            let parts = [
                ("weights", weights),
                ("KV", kv),
                ("activations", activations),
                ("code", code),
                ("rest", rest),
            ];
            (name, parts)
        };
        let Self { peak, weights, kv, activations, code, gpu, gpu_code } = *self;
        match gpu {
            None => vec![place("host", [weights, kv, activations, code], peak)],
            Some(_) => vec![
                place("GPU", [weights, kv, activations, gpu_code], gpu),
                place("host", [None, None, None, code], peak),
            ],
        }
    }
}

/// Greedy answer to a prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub tokens: Vec<u32>,
    /// For each token the most likely ones with their log-probability at temperature 1, best first.
    pub top: Vec<Vec<(u32, f64)>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sustained_speed_uses_second_halves_with_pauses() {
        // The first answer and all first halves are fast; one pause is in a second half, one in a
        // first half.
        let fast = vec![0.001; 16];
        let mut paused = vec![0.1; 16];
        (paused[2], paused[15]) = (9.0, 0.9);
        let outcome = Outcome {
            between: vec![fast, paused, vec![0.1; 17], vec![9.0; 15]],
            ..Outcome::default()
        };
        // 8 tokens in 1.6 s, 9 in 0.9 s; the half of fifteen has eight as well.
        let want = 25.0 / (1.6 + 0.9 + 72.0);
        assert!((outcome.sustained().unwrap() - want).abs() < 1e-12, "{:?}", outcome.sustained());
        let short = Outcome { between: vec![vec![0.1; 64], vec![0.1; 14]], ..Outcome::default() };
        assert_eq!(short.sustained(), None);
        assert!((outcome.between_tokens().unwrap() - 0.1).abs() < 1e-12);
    }
}
