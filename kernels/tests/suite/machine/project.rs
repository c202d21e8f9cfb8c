//! Projections, and the embedding, of every weight type.

use orind_kernels::catalogue::launch::{embed_grid, project_shared_bytes, project_tiles};
use orind_kernels::catalogue::{Kernel, ProjectVariant, Weight};
use orind_kernels::jit;
use orind_kernels::params::{EmbedParams, ProjectParams, Segment};

use super::device::Device;
use super::weights::Matrix;
use orind_testing::random::Random;

/// One projection and what it is made of.
#[derive(Clone)]
struct Case {
    weight: Weight,
    planes: u32,
    matrices: Vec<Matrix>,
    x: Vec<f32>,
    norm: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    swiglu: bool,
    k: usize,
}

/// How it is launched.
#[derive(Clone, Copy)]
struct How {
    /// Rows the kernel is compiled for.
    most: u32,
    rows: usize,
    variant: ProjectVariant,
    grid: u32,
}

impl Case {
    fn new(weight: Weight, planes: u32, n: &[usize], k: usize, random: &mut Random) -> Self {
        let matrices = n.iter().map(|&n| Matrix::random(weight, n, k, random)).collect();
        let mut x = random.reals(8 * k, 3.0);
        x[k / 2] = 40.0;
        Self { weight, planes, matrices, x, norm: None, residual: None, swiglu: false, k }
    }

    fn run(&self, how: How, seed: u64) -> Vec<Vec<f32>> {
        let mut device = Device::new(seed);
        let mut params = ProjectParams {
            x: device.floats(&self.x[..how.rows * self.k]),
            norm_weight: self.norm.as_ref().map_or(0, |w| device.floats(w)),
            residual: self
                .residual
                .as_ref()
                .map_or(0, |r| device.floats(&r[..how.rows * self.matrices[0].n])),
            k: self.k as u32,
            rows: how.rows as u32,
            swiglu: u32::from(self.swiglu),
            eps: 1e-5,
            inverse_k: 1.0 / self.k as f32,
            ..ProjectParams::default()
        };
        let outputs = if self.swiglu { 1 } else { self.matrices.len() };
        for (i, matrix) in self.matrices.iter().enumerate() {
            let weights = device.bytes(&matrix.packed);
            let out = if i < outputs { device.scratch(how.rows * matrix.n) } else { 0 };
            params.segments[i] = Segment { weights, out, n: matrix.n as u32, reserved: 0 };
        }
        let (weight, planes, variant) = (self.weight, self.planes, how.variant);
        let kernel = Kernel::Project { weight, rows: how.most, planes, variant };
        let shared = project_shared_bytes(weight, how.most, planes, self.k).unwrap();
        let n: Vec<u32> = self.matrices[..outputs].iter().map(|m| m.n as u32).collect();
        let grid = how.grid.min(project_tiles(variant, &n, self.swiglu));
        device.launch(kernel, [grid, 1, 1], shared, &params);
        params.segments[..outputs].iter().map(|s| device.read(s.out)).collect()
    }

    /// Row `m` as it meets the weights.
    fn operand(&self, m: usize) -> Vec<f64> {
        let x: Vec<f64> = self.x[m * self.k..][..self.k].iter().map(|&x| f64::from(x)).collect();
        let Some(norm) = &self.norm else { return x };
        let mean = x.iter().map(|x| x * x).sum::<f64>() / self.k as f64;
        let factor = 1.0 / (mean + f64::from(1e-5_f32)).sqrt();
        x.iter().zip(norm).map(|(x, w)| x * factor * f64::from(*w)).collect()
    }

    /// A product and how far a kernel may be from it: half a step of each quantised activation times
    /// its weight, and the rounding of `f32`.
    fn product(&self, x: &[f64], row: &[f32]) -> (f64, f64) {
        let steps = match (self.weight, self.planes) {
            (Weight::F16, _) => f64::INFINITY,
            (_, 1) => 254.0,
            _ => 254.0 * 254.0,
        };
        let (mut sum, mut limit) = (0.0, 1e-30);
        for (x, row) in x.chunks(32).zip(row.chunks(32)) {
            let largest = x.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
            for (x, w) in x.iter().zip(row) {
                sum += x * f64::from(*w);
                limit += (1.001 * largest / steps + 2e-6 * x.abs()) * f64::from(w.abs());
            }
            // Minima and offsets cancel against larger numbers.
            let scale = row.iter().fold(0.0_f32, |largest, w| largest.max(w.abs()));
            limit += 1e-6 * 32.0 * largest * f64::from(scale);
        }
        (sum, limit)
    }

