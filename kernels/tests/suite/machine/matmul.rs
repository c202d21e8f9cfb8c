//! Tests of matmul kernels: bit-exact with `docs/numerics.md`; in half precision within a bound.

use half::{bf16, f16};
use orind_kernels::catalogue::launch::{
    HALF_TILE, MATMUL_HALF_SHARED_BYTES, halves_bytes, matmul_activations_bytes, matmul_grid,
    matmul_shared_bytes, quantise_grid, quantise_shared_bytes, rows_grid,
};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{GELU, MatmulParams, QuantiseParams, RowsParams, SILU, Segment};
use orind_kernels::{occupancy, prebuilt};
use orind_testing::numerics::{norm, product};
use orind_testing::random::Random;
use plan::DType;
use sass::count::{Class, Counters};

use super::device::Device;
use super::prefill::{MODES, instructions};
use super::project::gated;
use super::weights::{Matrix, types};

/// Every weight type with every tile.
fn kernels() -> impl Iterator<Item = (DType, u32)> {
    types().flat_map(|dtype| {
        let tiles = Weight::of(dtype).map_or(&[][..], Weight::tiles);
        tiles.iter().map(move |&tile| (dtype, tile))
    })
}

const EPS: f32 = 1e-5;

/// Inputs of a matmul.
pub(crate) struct Case {
    dtype: DType,
    tile: u32,
    rows: usize,
    k: usize,
    /// Matrices, and the planes of activations that each is multiplied with.
    matrices: Vec<(Matrix, u32)>,
    x: Vec<f32>,
    norm: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    /// Activation of a gated unit, whose gate is the first matrix; else 0.
    glu: u32,
    bias: Option<Vec<f32>>,
    /// Activation without gated unit.
    activation: u32,
    /// True if it is in half precision.
    half: bool,
}

impl Case {
    pub(crate) fn new(
        (dtype, tile): (DType, u32),
        rows: usize,
        k: usize,
        n: &[(usize, u32)],
        random: &mut Random,
    ) -> Self {
        let most = if dtype.is_quantised() { 2 } else { 1 };
        let mut matrix = |&(n, planes)| (Matrix::random(dtype, n, k, random), most.min(planes));
        let matrices = n.iter().map(&mut matrix).collect();
        let mut x = random.reals(rows * k, 3.0);
        x[k / 2] = 40.0;
        let (norm, residual, bias) = (None, None, None);
        let (glu, activation, half) = (0, 0, false);
        Self { dtype, tile, rows, k, matrices, x, norm, residual, glu, bias, activation, half }
    }

    fn in_half(dtype: DType, rows: usize, k: usize, n: &[usize], random: &mut Random) -> Self {
        let n: Vec<_> = n.iter().map(|&n| (n, 1)).collect();
        Self { half: true, ..Self::new((dtype, HALF_TILE), rows, k, &n, random) }
    }

    fn run(&self, seed: u64) -> Vec<Vec<f32>> {
        let mut device = Device::new(seed);
        let (params, _) = self.launch(&mut device);
        params.segments.iter().filter(|s| s.out != 0).map(|s| device.read(s.out)).collect()
    }

