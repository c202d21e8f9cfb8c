//! Gradients compared with difference quotients of the `f64` model, for every primitive and composite; then on
//! devices.

use std::collections::HashMap;

use super::Draw;
use super::model::Model;
use device::Device;
use device::cpu::Cpu;
use device::reference::Reference;
use parity::case::{BuildError, Case, Sketch, Values, noise};
use plan::graph::{Caches, DeltaGates, Error, Experts, Graph, MixtureWeights, Norm, Recurrence};
use plan::graph::{Result, Rows, Tensor};
use plan::{
    Activation, Binary, Bucket, Class, DType, DeltaHeads, Fusions, Gating, NormKind, Outputs,
    Reduce, RopeStyle, RouterScores, Routing, Scalar, Scores, Unary, Window,
};

const BUCKET: Bucket = Bucket { batch: 1, chunk: 1, context: 16, outputs: Outputs::None };

/// A function under test: inputs to differentiate by, and other inputs.
struct Under<'a> {
    g: Graph,
    inputs: Vec<(String, Values)>,
    by: Vec<Tensor>,
    draw: &'a mut Draw,
    floats: u64,
}

impl Under<'_> {
    /// An input with values in a range, to differentiate by.
    fn between(&mut self, low: f32, high: f32, shape: &[usize]) -> Tensor {
        self.floats += 1;
        let values = noise(self.draw.seed * 100 + self.floats, shape.iter().product());
        let values = values.iter().map(|v| low + (v + 1.0) / 2.0 * (high - low)).collect();
        let tensor = self.input(DType::F32, shape, Values::F32(values));
        self.by.push(tensor);
        tensor
    }

    fn any(&mut self, shape: &[usize]) -> Tensor {
        self.between(-1.0, 1.0, shape)
    }

    fn ints(&mut self, values: &[i32]) -> Tensor {
        self.input(DType::I32, &[values.len()], Values::I32(values.to_vec()))
    }

    fn input(&mut self, dtype: DType, shape: &[usize], values: Values) -> Tensor {
        let name = format!("x{}", self.inputs.len());
        self.inputs.push((name.clone(), values));
        self.g.source(Class::Mailbox, &name, dtype, shape).unwrap()
    }
}

