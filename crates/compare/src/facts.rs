//! Facts that an engine reports about itself and its run, as the basis of the fairness check. They
//! are read from its output or its binary, never assumed; unknown facts are `None`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::workload::Workload;

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

/// Hash of the file that an engine read: of the workload's file if the engine opened nothing else, or of another one
/// that it opened. `None` if its process was not seen to open a model.
pub(super) fn file(opened: &BTreeSet<PathBuf>, work: &Workload) -> Option<String> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    let wanted = identity(&work.model);
    match opened.iter().find(|path| identity(path) != wanted && !is_part(path, &work.model)) {
        // A file that is gone by now was another one all the same.
        Some(other) => {
            Some(hash(other).unwrap_or_else(|_| format!("unreadable: {}", other.display())))
        }
        None => opened.first().map(|_| work.sha256.clone()),
    }
}

/// True for another part of a model in several files, `NAME-00002-of-00003.gguf`.
fn is_part(path: &Path, model: &Path) -> bool {
    let split = |path: &Path| {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?.to_owned();
        let (rest, count) = name.rsplit_once("-of-")?;
        Some((rest.rsplit_once('-')?.0.to_owned(), count.to_owned()))
    };
    path.parent() == model.parent() && split(path).is_some_and(|it| Some(it) == split(model))
}

fn hash(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut part) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut part)? {
            0 => break,
            read => hash.update(&part[..read]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Precision of activations in products with weights of these types, by the arithmetic of
/// docs/numerics.md.
pub(super) fn activations<'a>(weights: impl Iterator<Item = &'a str>) -> String {
    // Norms and biases are F32 in every file.
    let plain = |name: &str| ["F32", "F16", "BF16"].contains(&name);
    let quantised = weights.into_iter().any(|name| !plain(name));
    if quantised { "int8 blocks" } else { "f32" }.into()
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
    fn activations_follow_from_the_weights() {
        assert_eq!(activations(["F32", "F16"].into_iter()), "f32");
        assert_eq!(activations(["F32", "Q6_K"].into_iter()), "int8 blocks");
    }

    #[test]
    fn parts_of_a_model_have_its_name_and_folder() {
        let model = Path::new("/m/a-00001-of-00003.gguf");
        assert!(is_part(Path::new("/m/a-00003-of-00003.gguf"), model));
        for other in ["/m/b-00002-of-00003.gguf", "/n/a-00002-of-00003.gguf", "/m/a.gguf"] {
            assert!(!is_part(Path::new(other), model), "{other}");
        }
        assert!(!is_part(Path::new("/m/b.gguf"), Path::new("/m/a.gguf")));
    }

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
