//! MoE layers: reference compared with the formula, CPU with the reference, and independence of a
//! row from other rows.

use std::num::NonZeroUsize;

use device::Device;
use device::cpu::{Cpu, Isa};
use device::reference::Reference;
use parity::case::{BuildError, Case, Sketch, noise};
use plan::graph::{Experts, MixtureWeights, Tensor};
use plan::{
    Activation, Binary, Bucket, DType, Fusions, Gating, Op, Outputs, Plan, RouterScores, Routing,
    Scalar,
};

/// An MoE layer with random values.
#[derive(Clone, Copy, Debug)]
struct Mixture {
    experts: usize,
    width: usize,
    hidden: usize,
    dtype: DType,
    routing: Routing,
    gating: Gating,
    /// True if it has a routing bias, scales and biases.
    biased: bool,
}

const ROUTING: Routing =
    Routing { chosen: 3, scores: RouterScores::Softmax, normalised: true, scale: Scalar::new(1.0) };

const SMALL: Mixture = Mixture {
    experts: 7,
    width: 24,
    hidden: 40,
    dtype: DType::F32,
    routing: ROUTING,
    gating: Gating::Glu(Activation::Silu),
    biased: false,
};

impl Mixture {
    fn matrix(&self, seed: u64, rows: usize, columns: usize) -> Vec<f32> {
        noise(seed, self.experts * rows * columns)
    }

    /// Values and logits of `rows` rows.
    fn inputs(&self, rows: usize) -> (Vec<f32>, Vec<f32>) {
        let logits = noise(2, rows * self.experts).into_iter().map(|v| 4.0 * v).collect();
        (noise(1, rows * self.width).into_iter().map(|v| 3.0 * v).collect(), logits)
    }

