//! The NV driver gives the fingerprints that are on record: its logits are the CPU's, to the last bit, whatever the
//! prompt, the chunk and the company.

use device::cpu::Cpu;
use device::gpu::nv::Nv;
use model::{Model, synthetic};
use orind_testing::{data, full, tiny};
use parity::fingerprint::{Fingerprint, LONGEST};
use serde_json::Value;

/// The model that has prompts of more than a span; in Q8_0 and F16 `architectures` has them.
const LONG: &str = "tiny-llama-Q4_K_M";

#[test]
fn fingerprints_are_the_cpus() {
    let file = std::fs::read(data("fingerprints.json")).unwrap();
    let record: Value = serde_json::from_slice(&file).unwrap();
    let (nv, cpu) = (Nv::detect().unwrap(), Cpu::detect());
    let models = record["models"].as_object().unwrap();
    assert!(!models.is_empty());
    for (name, hash) in models {
        // What is beyond is a matter of hours on a simulated GPU.
        let longest = match name.as_str() {
            _ if full() => LONGEST as usize,
            LONG => 33,
            synthetic if synthetic.starts_with("synthetic:") => 7,
            // Its prompts of a few tokens are held to the CPU's bits by `parity::types`.
            _ => continue,
        };
        let name = if name.starts_with("synthetic:") { name.clone() } else { tiny(name) };
        let path = synthetic::locate(&name, &mut |_, _| ()).unwrap();
        let model = Model::open(path).unwrap();
        let of = |device| Fingerprint::of(device, &model, longest, &|_| ()).unwrap();
        let ours = of(&nv);
        assert_eq!(ours, of(&cpu), "{name}");
        assert!(!full() || ours.hash == *hash, "{name}: {ours:?}");
    }
}
