//! Tests of projections and embedding for every weight type: bit-exact with `docs/numerics.md`.

use orind_kernels::catalogue::launch::{embed_grid, project_shared_bytes, project_tiles};
use orind_kernels::catalogue::{Kernel, ProjectVariant, Weight};
use orind_kernels::jit;
use orind_kernels::params::{CLAMPED, EmbedParams, GELU, ProjectParams, SILU, Segment};
use orind_kernels::repack::Layout;
use orind_testing::numerics::{exp, gelu, norm, product, swiglu};
use orind_testing::random::Random;
use plan::DType;
use sass::count::{Class, Counters};

use super::device::Device;
use super::weights::{Matrix, types};

/// Inputs of a projection.
#[derive(Clone)]
pub(crate) struct Case {
    dtype: DType,
    planes: u32,
    matrices: Vec<Matrix>,
    x: Vec<f32>,
    norm: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    swiglu: bool,
    /// Activation of the gated unit, or of every product.
    activation: u32,
    /// Bias of every matrix.
    bias: Option<Vec<f32>>,
    k: usize,
}

/// Launch parameters.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// Rows that the kernel is compiled for.
    pub(crate) most: u32,
    pub(crate) rows: usize,
    pub(crate) variant: ProjectVariant,
    pub(crate) grid: u32,
}

impl Case {
    pub(crate) fn new(
        dtype: DType,
        planes: u32,
        n: &[usize],
        k: usize,
        random: &mut Random,
    ) -> Self {
        let matrices = n.iter().map(|&n| Matrix::random(dtype, n, k, random)).collect();
        let mut x = random.reals(8 * k, 3.0);
        x[k / 2] = 40.0;
        let (norm, residual, bias) = (None, None, None);
        Self { dtype, planes, matrices, x, norm, residual, swiglu: false, activation: 0, bias, k }
    }

    fn run(&self, how: How, seed: u64) -> Vec<Vec<f32>> {
        let mut device = Device::new(seed);
        let (params, _) = self.launch(how, &mut device);
        params.segments.iter().filter(|s| s.out != 0).map(|s| device.read(s.out)).collect()
    }

    /// Launches the projection. Returns execution counters.
    pub(crate) fn launch(&self, how: How, device: &mut Device) -> (ProjectParams, Counters) {
        let params = self.params(how, device);
        (params, self.execute(how, device, &params))
    }

    /// Parameters of the launch. It prefetches some of its own weights at the end, which changes no
    /// bit.
    fn params(&self, how: How, device: &mut Device) -> ProjectParams {
        let mut params = ProjectParams {
            x: device.floats(&self.x[..how.rows * self.k]),
            norm_weight: self.norm.as_ref().map_or(0, |w| device.floats(w)),
            residual: self
                .residual
                .as_ref()
                .map_or(0, |r| device.floats(&r[..how.rows * self.matrices[0].n])),
            k: self.k as u32,
            rows: how.rows as u32,
            swiglu: if self.swiglu { self.activation.max(SILU) } else { 0 },
            eps: 1e-5,
            inverse_k: 1.0 / self.k as f32,
            ..ProjectParams::default()
        };
        let outputs = if self.swiglu { 1 } else { self.matrices.len() };
        for (i, matrix) in self.matrices.iter().enumerate() {
            let weights = device.bytes(&matrix.packed);
            let out = if i < outputs { device.scratch(how.rows * matrix.n) } else { 0 };
            let bias = self.bias.as_ref().map_or(0, |bias| device.floats(&bias[..matrix.n]));
            let activation = if self.swiglu { 0 } else { self.activation };
            let (n, planes) = (matrix.n as u32, self.planes_of(i));
            params.segments[i] = Segment { weights, out, bias, n, planes, activation, reserved: 0 };
        }
        params.next = params.segments[0].weights;
        params.next_bytes = self.matrices[0].packed.len().min(1000) as u32;
        params
    }

    fn execute(&self, how: How, device: &Device, params: &ProjectParams) -> Counters {
        let outputs = if self.swiglu { 1 } else { self.matrices.len() };
        let (weight, planes, variant) = (weight(self.dtype), self.planes, how.variant);
        let kernel = Kernel::Project { weight, rows: how.most, planes, variant };
        let shared = project_shared_bytes(weight, how.most, planes, self.k).unwrap();
        let n: Vec<u32> = self.matrices[..outputs].iter().map(|m| m.n as u32).collect();
        let grid = how.grid.min(project_tiles(variant, &n, self.swiglu));
        device.launch(kernel, [grid, 1, 1], shared, params)
    }

