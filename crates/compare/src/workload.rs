//! Workload of every peer: one model file, the same tests, the same token ids.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use bench::Test;
use plan::sample::philox;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// GGUF file.
    pub model: PathBuf,
    /// SHA-256 of that file.
    pub sha256: String,
    /// File type in llama.cpp's notation: `Q6_K`.
    pub file_type: String,
    /// Vocabulary size; prompts are drawn from it.
    pub vocabulary: usize,
    pub tests: Vec<Test>,
    /// Device: `cpu`, `cuda`, `nv`.
    pub device: String,
    pub threads: usize,
    pub seed: u64,
    /// Length of the prompts whose first token is timed.
    pub prompt: u32,
    /// Number of tokens streamed after each prompt.
    pub stream: u32,
    /// Test prompts, to which all engines must give the same answer, and the number of tokens to
    /// compare.
    pub judged: Vec<Vec<u32>>,
    pub steps: u32,
}

/// Number of alternatives requested at each token.
pub const TOP: u32 = 20;

impl Workload {
    /// Returns a new prompt of `n` tokens for each nonce. Special tokens, which are at either end
    /// of most vocabularies, are excluded.
    pub fn prompt(&self, n: u32, nonce: u32) -> Vec<u32> {
        random(self.vocabulary, n, self.seed, nonce)
    }

    /// Context length that a sequence needs.
    pub fn context(&self) -> u64 {
        let served = u64::from(self.prompt) + u64::from(self.stream);
        let judged = self.judged.iter().map(|prompt| prompt.len() as u64 + u64::from(self.steps));
        let tests = self.tests.iter().map(Test::context);
        tests.chain(judged).chain([served]).max().unwrap_or(0) + 1
    }
}

/// Returns `n` random ids of ordinary tokens.
pub fn random(vocabulary: usize, n: u32, seed: u64, nonce: u32) -> Vec<u32> {
    let (low, high) = (vocabulary / 8, vocabulary - vocabulary / 8);
    let range = (high - low).max(1) as u64;
    let key = seed ^ (u64::from(nonce) << 32);
    let id = |i| low as u32 + (u64::from(philox([i, nonce, 0x0c0_7a5e, 0], key)[0]) % range) as u32;
    (0..n).map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_by_nonce_and_seed_and_repeat() {
        let a = random(1000, 64, 7, 1);
        assert_eq!(a, random(1000, 64, 7, 1));
        assert_ne!(a, random(1000, 64, 7, 2));
        assert_ne!(a, random(1000, 64, 8, 1));
        assert!(a.iter().all(|id| (125..875).contains(id)));
    }
}
