//! Invalid files and inputs: a named error, never a crash.

use std::collections::BTreeMap;

use device::cpu::Cpu;
use onnx::{Array, Elem, Model, Network};
use orind_testing::external::field;
use orind_testing::nodes::{Case, cases};
use orind_testing::random::Random;

use crate::report;

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

/// Error of a model's bytes.
fn error_of(bytes: &[u8]) -> String {
    report(&Model::parse(bytes).unwrap_err())
}

/// A model with one node, one input and one output, opset 17.
fn model(op: &str, domain: &str, input: &[u8]) -> Vec<u8> {
    let node = [
        field(1, b"x"),
        field(2, b"y"),
        field(3, b"the node"),
        field(4, op.as_bytes()),
        field(7, domain.as_bytes()),
    ]
    .concat();
    let tensor = [&[8, 1][..], &field(2, input)].concat();
    let info = |name: &[u8]| [field(1, name), field(2, &field(1, &tensor))].concat();
    let graph = [field(1, &node), field(11, &info(b"x")), field(12, &info(b"y"))].concat();
    [field(7, &graph), field(8, &[16, 17])].concat()
}

/// A shape `[2, n]` with open `n`.
const OPEN: &[u8] = &[0x0a, 2, 8, 2, 0x0a, 3, 0x12, 1, b'n'];

#[test]
fn unsupported_operators_are_named_before_anything_runs() {
    let error = error_of(&model("Frobnicate", "", OPEN));
    assert_eq!(error, "an operator is not supported: Frobnicate (opset 17, node the node)");
    let error = error_of(&model("Relu", "com.example", OPEN));
    assert!(error.contains("com.example.Relu"), "{error}");
}

#[test]
fn mismatched_shapes_are_named() {
    let model = Model::parse(&model("Relu", "", OPEN)).unwrap();
    let device = Cpu::detect();
    let of = |shape: &[usize]| {
        let shapes = [("x".to_owned(), shape.to_vec())].into();
        Network::new(&model, &device, &shapes, &BTreeMap::new()).err().map(|error| report(&error))
    };
    assert_eq!(of(&[2, 5]), None);
    let wrong = |shape: &[usize]| of(shape).unwrap();
    assert_eq!(wrong(&[3, 5]), "input `x`: axis 0 has 3 elements, the model says 2");
    assert_eq!(wrong(&[2]), "input `x`: [2] has 1 axes, the model says 2");
    assert!(wrong(&[2, 1 << 31]).contains("elements or more"), "{}", wrong(&[2, 1 << 31]));
    let none = Network::new(&model, &device, &BTreeMap::new(), &BTreeMap::new());
    let error = report(&none.err().unwrap());
    assert_eq!(error, "input `x`: axis 1, `n`, is open; give its shape");
    let mut network = Network::of(&model, &device, &one("x", &[2, 2])).unwrap();
    let error = report(&network.run(&one("x", &[2, 3])).unwrap_err());
    assert_eq!(error, "input `x`: shape [2, 3], the network is for [2, 2]");
    let error = report(&network.run(&BTreeMap::new()).unwrap_err());
    assert_eq!(error, "input `x`: is missing");
    let error = report(&Network::of(&model, &device, &one("z", &[2, 2])).err().unwrap());
    assert_eq!(error, "input `z`: the model has no such input; it has: x");
}

fn one(name: &str, shape: &[usize]) -> BTreeMap<String, Array> {
    let values = vec![0.5; shape.iter().product()];
    [(name.to_owned(), Array { elem: Elem::F32, shape: shape.to_vec(), values })].into()
}

/// An initializer of 64-bit integers.
fn integers(name: &str, values: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let count = [8, values.len() as u8, 16, 7];
    field(5, &[&count[..], &field(8, name.as_bytes()), &field(9, &raw)].concat())
}

/// An initializer of bytes of the type `elem` with zeroes.
fn zeroes(name: &str, elem: u8, shape: [usize; 3]) -> Vec<u8> {
    let count: usize = shape.iter().product();
    let dims: Vec<u8> =
        shape.iter().flat_map(|n| [8, (n % 128) as u8 | 128, (n / 128) as u8]).collect();
    field(
        5,
        &[&dims[..], &[16, elem], &field(8, name.as_bytes()), &field(9, &vec![0; count])].concat(),
    )
}

