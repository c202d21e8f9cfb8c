//! Mixtures of experts: which experts a row chooses, products with those and no others, the weighted sum.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{
    elements_grid, experts_grid, project_shared_bytes, rows_grid,
};
use orind_kernels::params::{CLAMPED, CombineParams, ExpertsParams, RouteParams, SILU};
use orind_testing::numerics::{exp, product};
use orind_testing::random::Random;

use super::device::Device;
use super::project::{gated, weight};
use super::weights::{Matrix, types};

/// What a router is asked.
#[derive(Clone, Debug)]
struct Router {
    experts: usize,
    count: usize,
    sigmoid: bool,
    normalised: bool,
    preference: Option<Vec<f32>>,
    scales: Option<Vec<f32>>,
    scale: f32,
}

impl Router {
    fn run(&self, logits: &[f32], seed: u64) -> (Vec<u32>, Vec<f32>) {
        let mut device = Device::new(seed);
        let rows = logits.len() / self.experts;
        let params = RouteParams {
            logits: device.floats(logits),
            preference: self.preference.as_ref().map_or(0, |p| device.floats(p)),
            scales: self.scales.as_ref().map_or(0, |s| device.floats(s)),
            chosen: device.scratch(rows * self.count),
            weights: device.scratch(rows * self.count),
            experts: self.experts as u32,
            count: self.count as u32,
            rows: rows as u32,
            sigmoid: u32::from(self.sigmoid),
            normalised: u32::from(self.normalised),
            scale: self.scale,
        };
        device.launch(Kernel::Route, rows_grid(params.rows), 0, &params);
        (device.words(params.chosen), device.read(params.weights))
    }

    /// A row, as the page says it.
    fn defined(&self, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let scores: Vec<f32> = if self.sigmoid {
            logits.iter().map(|x| 1.0 / (1.0 + exp(-x))).collect()
        } else {
            let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e: Vec<f32> = logits.iter().map(|x| exp(x - most)).collect();
            let mut chains = [0.0f32; 16];
            e.iter().enumerate().for_each(|(i, e)| chains[i % 16] += e);
            for half in [8, 4, 2, 1] {
                for i in 0..half {
                    chains[i] += chains[i + half];
                }
            }
            e.iter().map(|e| e / chains[0]).collect()
        };
        let preferred = match &self.preference {
            Some(preference) => scores.iter().zip(preference).map(|(s, p)| s + p).collect(),
            None => logits.to_vec(),
        };
        let mut chosen = vec![0; self.count];
        plan::top_k(&preferred, &mut chosen);
        let sum = chosen.iter().fold(0.0f32, |sum, &e| sum + scores[e as usize]);
        let weight = |&e: &u32| {
            let score = scores[e as usize];
            let weight = (if self.normalised { score / sum } else { score }) * self.scale;
            self.scales.as_ref().map_or(weight, |scales| weight * scales[e as usize])
        };
        let weights = chosen.iter().map(weight).collect();
        (chosen, weights)
    }

    fn check(&self, logits: &[f32], seed: u64) {
        let (chosen, weights) = self.run(logits, seed);
        for (row, logits) in logits.chunks(self.experts).enumerate() {
            let of = row * self.count..(row + 1) * self.count;
            let (want, want_weights) = self.defined(logits);
            assert_eq!(chosen[of.clone()], want, "{self:?}, row {row}, seed {seed}");
            for (got, want) in weights[of].iter().zip(want_weights) {
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{self:?}, row {row}, seed {seed}: {got:e}, not {want:e}");
            }
        }
    }
}

#[test]
fn rows_choose_their_experts() {
    let mut random = Random(3);
    for (seed, (experts, count)) in (1..).zip([(1, 1), (5, 2), (64, 6), (128, 8), (513, 10)]) {
        for sigmoid in [false, true] {
            let preference = (seed % 2 == 0).then(|| random.reals(experts, 0.5));
            let normalised = seed % 3 > 0;
            let scales = (seed % 2 == 1).then(|| random.reals(experts, 2.0));
            let router =
                Router { experts, count, sigmoid, normalised, preference, scales, scale: 2.5 };
            let mut logits = random.reals(4 * experts, 6.0);
            // Equal ones, infinities, what is no number.
            logits[experts..2 * experts].fill(0.25);
            logits[2 * experts + experts / 2] = f32::NEG_INFINITY;
            logits[4 * experts - 1] = if sigmoid { f32::INFINITY } else { f32::NAN };
            router.check(&logits, seed);
        }
    }
    let router = Router {
        experts: 9,
        count: 9,
        sigmoid: true,
        normalised: false,
        preference: None,
        scales: None,
        scale: 1.0,
    };
    router.check(&[0.0, -0.0, f32::NAN, 1.0, f32::NAN, -200.0, 1.0, f32::INFINITY, 0.0], 9);
}