type Build = fn(&mut Under<'_>) -> Result;

/// Name, tolerance of devices, and function.
const FUNCTIONS: &[(&str, f64, Build)] = &[
    ("neg", 1e-5, |u| unary(u, Unary::Neg, -1.0, 1.0)),
    ("exp", 1e-5, |u| unary(u, Unary::Exp, -2.0, 2.0)),
    ("ln", 1e-5, |u| unary(u, Unary::Ln, 0.2, 3.0)),
    ("sqrt", 1e-5, |u| unary(u, Unary::Sqrt, 0.2, 3.0)),
    ("recip", 1e-5, |u| unary(u, Unary::Recip, 0.5, 3.0)),
    ("sin", 1e-5, |u| unary(u, Unary::Sin, -3.0, 3.0)),
    ("cos", 1e-5, |u| unary(u, Unary::Cos, -3.0, 3.0)),
    ("floor", 1e-5, |u| unary(u, Unary::Floor, 0.1, 0.9)),
    ("add", 1e-5, |u| binary(u, Binary::Add)),
    ("sub", 1e-5, |u| binary(u, Binary::Sub)),
    ("mul", 1e-5, |u| binary(u, Binary::Mul)),
    ("max", 1e-5, |u| binary(u, Binary::Max)),
    ("rem", 1e-5, |u| {
        // The truncated quotient is 4 for all values.
        let shape = u.draw.shape(5);
        let (a, b) = (u.between(5.2, 5.8, &shape), u.between(1.2, 1.25, &shape));
        u.g.binary(Binary::Rem, a, b)
    }),
    ("where", 1e-5, |u| {
        let shape = u.draw.shape(5);
        let (a, b) = (u.any(&shape), u.any(&shape));
        let (c, zero) = (u.any(&shape), u.g.constant(0.0));
        let condition = u.g.binary(Binary::LessEqual, c, zero)?;
        u.g.select(condition, a, b)
    }),
    ("cast", 1e-2, |u| {
        let shape = u.draw.shape(5);
        let x = u.any(&shape);
        let half = u.g.cast(x, DType::F16)?;
        let brain = u.g.cast(half, DType::BF16)?;
        u.g.cast(brain, DType::F32)
    }),
    ("sum", 1e-5, |u| reduce(u, Reduce::Sum)),
    ("largest", 1e-5, |u| reduce(u, Reduce::Max)),
    ("pad", 1e-5, |u| {
        let shape = u.draw.shape(5);
        let (axis, before, after) = (u.draw.below(shape.len()), u.draw.below(3), u.draw.below(3));
        let x = u.any(&shape);
        u.g.pad(x, axis, before, after)
    }),
    ("views", 1e-5, |u| {
        let (m, n) = (2 + u.draw.below(4), 2 + u.draw.below(4));
        let (x, y) = (u.any(&[m, 1, n]), u.any(&[n]));
        let x = u.g.expand(x, &[m, 3, n])?;
        let x = u.g.permute(x, &[2, 0, 1])?;
        let x = u.g.reshape(x, &[n, 3 * m])?;
        let x = u.g.slice(x, 1, 1, 2 * m)?;
        let y = u.g.reshape(y, &[n, 1])?;
        u.g.binary(Binary::Mul, x, y)
    }),
    ("window", 1e-5, |u| {
        let (size, stride) = (1 + u.draw.below(3), 1 + u.draw.below(3));
        let dilation = 1 + u.draw.below(2);
        let x = u.any(&[2, 7, 3]);
        u.g.window(x, 1, Window { size, stride, dilation })
    }),
    ("matmul", 1e-5, |u| {
        let [b, m, n, k] = [1, 1, 1, 1].map(|one| one + u.draw.below(4));
        let (x, y) = (u.any(&[b, m, k]), u.any(&[b, n, k]));
        u.g.matmul(x, y)
    }),
    ("gather", 1e-5, |u| {
        let table = u.any(&[4, 3, 2]);
        let (rows, columns) = (u.ints(&[1, 3, -1, 1, 0]), u.ints(&[2, 0, 0, 2, 5]));
        let both = u.g.gather(table, &[rows, columns])?;
        let one = u.g.gather(table, &[rows])?;
        let one = u.g.reduce(Reduce::Sum, one, 1)?;
        let one = u.g.reshape(one, &[5, 2])?;
        u.g.binary(Binary::Mul, both, one)
    }),
    ("scatter-add", 1e-5, |u| {
        let values = u.any(&[5, 2]);
        let rows = u.ints(&[1, 3, -1, 1, 0]);
        let out = u.g.scatter_add(&[4], &[rows], values)?;
        u.g.binary(Binary::Mul, out, out)
    }),
    ("scatter", 1e-5, |u| {
        let state = u.g.source(Class::State, "state", DType::F32, &[4, 2])?;
        let (first, second) = (u.any(&[3, 2]), u.any(&[2, 2]));
        let (all, again) = (u.ints(&[0, 2, 3]), u.ints(&[2, 1]));
        let state = u.g.scatter(state, &[all], first)?;
        let state = u.g.scatter(state, &[again], second)?;
        u.g.binary(Binary::Mul, state, state)
    }),
    ("top-k", 1e-5, |u| {
        let x = u.any(&[2, 5]);
        let best = u.g.top_k(x, 3)?;
        let best = u.g.reshape(best, &[6])?;
        let rows = u.ints(&[0, 0, 0, 1, 1, 1]);
        u.g.gather(x, &[rows, best])
    }),
    ("rms-norm", 1e-5, |u| {
        let (rows, n) = (1 + u.draw.below(3), 2 + u.draw.below(6));
        let (x, weight) = (u.any(&[rows, n]), u.any(&[n]));
        u.g.rms_norm(x, weight, 1e-3)
    }),
    ("layer-norm", 1e-4, |u| {
        let (rows, n) = (1 + u.draw.below(3), 3 + u.draw.below(6));
        let (x, weight, bias) = (u.any(&[rows, n]), u.any(&[n]), Some(u.any(&[n])));
        u.g.normalise(x, Norm { kind: NormKind::Layer, weight, bias, eps: Scalar::new(1e-2) })
    }),
    ("bias, scale, soft-cap", 1e-5, |u| {
        let (x, bias) = (u.between(-4.0, 4.0, &[3, 5]), u.any(&[5]));
        let x = u.g.bias(x, bias)?;
        let x = u.g.scale(x, 1.5)?;
        u.g.soft_cap(x, 3.0)
    }),
    ("silu", 1e-5, |u| activation(u, Activation::Silu)),
    ("gelu", 1e-5, |u| activation(u, Activation::Gelu)),
    ("glu", 1e-5, |u| {
        let (gate, up) = (u.between(-3.0, 3.0, &[2, 5]), u.any(&[2, 5]));
        u.g.glu(Activation::Silu, gate, up)
    }),
    ("gate", 1e-5, |u| {
        let (gate, x) = (u.between(-3.0, 3.0, &[3, 1]), u.any(&[3, 4]));
        u.g.gate(gate, x)
    }),
    ("rope-table", 1e-4, |u| {
        let (positions, frequencies) = (u.ints(&[0, 1, 4]), u.between(0.1, 1.0, &[3]));
        u.g.rope_table(positions, frequencies, 1.25)
    }),
    ("rope", 1e-4, |u| {
        let (positions, frequencies) = (u.ints(&[0, 1, 4]), u.between(0.1, 1.0, &[2]));
        let x = u.any(&[3, 2, 6]);
        let style = [RopeStyle::Interleaved, RopeStyle::HalfSplit][u.draw.below(2)];
        let table = u.g.rope_table(positions, frequencies, 1.0)?;
        u.g.rope(x, table, style)
    }),
    ("attention", 1e-2, |u| {
        let at = Rows { slots: u.ints(&[0, 0, 1, 0]), positions: u.ints(&[0, 1, 0, 2]) };
        let mut cache = |name: &str| {
            let state = u.g.source(Class::State, name, DType::F16, &[2, 4, 1, 16])?;
            let values = u.any(&[4, 1, 16]);
            u.g.kv_write(state, at, values, false)
        };
        let caches = Caches { keys: cache("keys")?, values: cache("values")?, ring: false };
        let q = u.any(&[4, 2, 16]);
        let mut scores = Scores::scaled(0.5);
        scores.cap = Some(Scalar::new(2.0));
        u.g.attention(q, caches, at, None, scores, 4)
    }),
    ("mixture", 1e-4, |u| {
        let (x, logits) = (u.any(&[3, 4]), u.between(-2.0, 2.0, &[3, 5]));
        let [gate, up] = [0, 1].map(|_| Experts { weight: u.any(&[5, 6, 4]), bias: None });
        let down = Experts { weight: u.any(&[5, 4, 6]), bias: None };
        let weights = MixtureWeights { preference: None, scales: None, gate, up, down };
        let scale = Scalar::new(1.5);
        let scores = RouterScores::Softmax;
        let routing = Routing { chosen: 2, scores, normalised: true, scale };
        u.g.mixture(x, logits, weights, routing, Gating::Glu(Activation::Silu))
    }),
];

fn unary(u: &mut Under<'_>, op: Unary, low: f32, high: f32) -> Result {
    let shape = u.draw.shape(5);
    let x = u.between(low, high, &shape);
    u.g.unary(op, x)
}

/// A function of operands that are broadcast.
fn binary(u: &mut Under<'_>, op: Binary) -> Result {
    let shape = u.draw.shape(4);
    let thin: Vec<usize> =
        shape.iter().map(|&n| if u.draw.below(2) == 0 { 1 } else { n }).collect();
    let few = u.draw.below(thin.len());
    let (a, b) = (u.any(&shape), u.any(&thin[few..]));
    if u.draw.below(2) == 0 { u.g.binary(op, a, b) } else { u.g.binary(op, b, a) }
}

fn reduce(u: &mut Under<'_>, op: Reduce) -> Result {
    let shape = u.draw.shape(5);
    let axis = u.draw.below(shape.len());
    let x = u.any(&shape);
    u.g.reduce(op, x, axis)
}

fn activation(u: &mut Under<'_>, activation: Activation) -> Result {
    let x = u.between(-3.0, 3.0, &[3, 5]);
    u.g.activate(activation, x)
}

/// Sum of a tensor's elements with random weights.
fn loss(g: &mut Graph, x: Tensor) -> Result {
    let count: usize = g.shape(x).iter().product();
    let mut total = g.reshape(x, &[count])?;
    let at = g.iota(count);
    let factor = g.unary(Unary::Sin, at)?;
    total = g.binary(Binary::Mul, total, factor)?;
    g.reduce(Reduce::Sum, total, 0)
}

fn assert_close(have: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(have.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f64, |scale, w| scale.max(w.abs()));
    for (i, (h, w)) in have.iter().zip(want).enumerate() {
        assert!((h - w).abs() <= tolerance * scale, "{what}, element {i}: {h}, {w} expected");
    }
}

#[test]
fn gradients_equal_difference_quotients_in_the_model_and_on_devices() {
    for (name, tolerance, build) in FUNCTIONS {
        for seed in 0..4 {
            let what = format!("{name}, seed {seed}");
            let mut draw = Draw::new(seed);
            let mut under =
                Under { g: Graph::new(), inputs: vec![], by: vec![], draw: &mut draw, floats: 0 };
            let result = build(&mut under).unwrap_or_else(|e| panic!("{what}: {e}"));
            let Under { mut g, inputs, by, .. } = under;
            let total = loss(&mut g, result).unwrap();
            let of = g.gradients(total, &by).unwrap_or_else(|e| panic!("{what}: {e}"));
            g.output("loss", total);
            for (i, gradient) in of.iter().enumerate() {
                assert_eq!(g.shape(*gradient), g.shape(by[i]), "{what}");
                g.output(format!("d{i}"), *gradient);
            }
            let plan = g.lower(BUCKET).unwrap();
            let wide = |values: &Values| match values {
                Values::F32(values) => values.iter().map(|v| f64::from(*v)).collect(),
                Values::I32(values) => values.iter().map(|v| f64::from(*v)).collect(),
                other => unreachable!("a gradient by {other:?}"),
            };
            let values: HashMap<String, Vec<f64>> =
                inputs.iter().map(|(name, values)| (name.clone(), wide(values))).collect();
            let model = Model::run(&plan, &values);

            let floats = inputs.iter().filter(|(_, values)| matches!(values, Values::F32(_)));
            for (i, (input, _)) in floats.enumerate() {
                let step = 1e-6;
                let quotient = |at: usize| {
                    let with = |by: f64| {
                        let mut values = values.clone();
                        values.get_mut(input).unwrap()[at] += by;
                        Model::run(&plan, &values).output("loss")[0]
                    };
                    (with(step) - with(-step)) / (2.0 * step)
                };
                let want: Vec<f64> = (0..values[input].len()).map(quotient).collect();
                assert_close(model.output(&format!("d{i}")), &want, 1e-7, &format!("{what}, d{i}"));
            }

            let case = Case::of(plan.clone(), inputs, Default::default());
            let cpu = Cpu::detect();
            let mut ways: Vec<(&dyn Device, Fusions)> =
                vec![(&Reference, Fusions::NONE), (&cpu, Fusions::NONE)];
            // A state that one step writes as a KV cache cannot be read by rows in other steps.
            if *name != "attention" {
                ways.push((&cpu, Fusions::ALL));
            }
            for (device, fusions) in ways {
                for (output, have) in case.run_with(device, fusions, 1).unwrap() {
                    let (output, device) = (output.trim_start_matches("0."), device.info().name);
                    let have: Vec<f64> = have.iter().map(|v| f64::from(*v)).collect();
                    let what = format!("{what}, {output} on {device}, {fusions:?}");
                    assert_close(&have, model.output(output), *tolerance, &what);
                }
            }
        }
    }
}

/// If no step needs a composite's result, only the parts that its gradient needs remain.
#[test]
fn a_gradient_does_not_compute_the_unused_loss() {
    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &[3]).unwrap();
    let y = g.activate(Activation::Silu, x).unwrap();
    let total = g.reduce(Reduce::Sum, y, 0).unwrap();
    let of = g.gradients(total, &[x]).unwrap();
    g.output("dx", of[0]);
    let inputs = vec![("x".to_owned(), Values::F32(vec![-1.0, 0.0, 2.0]))];
    let case = Case::of(g.lower(BUCKET).unwrap(), inputs, Default::default());
    let slope = |x: f64| {
        let open = 1.0 / (1.0 + (-x).exp());
        open * (1.0 + x * (1.0 - open))
    };
    let want = [-1.0, 0.0, 2.0].map(slope);
    for (device, fusions) in [
        (&Reference as &dyn Device, Fusions::NONE),
        (&Cpu::detect(), Fusions::NONE),
        (&Cpu::detect(), Fusions::ALL),
    ] {
        let have = &case.run_with(device, fusions, 1).unwrap()[0].1;
        let have: Vec<f64> = have.iter().map(|v| f64::from(*v)).collect();
        assert_close(&have, &want, 1e-6, device.info().name);
    }
}

