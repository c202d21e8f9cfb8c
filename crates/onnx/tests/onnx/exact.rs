//! Right values at the ends of ranges: special numbers, large integers, powers, products of bytes, contractions. Right
//! values come from IEEE 754, C's `pow`, integer arithmetic and sums in `f64`.

use std::collections::BTreeMap;

use device::cpu::Cpu;
use device::reference::Reference;
use onnx::{Array, Elem, Model, Network};
use orind_testing::external::field;
use orind_testing::random::Random;

use crate::report;

/// Number of an element type in ONNX.
fn number(elem: Elem) -> u8 {
    match elem {
        Elem::F32 => 1,
        Elem::U8 => 2,
        Elem::I8 => 3,
        Elem::I32 => 6,
        Elem::I64 => 7,
        Elem::Bool => 9,
        other => panic!("{other:?} is not used here"),
    }
}

/// An attribute.
enum Attribute<'a> {
    Integer(&'a str, u8),
    Text(&'a str, &'a str),
    Integers(&'a str, &'a [u8]),
    Graph(&'a str, &'a [u8]),
}

/// A model under construction, opset 17: `y` is its output.
#[derive(Default)]
struct Builder {
    graph: Vec<u8>,
    inputs: BTreeMap<String, Array>,
}

impl Builder {
    fn input(mut self, name: &str, elem: Elem, shape: &[usize], values: &[f32]) -> Self {
        let extents: Vec<u8> = shape.iter().flat_map(|n| field(1, &[8, *n as u8])).collect();
        let tensor = [&[8, number(elem)][..], &field(2, &extents)].concat();
        let info = [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat();
        self.graph.extend(field(11, &info));
        let array = Array { elem, shape: shape.to_vec(), values: values.to_vec() };
        self.inputs.insert(name.into(), array);
        self
    }

    fn constant(mut self, name: &str, elem: Elem, shape: &[u8], raw: &[u8]) -> Self {
        let dims: Vec<u8> = shape.iter().flat_map(|n| [8, *n]).collect();
        let head = [&dims[..], &[16, number(elem)], &field(8, name.as_bytes())].concat();
        self.graph.extend(field(5, &[head, field(9, raw)].concat()));
        self
    }

    fn node(
        mut self,
        op: &str,
        inputs: &[&str],
        output: &str,
        attributes: &[Attribute<'_>],
    ) -> Self {
        let mut node: Vec<u8> = inputs.iter().flat_map(|name| field(1, name.as_bytes())).collect();
        node.extend(field(2, output.as_bytes()));
        node.extend(field(4, op.as_bytes()));
        for attribute in attributes {
            let body = match attribute {
                Attribute::Integer(name, value) => {
                    [field(1, name.as_bytes()), vec![3 << 3, *value]].concat()
                }
                Attribute::Text(name, text) => {
                    [field(1, name.as_bytes()), field(4, text.as_bytes())].concat()
                }
                Attribute::Integers(name, values) => {
                    let values: Vec<u8> = values.iter().flat_map(|n| [8 << 3, *n]).collect();
                    [field(1, name.as_bytes()), values].concat()
                }
                Attribute::Graph(name, graph) => {
                    [field(1, name.as_bytes()), field(6, graph), vec![0xa0, 1, 5]].concat()
                }
            };
            node.extend(field(5, &body));
        }
        self.graph.extend(field(1, &node));
        self
    }

    /// The output `y`, or the error, on a device.
    fn run_on(&self, device: &dyn device::Device) -> Result<Vec<f32>, String> {
        let tensor = field(2, &field(1, &[8, number(Elem::F32)]));
        let output = field(12, &[field(1, b"y"), tensor].concat());
        let graph = [&self.graph[..], &output].concat();
        let mut length = Vec::new();
        let mut left = graph.len();
        while left > 127 {
            length.push(left as u8 | 128);
            left >>= 7;
        }
        length.push(left as u8);
        let bytes = [&[7 << 3 | 2][..], &length, &graph, &field(8, &[16, 17])].concat();
        let model = Model::parse(&bytes).map_err(|error| report(&error))?;
        let network = Network::of(&model, device, &self.inputs);
        let mut network = network.map_err(|error| report(&error))?;
        let mut all = network.run(&self.inputs).map_err(|error| report(&error))?;
        Ok(all.remove("y").unwrap().values)
    }

    /// Compares the output on both devices, with a relative tolerance; NaN equals NaN.
    fn gives(&self, what: &str, want: &[f64], tolerance: f64) {
        for device in [&Cpu::detect() as &dyn device::Device, &Reference] {
            let have = self.run_on(device).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(have.len(), want.len(), "{what}");
            for (i, (have, want)) in have.iter().zip(want).enumerate() {
                let have = f64::from(*have);
                let near = (have - want).abs() <= tolerance * want.abs() + 1e-37;
                let same = have == *want || (have.is_nan() && want.is_nan());
                assert!(same || near, "{what} {i}: {have}, {want} expected");
            }
        }
    }

    /// Asserts that the model is rejected, with this text in the error.
    fn is_rejected(&self, what: &str, text: &str) {
        let error = self.run_on(&Cpu::detect()).unwrap_err();
        assert!(error.contains(text), "{what}: {error}");
    }
}

fn integers(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

const SPECIAL: [f32; 19] = [
    f32::NAN,
    0.0,
    -0.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    1e-40,
    -1e-20,
    1e-6,
    -1e-3,
    0.3,
    -0.7,
    1.0,
    -1.0,
    2.5,
    -3.0,
    30.0,
    -80.0,
    8_388_609.0,
    3e38,
];

#[test]
fn functions_of_special_values_are_right() {
    type Function = fn(f64) -> f64;
    let table: [(&str, Function); 14] = [
        ("Abs", f64::abs),
        ("Relu", |x| if x.is_nan() { x } else { x.max(0.0) }),
        ("Sign", |x| if x.is_nan() || x == 0.0 { x } else { x.signum() }),
        ("Round", f64::round_ties_even),
        ("Ceil", f64::ceil),
        ("Tanh", f64::tanh),
        ("Sinh", f64::sinh),
        ("Asinh", f64::asinh),
        ("Acosh", f64::acosh),
        ("Atanh", f64::atanh),
        ("Log", f64::ln),
        ("Reciprocal", |x| 1.0 / x),
        ("IsNaN", |x| f64::from(u8::from(x.is_nan()))),
        ("IsInf", |x| f64::from(u8::from(x.is_infinite()))),
    ];
    let n = SPECIAL.len();
    for (op, function) in table {
        let want: Vec<f64> = SPECIAL
            .iter()
            .map(|x| match function(f64::from(*x)) {
                large if large.abs() > f64::from(f32::MAX) => f64::INFINITY.copysign(large),
                value => value,
            })
            .collect();
        let b = Builder::default().input("x", Elem::F32, &[n], &SPECIAL);
        b.node(op, &["x"], "y", &[]).gives(op, &want, 4e-6);
    }
    let softplus = |x: f64| match x {
        x if x.is_nan() => x,
        x => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    };
    let want: Vec<f64> = SPECIAL.iter().map(|x| softplus(f64::from(*x))).collect();
    let b = Builder::default().input("x", Elem::F32, &[n], &SPECIAL);
    b.node("Softplus", &["x"], "y", &[]).gives("Softplus", &want, 4e-6);
}

#[test]
fn functions_of_two_special_values_are_right() {
    let n = SPECIAL.len();
    let a: Vec<f32> = SPECIAL.iter().flat_map(|a| [*a; SPECIAL.len()]).collect();
    let b = SPECIAL.repeat(n);
    type Function = fn(f64, f64) -> f64;
    let table: [(&str, Function); 7] = [
        ("Max", |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }),
        ("Min", |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }),
        ("Div", |a, b| f64::from(a as f32 / b as f32)),
        ("Less", |a, b| f64::from(u8::from(a < b))),
        ("GreaterOrEqual", |a, b| f64::from(u8::from(a >= b))),
        ("Equal", |a, b| f64::from(u8::from(a == b))),
        ("Pow", |a, b| f64::from(a.powf(b) as f32)),
    ];
    for (op, function) in table {
        let want: Vec<f64> =
            a.iter().zip(&b).map(|(a, b)| function(f64::from(*a), f64::from(*b))).collect();
        let all = Builder::default().input("a", Elem::F32, &[n, n], &a);
        let all = all.input("b", Elem::F32, &[n, n], &b).node(op, &["a", "b"], "y", &[]);
        all.gives(op, &want, if op == "Pow" { 1e-4 } else { 0.0 });
    }
    for power in [0.0_f32, 1.0, 2.0, 3.0, -1.0, -2.0, 2.5, -0.5, f32::INFINITY] {
        let want: Vec<f64> =
            SPECIAL.iter().map(|x| f64::from(f64::from(*x).powf(power.into()) as f32)).collect();
        let all = Builder::default().input("x", Elem::F32, &[n], &SPECIAL);
        let all = all.constant("p", Elem::F32, &[], &floats(&[power]));
        all.node("Pow", &["x", "p"], "y", &[]).gives(&format!("power {power}"), &want, 1e-4);
    }
}

#[test]
fn reductions_of_special_values_are_right() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let x = [-inf, -inf, -inf, 0.0, -inf, 1.0, nan, 3.0, 1.0, inf, 1.0, 2.0, 3e20, 4e20, 0.0];
    let e = std::f64::consts::E;
    let table: [(&str, [f64; 5]); 4] = [
        ("ReduceMax", [f64::NEG_INFINITY, 1.0, f64::NAN, f64::INFINITY, 4e20]),
        ("ReduceMin", [f64::NEG_INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0, 0.0]),
        ("ReduceL2", [f64::INFINITY, f64::INFINITY, f64::NAN, f64::INFINITY, 5e20]),
        ("ReduceLogSumExp", [f64::NEG_INFINITY, (1.0 + e).ln(), f64::NAN, f64::INFINITY, 4e20]),
    ];
    for (op, want) in table {
        let all = Builder::default().input("x", Elem::F32, &[5, 3], &x);
        let all = all.node(op, &["x"], "y", &[Attribute::Integers("axes", &[1])]);
        all.gives(op, &want, 1e-6);
    }
    let all = Builder::default().input("x", Elem::F32, &[1, 4], &[1.0, inf, 2.0, 3.0]);
    let all = all.constant("a", Elem::I64, &[], &integers(&[1]));
    let sums = [1.0, f64::INFINITY, f64::INFINITY, f64::INFINITY];
    all.node("CumSum", &["x", "a"], "y", &[]).gives("CumSum", &sums, 0.0);
    let all = Builder::default().input("x", Elem::F32, &[1, 3], &[10_000.0, 9_999.0, 9_000.0]);
    let shift = (1.0 + 1.0 / e).ln();
    let all = all.node("LogSoftmax", &["x"], "y", &[Attribute::Integer("axis", 1)]);
    all.gives("LogSoftmax", &[-shift, -1.0 - shift, -1000.0 - shift], 1e-6);
}

