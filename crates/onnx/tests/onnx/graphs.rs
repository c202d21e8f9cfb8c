//! Graphs as files have them: nodes in any order, inputs with an initializer, loops and functions that
//! must not run away, and several errors at once.

use std::collections::BTreeMap;

use device::cpu::Cpu;
use onnx::{Array, Elem, Error, Model, Network};
use orind_testing::external::field;

use crate::report;

/// A field with a number.
fn number(tag: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![tag << 3];
    let mut rest = value;
    while rest > 127 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

fn node(op: &str, domain: &str, inputs: &[&str], outputs: &[&str], rest: &[Vec<u8>]) -> Vec<u8> {
    let inputs = inputs.iter().flat_map(|name| field(1, name.as_bytes()));
    let outputs = outputs.iter().flat_map(|name| field(2, name.as_bytes()));
    let named = [field(4, op.as_bytes()), field(7, domain.as_bytes())].concat();
    inputs.chain(outputs).chain(named).chain(rest.concat()).collect()
}

/// A value with elements of type `elem` and a shape of these extents; 0 is open.
fn value(name: &str, elem: u8, shape: &[u8]) -> Vec<u8> {
    let dim = |n: &u8| field(1, &if *n == 0 { field(2, b"?") } else { number(1, (*n).into()) });
    let shape: Vec<u8> = shape.iter().flat_map(dim).collect();
    let tensor = [number(1, elem.into()), field(2, &shape)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

/// A tensor of 64-bit integers.
fn integers(name: &str, shape: &[u64], values: &[i64]) -> Vec<u8> {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let dims: Vec<u8> = shape.iter().flat_map(|n| number(1, *n)).collect();
    [dims, number(2, 7), field(8, name.as_bytes()), field(9, &raw)].concat()
}

struct Graph {
    nodes: Vec<Vec<u8>>,
    inputs: Vec<Vec<u8>>,
    constants: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl Graph {
    /// Nodes from `x [1, ?]` to `y`.
    fn of(nodes: Vec<Vec<u8>>) -> Self {
        let (inputs, outputs) = (vec![value("x", 1, &[1, 0])], vec![value("y", 1, &[])]);
        Self { nodes, inputs, constants: Vec::new(), outputs }
    }

    fn bytes(&self) -> Vec<u8> {
        let all = |tag: u8, parts: &[Vec<u8>]| -> Vec<u8> {
            parts.iter().flat_map(|part| field(tag, part)).collect()
        };
        let constants = all(5, &self.constants);
        [all(1, &self.nodes), constants, all(11, &self.inputs), all(12, &self.outputs)].concat()
    }

    fn model(&self, functions: &[Vec<u8>]) -> Vec<u8> {
        let functions: Vec<u8> = functions
            .iter()
            .flat_map(|function| {
                // Tag 25 needs two bytes.
                let mut bytes = vec![0xca, 1];
                let length = number(0, function.len() as u64);
                bytes.extend(&length[1..]);
                bytes.extend(function);
                bytes
            })
            .collect();
        let set = |domain: &str, version: u64| {
            field(8, &[field(1, domain.as_bytes()), number(2, version)].concat())
        };
        [field(7, &self.bytes()), set("", 17), set("my", 1), set("other", 99), functions].concat()
    }
}

fn one(name: &str, elem: Elem, values: &[f32]) -> (String, Array) {
    let shape = vec![1, values.len()];
    (name.to_owned(), Array { elem, shape, values: values.to_vec() })
}

/// Output `y` for `x = [-1, 2]` and more inputs.
fn answer(bytes: &[u8], more: &[(String, Array)]) -> Result<Array, Error> {
    let mut inputs: BTreeMap<_, _> = more.iter().cloned().collect();
    inputs.extend([one("x", Elem::F32, &[-1.0, 2.0])]);
    let model = Model::parse(bytes)?;
    let mut answers = Network::of(&model, &Cpu::detect(), &inputs)?.run(&inputs)?;
    Ok(answers.remove("y").unwrap())
}

fn error_of(bytes: &[u8]) -> String {
    report(&answer(bytes, &[]).unwrap_err())
}

#[test]
fn nodes_may_be_in_any_order_but_not_in_a_cycle() {
    let plain = |op: &str, input: &str, output: &str| node(op, "", &[input], &[output], &[]);
    let graph =
        Graph::of(vec![plain("Neg", "b", "y"), plain("Abs", "a", "b"), plain("Relu", "x", "a")]);
    assert_eq!(answer(&graph.model(&[]), &[]).unwrap().values, [-0.0, -2.0]);
    let graph =
        Graph::of(vec![plain("Neg", "b", "a"), plain("Abs", "a", "b"), plain("Relu", "b", "y")]);
    let error = error_of(&graph.model(&[]));
    assert_eq!(error, "node `0, which makes `a`` reads its own output, in a cycle");
}

#[test]
fn an_initializer_that_is_an_input_can_be_replaced() {
    let mut graph = Graph::of(vec![node("Reshape", "", &["x", "s"], &["y"], &[])]);
    graph.inputs.push(value("s", 7, &[1, 2]));
    graph.constants.push(integers("s", &[1], &[2]));
    let bytes = graph.model(&[]);
    assert_eq!(answer(&bytes, &[]).unwrap().shape, [2]);
    let other = Array { elem: Elem::I64, shape: vec![1, 2], values: vec![2.0, 1.0] };
    let model = Model::parse(&bytes).unwrap();
    assert_eq!(model.inputs().len(), 1);
    assert_eq!(model.replaceable()[0].name, "s");
    assert_eq!(answer(&bytes, &[("s".to_owned(), other)]).unwrap().shape, [2, 1]);
}

#[test]
fn loops_and_calls_end_at_a_limit_that_is_named() {
    let graph = Graph {
        nodes: vec![
            node("Add", "", &["v", "x"], &["w"], &[]),
            node("Identity", "", &["c"], &["d"], &[]),
        ],
        inputs: vec![value("i", 7, &[]), value("c", 9, &[]), value("v", 1, &[])],
        constants: Vec::new(),
        outputs: vec![value("d", 9, &[]), value("w", 1, &[])],
    };
    let body = [field(1, b"body"), field(6, &graph.bytes()), vec![0xa0, 1, 5]].concat();
    let repeat = node("Loop", "", &["m", "", "x"], &["y"], &[field(5, &body)]);
    let mut graph = Graph::of(vec![repeat]);
    graph.constants.push(integers("m", &[], &[3]));
    assert_eq!(answer(&graph.model(&[]), &[]).unwrap().values, [-4.0, 8.0]);
    for count in [1 << 30, 1 << 62] {
        graph.constants = vec![integers("m", &[], &[count])];
        let error = error_of(&graph.model(&[]));
        let limit = "the unrolled graph has more than 1048576 nodes, the limit";
        assert!(error.contains(limit), "{count}: {error}");
    }

    // Each function calls the one before twice.
    let function = |name: &str, nodes: &[Vec<u8>]| {
        let nodes: Vec<u8> = nodes.iter().flat_map(|node| field(7, node)).collect();
        let ends = [field(1, name.as_bytes()), field(4, b"a"), field(5, b"b")].concat();
        [ends, nodes, field(10, b"my")].concat()
    };
    let mut functions = vec![function("f0", &[node("Relu", "", &["a"], &["b"], &[])])];
    for i in 1..40 {
        let before = format!("f{}", i - 1);
        let calls =
            [node(&before, "my", &["a"], &["t"], &[]), node(&before, "my", &["t"], &["b"], &[])];
        functions.push(function(&format!("f{i}"), &calls));
    }
    let call = |name: &str| Graph::of(vec![node(name, "my", &["x"], &["y"], &[])]);
    assert_eq!(answer(&call("f3").model(&functions), &[]).unwrap().values, [0.0, 2.0]);
    let error = error_of(&call("f39").model(&functions));
    assert!(error.contains("nodes, the limit"), "{error}");
    let itself = function("f", &[node("f", "my", &["a"], &["b"], &[])]);
    let error = error_of(&call("f").model(&[itself]));
    assert!(error.contains("more than 64 calls inside each other"), "{error}");
}

#[test]
fn all_errors_are_reported_at_once() {
    let mut graph = Graph::of(vec![
        node("Foo", "other", &["x"], &["a"], &[]),
        node("Bar", "", &["x"], &["b"], &[]),
        node("Add", "", &["a", "b"], &["y"], &[]),
    ]);
    graph.inputs.push(value("text", 8, &[1]));
    assert_eq!(
        error_of(&graph.model(&[])),
        "operators are not supported: Bar (opset 17, node 1, which makes `b`); other.Foo (opset 99, node 0, which makes `a`); `text`: strings are not supported: convert text to numbers before the network"
    );
    let mut graph = Graph::of(vec![
        node("Reshape", "", &["x", "s"], &["a"], &[]),
        node("Gather", "", &["x", "s"], &["b"], &[]),
        node("Add", "", &["a", "b"], &["y"], &[]),
    ]);
    graph.constants.push(integers("s", &[1], &[7]));
    let error = error_of(&graph.model(&[]));
    assert!(error.contains("(Reshape): [1, 2] cannot be [7]; node"), "{error}");
    assert!(error.contains("(Gather): index 7 is out of range for an axis of 1"), "{error}");
    assert!(!error.contains("(Add)"), "{error}");
}

/// A network that is prepared in stages refuses other data, unless it leads to the same values.
#[test]
fn a_network_in_stages_notices_other_data() {
    let model = orind_testing::nodes::kinds();
    let case = model.iter().find(|case| case.name == "kind_compress").unwrap();
    let inputs = case.inputs.iter().map(|bytes| Array::parse(bytes).unwrap());
    let mut inputs: BTreeMap<_, _> = inputs.collect();
    let model = Model::parse(&case.model).unwrap();
    let mut network = Network::of(&model, &Cpu::detect(), &inputs).unwrap();
    let rows = network.run(&inputs).unwrap()["y"].shape[0];
    inputs.get_mut("x").unwrap().values.fill(1.0);
    assert_eq!(network.run(&inputs).unwrap()["y"].shape[0], rows);
    let first = &mut inputs.get_mut("m").unwrap().values[0];
    *first = 1.0 - *first;
    assert!(matches!(network.run(&inputs), Err(Error::Changed)));
}