    /// Holds every output of every row against `f64`.
    fn compare(&self, rows: usize, got: &[Vec<f32>], what: &str) {
        for m in 0..rows {
            let x = self.operand(m);
            for (s, got) in got.iter().enumerate() {
                let n = self.matrices[s].n;
                for r in 0..n {
                    let (mut want, mut limit) = self.product(&x, self.matrices[s].row(r));
                    if self.swiglu {
                        let (up, up_limit) = self.product(&x, self.matrices[1].row(r));
                        let silu = want / (1.0 + (-want).exp());
                        // The slope of SiLU is at most 1.1.
                        limit = 1.1 * limit * (up.abs() + up_limit) + silu.abs() * up_limit;
                        limit += 1e-5 * (silu * up).abs();
                        want = silu * up;
                    } else if let Some(residual) = self.residual.as_ref().filter(|_| s == 0) {
                        want += f64::from(residual[m * n + r]);
                        limit += 1e-6 * want.abs();
                    }
                    let error = (want - f64::from(got[m * n + r])).abs();
                    assert!(
                        error <= limit,
                        "{} {what}: output {r} of matrix {s}, row {m}: {error:e} from {want:e}, limit {limit:e}",
                        self.weight.name()
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

fn shapes(weight: Weight) -> [usize; 2] {
    match weight {
        Weight::Q8_0 => [96, 1056],
        Weight::F16 => [77, 336],
        Weight::Q6_K | Weight::Q4_K | Weight::Q5_K => [256, 768],
    }
}

#[test]
fn every_type_and_batch_with_norm_over_three_matrices() {
    let mut random = Random(1);
    for weight in Weight::ALL {
        for (most, rows) in [(1, 1), (2, 2), (4, 3), (8, 7)] {
            for planes in 1..=if weight == Weight::F16 { 1 } else { 2 } {
                let k = shapes(weight)[rows % 2];
                let mut case = Case::new(weight, planes, &[19, 3, 5], k, &mut random);
                case.norm = Some(random.reals(k, 2.0));
                let variant = ProjectVariant::heuristic(weight);
                case.check(How { most, rows, variant, grid: 2 }, random.bits());
            }
        }
    }
}

#[test]
fn residual_and_gate() {
    let mut random = Random(2);
    for weight in Weight::ALL {
        let (k, variant) = (shapes(weight)[1], ProjectVariant::heuristic(weight));
        let mut case = Case::new(weight, 1, &[37], k, &mut random);
        case.residual = Some(random.reals(8 * 37, 5.0));
        case.check(How { most: 2, rows: 2, variant, grid: 3 }, 7);
        let mut case = Case::new(weight, 1, &[21, 21], k, &mut random);
        case.norm = Some(random.reals(k, 1.0));
        case.swiglu = true;
        case.check(How { most: 4, rows: 3, variant, grid: 2 }, 8);
    }
}

/// Columns of which a second warp of a row has some, and not all lanes of it.
fn long(weight: Weight) -> usize {
    match weight {
        Weight::Q8_0 => 32 * 67,
        Weight::F16 => 8 * 67 + 3,
        Weight::Q6_K | Weight::Q4_K | Weight::Q5_K => 256 * 11,
    }
}

fn planes(weight: Weight) -> std::ops::RangeInclusive<u32> {
    1..=if weight.is_quantised() { 2 } else { 1 }
}

#[test]
fn every_prebuilt_variant() {
    let mut random = Random(3);
    for weight in Weight::ALL {
        for planes in planes(weight) {
            let case = Case::new(weight, planes, &[23, 23], long(weight), &mut random);
            for (most, rows) in [(1, 1), (2, 2), (4, 3), (8, 7)] {
                for variant in ProjectVariant::prebuilt(weight, most) {
                    let how = How { most, rows, variant, grid: 2 };
                    case.check(how, 5);
                    if planes == 1 {
                        let gated = Case { swiglu: true, ..case.clone() };
                        gated.check(how, 6);
                    }
                }
            }
        }
    }
}

/// Variants that are not checked in, of every parameter's every value: right, and bit for bit what the
/// prebuilt one of the same order computes.
#[test]
fn a_sample_of_what_can_be_compiled() {
    if let Err(why) = jit::compiler() {
        return println!("skipped: {why}");
    }
    let seed = 7;
    println!("seed {seed}");
    let mut random = Random(seed);
    for weight in Weight::ALL {
        for (most, rows) in [(1, 1), (1, 1), (2, 2), (4, 3), (8, 5)] {
            let planes = if weight.is_quantised() { random.pick(&[1, 2]) } else { 1 };
            let mut case = Case::new(weight, planes, &[37, 37], long(weight), &mut random);
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
            all.retain(|v| built.iter().any(|b| b.threads_per_row == v.threads_per_row));
            let variant = random.pick(&all);
            let how = How { most, rows, variant, grid: 2 };
            println!("{} {most} x {planes}: {variant:?}", weight.name());
            let got = case.run(how, random.bits());
            case.compare(rows, &got, &format!("{variant:?}"));
            let threads_per_row = variant.threads_per_row;
            let same = ProjectVariant { threads_per_row, ..ProjectVariant::heuristic(weight) };
            let want = case.run(How { variant: same, ..how }, random.bits());
            assert_eq!(got, want, "{} {variant:?}", weight.name());
        }
    }
}

/// Rows that two warps share are added up in one order, whatever order warps and blocks run in and
/// whatever the batch; one block takes many tiles, so that it exchanges sums again and again.
#[test]
fn warps_that_share_a_row_add_up_in_one_order() {
    let mut random = Random(8);
    for weight in [Weight::Q8_0, Weight::Q6_K, Weight::Q4_K, Weight::F16] {
        let first = ProjectVariant::heuristic(weight);
        let variant = ProjectVariant { threads_per_row: 64, ..first };
        for swiglu in [false, true] {
            let mut case = Case::new(weight, 1, &[45, 45], long(weight), &mut random);
            case.swiglu = swiglu;
            let alone = case.run(How { most: 1, rows: 1, variant, grid: 1 }, 1);
            case.compare(1, &alone, "two warps");
            for (seed, most, grid) in [(2, 1, 1), (3, 1, 3), (4, 2, 1), (5, 4, 2), (6, 8, 1)] {
                let got = case.run(How { most, rows: 1, variant, grid }, seed);
                assert_eq!(got, alone, "{}, seed {seed}, {most} rows", weight.name());
            }
            let one = case.run(How { most: 1, rows: 1, variant: first, grid: 1 }, 1);
            assert_ne!(one, alone, "{}: another order has other bits", weight.name());
        }
    }
}

/// The same bits whatever the batch, the grid and every parameter but `threads_per_row`.
#[test]
fn an_answer_depends_on_threads_per_row_alone() {
    let mut random = Random(4);
    for weight in [Weight::Q8_0, Weight::Q6_K, Weight::Q4_K, Weight::F16] {
        let mut case = Case::new(weight, 1, &[19], long(weight), &mut random);
        case.norm = Some(random.reals(case.k, 1.0));
        for threads_per_row in [8, 16, 32, 64] {
            let first = ProjectVariant { threads_per_row, ..ProjectVariant::heuristic(weight) };
            let alone = case.run(How { most: 1, rows: 1, variant: first, grid: 1 }, 1)[0].clone();
            for (most, rows, grid) in [(1, 1, 2), (2, 1, 2), (4, 4, 1), (8, 5, 2)] {
                let mut same = ProjectVariant::prebuilt(weight, most);
                same.retain(|v| v.threads_per_row == threads_per_row);
                for variant in same {
                    let got = case.run(How { most, rows, variant, grid }, 2);
                    assert_eq!(got[0][..19], alone, "{} x {rows}, {variant:?}", weight.name());
                }
            }
        }
    }
}

#[test]
fn extreme_activations() {
    let mut random = Random(5);
    for weight in [Weight::Q8_0, Weight::Q6_K, Weight::Q5_K] {
        let k = shapes(weight)[0];
        let variant = ProjectVariant::heuristic(weight);
        let how = How { most: 1, rows: 1, variant, grid: 1 };
        for scale in [0.0, 1e-38, 1e-20, 1e30] {
            let mut case = Case::new(weight, 2, &[5], k, &mut random);
            case.x = random.reals(8 * k, scale);
            let got = case.run(how, 1);
            if scale < 1e-30 {
                assert!(got[0].iter().all(|y| *y == 0.0), "{scale:e} is zero");
            } else {
                case.compare(1, &got, &format!("{scale:e}"));
            }
        }
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut case = Case::new(weight, 1, &[5], k, &mut random);
            case.x[k - 1] = odd;
            assert!(case.run(how, 1)[0].iter().all(|y| y.is_nan()), "{odd} reaches every output");
        }
    }
}

#[test]
fn embedded_rows_are_the_matrix_bit_for_bit() {
    let mut random = Random(6);
    for weight in Weight::ALL {
        for k in shapes(weight) {
            let matrix = Matrix::random(weight, 9, k, &mut random);
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
            let grid = embed_grid(weight, params.k, params.rows);
            device.launch(Kernel::Embed(weight), grid, 0, &params);
            let got = device.read(params.out);
            for (got, id) in got.chunks_exact(k).zip(ids) {
                let want = match usize::try_from(id) {
                    Ok(id) if id < 9 => matrix.row(id).to_vec(),
                    _ => vec![0.0; k],
                };
                assert_eq!(got, want, "{} row {id}", weight.name());
            }
        }
    }
}