#[test]
fn integers_are_exact_or_rejected() {
    let x = [3.0, 7.0, -11.0, 13.0];
    let (a, b) = (1_000_007_i64, 16_777_217_i64);
    let want = |f: fn(i64, i64, i64) -> i64| -> Vec<f64> {
        x.iter().map(|x| f(*x as i64, 1_000_007, 16_777_217) as f64).collect()
    };
    let of = |first: &str, second: &str| {
        let all = Builder::default().input("x", Elem::I64, &[4], &x);
        let all = all.constant("a", Elem::I64, &[], &integers(&[a]));
        let all = all.constant("b", Elem::I64, &[], &integers(&[b]));
        all.node(first, &["x", "a"], "t", &[]).node(second, &["t", "b"], "y", &[])
    };
    of("Mul", "Div").gives("Mul, Div", &want(|x, a, b| x * a / b), 0.0);
    of("Mul", "Mod").gives("Mul, Mod", &want(|x, a, b| (x * a).rem_euclid(b)), 0.0);
    of("Mul", "Equal").gives("Mul, Equal", &[0.0; 4], 0.0);
    of("Mul", "Add").is_rejected("a large result", "output `y`");
    let all = Builder::default().input("x", Elem::I64, &[4], &x);
    let all = all.constant("b", Elem::I64, &[], &integers(&[1 << 40]));
    all.node("Add", &["x", "b"], "y", &[]).is_rejected("a large constant", "1099511627776");
    for bad in [0.9, 16_777_216.0, f32::NAN] {
        let all = Builder::default().input("x", Elem::I64, &[1], &[bad]);
        let all = all.constant("b", Elem::I64, &[], &integers(&[1]));
        all.node("Add", &["x", "b"], "y", &[]).is_rejected("an input", "input `x`");
    }
    // The ends of 64-bit integers mask and clip.
    let all = Builder::default().input("x", Elem::I64, &[4], &x);
    let all = all.input("m", Elem::Bool, &[4], &[1.0, 0.0, 1.0, 0.0]);
    let all = all.constant("low", Elem::I64, &[], &integers(&[i64::MIN]));
    let all = all.node("Where", &["m", "x", "low"], "t", &[]);
    let all = all.node("ReduceMax", &["t"], "y", &[Attribute::Integer("keepdims", 0)]);
    all.gives("Where", &[3.0], 0.0);
    let all = Builder::default().input("x", Elem::I64, &[4], &x);
    let all = all.constant("high", Elem::I64, &[], &integers(&[i64::MAX]));
    let all = all.node("Clip", &["x", "", "high"], "y", &[]);
    all.gives("Clip", &x.map(f64::from), 0.0);
    // Powers, by squaring.
    let all = Builder::default().input("x", Elem::I64, &[4], &x);
    let all = all.input("e", Elem::I64, &[4], &[5.0, 0.0, 3.0, 6.0]);
    let all = all.node("Pow", &["x", "e"], "y", &[]);
    all.gives("Pow", &[243.0, 1.0, -1331.0, 4_826_809.0], 0.0);
}