    /// Launches conversion and matmul. Returns execution counters.
    pub(crate) fn launch(&self, device: &mut Device) -> (MatmulParams, [Counters; 2]) {
        let (weight, tile) = (Weight::of(self.dtype).unwrap(), self.tile);
        let (rows, k) = (self.rows as u32, self.k as u32);
        let planes = self.matrices.iter().map(|m| m.1).max().unwrap();
        let activations = if self.half {
            halves_bytes(rows, k)
        } else {
            matmul_activations_bytes(weight, tile, rows, planes, k)
        };
        let x = device.floats(&self.x);
        let norm_weight = self.norm.as_ref().map_or(0, |w| device.floats(w));
        let out = device.scratch(activations as usize / 4);
        let mut params = MatmulParams {
            activations: out,
            residual: self.residual.as_ref().map_or(0, |r| device.floats(r)),
            k,
            rows,
            swiglu: self.glu,
            planes,
            share: 1,
            ..MatmulParams::default()
        };
        let outputs = if self.glu > 0 { 1 } else { self.matrices.len() };
        for (i, (matrix, planes)) in self.matrices.iter().enumerate() {
            let weights = device.bytes(&matrix.packed);
            let out = if i < outputs { device.scratch(self.rows * matrix.n) } else { 0 };
            let bias = self.bias.as_ref().map_or(0, |bias| device.floats(&bias[..matrix.n]));
            let (n, planes, activation) = (matrix.n as u32, *planes, self.activation);
            params.segments[i] = Segment { weights, out, bias, n, planes, activation, reserved: 0 };
        }
        let first = if weight.is_quantised() || self.half {
            let shared = quantise_shared_bytes(weight, planes, self.k).unwrap();
            let of_rows = QuantiseParams {
                x,
                norm_weight,
                out,
                pairs: 0,
                k,
                rows,
                tile,
                planes,
                eps: EPS,
                share: 1,
            };
            let kernel = if self.half { Kernel::Halves(weight) } else { Kernel::Quantise(weight) };
            device.launch(kernel, quantise_grid(tile, rows), shared, &of_rows)
        } else if norm_weight != 0 {
            let norm = RowsParams { a: x, b: norm_weight, out, n: k, rows, eps: EPS, reserved: 0 };
            device.launch(Kernel::RmsNorm, rows_grid(rows), 0, &norm)
        } else {
            params.activations = x;
            Counters::default()
        };
        let n: Vec<u32> = self.matrices[..outputs].iter().map(|m| m.0.n as u32).collect();
        let grid = matmul_grid(tile, rows, &n, self.glu > 0);
        let (kernel, shared) = if self.half {
            (Kernel::MatmulHalf(weight), MATMUL_HALF_SHARED_BYTES)
        } else {
            (Kernel::Matmul { weight, tile }, matmul_shared_bytes(weight, tile))
        };
        let second = device.launch(kernel, grid, shared, &params);
        (params, [first, second])
    }

    /// Compares every output with docs/numerics.md; in half precision with the sum of the rounded
    /// values, within the tensor core's truncation.
    fn check(&self, seed: u64) {
        let got = self.run(seed);
        for m in 0..self.rows {
            let mut x = self.x[m * self.k..][..self.k].to_vec();
            if let Some(weight) = &self.norm {
                x = norm(&x, weight, EPS);
            }
            let mut cut = 0.0;
            if self.half {
                x = rounded(self.dtype, &x);
                cut = 1e-5 * x.iter().map(|x| x * x).sum::<f32>().sqrt();
            }
            let product = |(matrix, planes): &(Matrix, u32), r: usize| {
                product(self.dtype, matrix.file_row(r), &x, *planes as usize)
            };
            for (s, got) in got.iter().enumerate() {
                let n = self.matrices[s].0.n;
                for r in 0..n {
                    let mut want = product(&self.matrices[s], r);
                    if let Some(bias) = &self.bias {
                        want += bias[r];
                    }
                    if self.glu > 0 {
                        want = gated(self.glu, want, product(&self.matrices[1], r));
                    } else if self.activation > 0 {
                        want = gated(self.activation, want, 1.0);
                    }
                    if let Some(residual) = self.residual.as_ref().filter(|_| s == 0) {
                        want += residual[m * n + r];
                    }
                    let got = got[m * n + r];
                    assert!(
                        got.to_bits() == want.to_bits()
                            || got.is_nan() && want.is_nan()
                            || (got - want).abs() <= cut * want.abs().max(1.0),
                        "{}, {} rows, seed {seed}: output {r} of matrix {s}, row {m}: {got:e}, not {want:e}",
                        self.dtype,
                        self.rows
                    );
                }
            }
        }
    }
}

