//! Provenance of a measurement: hash and types of the model, the kernels and their tuned choices.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::heartbeat::Heartbeat;
use device::Device;
use device::tune::{Case, Choice, Choices, digest};
use model::Model;

/// Provenance of a loaded model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// SHA-256 of the model's files, concatenated; `None` if they cannot be read any more.
    pub model_sha256: Option<String>,
    /// Bytes of tensors by type.
    pub weight_types: BTreeMap<String, u64>,
    /// Type of keys and values.
    pub kv_type: String,
    /// Precision of prompt matmuls on a GPU, in attention and with F16 or BF16 weights: `single` or `half`.
    #[serde(default)]
    pub prompt_precision: String,
    /// SHA-256 over the hashes of the sources of the model's kernels; `None` if the device reports none.
    pub kernels: Option<String>,
    /// Tuned choices in use, by case.
    pub tuning: BTreeMap<String, Choice>,
}

impl Provenance {
    /// Everything but the hash of the files, which takes reading them.
    pub(super) fn of(
        model: &Model,
        device: &dyn Device,
        cases: &[Case],
        choices: &Choices,
    ) -> Self {
        let mut weight_types = BTreeMap::new();
        for tensor in model.gguf().tensors() {
            *weight_types.entry(tensor.dtype.name().to_owned()).or_insert(0) += tensor.bytes;
        }
        let spaces = device
            .tunable()
            .into_iter()
            .flat_map(|tunable| cases.iter().filter_map(|case| Some(tunable.space(case)?.source)));
        let sources: BTreeSet<String> = spaces.collect();
        let all: Vec<&str> = sources.iter().map(String::as_str).collect();
        let used = |case: &Case| Some((case.to_string(), choices.get(case)?.clone()));
        Self {
            model_sha256: None,
            weight_types,
            kv_type: model.cache().name().to_owned(),
            prompt_precision: model.precision().name().to_owned(),
            kernels: (!all.is_empty()).then(|| digest(&all)),
            tuning: cases.iter().filter_map(used).collect(),
        }
    }
}

/// SHA-256 of concatenated files.
pub(super) fn hash<'a>(
    files: impl Iterator<Item = &'a Path>,
    heartbeat: &Heartbeat,
) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    for path in files {
        let mut file = File::open(path)?;
        loop {
            let read = file.read(&mut block)?;
            if read == 0 {
                break;
            }
            hash.update(&block[..read]);
            heartbeat.beat();
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