#[test]
fn products_of_bytes_are_exact() {
    let mut random = Random(5);
    // Sums up to 600 * 255 * 248 exceed what `f32` counts exactly; the remainder does not.
    let (rows, depth, columns) = (2, 100, 3);
    let mut bytes =
        |count: usize| -> Vec<u8> { (0..count).map(|_| 255 - random.below(9) as u8).collect() };
    let (a, b) = (bytes(rows * depth), bytes(depth * columns));
    let want = (0..rows * columns).map(|at| {
        let (i, j) = (at / columns, at % columns);
        let product = |k: usize| i64::from(a[i * depth + k]) * (i64::from(b[k * columns + j]) - 7);
        (6 * (0..depth).map(product).sum::<i64>() % 1000) as f64
    });
    let values: Vec<f32> = a.iter().map(|byte| f32::from(*byte)).collect();
    let all = Builder::default().input("a", Elem::U8, &[rows, depth], &values);
    let all = all.constant("b", Elem::U8, &[depth as u8, columns as u8], &b);
    let all = all.constant("zero", Elem::U8, &[], &[7]);
    let all = all.constant("zero a", Elem::U8, &[], &[0]);
    let all = all.constant("m", Elem::I32, &[], &1000_i32.to_le_bytes());
    // Six times the depth, joined along it.
    let six = |name| [name; 6];
    let all = all.node("Concat", &six("a"), "aa", &[Attribute::Integer("axis", 1)]);
    let all = all.node("Concat", &six("b"), "bb", &[Attribute::Integer("axis", 0)]);
    let all = all.node("MatMulInteger", &["aa", "bb", "zero a", "zero"], "t", &[]);
    let want: Vec<f64> = want.collect();
    all.node("Mod", &["t", "m"], "y", &[]).gives("MatMulInteger", &want, 0.0);
}