/// Activations rounded to the weights' type; rows of f16 are scaled to below 2^15.
fn rounded(dtype: DType, x: &[f32]) -> Vec<f32> {
    if dtype == DType::BF16 {
        return x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
    }
    let greatest = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = 2f32.powi(greatest.log2().floor() as i32 - 14);
    x.iter().map(|&x| f16::from_f32(x / scale).to_f32() * scale).collect()
}

/// Columns: a single short superblock, a short last one, whole ones.
fn shapes(dtype: DType) -> &'static [usize] {
    match dtype.block_len() {
        32 => &[96, 544, 768],
        1 => &[96, 544],
        _ => &[256, 768],
    }
}

/// Matrices with any number of rows, some with two planes; partial, full and several tiles.
#[test]
fn every_type_with_norm_and_three_matrices_matches_the_definition() {
    let mut random = Random(1);
    for kernel in kernels() {
        for (i, &k) in shapes(kernel.0).iter().enumerate() {
            let rows = [3, 133, 40][i];
            let n = [(75, 1), (12, 2), (8, 1)];
            let mut case = Case::new(kernel, rows, k, &n, &mut random);
            case.norm = Some(random.reals(k, 2.0));
            case.check(random.bits());
        }
    }
}

#[test]
fn residual_and_gate() {
    let mut random = Random(2);
    for kernel in kernels() {
        let k = shapes(kernel.0)[1];
        let mut case = Case::new(kernel, 20, k, &[(70, 1)], &mut random);
        case.residual = Some(random.reals(20 * 70, 5.0));
        case.check(7);
        let mut case = Case::new(kernel, 20, k, &[(41, 1), (41, 1)], &mut random);
        case.norm = Some(random.reals(k, 1.0));
        for (seed, activation) in (8..).zip([SILU, GELU]) {
            case.glu = activation;
            case.check(seed);
        }
        // Logits: two planes everywhere.
        Case::new(kernel, 9, k, &[(33, 2)], &mut random).check(9);
    }
}

#[test]
fn bias_and_activation() {
    let mut random = Random(4);
    for kernel in kernels() {
        let k = shapes(kernel.0)[1];
        let mut case = Case::new(kernel, 11, k, &[(70, 1), (9, 1)], &mut random);
        case.bias = Some(random.reals(70, 5.0));
        case.check(10);
        case.activation = GELU;
        case.check(11);
        let mut case = Case::new(kernel, 5, k, &[(70, 1)], &mut random);
        case.bias = Some(random.reals(70, 5.0));
        case.residual = Some(random.reals(5 * 70, 5.0));
        case.check(12);
    }
}

/// Activations without a finite scale: all outputs of the row are NaN, other rows are unchanged.
#[test]
fn a_nan_row_does_not_affect_other_rows() {
    let mut random = Random(3);
    for kernel in kernels() {
        let k = shapes(kernel.0)[1];
        let mut case = Case::new(kernel, 12, k, &[(16, 1)], &mut random);
        case.x[5 * k + 7] = f32::NAN;
        case.x[6 * k + k - 1] = f32::INFINITY;
        case.x[7 * k..8 * k].fill(0.0);
        case.x[8 * k..9 * k].fill(1e-38);
        case.check(4);
    }
}

/// Norm, bias, activation, gate and residual; stages of 32 and 64 columns; full and partial tiles;
/// activations beyond the range of f16.
#[test]
fn half_precision_sums_match_the_rounded_values() {
    let mut random = Random(5);
    for dtype in [DType::F16, DType::BF16] {
        for (rows, k) in [(3, 96), (133, 544), (128, 768)] {
            let mut case = Case::in_half(dtype, rows, k, &[75, 12, 8], &mut random);
            case.norm = Some(random.reals(k, 2.0));
            case.check(random.bits());
        }
        let mut case = Case::in_half(dtype, 20, 544, &[41, 41], &mut random);
        case.glu = SILU;
        case.check(1);
        let mut case = Case::in_half(dtype, 70, 544, &[70], &mut random);
        case.bias = Some(random.reals(70, 5.0));
        case.activation = GELU;
        case.check(2);
        case.activation = 0;
        case.residual = Some(random.reals(70 * 70, 5.0));
        case.x.iter_mut().for_each(|x| *x *= 1e6);
        case.check(3);
    }
}