    /// Planes of a matrix: the second of three has one, others may have two.
    fn planes_of(&self, matrix: usize) -> u32 {
        if self.matrices.len() == 3 && matrix == 1 { 1 } else { self.planes }
    }

    /// Row `m` as it is multiplied.
    fn operand(&self, m: usize) -> Vec<f32> {
        let x = &self.x[m * self.k..][..self.k];
        self.norm.as_ref().map_or_else(|| x.to_vec(), |weight| norm(x, weight, 1e-5))
    }

    /// Compares every output of every row with docs/numerics.md.
    fn compare(&self, rows: usize, got: &[Vec<f32>], what: &str) {
        for m in 0..rows {
            let x = self.operand(m);
            let product = |s: usize, r: usize| {
                let planes = self.planes_of(s) as usize;
                let product = product(self.dtype, self.matrices[s].file_row(r), &x, planes);
                self.bias.as_ref().map_or(product, |bias| product + bias[r])
            };
            for (s, got) in got.iter().enumerate() {
                let n = self.matrices[s].n;
                for r in 0..n {
                    let mut want = product(s, r);
                    if self.swiglu {
                        want = gated(self.activation, want, product(1, r));
                    } else if self.activation > 0 {
                        want = gated(self.activation, want, 1.0);
                    }
                    if let Some(residual) = self.residual.as_ref().filter(|_| s == 0) {
                        want += residual[m * n + r];
                    }
                    let got = got[m * n + r];
                    assert!(
                        got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                        "{} {what}: output {r} of matrix {s}, row {m}: {got:e}, not {want:e}",
                        self.dtype
                    );
                }
            }
        }
    }

    fn check(&self, how: How, seed: u64) {
        let got = self.run(how, seed);
        self.compare(how.rows, &got, &format!("{:?}, seed {seed}", how.variant));
    }
}

/// Gated unit: activation of the gate times up.
pub(crate) fn gated(activation: u32, gate: f32, up: f32) -> f32 {
    match activation {
        GELU => gelu(gate) * up,
        CLAMPED => {
            let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
            gate / (1.0 + exp(gate * -1.702)) * (up + 1.0)
        }
        _ => swiglu(gate, up),
    }
}

pub(crate) fn weight(dtype: DType) -> Weight {
    Weight::of(dtype).unwrap()
}

/// Columns with a short last superblock, and with several superblocks.
fn shapes(dtype: DType) -> [usize; 2] {
    match dtype.block_len() {
        256 => [256, 768],
        32 => [96, 1056],
        _ => [77, 593],
    }
}

fn planes(dtype: DType) -> std::ops::RangeInclusive<u32> {
    1..=if dtype.is_quantised() { 2 } else { 1 }
}

/// Row counts that a type's kernels are compiled for, and how many rows to launch.
fn batches(dtype: DType) -> impl Iterator<Item = (u32, usize)> {
    let all = [(1, 1), (2, 2), (4, 3), (8, 7)].into_iter();
    all.filter(move |(most, _)| weight(dtype).rows().contains(most))
}

#[test]
fn every_type_and_batch_with_norm_over_three_matrices() {
    let mut random = Random(1);
    for dtype in types() {
        for (i, (most, rows)) in batches(dtype).enumerate() {
            for planes in planes(dtype) {
                let k = shapes(dtype)[i % 2];
                let mut case = Case::new(dtype, planes, &[19, 3, 5], k, &mut random);
                case.norm = Some(random.reals(k, 2.0));
                let variant = ProjectVariant::heuristic(weight(dtype));
                case.check(How { most, rows, variant, grid: 2 }, random.bits());
            }
        }
    }
}

#[test]
fn residual_and_gate() {
    let mut random = Random(2);
    for dtype in types() {
        let (k, variant) = (shapes(dtype)[1], ProjectVariant::heuristic(weight(dtype)));
        let mut case = Case::new(dtype, 1, &[37], k, &mut random);
        case.residual = Some(random.reals(8 * 37, 5.0));
        case.check(How { most: 1, rows: 1, variant, grid: 3 }, 7);
        let mut case = Case::new(dtype, 1, &[21, 21], k, &mut random);
        case.norm = Some(random.reals(k, 1.0));
        case.swiglu = true;
        case.check(How { most: 4, rows: 3, variant, grid: 2 }, 8);
    }
}

