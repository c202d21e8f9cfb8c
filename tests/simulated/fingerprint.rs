//! Fingerprints of the NV device: its logits have the CPU's bits for every prompt length, chunk size and batch.

use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use model::{Model, synthetic};
use orind_testing::{data, full, tiny};
use parity::fingerprint::{Fingerprint, LONGEST};
use serde_json::Value;

/// Compares the fingerprint of a model with the CPU's, with prompts of at most `longest` tokens.
fn check(name: &str, longest: usize) -> Fingerprint {
    let file = if name.starts_with("synthetic:") { name.to_owned() } else { tiny(name) };
    let path = synthetic::locate(&file, &mut |_, _| ()).unwrap();
    let model = Model::open(path).unwrap();
    let of = |device: &dyn Device| Fingerprint::of(device, &model, longest, &|_| ()).unwrap();
    let nv = of(&Nv::detect().unwrap());
    assert_eq!(nv, of(&Cpu::detect()), "{name}");
    nv
}

/// Prompts on both sides of a span of 32 positions, chunks of 2 to 64 rows, batches of 4 and 8, logits of every row.
#[test]
fn a_fingerprint_equals_the_cpu() {
    check("tiny-llama-Q4_K_M", 33);
}

/// Compares all recorded models with the CPU, and the hashes with the record if `ORIND_TEST_FULL=1` asks for prompts
/// of the full length, which takes hours.
#[test]
#[ignore = "nightly"]
fn nightly_fingerprints_of_all_models_equal_the_cpu() {
    let file = std::fs::read(data("fingerprints.json")).unwrap();
    let record: Value = serde_json::from_slice(&file).unwrap();
    let models = record["models"].as_object().unwrap();
    assert!(!models.is_empty());
    for (name, hash) in models {
        let found = check(name, if full() { LONGEST as usize } else { 33 });
        assert!(!full() || found.hash == *hash, "{name}: {found:?}");
    }
}
