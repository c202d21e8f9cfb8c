//! Facts that an engine reports about itself and its run, as the basis of the fairness check. They
//! are read from its output or its binary, never assumed; unknown facts are `None`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Name and version, with the commit if known.
    pub version: String,
    /// Device: `cpu`, `cuda`, `nv`.
    pub device: Option<String>,
    /// SHA-256 of the model file that the engine read.
    pub file: Option<String>,
    /// Precision of the weights in memory: the types of the file, or those after conversion.
    pub weights: Option<String>,
    /// Precision of activations in matmuls.
    pub activations: Option<String>,
    /// Precision of the KV cache.
    pub kv: Option<String>,
    pub threads: Option<usize>,
    /// Maximum prompt rows evaluated at once.
    pub batch: Option<u32>,
    pub flash_attention: Option<bool>,
    /// Untimed runs before a timed one.
    pub warmup: Option<u32>,
    /// Compiler that specialised the model: `torch.compile`, `jit`.
    pub compiled: Option<String>,
    /// Instruction sets or SM versions of the build, in llama.cpp's notation: `AVX512`, `AMX_INT8`.
    pub built_for: Option<BTreeSet<String>>,
    /// Timed interface: `engine` (calls of its library) or `http` (requests to its server).
    pub clock: Option<String>,
}

/// Instruction sets that decide the speed of matmuls on a CPU: our name, the flag of
/// `/proc/cpuinfo` (Linux `arch/x86/include/asm/cpufeatures.h`, `arch/arm64/kernel/cpuinfo.c`), and
/// the name in llama.cpp's `system_info` (`ggml_cpu` features).
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

/// Instruction sets of this machine's CPU, from `flags` or `Features` of `/proc/cpuinfo`.
pub fn processor(cpuinfo: &str) -> BTreeSet<String> {
    let line =
        cpuinfo.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
    let flags: BTreeSet<&str> = line
        .and_then(|line| line.split_once(':'))
        .map(|(_, flags)| flags.split_whitespace().collect())
        .unwrap_or_default();
    SETS.iter().filter(|set| flags.contains(set.1)).map(|set| set.0.to_owned()).collect()
}

/// Instruction sets in a line of llama.cpp's `system_info`: `AVX2 = 1 | AMX_INT8 = 1 | ...`.
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
    fn instruction_sets_are_read_from_cpuinfo_and_system_info() {
        let cpuinfo = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f amx_int8\n";
        let has = processor(cpuinfo);
        assert_eq!(has, ["AMX_INT8", "AVX2", "AVX512", "FMA"].map(String::from).into());
        let line = "system_info: n_threads = 2 | CPU : SSE3 = 1 | AVX2 = 1 | FMA = 1 | AVX512 = 0 | REPACK = 1 | ";
        assert_eq!(system_info(line), ["AVX2", "FMA"].map(String::from).into());
        assert!(processor("").is_empty());
    }
}