/// Bias, activation and residual after a product; gated units of every kind with biases. Without
/// optional inputs nothing is mapped, so that reading them would fault.
#[test]
#[should_panic(expected = "CCTL")]
fn a_launch_prefetches_the_next_weights() {
    let mut device = Device::new(11);
    let variant = ProjectVariant::heuristic(weight(DType::Q8_0));
    let (case, how) = (
        Case::new(DType::Q8_0, 1, &[37], 256, &mut Random(11)),
        How { most: 1, rows: 1, variant, grid: 2 },
    );
    let params = case.params(how, &mut device);
    case.execute(how, &device, &ProjectParams { next: 1 << 44, ..params });
}

#[test]
fn biases_and_activations() {
    let mut random = Random(4);
    for dtype in [DType::Q8_0, DType::F16, DType::Q4_K, DType::BF16, DType::F32] {
        let (k, variant) = (shapes(dtype)[1], ProjectVariant::heuristic(weight(dtype)));
        let how = How { most: 4, rows: 3, variant, grid: 2 };
        let mut case = Case::new(dtype, 1, &[37, 11], k, &mut random);
        case.bias = Some(random.reals(37, 3.0));
        for activation in [0, SILU, GELU] {
            case.activation = activation;
            case.check(how, 9);
        }
        let mut case = Case::new(dtype, 1, &[37], k, &mut random);
        case.bias = Some(random.reals(37, 3.0));
        case.residual = Some(random.reals(8 * 37, 5.0));
        case.check(how, 10);
        let mut case = Case::new(dtype, 1, &[21, 21], k, &mut random);
        case.swiglu = true;
        for (activation, bias) in [(GELU, None), (CLAMPED, Some(random.reals(21, 3.0)))] {
            (case.activation, case.bias) = (activation, bias);
            case.check(how, 11);
        }
    }
}

/// Columns whose last iteration is partial for most numbers of lanes.
fn long(dtype: DType) -> usize {
    match dtype.block_len() {
        256 => 256 * 11,
        32 => 256 * 10 + 32 * 3,
        _ => 256 * 8 + 35,
    }
}

/// The result is independent of variant, batch, grid and scheduling; blocks take several tiles, so
/// they fold repeatedly.
#[test]
fn every_prebuilt_variant() {
    let mut random = Random(3);
    for weight in Weight::ALL {
        let dtype = weight.dtype();
        for planes in planes(dtype) {
            let case = Case::new(dtype, planes, &[83, 83], long(dtype), &mut random);
            for (most, rows) in batches(dtype) {
                for (i, variant) in ProjectVariant::prebuilt(weight, most).into_iter().enumerate() {
                    let swiglu = planes == 1 && i % 2 == 1;
                    let grid = 1 + i as u32 % 3;
                    let case = Case { swiglu, ..case.clone() };
                    case.check(How { most, rows, variant, grid }, random.bits());
                }
            }
        }
    }
}

/// Variants that are not prebuilt: every value of every parameter.
#[test]
fn sampled_compiled_variants_match_the_definition() {
    if let Err(why) = jit::compiler() {
        return println!("skipped: {why}");
    }
    let seed = 7;
    println!("seed {seed}");
    let mut random = Random(seed);
    for weight in [Weight::Q8_0, Weight::Q6_K, Weight::Q4_K, Weight::Q5_K, Weight::F16] {
        let dtype = weight.dtype();
        for (most, rows) in [(1, 1), (1, 1), (2, 2), (4, 3), (8, 5)] {
            let planes = if weight.is_quantised() { random.pick(&[1, 2]) } else { 1 };
            let mut case = Case::new(dtype, planes, &[37, 37], long(dtype), &mut random);
            match random.below(3) {
                0 => {
                    case.matrices.truncate(1);
                    case.residual = Some(random.reals(8 * 37, 5.0));
                }
                1 => case.norm = Some(random.reals(case.k, 1.0)),
                _ => case.swiglu = true,
            }
            let built = ProjectVariant::prebuilt(weight, most);
            let mut all = ProjectVariant::all(weight, most * planes);
            all.retain(|v| !built.contains(v));
            let variant = random.pick(&all);
            println!("{} {most} x {planes}: {variant:?}", weight.name());
            case.check(How { most, rows, variant, grid: 2 }, random.bits());
        }
    }
}