/// Small files that ask for much memory are refused, without allocating it.
#[test]
fn sizes_from_files_are_checked_before_memory_is_allocated() {
    let node = |op: &[u8], inputs: &[&str], out: &str, attributes: &[Vec<u8>]| {
        let inputs = inputs.iter().flat_map(|name| field(1, name.as_bytes()));
        let attributes = attributes.iter().flat_map(|attribute| field(5, attribute));
        let rest = [field(2, out.as_bytes()), field(4, op)].concat();
        field(1, &inputs.chain(rest).chain(attributes).collect::<Vec<u8>>())
    };
    // 2^40 each, packed.
    let huge = [0x80, 0x80, 0x80, 0x80, 0x80, 0x20];
    let list = |name: &[u8], count: usize| {
        [field(1, name), field(8, &huge.repeat(count)), vec![0xa0, 1, 7]].concat()
    };
    let x = [0x0a, 2, 8, 1, 0x0a, 2, 8, 1, 0x0a, 2, 8, 4, 0x0a, 2, 8, 4];
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        (
            "folded Gather",
            vec![
                node(b"Expand", &["i", "s2"], "i2", &[]),
                node(b"Expand", &["i", "s1"], "i1", &[]),
                node(b"Gather", &["i1", "i2"], "y", &[]),
                integers("i", &[0]),
                integers("s1", &[1, 65536]),
                integers("s2", &[65536]),
            ],
        ),
        (
            "folded Where",
            vec![
                node(b"Where", &["c", "a", "b"], "y", &[]),
                zeroes("c", 9, [1000, 1, 1]),
                zeroes("a", 9, [1, 1000, 1]),
                zeroes("b", 9, [1, 1, 1000]),
            ],
        ),
        (
            "folded Concat",
            vec![
                node(b"Expand", &["i", "s"], "i2", &[]),
                node(
                    b"Concat",
                    &["i2"; 3000],
                    "y",
                    &[[field(1, b"axis"), vec![24, 0, 0xa0, 1, 2]].concat()],
                ),
                integers("i", &[0]),
                integers("s", &[65536]),
            ],
        ),
        (
            "windows",
            vec![node(b"MaxPool", &["x"], "y", &[list(b"kernel_shape", 2), list(b"pads", 4)])],
        ),
        (
            "elements",
            vec![node(b"Expand", &["x", "s"], "y", &[]), integers("s", &[60_000, 1, 60_000, 4, 4])],
        ),
    ];
    let info = |name: &[u8], shape: &[u8]| {
        let of = [&[8, 1][..], &field(2, shape)].concat();
        [field(1, name), field(2, &field(1, &of))].concat()
    };
    for (name, parts) in cases {
        let tail = [field(11, &info(b"x", &x)), field(12, &info(b"y", &[]))].concat();
        let graph = [parts.concat(), tail].concat();
        let bytes = [field(7, &graph), field(8, &[16, 17])].concat();
        let model =
            Model::parse(&bytes).unwrap_or_else(|error| panic!("{name}: {}", report(&error)));
        let before = memory();
        let made = Network::of(&model, &Cpu::detect(), &one("x", &[1, 1, 4, 4]));
        let error = made.err().map(|error| report(&error));
        assert!(memory() < before + (1 << 30), "{name}: {error:?}");
        if matches!(name, "windows" | "elements") {
            assert!(error.is_some(), "{name}");
        }
    }
}

/// Peak of this process's memory in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn files_that_are_not_models_are_rejected() {
    assert!(
        error_of(b"GGUF").starts_with("not an ONNX model, or damaged"),
        "{}",
        error_of(b"GGUF")
    );
    assert_eq!(error_of(b""), "the model has no graph");
    let mut new = model("Relu", "", OPEN);
    *new.last_mut().unwrap() = 29;
    assert_eq!(error_of(&new), "opset 29 is not supported; 1 to 28 are");
}

/// A truncated or altered file is rejected or parses as another model, without panics or memory
/// beyond what its bytes can request.
#[test]
fn damaged_files_are_rejected_or_parse_as_other_models() {
    let device = Cpu::detect();
    let mut random = Random(27);
    for name in [
        "test_conv_with_strides_padding",
        "test_gemm_all_attributes",
        "test_slice",
        "test_lstm_defaults",
        "test_convtranspose_output_shape",
        "test_constant_pad",
        "test_gathernd_example_int32_batch_dim1",
    ] {
        let case = case(name);
        let inputs: BTreeMap<_, _> =
            case.inputs.iter().map(|bytes| Array::parse(bytes).unwrap()).collect();
        for _ in 0..200 {
            let mut bytes = case.model.clone();
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len()));
            } else {
                for _ in 0..=random.below(3) {
                    let at = random.below(bytes.len());
                    bytes[at] = random.bits() as u8;
                }
            }
            let Ok(model) = Model::parse(&bytes) else { continue };
            if let Ok(mut network) = Network::of(&model, &device, &inputs) {
                drop(network.run(&inputs));
            }
        }
    }
}