/// NaN affects its whole row and no other; a row has the same bits alone and among others.
#[test]
fn half_precision_rows_are_independent() {
    let mut random = Random(6);
    for dtype in [DType::F16, DType::BF16] {
        let (k, n) = (544, 70);
        let mut case = Case::in_half(dtype, 150, k, &[n], &mut random);
        case.x[3 * k + 7] = f32::NAN;
        case.x[4 * k + 8] = f32::INFINITY;
        case.x[5 * k..6 * k].fill(0.0);
        case.x[6 * k..7 * k].fill(1e-38);
        let together = &case.run(1)[0];
        assert!(together[3 * n..5 * n].iter().all(|y| !y.is_finite()));
        let others = [&together[..3 * n], &together[5 * n..]].concat();
        assert!(others.iter().all(|y| y.is_finite()));
        let last = together[149 * n..].to_vec();
        case.x.drain(..149 * k);
        case.rows = 1;
        assert_eq!(case.run(1)[0], last, "{dtype}");
    }
}

/// Multiply-adds of a token with the matrices of Llama-3.2-1B's layers.
const OF_A_TOKEN: f64 = 16.0 * (2048.0 * (3072.0 + 2048.0 + 16_384.0) + 2048.0 * 8192.0);

/// Instructions per multiply-add in half precision on tensor cores; `docs/kernels.md` has the
/// numbers.
#[test]
fn half_precision_needs_a_fraction_of_the_instructions() {
    let manifest = prebuilt::manifest().unwrap();
    for weight in [Weight::F16, Weight::BF16] {
        let (rows, n, k) = (128, 64, 2048);
        let half = Case::in_half(weight.dtype(), rows, k, &[n], &mut Random(1));
        let single = Case::new((weight.dtype(), 64), rows, k, &[(n, 1)], &mut Random(1));
        let [half, single] = [half, single].map(|case| case.launch(&mut Device::new(1)).1);
        let per = |counters: &Counters| counters.lane_total() as f64 / (rows * n * k) as f64;
        println!(
            "{}: {:.3} instructions of a lane for a multiply-add, {:.3} in single precision; {:.2} for an activation",
            weight.name(),
            per(&half[1]),
            per(&single[1]),
            half[0].lane_total() as f64 / (rows * k) as f64
        );
        // A 16 x 8 x 16 product occupies a partition's tensor core for 8 clocks.
        println!(
            "  {:.2} instructions a product",
            instructions(&half[1]) as f64 / half[1].warps(Class::Matrix) as f64
        );
        for (mode, clocks) in MODES {
            let bounds =
                [2048.0 / 8.0, 32.0 / per(&single[1])].map(|each| 4.0 * clocks * each / OF_A_TOKEN);
            println!(
                "  {mode}: {:.0} tokens a second, {:.0} in single precision",
                bounds[0], bounds[1]
            );
        }
        assert!(8.0 * per(&half[1]) < per(&single[1]));
        assert!((half[1].bank_conflicts as f64) < 0.02 * half[1].shared_bytes as f64 / 128.0);
        let kernel = Kernel::MatmulHalf(weight);
        let registers = manifest.kernels[&kernel.symbol()].registers;
        let blocks =
            occupancy::blocks_per_sm(kernel.threads(), registers, MATMUL_HALF_SHARED_BYTES);
        assert!(blocks >= 2);
    }
}