    /// One step with these rows.
    fn case(&self, x: &[f32], logits: &[f32]) -> Case {
        let (m, e, d, f) = (x.len() / self.width, self.experts, self.width, self.hidden);
        let bucket = Bucket { batch: m, chunk: 1, context: 16, outputs: Outputs::None };
        let build = |s: &mut Sketch<'_>| -> Result<(), BuildError> {
            let mut experts = |name: &str, seed, rows, columns| -> Result<Experts, BuildError> {
                let values = self.matrix(seed, rows, columns);
                let weight = s.quantised(name, self.dtype, &[e, rows, columns], &values)?;
                let mut bias = None;
                if self.biased {
                    let name = format!("{name}.bias");
                    let flat =
                        s.quantised(&name, DType::F32, &[e * rows], &noise(seed + 10, e * rows))?;
                    bias = Some(s.g.reshape(flat, &[e, rows])?);
                }
                Ok(Experts { weight, bias })
            };
            let gate = experts("gate", 3, f, d)?;
            let up = experts("up", 4, f, d)?;
            let down = experts("down", 5, d, f)?;
            let preference: Option<Tensor> = match self.biased {
                true => Some(s.quantised("preference", DType::F32, &[e], &noise(6, e))?),
                false => None,
            };
            let x = s.floats("x", &[m, d], x.to_vec())?;
            let logits = s.floats("logits", &[m, e], logits.to_vec())?;
            let scales = match self.biased {
                true => Some(s.quantised("scales", DType::F32, &[e], &noise(7, e))?),
                false => None,
            };
            let weights = MixtureWeights { preference, scales, gate, up, down };
            let y = s.g.mixture(x, logits, weights, self.routing, self.gating)?;
            // In models the result is added to something, and is no output.
            let zeroes = s.floats("zeroes", &[m, d], vec![0.0; m * d])?;
            let y = s.g.binary(Binary::Add, y, zeroes)?;
            s.g.output("y", y);
            Ok(())
        };
        Case::new("mixture", format!("{self:?}"), 0.0).stage(bucket, build).unwrap()
    }

    fn run(&self, device: &dyn Device, x: &[f32], logits: &[f32]) -> Vec<f32> {
        let mut results = self.case(x, logits).run(device).unwrap();
        assert_eq!(results.len(), 1);
        results.remove(0).1
    }

    /// The formula in `f64`.
    fn exact(&self, x: &[f32], logits: &[f32]) -> Vec<f64> {
        let (e, d, f) = (self.experts, self.width, self.hidden);
        let wide = |v: &f32| f64::from(*v);
        let matrix = |seed, rows, columns| self.matrix(seed, rows, columns);
        let (gate, up, down) = (matrix(3, f, d), matrix(4, f, d), matrix(5, d, f));
        let bias = |seed: u64, at: usize, rows: usize| match self.biased {
            true => f64::from(noise(seed + 10, e * rows)[at]),
            false => 0.0,
        };
        let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
        let row = |(x, logits): (&[f32], &[f32])| {
            let all: f64 = logits.iter().map(|l| wide(l).exp()).sum();
            let score = |i: usize| match self.routing.scores {
                RouterScores::Softmax => wide(&logits[i]).exp() / all,
                RouterScores::Sigmoid => sigmoid(wide(&logits[i])),
            };
            let preferred =
                |i: usize| score(i) + if self.biased { wide(&noise(6, e)[i]) } else { 0.0 };
            let mut order: Vec<usize> = (0..e).collect();
            order.sort_by(|&a, &b| preferred(b).total_cmp(&preferred(a)));
            order.truncate(self.routing.chosen);
            let sum: f64 = order.iter().map(|&i| score(i)).sum();
            let mut y = vec![0.0; d];
            for i in order {
                let scale = if self.biased { wide(&noise(7, e)[i]) } else { 1.0 };
                let weight = score(i) / if self.routing.normalised { sum } else { 1.0 }
                    * wide(&self.routing.scale.get())
                    * scale;
                let dot = |matrix: &[f32], at: usize, x: &[f64]| -> f64 {
                    let row = &matrix[at * x.len()..][..x.len()];
                    row.iter().zip(x).map(|(w, x)| wide(w) * x).sum()
                };
                let x: Vec<f64> = x.iter().map(wide).collect();
                let h: Vec<f64> = (i * f..(i + 1) * f)
                    .map(|at| {
                        let g = dot(&gate, at, &x) + bias(3, at, f);
                        let u = dot(&up, at, &x) + bias(4, at, f);
                        match self.gating {
                            Gating::Glu(_) => g * sigmoid(g) * u,
                            Gating::ClampedSwiGlu => {
                                let g = g.min(7.0);
                                g * sigmoid(f64::from(1.702f32) * g) * (u.clamp(-7.0, 7.0) + 1.0)
                            }
                        }
                    })
                    .collect();
                for (at, y) in y.iter_mut().enumerate() {
                    *y += weight * (dot(&down, i * d + at, &h) + bias(5, i * d + at, d));
                }
            }
            y
        };
        x.chunks(d).zip(logits.chunks(e)).flat_map(row).collect()
    }
}

fn cpus(threads: usize) -> impl Iterator<Item = Cpu> {
    Isa::available().map(move |isa| Cpu::new(isa, NonZeroUsize::new(threads).unwrap()))
}

#[test]
fn moe_layers_match_the_formula_on_reference_and_cpu() {
    for scores in [RouterScores::Softmax, RouterScores::Sigmoid] {
        for (normalised, biased, scale) in
            [(true, false, 1.0), (false, true, 2.5), (true, true, 0.5)]
        {
            for gating in [Gating::Glu(Activation::Silu), Gating::ClampedSwiGlu] {
                let scale = Scalar::new(scale);
                let routing = Routing { scores, normalised, scale, ..ROUTING };
                let mixture = Mixture { routing, gating, biased, ..SMALL };
                let (x, logits) = mixture.inputs(9);
                let want = mixture.exact(&x, &logits);
                let want: Vec<f32> = want.into_iter().map(|v| v as f32).collect();
                let near = |device: &dyn Device| {
                    let off = super::distance(&mixture.run(device, &x, &logits), &want);
                    assert!(off < 5e-6, "{mixture:?} on {}: {off}", device.info().name);
                };
                near(&Reference);
                cpus(2).for_each(|cpu| near(&cpu));
            }
        }
    }
}

