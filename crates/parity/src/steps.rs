//! Single steps in all shapes, types and extremes: every device must match the reference on them.

use half::f16;

use super::case::{BuildError, Case, Results, Sketch, noise};
use super::measure::{Difference, equal};
use device::reference::Reference;
use device::{Device, Error};
use plan::graph::{Caches, Rows, SampleInputs, Tensor};
use plan::sample::{self, Adjustment};
use plan::{Activation, Binary, Bucket, DType, Outputs, RopeStyle, Scores};

type Built = Result<Case, BuildError>;

/// Matrix types that have a quantizer; every device supports them.
pub const TYPES: [DType; 18] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q5_1,
    DType::Q5_0,
    DType::Q4_1,
    DType::Q4_0,
    DType::IQ4_NL,
    DType::MXFP4,
    DType::Q6_K,
    DType::Q5_K,
    DType::Q4_K,
    DType::Q3_K,
    DType::Q2_K,
    DType::IQ4_XS,
    DType::TQ2_0,
    DType::TQ1_0,
];

/// Tolerances, in units of the result's root mean square.
mod tolerance {
    /// Different summation order, exponential or sine.
    pub(super) const ROUNDING: f64 = 2e-5;
    /// Sine and cosine of large angles in `f32`.
    pub(super) const ANGLE: f64 = 1e-3;
    /// Keys and values rounded to half precision or to codes, from slightly different `f32`.
    pub(super) const HALF: f64 = 4e-3;
    /// Activations in 8 bits.
    pub(super) const QUANTISED: f64 = 6e-2;
    /// Activations in twice 8 bits, where one outweighs the others by far.
    pub(super) const OUTLIER: f64 = 1e-2;
    /// Activations in twice 8 bits, as for logits.
    pub(super) const TWO_PLANES: f64 = 1.5e-3;
    /// Factor for weights of two bits: their block sums are small integers, but the bias
    /// (docs/numerics.md) is rounded in the same steps as for large ones.
    pub(super) const COARSE: f64 = 5.0;
}

#[derive(Clone, Debug)]
pub struct Outcome {
    /// Distance of the worst result.
    pub difference: Difference,
    pub result: String,
    pub passed: bool,
}

/// Compares a device's results of a case with the reference's.
pub fn compare(case: &Case, got: &Results, want: &Results) -> Outcome {
    let mut worst = Outcome {
        difference: Difference {
            unlike: usize::from(got.len() != want.len()),
            ..Difference::default()
        },
        result: String::new(),
        passed: got.len() == want.len(),
    };
    for ((name, got), (_, want)) in got.iter().zip(want) {
        let difference = Difference::of(got, want);
        // Tokens must be equal.
        let allowed = if name.ends_with("tokens") { 0.0 } else { case.tolerance };
        worst.passed &= difference.relative() <= allowed;
        if worst.result.is_empty() || difference.relative() > worst.difference.relative() {
            (worst.difference, worst.result) = (difference, name.clone());
        }
    }
    worst
}

/// First result of a case that is not bit-identical on another device.
pub fn first_unequal<'a>(got: &'a Results, other: &Results) -> Option<&'a str> {
    got.iter().zip(other).find(|((_, a), (_, b))| !equal(a, b)).map(|((name, _), _)| name.as_str())
}

/// Runs a case on a device and on the reference; [`Error::Unsupported`] if the device does not
/// support it.
pub fn check(case: &Case, device: &dyn Device) -> Result<Outcome, Error> {
    Ok(compare(case, &case.run(device)?, &case.run(&Reference)?))
}

/// Returns all cases.
pub fn all() -> Result<Vec<Case>, BuildError> {
    let mut cases = Vec::new();
    norms(&mut cases)?;
    elementwise(&mut cases)?;
    tables(&mut cases)?;
    embeddings(&mut cases)?;
    projections(&mut cases)?;
    attention(&mut cases)?;
    sampling(&mut cases)?;
    Ok(cases)
}

