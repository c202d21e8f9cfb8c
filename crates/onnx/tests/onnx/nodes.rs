//! ONNX's published backend tests of nodes, on the CPU. Expected failures are listed in
//! `expected.txt`, one per line; `ORIND_ONNX_WRITE=1` rewrites the file.

use std::collections::BTreeMap;

use device::Device;
use device::cpu::Cpu;
use device::reference::Reference;
use onnx::{Array, Elem, Error, Model, Network};
use orind_testing::nodes::{Case, cases, close, kinds};

use crate::report;

/// Cases with another meaning: like onnxruntime and PyTorch, `MaxUnpool` reads the indices as those
/// of the given shape, not of the shape that follows from the windows.
const DIFFERENT: [&str; 1] = ["test_maxunpool_export_with_output_shape"];

enum End {
    Passed,
    Unsupported(String),
    Failed(String),
}

fn tensors(all: &[Vec<u8>]) -> Result<Vec<(String, Array)>, Error> {
    all.iter().map(|bytes| Array::parse(bytes)).collect()
}

/// Runs a case; bytes may differ by `bytes`.
fn run(case: &Case, device: &dyn Device, bytes: f32) -> End {
    let end = || -> Result<Option<String>, Error> {
        let inputs: BTreeMap<_, _> = tensors(&case.inputs)?.into_iter().collect();
        let outputs = tensors(&case.outputs)?;
        let model = Model::parse(&case.model)?;
        let made = Network::of(&model, device, &inputs)?.run(&inputs)?;
        Ok(outputs.iter().find_map(|(name, want)| wrong(name, made.get(name)?, want, bytes)))
    };
    match end() {
        Ok(None) => End::Passed,
        Ok(Some(what)) => End::Failed(what),
        Err(error) => End::Unsupported(report(&error)),
    }
}

fn wrong(name: &str, have: &Array, want: &Array, bytes: f32) -> Option<String> {
    let elem = have.elem;
    if have.shape != want.shape {
        return Some(format!("{name}: {:?}, not {:?}", have.shape, want.shape));
    }
    // Two units in the last place of 16-bit types, to which the reference rounds each step.
    let units = match elem {
        Elem::BF16 => 2.0 / 128.0,
        Elem::F16 => 2.0 / 1024.0,
        _ => 0.0,
    };
    let narrow =
        |have: f32, want: f32| (have - want).abs() <= units * want.abs().log2().floor().exp2();
    let slack = if matches!(elem, Elem::U8 | Elem::I8) { bytes } else { 0.0 };
    let near = |have: f32, want: f32| {
        close(have, want) || narrow(have, want) || (have - want).abs() <= slack
    };
    let mut pairs = have.values.iter().zip(&want.values).enumerate();
    let (i, (have, want)) = pairs.find(|(_, (have, want))| !near(**have, **want))?;
    Some(format!("{name}[{i}]: {have}, not {want}"))
}

/// Results of every operator's cases; a case counts for all operators of its model.
#[derive(Default)]
struct Rate {
    passed: usize,
    all: usize,
}

#[test]
fn nodes_match_onnx() {
    let device = Cpu::detect();
    let mut lines = String::new();
    let mut rates: BTreeMap<String, Rate> = BTreeMap::new();
    let mut failed = Vec::new();
    for case in cases().into_iter().filter(|case| !DIFFERENT.contains(&&*case.name)) {
        let end = run(&case, &device, 0.0);
        // The name starts with the operator's, except for tests of functions.
        let op = case.name.trim_start_matches("test_").split('_').next().unwrap_or("").to_owned();
        let rate = rates.entry(op).or_default();
        rate.all += 1;
        match end {
            End::Passed => rate.passed += 1,
            End::Unsupported(why) => lines += &format!("{}: {why}\n", case.name),
            End::Failed(what) => failed.push(format!("{}: {what}", case.name)),
        }
    }
    let (passed, all) = rates.values().fold((0, 0), |(p, a), r| (p + r.passed, a + r.all));
    println!("{passed} of {all} pass");
    for (op, Rate { passed, all }) in &rates {
        println!("{op:<32} {passed:>4} of {all:>4}");
    }
    assert!(failed.is_empty(), "wrong answers:\n{}", failed.join("\n"));
    let file = orind_testing::data("onnx/expected.txt");
    if std::env::var_os("ORIND_ONNX_WRITE").is_some() {
        std::fs::write(&file, &lines).unwrap();
    }
    if std::env::var_os("ORIND_ONNX_NODES").is_none() {
        assert_eq!(lines, std::fs::read_to_string(file).unwrap(), "what is refused has changed");
    }
}

/// Control flow, functions, sequences, shapes that depend on data, and the operators of
/// `com.microsoft` and `ai.onnx.ml`, compared with onnxruntime.
#[test]
fn kinds_match_onnxruntime() {
    let device = Cpu::detect();
    let mut failed = Vec::new();
    for case in kinds() {
        // onnxruntime rounds means of bytes otherwise.
        match run(&case, &device, 1.0) {
            End::Passed => {}
            End::Unsupported(why) | End::Failed(why) => {
                failed.push(format!("{}: {why}", case.name));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Loops as bodies that run several times, on the device that defines their meaning and on the CPU.
#[test]
fn repeated_bodies_have_one_meaning() {
    let cpu = Cpu::detect();
    let mut seen = 0;
    for case in kinds().iter().filter(|case| case.name.contains("repeated")) {
        let repeats = |device: &dyn Device| {
            let inputs: BTreeMap<_, _> = tensors(&case.inputs).unwrap().into_iter().collect();
            let model = Model::parse(&case.model).unwrap();
            Network::of(&model, device, &inputs).unwrap().plan().repeats.len()
        };
        assert!(repeats(&cpu) > 0, "{} is unrolled", case.name);
        for device in [&Reference as &dyn Device, &cpu] {
            if let End::Unsupported(why) | End::Failed(why) = run(case, device, 1.0) {
                panic!("{}: {why}", case.name);
            }
        }
        seen += 1;
    }
    assert!(seen > 8, "{seen}");
}

/// A plan has the same number of steps for every length of a sequence.
#[test]
fn a_repeated_body_is_prepared_once() {
    let cases = kinds();
    let case = cases.iter().find(|case| case.name.contains("repeated_scan")).unwrap();
    let model = Model::parse(&case.model).unwrap();
    let inputs = tensors(&case.inputs).unwrap();
    let mut steps = Vec::new();
    for length in [9, 900] {
        let shape = |(name, array): &(String, Array)| {
            let scanned = array.shape.len() == 2;
            (name.clone(), if scanned { vec![3, length] } else { array.shape.clone() })
        };
        let shapes = inputs.iter().map(shape).collect();
        let network = Network::new(&model, &Cpu::detect(), &shapes, &BTreeMap::new()).unwrap();
        steps.push(network.plan().steps.len());
    }
    assert_eq!(steps[0], steps[1]);
}