/// Gate, up and down of every type: to the bit what the page says of the pair's expert. Other experts' matrices do
/// not exist: to read one would be a fault.
#[test]
fn pairs_meet_their_experts() {
    const CHOSEN: [i32; 6] = [3, 0, 3, 1, 2, 3];
    for (seed, dtype) in (1..).zip(types()) {
        let (mut random, weight) = (Random(seed), weight(dtype));
        let (n, k) = (21, if dtype.block_len() == 256 { 768 } else { 352 });
        let experts: Vec<[Matrix; 2]> =
            (0..4).map(|_| [(); 2].map(|()| Matrix::random(dtype, n, k, &mut random))).collect();
        let stride = experts[0][0].packed.len().next_multiple_of(256);
        let packed = |which: usize| -> Vec<u8> {
            let matrix = |e: &[Matrix; 2]| {
                let mut bytes = e[which].packed.clone();
                bytes.resize(stride, 0);
                bytes
            };
            experts.iter().flat_map(matrix).collect()
        };
        let biases = [random.reals(4 * n, 3.0), random.reals(4 * n, 3.0)];
        for (glu, share, biased) in [(SILU, 2, false), (CLAMPED, 3, true), (0, 1, true)] {
            let mut device = Device::new(seed);
            let x = random.reals(CHOSEN.len() / share * k, 3.0);
            let params = ExpertsParams {
                x: device.floats(&x),
                chosen: device.integers(&CHOSEN),
                first: device.bytes(&packed(0)),
                second: device.bytes(&packed(1)),
                stride: stride as u64,
                first_bias: if biased { device.floats(&biases[0]) } else { 0 },
                second_bias: if biased { device.floats(&biases[1]) } else { 0 },
                out: device.scratch(CHOSEN.len() * n),
                n: n as u32,
                k: k as u32,
                pairs: CHOSEN.len() as u32,
                share: share as u32,
                glu,
                reserved: 0,
            };
            let grid = experts_grid(weight, params.n, glu > 0, params.pairs, 3);
            let shared = project_shared_bytes(weight, 1, 1, k).unwrap();
            device.launch(Kernel::Experts(weight), grid, shared, &params);
            let got = device.read(params.out);
            for (pair, (got, expert)) in got.chunks(n).zip(CHOSEN).enumerate() {
                let x = &x[pair / share * k..][..k];
                let of = |which: usize, row: usize| {
                    let product =
                        product(dtype, experts[expert as usize][which].file_row(row), x, 1);
                    if biased {
                        product + biases[which][expert as usize * n + row]
                    } else {
                        product
                    }
                };
                for (row, got) in got.iter().enumerate() {
                    let want =
                        if glu > 0 { gated(glu, of(0, row), of(1, row)) } else { of(0, row) };
                    let what = format!("{} pair {pair}, output {row}", weight.name());
                    assert_eq!(got.to_bits(), want.to_bits(), "{what}: {got:e}, not {want:e}");
                }
            }
        }
    }
}

#[test]
fn results_are_added_up_best_first() {
    let mut random = Random(6);
    let (rows, count, n) = (3, 5, 131);
    let (results, weights) = (random.reals(rows * count * n, 3.0), random.reals(rows * count, 1.0));
    let mut device = Device::new(6);
    let params = CombineParams {
        results: device.floats(&results),
        weights: device.floats(&weights),
        out: device.scratch(rows * n),
        n: n as u32,
        rows: rows as u32,
        count: count as u32,
        reserved: 0,
    };
    device.launch(Kernel::Combine, elements_grid(params.n, params.rows), 0, &params);
    for (i, got) in device.read(params.out).into_iter().enumerate() {
        let pairs = i / n * count..(i / n + 1) * count;
        let want = pairs.fold(0.0f32, |sum, p| weights[p].mul_add(results[p * n + i % n], sum));
        assert_eq!(got.to_bits(), want.to_bits(), "{i}");
    }
}
