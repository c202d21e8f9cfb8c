//! ONNX's tests of nodes on the simulated Orin: of each operator one case that the CPU passes.

use std::collections::{BTreeMap, BTreeSet};

use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use onnx::{Array, Error, Model, Network};
use orind_testing::nodes::{Case, cases, close};

/// Launches of a case at most: those of long sequences show nothing more.
const LAUNCHES: usize = 64;

/// What a case gives, where it can be run; and what it should give.
fn run(case: &Case, device: &dyn Device) -> Result<[BTreeMap<String, Array>; 2], Error> {
    let parse = |all: &[Vec<u8>]| all.iter().map(|bytes| Array::parse(bytes)).collect();
    let (inputs, outputs): (_, Result<_, _>) = (parse(&case.inputs)?, parse(&case.outputs));
    let model = Model::parse(&case.model)?;
    let mut network = Network::of(&model, device, &inputs)?;
    if network.plan().steps.len() > LAUNCHES {
        return Err(Error::Model { what: "long".into() });
    }
    Ok([network.run(&inputs)?, outputs?])
}

#[test]
fn operators_compute_what_onnx_says() {
    let (cpu, nv) = (Cpu::detect(), Nv::detect().unwrap());
    let mut seen = BTreeSet::new();
    for case in cases() {
        let op = case.name.trim_start_matches("test_").split('_').next().unwrap_or("").to_owned();
        // The same on the CPU first, which is quick and refuses what no device can run.
        if seen.contains(&op) || run(&case, &cpu).is_err() {
            continue;
        }
        let [have, want] = run(&case, &nv).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (name, want) in &want {
            let have = &have[name];
            assert_eq!(have.shape, want.shape, "{}: {name}", case.name);
            for (have, want) in have.values.iter().zip(&want.values) {
                assert!(close(*have, *want), "{}: {name}: {have}, not {want}", case.name);
            }
        }
        seen.insert(op);
    }
    println!(
        "{} operators: {}",
        seen.len(),
        Vec::from_iter(&seen).iter().map(|s| s.as_str()).collect::<Vec<_>>().join(" ")
    );
    assert!(seen.len() > 150, "{seen:?}");
}