/// As in `torch.amax` and `torch.maximum`.
#[test]
fn tied_maxima_share_the_gradient() {
    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &[5]).unwrap();
    let y = g.source(Class::Mailbox, "y", DType::F32, &[5]).unwrap();
    let largest = g.reduce(Reduce::Max, x, 0).unwrap();
    let pairs = g.binary(Binary::Max, x, y).unwrap();
    let pairs = g.reduce(Reduce::Sum, pairs, 0).unwrap();
    let total = g.binary(Binary::Add, largest, pairs).unwrap();
    let of = g.gradients(total, &[x, y]).unwrap();
    g.output("dx", of[0]);
    g.output("dy", of[1]);
    let plan = g.lower(BUCKET).unwrap();
    let inputs = vec![
        ("x".to_owned(), Values::F32(vec![2.0, 3.0, 3.0, -1.0, 3.0])),
        ("y".to_owned(), Values::F32(vec![2.0, 1.0, 4.0, -1.0, 0.0])),
    ];
    let case = Case::of(plan, inputs, Default::default());
    let results = case.run_with(&Reference, Fusions::NONE, 1).unwrap();
    let of = |name: &str| results.iter().find(|(have, _)| have == name).unwrap().1.clone();
    let third = 1.0 / 3.0;
    assert_eq!(of("0.dx"), [0.5, 1.0 + third, third, 0.5, 1.0 + third]);
    assert_eq!(of("0.dy"), [0.5, 0.0, 1.0, 0.5, 0.0]);
}