#[test]
fn contractions_are_products() {
    let mut random = Random(9);
    let mut values =
        |count: usize| -> Vec<f32> { (0..count).map(|_| random.below(17) as f32 - 8.0).collect() };
    // Extents by letter.
    let extent = |c: char| [2, 3, 4, 5][(c as usize - 'a' as usize) % 4];
    for equation in [
        "abc,acd->abd",
        "abcd,aecd->abce",
        "ab,cb",
        "abc,bcd->ad",
        "ab,ab->a",
        "ab,b->a",
        "ab,c->abc",
    ] {
        let (left, right) = equation.split_once("->").unwrap_or((equation, "ac"));
        let (one, two) = left.split_once(',').unwrap();
        let shape = |term: &str| term.chars().map(extent).collect::<Vec<usize>>();
        let [x, y] = [one, two].map(|term| values(shape(term).iter().product()));
        let mut letters: Vec<char> = left.chars().filter(|c| *c != ',').collect();
        letters.sort_unstable();
        letters.dedup();
        let place = |term: &str, at: &[usize]| {
            term.chars().fold(0, |sum, c| {
                sum * extent(c) + at[letters.iter().position(|l| *l == c).unwrap()]
            })
        };
        let mut want = vec![0.0; shape(right).iter().product()];
        for mut index in 0..letters.iter().map(|c| extent(*c)).product() {
            let mut at = vec![0; letters.len()];
            for (i, c) in letters.iter().enumerate() {
                (at[i], index) = (index % extent(*c), index / extent(*c));
            }
            want[place(right, &at)] += f64::from(x[place(one, &at)] * y[place(two, &at)]);
        }
        let all = Builder::default().input("a", Elem::F32, &shape(one), &x);
        let all = all.input("b", Elem::F32, &shape(two), &y);
        let text = Attribute::Text("equation", equation);
        all.node("Einsum", &["a", "b"], "y", &[text]).gives(equation, &want, 1e-6);
    }
}