/// Cost of a weight for one row, for docs/kernels.md: the difference of 64 matrix rows, so without
/// staging. Bytes are read once, except for scales that a sum starts with.
#[test]
fn instructions_per_weight() {
    const ROWS: usize = 64;
    const COLUMNS: usize = 4096;
    for weight in Weight::ALL {
        let dtype = weight.dtype();
        for planes in planes(dtype) {
            let variant = ProjectVariant::heuristic(weight);
            let [less, more] = [ROWS, 2 * ROWS].map(|n| {
                let case = Case::new(dtype, planes, &[n], COLUMNS, &mut Random(1));
                case.launch(How { most: 1, rows: 1, variant, grid: 1 }, &mut Device::new(1)).1
            });
            let weights = (ROWS * COLUMNS) as f64;
            let of = |classes: &[Class]| {
                let warps = classes.iter().map(|&class| more.warps(class) - less.warps(class));
                32.0 * warps.sum::<u64>() as f64 / weights
            };
            let bytes = (more.bytes_loaded - less.bytes_loaded) as f64;
            let packed = Layout::new(dtype, ROWS, COLUMNS).unwrap().bytes() as f64;
            println!(
                "{} {planes}: all {:.2}, integers {:.2}, f32 {:.2}, loads {:.2} and {:.2}; {:.2} bits, read {:.2}",
                weight.name(),
                of(Class::ALL),
                of(&[Class::Integer, Class::Dot]),
                of(&[Class::Float]),
                of(&[Class::Global]),
                of(&[Class::Shared]),
                8.0 * packed / weights,
                8.0 * bytes / weights,
            );
            assert!(bytes >= packed && bytes <= 1.2 * packed, "{dtype}: {bytes} of {packed}");
            let conflicts = (more.bank_conflicts - less.bank_conflicts) as f64;
            let passes = (more.shared_bytes - less.shared_bytes) as f64 / 128.0;
            assert!(conflicts < 0.02 * passes, "{dtype}: {conflicts} conflicts in {passes} passes");
        }
    }
}

#[test]
fn extreme_activations() {
    let mut random = Random(5);
    for dtype in [DType::Q8_0, DType::Q6_K, DType::Q5_K, DType::Q4_1, DType::Q2_K, DType::IQ2_S] {
        let k = shapes(dtype)[0];
        let variant = ProjectVariant::heuristic(weight(dtype));
        let how = How { most: 1, rows: 1, variant, grid: 1 };
        for scale in [0.0, 1e-38, 1e-20, 1e30] {
            let mut case = Case::new(dtype, 2, &[5], k, &mut random);
            case.x = random.reals(8 * k, scale);
            case.check(how, 1);
        }
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut case = Case::new(dtype, 1, &[5], k, &mut random);
            case.x[k - 1] = odd;
            assert!(case.run(how, 1)[0].iter().all(|y| y.is_nan()), "{odd} reaches every output");
        }
    }
}

#[test]
fn embedded_rows_equal_the_decoded_matrix() {
    let mut random = Random(6);
    for dtype in types() {
        for k in shapes(dtype) {
            let matrix = Matrix::random(dtype, 9, k, &mut random);
            let ids = [0, 8, -1, 9, 3, i32::MAX];
            let mut device = Device::new(1);
            let params = EmbedParams {
                table: device.bytes(&matrix.packed),
                ids: device.integers(&ids),
                out: device.scratch(ids.len() * k),
                n: 9,
                k: k as u32,
                rows: ids.len() as u32,
                reserved: 0,
            };
            let grid = embed_grid(weight(dtype), params.k, params.rows);
            device.launch(Kernel::Embed(weight(dtype)), grid, 0, &params);
            let got = device.read(params.out);
            for (got, id) in got.chunks_exact(k).zip(ids) {
                let want = match usize::try_from(id) {
                    Ok(id) if id < 9 => matrix.row(id).to_vec(),
                    _ => vec![0.0; k],
                };
                assert_eq!(got, want, "{dtype} row {id}");
            }
        }
    }
}