#[test]
fn unused_inputs_have_zero_gradients() {
    let mut g = Graph::new();
    let [x, y] = ["x", "y"].map(|name| g.source(Class::Mailbox, name, DType::F32, &[2]).unwrap());
    let total = g.reduce(Reduce::Sum, x, 0).unwrap();
    let of = g.gradients(total, &[y]).unwrap();
    g.output("dy", of[0]);
    g.output("total", total);
    let inputs = vec![("x".to_owned(), Values::F32(vec![1.0, 2.0]))];
    let case = Case::of(g.lower(BUCKET).unwrap(), inputs, Default::default());
    for device in [&Reference as &dyn Device, &Cpu::detect()] {
        let results = case.run_with(device, Fusions::NONE, 1).unwrap();
        let dy = results.iter().find(|(name, _)| name == "0.dy").unwrap();
        assert_eq!(dy.1, [0.0, 0.0]);
    }
}

#[test]
fn what_has_no_derivative_is_named() -> std::result::Result<(), BuildError> {
    let refused = |g: &mut Graph, y: Tensor, x: Tensor, message: &str| {
        let total = loss(g, y).unwrap();
        match g.gradients(total, &[x]) {
            Err(error @ Error::Gradient { .. }) => {
                let error = error.to_string();
                assert!(error.contains(message), "`{error}` does not say `{message}`");
            }
            other => panic!("{other:?} for {message}"),
        }
    };
    let mut weights = Default::default();
    let mut s = Sketch::new(&mut weights);
    let x = s.floats("x", &[2, 32], vec![0.0; 64])?;
    let w = s.quantised("w", DType::Q8_0, &[4, 32], &[0.5; 128])?;
    let y = s.g.matmul(x, w)?;
    refused(&mut s.g, y, x, "matmul cannot be differentiated: one of its operands is quantised");

    let rows =
        Rows { slots: s.ints("slots", &[2], vec![])?, positions: s.ints("at", &[2], vec![])? };
    let held = s.g.source(Class::State, "held", DType::I32, &[1, 2])?;
    let state = s.g.source(Class::State, "state", DType::F32, &[1, 2, 2, 32])?;
    let memory = Recurrence { state, held, rows, chunk: 2 };
    let taps = s.floats("taps", &[32, 3], vec![])?;
    let y = s.g.short_conv(x, taps, memory)?;
    refused(&mut s.g, y, x, "short-conv cannot be differentiated: it remembers");

    let heads = DeltaHeads { keys: 1, values: 1, key_size: 8, value_size: 16, grouped: true };
    let state = s.g.source(Class::State, "matrix", DType::F32, &[1, 2, 1, 8, 16])?;
    let memory = Recurrence { state, ..memory };
    let gate = s.floats("gate", &[2, 1], vec![])?;
    let rate = s.floats("rate", &[1], vec![])?;
    let gates = DeltaGates { step: gate, strength: gate, rate, bias: rate };
    let y = s.g.gated_delta(x, gates, heads, 1e-6, memory)?;
    refused(&mut s.g, y, x, "delta-rule cannot be differentiated: it remembers");

    let many = s.g.gradients(x, &[x]).unwrap_err().to_string();
    assert!(many.contains("of a single element"), "{many}");
    Ok(())
}
