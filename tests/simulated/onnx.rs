//! ONNX node tests on the simulated Orin: one case of each operator, of those that the CPU passes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use onnx::{Array, Elem, Error, Model, Network};
use orind_testing::external::tied;
use orind_testing::nodes::{Case, cases, close, kinds};
use orind_testing::random::Random;

/// Largest number of launches of a case. Long sequences only repeat launches.
const LAUNCHES: usize = 64;

/// Results of a case of at most `launches` launches on a device, and the expected ones.
fn run(
    case: &Case,
    device: &dyn Device,
    launches: usize,
) -> Result<[BTreeMap<String, Array>; 2], Error> {
    let parse = |all: &[Vec<u8>]| all.iter().map(|bytes| Array::parse(bytes)).collect();
    let (inputs, outputs): (_, Result<_, _>) = (parse(&case.inputs)?, parse(&case.outputs));
    let model = Model::parse(&case.model)?;
    let mut network = Network::of(&model, device, &inputs)?;
    if network.plan().steps.len() > launches {
        return Err(Error::Model { what: "long".into() });
    }
    Ok([network.run(&inputs)?, outputs?])
}

/// In the gate, `tensors` runs every operation that these operators consist of.
#[test]
#[ignore = "nightly"]
fn nightly_operators_pass_onnx_node_tests() {
    let (cpu, nv) = (Cpu::detect(), Nv::detect().unwrap());
    let mut seen = BTreeSet::new();
    for case in cases() {
        let op = case.name.trim_start_matches("test_").split('_').next().unwrap_or("").to_owned();
        // The CPU is fast, and rejects cases that no device can run.
        if seen.contains(&op) || run(&case, &cpu, LAUNCHES).is_err() {
            continue;
        }
        let [have, want] =
            run(&case, &nv, LAUNCHES).unwrap_or_else(|e| panic!("{}: {e}", case.name));
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

/// The launches of a body, once for each execution.
#[test]
fn repeated_bodies_match_onnxruntime() {
    let nv = Nv::detect().unwrap();
    for case in kinds().iter().filter(|case| case.name.contains("repeated")) {
        let [have, want] =
            run(case, &nv, usize::MAX).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for (name, want) in &want {
            let pairs = have[name].values.iter().zip(&want.values);
            assert!(pairs.clone().all(|(a, b)| close(*a, *b)), "{}: {name}", case.name);
            assert_eq!(have[name].shape, want.shape, "{}: {name}", case.name);
        }
    }
}

/// A weight that is the embedding, the last matmul's transposed matrix, and an operand.
#[test]
fn a_tied_weight_is_an_embedding_a_matrix_and_an_operand() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(5);
    let (w, x) = (random.reals(80 * 64, 1.0), random.reals(3 * 64, 1.0));
    let rows = [79, 0, 41];
    let bytes: Vec<u8> = w.iter().flat_map(|v| v.to_le_bytes()).collect();
    fs::write(dir.path().join("data"), bytes).unwrap();
    let path = dir.path().join("model.onnx");
    fs::write(&path, tied()).unwrap();
    let model = Model::read(&path).unwrap();
    let inputs: BTreeMap<String, Array> = [
        ("x", Elem::F32, vec![3, 64], x.clone()),
        ("rows", Elem::I64, vec![3], rows.map(|row| row as f32).into()),
    ]
    .map(|(name, elem, shape, values)| (name.to_owned(), Array { elem, shape, values }))
    .into();
    let logit = |i: usize| -> f64 {
        let hidden = (0..64).map(|c| f64::from(w[rows[i / 80] * 64 + c] + x[i / 80 * 64 + c]));
        hidden.zip(&w[i % 80 * 64..]).map(|(h, w)| h * f64::from(*w)).sum()
    };
    for device in [&Cpu::detect() as &dyn Device, &Nv::detect().unwrap()] {
        let have = Network::of(&model, device, &inputs).unwrap().run(&inputs).unwrap();
        let scaled: Vec<f32> = w.iter().map(|w| w * w).collect();
        assert_eq!(have["scaled"].values, scaled);
        for (i, have) in have["logits"].values.iter().enumerate() {
            assert!((f64::from(*have) - logit(i)).abs() < 1e-5, "{i}: {have}, not {}", logit(i));
        }
    }
}
