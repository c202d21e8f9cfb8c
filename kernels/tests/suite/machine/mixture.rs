//! Tests of MoE kernels: routing, products of chosen experts only, and the weighted sum.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{
    GROUP_GRID, GROUP_TILE, elements_grid, experts_grid, group_tiles, matmul_activations_bytes,
    matmul_grid, matmul_shared_bytes, project_shared_bytes, quantise_grid, quantise_shared_bytes,
    rows_grid,
};
use orind_kernels::params::{
    CLAMPED, CombineParams, ExpertsParams, GroupParams, MatmulParams, QuantiseParams, RouteParams,
    SILU, Segment,
};
use orind_testing::numerics::{exp, product};
use orind_testing::random::Random;
use plan::DType;
use sass::count::Counters;

use super::device::Device;
use super::project::{gated, weight};
use super::weights::{Matrix, types};

/// Parameters of a router.
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

    /// Definition of routing in docs/numerics.md.
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
fn the_router_matches_the_definition() {
    let mut random = Random(3);
    for (seed, (experts, count)) in (1..).zip([(1, 1), (5, 2), (64, 6), (128, 8), (513, 10)]) {
        for sigmoid in [false, true] {
            let preference = (seed % 2 == 0).then(|| random.reals(experts, 0.5));
            let normalised = seed % 3 > 0;
            let scales = (seed % 2 == 1).then(|| random.reals(experts, 2.0));
            let router =
                Router { experts, count, sigmoid, normalised, preference, scales, scale: 2.5 };
            let mut logits = random.reals(4 * experts, 6.0);
            // Equal logits, infinities, NaN.
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

/// Gate, up and down of every type: bit-exact for the pair's expert. Other experts are not mapped,
/// so reading one would fault.
#[test]
fn individual_pairs_use_their_experts() {
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

/// Experts with none, one, a tile, or more pairs, and more experts than a warp has lanes: each pair
/// is once in a tile of its expert.
#[test]
fn pairs_are_grouped_by_expert() {
    let mut random = Random(12);
    for (seed, experts, count) in [(1, 1, 1), (2, 4, 200), (3, 70, 333), (4, 1024, 90), (5, 3, 96)]
    {
        let chosen: Vec<i32> = (0..count)
            .map(|i| if i < 64 { 0 } else { random.below(experts as usize) as i32 })
            .collect();
        let mut device = Device::new(seed);
        let tiles = group_tiles(count, experts);
        let params = GroupParams {
            chosen: device.integers(&chosen),
            pairs: device.scratch((tiles * GROUP_TILE) as usize),
            experts: device.scratch(tiles as usize),
            count,
            of: experts,
            tile: GROUP_TILE,
            tiles,
        };
        device.launch(Kernel::Group, GROUP_GRID, 0, &params);
        let (pairs, of_tiles) = (device.words(params.pairs), device.words(params.experts));
        let mut found = vec![0; count as usize];
        for (tile, expert) in pairs.chunks(GROUP_TILE as usize).zip(of_tiles) {
            let filled = tile.iter().take_while(|&&pair| pair != u32::MAX).count();
            assert!(tile[filled..].iter().all(|&pair| pair == u32::MAX), "seed {seed}: a gap");
            for &pair in &tile[..filled] {
                assert_eq!(chosen[pair as usize], expert as i32, "seed {seed}: pair {pair}");
                found[pair as usize] += 1;
            }
        }
        assert_eq!(found, vec![1; count as usize], "seed {seed}");
    }
}

/// Experts of a type with matrices and biases, and grouped pairs.
struct Grouped {
    dtype: DType,
    k: usize,
    n: usize,
    experts: Vec<[Matrix; 2]>,
    biases: Option<[Vec<f32>; 2]>,
    chosen: Vec<i32>,
    share: usize,
    glu: u32,
    x: Vec<f32>,
}

impl Grouped {
    fn stride(&self) -> usize {
        self.experts[0][0].packed.len().next_multiple_of(256)
    }

    /// The same matrix of all experts.
    fn matrices(&self, which: usize, device: &mut Device) -> u64 {
        let mut all = Vec::new();
        for expert in &self.experts {
            all.extend(&expert[which].packed);
            all.resize(all.len().next_multiple_of(self.stride()), 0);
        }
        device.bytes(&all)
    }

    /// Counters of a single pair without biases.
    fn alone(&self) -> Counters {
        let (weight, mut device) = (weight(self.dtype), Device::new(1));
        let params = ExpertsParams {
            x: device.floats(&self.x),
            chosen: device.integers(&self.chosen),
            first: self.matrices(0, &mut device),
            second: self.matrices(1, &mut device),
            stride: self.stride() as u64,
            first_bias: 0,
            second_bias: 0,
            out: device.scratch(self.chosen.len() * self.n),
            n: self.n as u32,
            k: self.k as u32,
            pairs: self.chosen.len() as u32,
            share: self.share as u32,
            glu: self.glu,
            reserved: 0,
        };
        let grid = experts_grid(weight, params.n, self.glu > 0, params.pairs, 1);
        let shared = project_shared_bytes(weight, 1, 1, self.k).unwrap();
        device.launch(Kernel::Experts(weight), grid, shared, &params)
    }

    /// Products of all pairs, and the counters of conversion and matmul.
    fn run(&self, seed: u64) -> (Vec<f32>, [Counters; 2]) {
        let (weight, mut device) = (weight(self.dtype), Device::new(seed));
        let [count, of, k] = [self.chosen.len(), self.experts.len(), self.k].map(|n| n as u32);
        let tiles = group_tiles(count, of);
        let group = GroupParams {
            chosen: device.integers(&self.chosen),
            pairs: device.scratch((tiles * GROUP_TILE) as usize),
            experts: device.scratch(tiles as usize),
            count,
            of,
            tile: GROUP_TILE,
            tiles,
        };
        device.launch(Kernel::Group, GROUP_GRID, 0, &group);
        let places = tiles * GROUP_TILE;
        let x = device.floats(&self.x);
        let bytes = matmul_activations_bytes(weight, GROUP_TILE, places, 1, k);
        let quantise = QuantiseParams {
            x,
            norm_weight: 0,
            out: if weight.is_quantised() { device.scratch(bytes as usize / 4) } else { x },
            pairs: group.pairs,
            k,
            rows: count,
            tile: GROUP_TILE,
            planes: 1,
            eps: 0.0,
            share: self.share as u32,
        };
        let mut first = Counters::default();
        if weight.is_quantised() {
            let shared = quantise_shared_bytes(weight, 1, self.k).unwrap();
            let grid = quantise_grid(GROUP_TILE, places);
            first = device.launch(Kernel::Quantise(weight), grid, shared, &quantise);
        }
        let mut segments = [Segment::default(); 3];
        for (which, segment) in segments[..2].iter_mut().enumerate() {
            segment.weights = self.matrices(which, &mut device);
            segment.bias = self.biases.as_ref().map_or(0, |biases| device.floats(&biases[which]));
            segment.n = if which == 0 || self.glu > 0 { self.n as u32 } else { 0 };
            segment.planes = 1;
        }
        segments[0].out = device.scratch(self.chosen.len() * self.n);
        let params = MatmulParams {
            activations: quantise.out,
            residual: 0,
            pairs: group.pairs,
            experts: group.experts,
            stride: self.stride() as u64,
            segments,
            k,
            rows: count,
            swiglu: self.glu,
            planes: 1,
            share: self.share as u32,
            reserved: 0,
        };
        let grid = matmul_grid(GROUP_TILE, places, &[self.n as u32], self.glu > 0);
        let shared = matmul_shared_bytes(weight, GROUP_TILE);
        let kernel = Kernel::Matmul { weight, tile: GROUP_TILE };
        let second = device.launch(kernel, grid, shared, &params);
        (device.read(segments[0].out), [first, second])
    }

    fn check(&self, seed: u64) {
        let got = self.run(seed).0;
        for (pair, (got, &expert)) in got.chunks(self.n).zip(&self.chosen).enumerate() {
            let x = &self.x[pair / self.share * self.k..][..self.k];
            let of = |which: usize, row: usize| {
                let file_row = self.experts[expert as usize][which].file_row(row);
                let bias = self.biases.as_ref();
                let bias = bias.map(|biases| biases[which][expert as usize * self.n + row]);
                let product = product(self.dtype, file_row, x, 1);
                bias.map_or(product, |bias| product + bias)
            };
            for (row, got) in got.iter().enumerate() {
                let want = match self.glu {
                    0 => of(0, row),
                    glu => gated(glu, of(0, row), of(1, row)),
                };
                let what = format!("{} pair {pair}, output {row}, seed {seed}", self.dtype);
                assert_eq!(got.to_bits(), want.to_bits(), "{what}: {got:e}, not {want:e}");
            }
        }
    }
}

/// Gate, up and down of every type, for a whole and a partial tile: bit-exact for the pair's
/// expert.
#[test]
fn grouped_pairs_use_their_experts() {
    for (seed, dtype) in (1..).zip(types()) {
        let mut random = Random(seed);
        let (n, k) = (41, if dtype.block_len() == 256 { 512 } else { 352 });
        let mut matrix = || Matrix::random(dtype, n, k, &mut random);
        let experts: Vec<_> = (0..3).map(|_| [matrix(), matrix()]).collect();
        let chosen: Vec<i32> = (0..45).map(|pair| [2, 0, 2, 2][pair % 4]).collect();
        for (glu, share, biased) in [(SILU, 3, false), (CLAMPED, 5, true), (0, 1, true)] {
            let grouped = Grouped {
                dtype,
                k,
                n,
                experts: experts.clone(),
                biases: biased.then(|| [random.reals(3 * n, 3.0), random.reals(3 * n, 3.0)]),
                chosen: chosen.clone(),
                share,
                glu,
                x: random.reals(chosen.len() / share * k, 3.0),
            };
            grouped.check(seed);
        }
    }
}

/// Up to 32 pairs of an expert read its matrices once; experts that are not chosen are not read.
#[test]
fn pairs_of_an_expert_read_its_weights_once() {
    let (dtype, n, k) = (DType::Q4_K, 128, 2048);
    let mut random = Random(8);
    let mut matrix = || Matrix::random(dtype, n, k, &mut random);
    let experts: Vec<_> = (0..3).map(|_| [matrix(), matrix()]).collect();
    let of_pair = 2 * experts[0][0].packed.len() as u64;
    // A block of 32 outputs reads all activations of the tile.
    let activations = 4 * matmul_activations_bytes(weight(dtype), GROUP_TILE, GROUP_TILE, 1, 2048);
    for (chosen, tiles) in [
        (vec![1], 1),
        (vec![1; 4], 1),
        (vec![1; 8], 1),
        (vec![1; 32], 1),
        ([[0; 32], [1; 32]].concat(), 2),
    ] {
        let (pairs, x) = (chosen.len() as u64, vec![1.0; chosen.len() * k]);
        let (experts, biases) = (experts.clone(), None);
        let case = Grouped { dtype, k, n, experts, biases, chosen, share: 1, glu: SILU, x };
        let ([quantise, products], alone) = (case.run(1).1, case.alone());
        // Each thread also looks up its rows and expert: a sixteenth of the traffic of a full tile.
        let needed = tiles * (of_pair + activations);
        let loaded = products.bytes_loaded;
        assert!((needed..needed + needed / 12).contains(&loaded), "{loaded} for {needed}");
        assert!(alone.bytes_loaded >= pairs * of_pair);
        let lanes = |all: &[&Counters]| {
            let sum: u64 = all.iter().map(|counters| counters.lane_total()).sum();
            sum as f64 / (2 * n * k) as f64
        };
        println!(
            "{pairs} pairs of {tiles}: {:.1} instructions a weight, {loaded} bytes; alone {:.1}, {}",
            lanes(&[&quantise, &products]),
            lanes(&[&alone]),
            alone.bytes_loaded
        );
    }
}

#[test]
fn results_are_summed_best_first() {
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