/// Indices that a network computes, and those of its inputs, end a run beyond their axis; a device
/// would read zeroes.
#[test]
fn computed_indices_outside_of_their_axis_are_errors() {
    // Operator, inputs' names, shape of the indices, number of tuples that fit.
    let table: [(&str, &[&str], &[usize]); 5] = [
        ("Gather", &["x", "i"], &[2]),
        ("GatherElements", &["x", "i"], &[2]),
        ("GatherND", &["x", "i"], &[2, 1]),
        ("ScatterElements", &["x", "i", "v"], &[2]),
        ("ScatterND", &["x", "i", "v"], &[2, 1]),
    ];
    for (op, inputs, shape) in table {
        for (value, fits) in [(2.0, true), (-3.0, true), (3.0, false), (-4.0, false)] {
            let b = Builder::default()
                .input("x", Elem::F32, &[3], &[1.0, 2.0, 4.0])
                .input("v", Elem::F32, &[2], &[7.0, 8.0])
                .input("at", Elem::I64, shape, &[0.0, value])
                .constant("none", Elem::I64, &[], &integers(&[0]))
                .node("Add", &["at", "none"], "i", &[])
                .node(op, inputs, "y", &[]);
            for device in [&Cpu::detect() as &dyn device::Device, &Reference] {
                let result = b.run_on(device);
                let error = result.as_ref().err().is_none_or(|error| error.contains("outside"));
                assert!(result.is_ok() == fits && error, "{op} at {value}: {result:?}");
            }
        }
    }
}

/// The same in a body that runs once for each index, of which only one in the middle is bad.
#[test]
fn an_index_outside_of_its_axis_in_a_repeated_body_is_an_error() {
    let mut body = Builder::default()
        .node("Gather", &["x", "i"], "g", &[])
        .node("Add", &["s", "g"], "t", &[])
        .graph;
    for (number, name) in [(11, "s"), (11, "i"), (12, "t")] {
        body.extend(field(number, &field(1, name.as_bytes())));
    }
    for (value, fits) in [(2.0, true), (-3.0, true), (3.0, false), (-4.0, false)] {
        let mut at = [1.0; 8];
        at[3] = value;
        let body = [Attribute::Graph("body", &body), Attribute::Integer("num_scan_inputs", 1)];
        let b = Builder::default()
            .input("x", Elem::F32, &[3], &[1.0, 2.0, 4.0])
            .input("s", Elem::F32, &[], &[0.0])
            .input("at", Elem::I64, &[8], &at)
            .node("Scan", &["s", "at"], "y", &body);
        for device in [&Cpu::detect() as &dyn device::Device, &Reference] {
            let result = b.run_on(device);
            let sum = if value == 2.0 { 18.0 } else { 15.0 };
            match &result {
                Ok(y) => assert!(fits && y == &[sum], "{value}: {y:?}"),
                Err(error) => assert!(!fits && error.contains("outside"), "{value}: {error}"),
            }
        }
    }
}
