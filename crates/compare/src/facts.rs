//! What an engine says of itself and of how it ran: what fairness is checked on. Read from its own output
//! or its binary, never assumed; what it does not tell is `None`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Its name and version, with the commit where it tells one.
    pub version: String,
    /// `cpu`, `cuda`, `nv`.
    pub device: Option<String>,
    /// SHA-256 of the model file that it read.
    pub file: Option<String>,
    /// Precision in which it holds weights: the file's types, or what it made of them.
    pub weights: Option<String>,
    /// Precision of activations in matrix products.
    pub activations: Option<String>,
    /// Precision of the KV cache.
    pub kv: Option<String>,
    pub threads: Option<usize>,
    /// Most rows of a prompt evaluated at once.
    pub batch: Option<u32>,
    pub flash_attention: Option<bool>,
    /// Untimed runs before a timed one.
    pub warmup: Option<u32>,
    /// Compiled for this model or shape, and by what: `torch.compile`, `jit`.
    pub compiled: Option<String>,
    /// Instruction sets or SM versions that it was built for, by the names that llama.cpp has for them: `AVX512`, `AMX_INT8`.
    pub built_for: Option<BTreeSet<String>>,
    /// What is under the clock: `engine` (calls of its library) or `http` (requests to its server).
    pub clock: Option<String>,
}

/// Instruction sets that decide the speed of matrix products on a CPU: the name here, the flag of
/// `/proc/cpuinfo` (Linux `arch/x86/include/asm/cpufeatures.h`, `arch/arm64/kernel/cpuinfo.c`), the name in
/// llama.cpp's `system_info` (`ggml_cpu` features).
const SETS: [(&str, &str, &str); 10] = [
    ("AVX2", "avx2", "AVX2"),
    ("FMA", "fma", "FMA"),
    ("F16C", "f16c", "F16C"),
    ("AVX512", "avx512f", "AVX512"),
    ("AVX512_VNNI", "avx512_vnni", "AVX512_VNNI"),
    ("AVX512_BF16", "avx512_bf16", "AVX512_BF16"),
    ("AMX_INT8", "amx_int8", "AMX_INT8"),
    ("NEON", "asimd", "NEON"),
    ("DOTPROD", "asimddp", "DOTPROD"),
    ("I8MM", "i8mm", "MATMUL_INT8"),
];

/// The sets that this machine's processor has, by the `flags` or `Features` of `/proc/cpuinfo`.
pub fn processor(cpuinfo: &str) -> BTreeSet<String> {
    let line =
        cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let flags: BTreeSet<&str> = line
        .and_then(|line| line.split_once(':'))
        .map(|(_, flags)| flags.split_whitespace().collect())
        .unwrap_or_default();
    SETS.iter().filter(|set| flags.contains(set.1)).map(|set| set.0.to_owned()).collect()
}

/// The sets in a line of llama.cpp's `system_info`: `AVX2 = 1 | AMX_INT8 = 1 | ...`.
pub(super) fn system_info(line: &str) -> BTreeSet<String> {
    let on: BTreeSet<&str> = line
        .split(['|', ':'])
        .filter_map(|part| part.trim().strip_suffix("= 1"))
        .map(str::trim)
        .collect();
    SETS.iter().filter(|set| on.contains(set.2)).map(|set| set.0.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_from_the_processor_and_from_the_peer() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f amx_int8\n";
        let has = processor(cpuinfo);
        assert_eq!(has, ["AMX_INT8", "AVX2", "AVX512", "FMA"].map(String::from).into());
        let line = "system_info: n_threads = 2 | CPU : SSE3 = 1 | AVX2 = 1 | FMA = 1 | AVX512 = 0 | REPACK = 1 | ";
        assert_eq!(system_info(line), ["AVX2", "FMA"].map(String::from).into());
        assert!(processor("").is_empty());
    }
}