/// Rows are independent: with others, alone, with many threads, with every instruction set.
#[test]
fn other_rows_and_threads_change_no_bit_of_an_moe_layer() {
    for dtype in [DType::F16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K] {
        let mixture = Mixture { experts: 5, width: 256, hidden: 512, dtype, ..SMALL };
        // More rows per expert than a tile has.
        let (x, logits) = mixture.inputs(150);
        let want = mixture.run(&cpus(1).next().unwrap(), &x, &logits);
        let exact = mixture.run(&Reference, &x[..12 * 256], &logits[..12 * 5]);
        let near = super::distance(&want[..12 * 256], &exact);
        assert!(near < 2e-2, "{dtype}: {near} from the reference");
        for cpu in cpus(3) {
            assert_eq!(mixture.run(&cpu, &x, &logits), want, "{dtype} {:?}", cpu.info());
        }
        for row in [0, 1, 77, 149] {
            let (x, logits) = (&x[row * 256..][..256], &logits[row * 5..][..5]);
            let alone = mixture.run(&cpus(2).next().unwrap(), x, logits);
            assert_eq!(alone, want[row * 256..][..256], "{dtype} row {row}");
        }
    }
}

#[test]
fn equal_logits_choose_the_first_experts_and_nan_propagates() {
    let mixture = SMALL;
    let (x, mut logits) = mixture.inputs(3);
    logits[..7].fill(0.25);
    logits[9] = f32::NAN;
    let want = mixture.exact(&x, &logits);
    for got in
        [mixture.run(&Reference, &x, &logits), mixture.run(&cpus(1).next().unwrap(), &x, &logits)]
    {
        super::assert_close(&got[..24], &want[..24], 1e-5);
        assert!(got[24..48].iter().all(|v| v.is_nan()), "the row's own");
        super::assert_close(&got[48..], &want[48..], 1e-5);
    }
}

/// A decode step reads the experts that its rows can choose, a long chunk all of them once.
#[test]
fn a_step_s_cost_counts_reachable_experts() {
    let mixture = Mixture { experts: 16, width: 256, hidden: 512, dtype: DType::Q4_K, ..SMALL };
    let expert = 3 * DType::Q4_K.size_of(256 * 512).unwrap();
    for (rows, touched) in [(1, 3), (2, 6), (5, 15), (6, 16), (100, 16)] {
        let (x, logits) = mixture.inputs(rows);
        let case = mixture.case(&x, &logits);
        for fusions in [Fusions::NONE, Fusions::ALL] {
            let plan = case.plans(fusions).next().unwrap();
            assert_eq!(plan.cost().weight_bytes, touched * expert, "{rows} rows, {fusions:?}");
        }
    }
}

#[test]
fn invalid_moe_layers_are_rejected() {
    let (x, logits) = SMALL.inputs(2);
    let case = SMALL.case(&x, &logits);
    let mut plan = case.plans(Fusions::ALL).next().unwrap();
    plan.validate().unwrap();
    let found = |plan: &Plan| plan.steps.iter().position(|s| matches!(s.op, Op::Mixture(_)));
    let at = found(&plan).unwrap();
    let Op::Mixture(mixture) = &mut plan.steps[at].op else { unreachable!() };
    mixture.routing.chosen = 8;
    let error = plan.validate().unwrap_err().to_string();
    assert!(error.contains("8 of 7 experts"), "{error}");
    let Op::Mixture(mixture) = &mut plan.steps[at].op else { unreachable!() };
    mixture.routing.chosen = 3;
    mixture.down = mixture.gate.clone();
    plan.validate().unwrap_err();
}