/// Bucket of rows without logits.
const fn rows(batch: usize) -> Bucket {
    Bucket { batch, chunk: 1, context: 256, outputs: Outputs::None }
}

/// Values that a step may encounter, by name.
fn inputs(seed: u64, n: usize) -> [(&'static str, Vec<f32>); 5] {
    let scaled = |by: f32| noise(seed, n).into_iter().map(|v| v * by).collect::<Vec<_>>();
    let mut outlier = scaled(1.0);
    outlier[n / 3] = 80.0;
    [
        ("random", scaled(1.0)),
        ("zeroes", vec![0.0; n]),
        ("large", scaled(1e6)),
        ("small", scaled(1e-6)),
        ("outlier", outlier),
    ]
}

/// Adds a case of one stage; `build` creates its result.
fn one(
    case: Case,
    bucket: Bucket,
    build: impl FnOnce(&mut Sketch<'_>) -> Result<Tensor, BuildError>,
) -> Built {
    case.stage(bucket, |s| {
        let y = build(s)?;
        s.g.output("y", y);
        Ok(())
    })
}

fn norms(cases: &mut Vec<Case>) -> Result<(), BuildError> {
    for (batch, n) in [(1, 64), (3, 1000), (2, 4096)] {
        for (name, x) in inputs(n as u64, batch * n) {
            let case = Case::new("rms-norm", format!("{batch}x{n} {name}"), tolerance::ROUNDING);
            cases.push(one(case, rows(batch), |s| {
                let x = s.floats("x", &[batch, n], x)?;
                let w = s.quantised("w", DType::F32, &[n], &noise(1, n))?;
                Ok(s.g.rms_norm(x, w, 1e-5)?)
            })?);
        }
    }
    Ok(())
}

fn elementwise(cases: &mut Vec<Case>) -> Result<(), BuildError> {
    for (batch, n) in [(1, 8), (5, 1111)] {
        for (name, x) in inputs(7, batch * n) {
            for product in [false, true] {
                let group = if product { "swiglu" } else { "add" };
                let case = Case::new(group, format!("{batch}x{n} {name}"), tolerance::ROUNDING);
                cases.push(one(case, rows(batch), |s| {
                    let a = s.floats("a", &[batch, n], x.clone())?;
                    let b = s.floats("b", &[batch, n], noise(8, batch * n))?;
                    Ok(if product {
                        s.g.glu(Activation::Silu, a, b)?
                    } else {
                        s.g.binary(Binary::Add, a, b)?
                    })
                })?);
            }
        }
    }
    Ok(())
}

fn tables(cases: &mut Vec<Case>) -> Result<(), BuildError> {
    for (half, magnitude) in [(8, 1.0), (32, 1.25), (64, 1.0)] {
        // The last magnitude is a power of two: the reference rounds the angle to `f32`, devices do
        // not.
        let positions = vec![0, 1, 63, 1000, 131_072];
        let case = Case::new("rope-table", format!("{half} pairs x {magnitude}"), tolerance::ANGLE);
        cases.push(one(case, rows(positions.len()), |s| {
            let p = s.ints("positions", &[positions.len()], positions)?;
            let f = frequencies(s, half)?;
            Ok(s.g.rope_table(p, f, magnitude)?)
        })?);
    }
    Ok(())
}

fn frequencies(s: &mut Sketch<'_>, half: usize) -> Result<Tensor, BuildError> {
    let values: Vec<f32> = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
    s.quantised("frequencies", DType::F32, &[half], &values)
}

fn embeddings(cases: &mut Vec<Case>) -> Result<(), BuildError> {
    for dtype in TYPES {
        let (n, k) = (37, 512);
        let ids = vec![0, 36, 17, -1, 37, i32::MAX];
        let case = Case::new("embed", format!("{dtype} {n}x{k}"), tolerance::ROUNDING);
        cases.push(one(case, rows(ids.len()), |s| {
            let table = s.quantised("w", dtype, &[n, k], &noise(3, n * k))?;
            let ids = s.ints("ids", &[ids.len()], ids)?;
            Ok(s.g.gather(table, &[ids])?)
        })?);
    }
    let picks = vec![2, 0, -3, 9];
    let case = Case::new("gather", "rows of activations", 0.0);
    cases.push(one(case, rows(picks.len()), |s| {
        let x = s.floats("x", &[3, 100], noise(4, 300))?;
        let picks = s.ints("picks", &[picks.len()], picks)?;
        Ok(s.g.gather(x, &[picks])?)
    })?);
    Ok(())
}

/// Steps epilogue a matmul.
#[derive(Clone, Copy, Debug)]
enum Epilogue {
    Nothing,
    Norm,
    Residual,
    Three,
    SwiGlu,
    /// A norm follows: the product is not an output, and its activations have one plane.
    NormAfter,
}

/// Shape of `[batch, k]` times the transpose of `[n, k]`.
#[derive(Clone, Copy)]
struct Product {
    batch: usize,
    n: usize,
    k: usize,
}

fn projections(cases: &mut Vec<Case>) -> Result<(), BuildError> {
    for dtype in TYPES {
        for epilogue in [
            Epilogue::Nothing,
            Epilogue::Norm,
            Epilogue::Residual,
            Epilogue::Three,
            Epilogue::SwiGlu,
            Epilogue::NormAfter,
        ] {
            for (batch, n, k) in [(1, 96, 512), (3, 33, 256), (9, 40, 768)] {
                cases.push(projection(dtype, epilogue, Product { batch, n, k }, "random")?);
            }
        }
        for values in ["zeroes", "large", "small", "outlier", "extreme weights"] {
            let product = Product { batch: 2, n: 48, k: 512 };
            cases.push(projection(dtype, Epilogue::Nothing, product, values)?);
        }
    }
    Ok(())
}

fn projection(
    dtype: DType,
    epilogue: Epilogue,
    Product { batch, n, k }: Product,
    values: &'static str,
) -> Built {
    let found = inputs(5, batch * k).into_iter().find(|(name, _)| *name == values);
    let x = found.map_or_else(|| noise(5, batch * k), |(_, x)| x);
    // A plan output has the precision of logits; inputs of other steps have the usual one.
    let exact = !dtype.is_quantised();
    let coarse = match dtype {
        DType::Q2_K | DType::TQ2_0 | DType::TQ1_0 => tolerance::COARSE,
        _ => 1.0,
    };
    let allowed = match (exact, epilogue, values) {
        (true, ..) => tolerance::ROUNDING,
        (_, Epilogue::NormAfter, _) => tolerance::QUANTISED,
        (_, _, "outlier") => tolerance::OUTLIER * coarse,
        (_, Epilogue::SwiGlu, _) => tolerance::TWO_PLANES * 4.0 * coarse,
        _ => tolerance::TWO_PLANES * coarse,
    };
    let name = format!("{dtype} {batch}x{n}x{k} {epilogue:?} {values}");
    Case::new("project", name, allowed).stage(rows(batch), |s| {
        let x = s.floats("x", &[batch, k], x)?;
        let matrix = |s: &mut Sketch<'_>, name: &str, seed| match saturated(dtype, n * k)
            .filter(|_| values == "extreme weights")
        {
            Some(bytes) => s.weight(name, dtype, &[n, k], bytes),
            None => s.quantised(name, dtype, &[n, k], &noise(seed, n * k)),
        };
        let h = match epilogue {
            Epilogue::Norm => {
                let w = s.quantised("norm", DType::F32, &[k], &noise(6, k))?;
                s.g.rms_norm(x, w, 1e-5)?
            }
            _ => x,
        };
        let a = matrix(s, "a", 11)?;
        let a = s.g.matmul(h, a)?;
        let y = match epilogue {
            Epilogue::Nothing | Epilogue::Norm | Epilogue::Three => a,
            Epilogue::Residual => {
                let residual = s.floats("residual", &[batch, n], noise(12, batch * n))?;
                s.g.binary(Binary::Add, residual, a)?
            }
            Epilogue::NormAfter => {
                let w = s.quantised("behind", DType::F32, &[n], &vec![1.0; n])?;
                s.g.rms_norm(a, w, 1e-5)?
            }
            Epilogue::SwiGlu => {
                let b = matrix(s, "b", 13)?;
                let b = s.g.matmul(h, b)?;
                s.g.glu(Activation::Silu, a, b)?
            }
        };
        s.g.output("y", y);
        if let Epilogue::Three = epilogue {
            for (name, seed) in [("b", 13), ("c", 14)] {
                let w = matrix(s, name, seed)?;
                let y = s.g.matmul(h, w)?;
                s.g.output(name, y);
            }
        }
        Ok(())
    })
}

/// Blocks with all quant bits set and scales of one: the extreme codes of the type. `None` without
/// codes.
fn saturated(dtype: DType, n: usize) -> Option<Vec<u8>> {
    let scales = match dtype {
        DType::Q6_K => 208..210,
        DType::Q3_K => 108..110,
        DType::Q2_K => 80..84,
        DType::Q4_K | DType::Q5_K | DType::Q4_1 | DType::Q5_1 => 0..4,
        DType::Q8_0 | DType::Q5_0 | DType::Q4_0 | DType::IQ4_NL | DType::IQ4_XS => 0..2,
        _ => return None,
    };
    let mut bytes = vec![0; n / dtype.block_len() * dtype.block_bytes()];
    for (i, block) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
        block.fill(if i % 2 == 0 { 0xff } else { 0x80 });
        for half in block[scales.clone()].chunks_exact_mut(2) {
            half.copy_from_slice(&f16::ONE.to_le_bytes());
        }
    }
    Some(bytes)
}

#[derive(Clone, Copy)]
struct Heads {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

fn attention(cases: &mut Vec<Case>) -> Result<(), BuildError> {
    let plain = |[heads, kv_heads, dim]: [usize; 3]| AttentionCase {
        heads: Heads { heads, kv_heads, dim },
        style: RopeStyle::HalfSplit,
        norm: false,
        chunks: 1,
        chunk: 20,
        then: 1,
        scale: 1.0,
        window: None,
        ring: None,
        cache: DType::F16,
    };
    for heads in [[4, 4, 16], [4, 2, 64], [8, 2, 64], [6, 2, 80], [8, 1, 128]] {
        for (style, norm) in [(RopeStyle::Interleaved, false), (RopeStyle::HalfSplit, true)] {
            for (chunk, then) in [(5, 1), (70, 3)] {
                cases.push(AttentionCase { style, norm, chunk, then, ..plain(heads) }.case()?);
            }
        }
    }
    for scale in [0.0, 30.0] {
        cases.push(AttentionCase { scale, ..plain([4, 2, 64]) }.case()?);
    }
    // Enough KV heads that the blocks of a GPU share rows of a chunk. The second chunk does not fit
    // behind the first in a ring cache.
    for heads in [[16, 16, 64], [16, 8, 128]] {
        for (window, ring) in [(None, None), (Some(20), None), (Some(20), Some(128))] {
            let many = AttentionCase { chunks: 2, chunk: 70, then: 2, ..plain(heads) };
            cases.push(AttentionCase { window, ring, ..many }.case()?);
        }
    }
    for cache in [DType::Q8_0, DType::Q4_0] {
        for heads in [[4, 4, 32], [8, 2, 64], [6, 2, 96], [8, 1, 128], [2, 1, 256], [16, 16, 64]] {
            let norm = heads[0] == 6;
            let many = AttentionCase { cache, norm, chunks: 2, chunk: 70, then: 2, ..plain(heads) };
            for (window, ring) in [(None, None), (Some(20), Some(128))] {
                cases.push(AttentionCase { window, ring, ..many }.case()?);
            }
        }
    }
    Ok(())
}

/// Attention: prompt chunks in one slot, then decoding after them, with a row of another slot and
/// an unused row.
#[derive(Clone, Copy)]
struct AttentionCase {
    heads: Heads,
    style: RopeStyle,
    norm: bool,
    chunks: usize,
    chunk: usize,
    then: usize,
    /// Factor of the queries.
    scale: f32,
    window: Option<usize>,
    /// Positions of the caches if they are ring caches.
    ring: Option<usize>,
    /// Type of the KV cache.
    cache: DType,
}

impl AttentionCase {
    fn case(&self) -> Built {
        let Self { heads: Heads { heads, kv_heads, dim }, style, norm, .. } = *self;
        let Self { chunks, chunk, then, scale, cache, .. } = *self;
        let norm = if norm { ", norm" } else { "" };
        let limit = |what: &str, limit: Option<usize>| {
            limit.map_or(String::new(), |limit| format!(", {what} of {limit}"))
        };
        let (window, ring) = (limit("window", self.window), limit("ring", self.ring));
        let name = format!(
            "{heads}/{kv_heads} heads of {dim}, {style:?}{norm}, {chunks} x {chunk} then {then}, \
             queries x {scale}{window}{ring}, {cache}"
        );
        let mut case = Case::new("rope, KV write, attention", name, tolerance::HALF);
        let context = 192;
        let prefill = Bucket { batch: 1, chunk, context, outputs: Outputs::None };
        for first in (0..chunks * chunk).step_by(chunk) {
            let positions = (first..first + chunk).map(|at| at as i32).collect();
            case = case.stage(prefill, |s| self.stage(s, context, vec![1; chunk], positions))?;
        }
        let decode = Bucket { batch: 3, chunk: 1, context, outputs: Outputs::None };
        for i in 0..then {
            let positions = vec![(chunks * chunk + i) as i32, i as i32, 0];
            case = case.stage(decode, |s| self.stage(s, context, vec![1, 2, -1], positions))?;
        }
        Ok(case)
    }

    /// Adds a step with rows in these slots at these positions.
    fn stage(
        &self,
        s: &mut Sketch<'_>,
        context: usize,
        slots: Vec<i32>,
        positions: Vec<i32>,
    ) -> Result<(), BuildError> {
        let Heads { heads: h, kv_heads: kv, dim: d } = self.heads;
        let m = slots.len();
        let seed = positions[0] as u64 + 100;
        let q = noise(seed, m * h * d).into_iter().map(|v| v * self.scale).collect();
        let q = s.floats("q", &[m, h, d], q)?;
        let k = s.floats("k", &[m, kv, d], noise(seed + 1, m * kv * d))?;
        let v = s.floats("v", &[m, kv, d], noise(seed + 2, m * kv * d))?;
        let slots = s.ints("slots", &[m], slots)?;
        let positions = s.ints("positions", &[m], positions)?;
        let f = frequencies(s, d / 2)?;
        let table = s.g.rope_table(positions, f, 1.0)?;
        let (mut q, mut k) = (q, k);
        if self.norm {
            let qw = s.quantised("q_norm", DType::F32, &[d], &noise(21, d))?;
            let kw = s.quantised("k_norm", DType::F32, &[d], &noise(22, d))?;
            (q, k) = (s.g.rms_norm(q, qw, 1e-6)?, s.g.rms_norm(k, kw, 1e-6)?);
        }
        let (q, k) = (s.g.rope(q, table, self.style)?, s.g.rope(k, table, self.style)?);
        let (capacity, ring) = (self.ring.unwrap_or(context), self.ring.is_some());
        let mut cache = |name| s.cache(name, self.cache, &[3, capacity, kv, d]);
        let (keys, values) = (cache("keys")?, cache("values")?);
        let rows = Rows { slots, positions };
        let keys = s.g.kv_write(keys, rows, k, ring)?;
        let caches = Caches { keys, values: s.g.kv_write(values, rows, v, ring)?, ring };
        let scores = Scores { window: self.window, ..Scores::scaled(1.0 / (d as f32).sqrt()) };
        let y = s.g.attention(q, caches, rows, None, scores, context)?;
        // The result of attention is not an output in models, and devices do not allow it as one.
        let y = s.g.reshape(y, &[m, h * d])?;
        let zeroes = s.floats("zeroes", &[m, h * d], vec![0.0; m * h * d])?;
        let y = s.g.binary(Binary::Add, y, zeroes)?;
        s.g.output("y", y);
        Ok(())
    }
}

fn sampling(cases: &mut Vec<Case>) -> Result<(), BuildError> {
    let vocabulary = 1000;
    let rows = 4;
    let random: Vec<f32> = noise(31, rows * vocabulary).into_iter().map(|v| 8.0 * v).collect();
    let mut odd = random.clone();
    odd[..vocabulary].fill(1.5);
    odd[vocabulary..2 * vocabulary].fill(f32::NEG_INFINITY);
    odd[vocabulary + 700] = -3.0;
    odd[2 * vocabulary + 5] = f32::NAN;
    odd[2 * vocabulary + 999] = 1e30;
    // A mask of the first half of the second row's tokens, and an edit of one logit of the third
    // row.
    let (all, words) = (f32::NEG_INFINITY, Adjustment::words(vocabulary));
    let mask = vec![-1; vocabulary / 64];
    let [masked, edited] = [
        Adjustment {
            edits: &[],
            mask: Some(&[mask, vec![0; vocabulary.div_ceil(32) - vocabulary / 64]].concat()),
        },
        Adjustment { edits: &[sample::edit(77, 6.0, 1.2, 0.5)], mask: None },
    ];
    let mut adjustments = vec![0; rows * words];
    for (row, adjustment) in [(1, masked), (2, edited)] {
        let row = &mut adjustments[row * words..][..words];
        row[..2].copy_from_slice(&adjustment.header());
        for (at, part) in adjustment.parts(vocabulary) {
            row[at..at + part.len()].copy_from_slice(part);
        }
    }
    for (name, logits) in [("random", random), ("ties, infinities, NaN", odd)] {
        for (how, temperature, top_k, top_p, min_p) in [
            ("greedy", 0.0, 0, 1.0, all),
            ("drawn", 1.0, 0, 1.0, all),
            ("top-k", 0.7, 40, 1.0, all),
            ("top-p", 1.3, 0, 0.9, all),
            ("min-p", 1.1, 0, 1.0, -2.5),
            ("all of them", 1.0, 10, 0.5, -2.5),
        ] {
            let bucket = Bucket { batch: rows, chunk: 1, context: 64, outputs: Outputs::Last };
            cases.push(Case::new("sample", format!("{how}, {name}"), 0.0).stage(bucket, |s| {
                let logits = s.floats("logits", &[rows, vocabulary], logits.clone())?;
                let positions = s.ints("positions", &[rows], vec![0, 1, 2, 40])?;
                let parameters = SampleInputs {
                    temperature: s.floats("temperature", &[rows], vec![temperature; rows])?,
                    top_k: s.ints("top_k", &[rows], vec![top_k; rows])?,
                    top_p: s.floats("top_p", &[rows], vec![top_p; rows])?,
                    min_p: s.floats("min_p", &[rows], vec![min_p; rows])?,
                    seed: s.ints("seed", &[rows, 2], (0..2 * rows as i32).collect())?,
                    positions,
                    adjustments: Some(s.ints(
                        "adjustments",
                        &[rows, words],
                        adjustments.clone(),
                    )?),
                };
                let sampled = s.g.sample(logits, parameters)?;
                s.g.output("sampled", sampled);
                Ok(())
            })?);
        }
    }
    Ok(())
}
