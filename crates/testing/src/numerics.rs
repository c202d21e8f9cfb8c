//! The arithmetic of `docs/numerics.md` in plain scalars, one operation after another. Written from
//! the page's text, so that kernels are compared with the specification and not with each other.

use half::{bf16, f16};
use plan::quant::{self, Format, blocks};
use plan::{DType, RopeStyle};

const BIAS: i32 = 3 << 22;

fn rne(x: f32) -> f32 {
    x.round_ties_even()
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Quantises one span of activations: integers, scale and residuals.
fn quantise_span(x: &[f32]) -> (Vec<i32>, f32, Vec<f32>) {
    let zero = vec![0; x.len()];
    if x.iter().any(|x| !x.is_finite()) {
        return (zero, f32::NAN, vec![f32::NAN; x.len()]);
    }
    let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    if max <= 1e-30 {
        return (zero, 0.0, x.to_vec());
    }
    let (scale, inverse) = (max / 127.0, 127.0 / max);
    let q: Vec<i32> = x.iter().map(|x| rne(x * inverse) as i32).collect();
    let rest = q.iter().zip(x).map(|(&q, &x)| (q as f32).mul_add(-scale, x)).collect();
    (q, scale, rest)
}

/// Quantised planes of one row: integers, and the scale of each column.
fn planes(x: &[f32], span: usize, count: usize) -> Vec<(Vec<i32>, Vec<f32>)> {
    let mut planes = vec![(Vec::new(), Vec::new()); count];
    for x in x.chunks(span) {
        let mut x = x.to_vec();
        for (integers, scales) in &mut planes {
            let (q, scale, rest) = quantise_span(&x);
            integers.extend(q);
            scales.extend(vec![scale; x.len()]);
            x = rest;
        }
    }
    planes
}

/// A block of weights: integers, and a scale and an offset for each 16 of them.
struct Block {
    integers: Vec<i32>,
    scales: Vec<f32>,
    minima: Vec<f32>,
}

/// Unpacks a block with `plan::quant`, which is tested against ggml's reference.
fn block(dtype: DType, bytes: &[u8]) -> Block {
    macro_rules! of {
        ($($name:ident $n:literal),*) => {
            match dtype {
                $(DType::$name => {
                    let parts = blocks::<quant::$name, $n>(bytes)[0].parts();
                    let level = |&code: &u8| i32::from(<quant::$name as Format<$n>>::LEVELS.of(code));
                    let subs = ..$n / 16;
                    Block {
                        integers: parts.codes.iter().map(level).collect(),
                        scales: parts.scales[subs].iter().map(|&s| parts.d * f32::from(s)).collect(),
                        minima: parts.minima[subs].iter().map(|&m| parts.dmin * f32::from(m)).collect(),
                    }
                })*
                other => panic!("{other}"),
            }
        };
    }
    of!(
        Q8_0 32, Q4_0 32, Q4_1 32, Q5_0 32, Q5_1 32, IQ4_NL 32, MXFP4 32, Q2_K 256, Q3_K 256, Q4_K 256,
        Q5_K 256, Q6_K 256, IQ4_XS 256, IQ3_S 256, IQ3_XXS 256, IQ2_S 256, IQ2_XS 256, IQ2_XXS 256,
        IQ1_M 256, IQ1_S 256, TQ1_0 256, TQ2_0 256
    )
}

/// Converts an exact sum to `f32`, asserting that it is representable.
fn exact(x: f64) -> f32 {
    assert_eq!(f64::from(x as f32), x, "not exact");
    x as f32
}

fn dot(q: &[i32], x: &[i32]) -> i32 {
    q.iter().zip(x).map(|(q, x)| q * x).sum()
}

/// Summation order of a type with blocks of 256 columns: columns per scale, alternating signs,
/// minima.
fn order(dtype: DType) -> (usize, bool, bool) {
    match dtype {
        DType::Q4_K | DType::Q5_K | DType::TQ1_0 | DType::TQ2_0 => (32, true, true),
        DType::Q2_K => (16, true, true),
        DType::Q6_K | DType::Q3_K | DType::IQ1_M | DType::IQ1_S => (16, false, false),
        DType::IQ4_XS => (32, false, false),
        _ => (16, true, false),
    }
}

/// Contribution of one superblock of 256 columns and one plane.
fn superblock(dtype: DType, bytes: &[u8], x: &[i32]) -> f32 {
    let mut w = block(dtype, bytes);
    if matches!(dtype, DType::TQ1_0 | DType::TQ2_0) {
        w.integers.iter_mut().for_each(|q| *q += 1);
        w.minima = w.scales.clone();
    }
    let (width, alternating, minima) = order(dtype);
    let scales: Vec<f32> = w.scales.iter().copied().step_by(width / 16).collect();
    let sign = |i: usize| if alternating && i % 2 == 1 { -1.0 } else { 1.0 };
    let sum: f64 = scales.iter().enumerate().map(|(i, &s)| f64::from(s) * sign(i)).sum();
    let bias = if matches!(dtype, DType::Q3_K | DType::IQ1_M | DType::IQ1_S) { 0 } else { BIAS };
    let mut part = exact(-f64::from(bias) * sum);
    for (i, &scale) in scales.iter().enumerate() {
        let columns = width * i..width * (i + 1);
        let x = &x[columns.clone()];
        let sum = dot(&w.integers[columns], x);
        let biased = if sign(i) > 0.0 { bias + sum } else { sum - bias };
        part = (biased as f32).mul_add(scale, part);
        if minima {
            let minus = 0.0 - w.minima[width / 16 * i];
            part = minus.mul_add(x.iter().sum::<i32>() as f32, part);
        }
    }
    part
}

/// Contribution of one block of 32 columns and one plane.
fn short_block(dtype: DType, bytes: &[u8], x: &[i32]) -> f32 {
    let w = block(dtype, bytes);
    let scale = w.scales[0];
    let part = ((BIAS + dot(&w.integers, x)) as f32).mul_add(scale, -(BIAS as f32) * scale);
    match dtype {
        DType::Q4_1 | DType::Q5_1 => (-w.minima[0]).mul_add(x.iter().sum::<i32>() as f32, part),
        _ => part,
    }
}

/// Product of one stored matrix row with one row of activations.
pub fn product(dtype: DType, row: &[u8], x: &[f32], plane_count: usize) -> f32 {
    let mut acc = 0.0f32;
    match dtype {
        _ if dtype.block_len() == 256 => {
            let planes = planes(x, 256, plane_count);
            for (s, block) in row.chunks(dtype.block_bytes()).enumerate() {
                for (x, scales) in &planes {
                    let part = superblock(dtype, block, &x[256 * s..256 * s + 256]);
                    acc = part.mul_add(scales[256 * s], acc);
                }
            }
        }
        _ if dtype.block_len() == 32 => {
            let planes = planes(x, 32, plane_count);
            for (l, blocks) in row.chunks(8 * dtype.block_bytes()).enumerate() {
                let mut leaf = 0.0f32;
                for (b, block) in blocks.chunks(dtype.block_bytes()).enumerate() {
                    let at = 256 * l + 32 * b;
                    for (x, scales) in &planes {
                        let part = short_block(dtype, block, &x[at..at + 32]);
                        leaf = part.mul_add(scales[at], leaf);
                    }
                }
                acc += leaf;
            }
        }
        _ => {
            let width = dtype.block_bytes();
            let weight = |w: &[u8]| match dtype {
                DType::F32 => f32::from_le_bytes([w[0], w[1], w[2], w[3]]),
                DType::F16 => half(w),
                _ => bf16::from_le_bytes([w[0], w[1]]).to_f32(),
            };
            for (row, x) in row.chunks(256 * width).zip(x.chunks(256)) {
                let mut c = [0.0f32; 4];
                for (i, (w, &x)) in row.chunks(width).zip(x).enumerate() {
                    c[i % 4] = weight(w).mul_add(x, c[i % 4]);
                }
                acc += (c[0] + c[1]) + (c[2] + c[3]);
            }
        }
    }
    acc
}

/// Sum of a row over 256 partial sums, with `add` as the accumulation.
fn total(x: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut strides = [0.0f32; 256];
    for (i, &x) in x.iter().enumerate() {
        strides[i % 256] = add(strides[i % 256], x);
    }
    let trees = strides.chunks_mut(32).map(halve);
    trees.reduce(|sum, tree| sum + tree).unwrap_or(0.0)
}

/// Subtracts the mean, as LayerNorm does before the norm.
pub fn centred(x: &[f32]) -> Vec<f32> {
    let mean = total(x, |sum, x| sum + x) / x.len() as f32;
    x.iter().map(|x| x - mean).collect()
}

pub fn norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let sum = total(x, |sum, x| x.mul_add(x, sum));
    let factor = 1.0 / (sum / x.len() as f32 + eps).sqrt();
    x.iter().zip(weight).map(|(x, weight)| x * factor * weight).collect()
}

/// Pairwise sum by halving distances.
fn halve(values: &mut [f32]) -> f32 {
    let mut distance = values.len() / 2;
    while distance > 0 {
        for i in 0..distance {
            values[i] += values[i + distance];
        }
        distance /= 2;
    }
    values[0]
}

/// Cosines, then sines.
pub fn table(position: f32, frequencies: &[f32], magnitude: f32) -> Vec<f32> {
    let pairs: Vec<(f32, f32)> = frequencies.iter().map(|&f| cos_sin(position, f)).collect();
    let cosines = pairs.iter().map(|(cosine, _)| cosine * magnitude);
    cosines.chain(pairs.iter().map(|(_, sine)| sine * magnitude)).collect()
}

fn cos_sin(p: f32, f: f32) -> (f32, f32) {
    let high = p * f;
    let low = p.mul_add(f, -high);
    let turns = rne(high * std::f32::consts::FRAC_2_PI);
    let mut r = turns.mul_add(-1.570_796_4, high);
    r = turns.mul_add(4.371_139e-8, r);
    r += low;
    let r2 = r * r;
    let mut s = r2.mul_add(-1.951_529_6e-4, 8.332_161e-3);
    s = r2.mul_add(s, -1.666_665_5e-1);
    s = (r2 * r).mul_add(s, r);
    let mut c = r2.mul_add(2.443_315_7e-5, -1.388_731_6e-3);
    c = r2.mul_add(c, 4.166_664_6e-2);
    c = (r2 * r2).mul_add(c, r2.mul_add(-0.5, 1.0));
    match (turns as i64).rem_euclid(4) {
        0 => (c, s),
        1 => (-s, c),
        2 => (-c, -s),
        _ => (s, -c),
    }
}

pub fn rotate(x: &[f32], cos: &[f32], sin: &[f32], style: RopeStyle) -> Vec<f32> {
    let mut out = x.to_vec();
    for i in 0..x.len() / 2 {
        let (p, q) = match style {
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            RopeStyle::HalfSplit => (i, i + x.len() / 2),
        };
        let (a, b, c, s) = (x[p], x[q], cos[i], sin[i]);
        out[p] = a.mul_add(c, -(b * s));
        out[q] = a.mul_add(s, b * c);
    }
    out
}

/// `2^n`; 0 if that is not a normal number.
fn power_of_two(n: i32) -> f32 {
    if n < -126 { 0.0 } else { 2.0f32.powi(n) }
}

/// `e^x / 2^power`; 0 if `x` is 87.33 or more below `max`.
fn weight(x: f32, max: f32, power: i32) -> f32 {
    if x < max - 87.33 {
        return 0.0;
    }
    let n = rne(x * std::f32::consts::LOG2_E);
    let mut r = n.mul_add(-355.0 / 512.0, x);
    r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.0f32 / 720.0;
    for k in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, k);
    }
    p * power_of_two(n as i32 - power)
}

pub fn exp(x: f32) -> f32 {
    if x > 88.0 { f32::INFINITY } else { weight(x, 0.0, 0) }
}

pub fn swiglu(gate: f32, up: f32) -> f32 {
    gate / (1.0 + exp(-gate)) * up
}

pub fn gelu(x: f32) -> f32 {
    let angle = (x * x).mul_add(0.071_354_814, 1.595_769) * x;
    x / (1.0 + exp(-angle))
}

/// Soft-caps a score or a logit.
pub fn capped(x: f32, cap: Option<f32>) -> f32 {
    cap.map_or(x, |cap| cap - 2.0 * cap / (1.0 + exp(x * (2.0 / cap))))
}

/// Running softmax state: power, sum, values.
struct Folded {
    power: i32,
    sum: f32,
    values: Vec<f32>,
}

impl Folded {
    fn fold(before: Option<Self>, more: Self) -> Self {
        let Some(before) = before else { return more };
        let power = before.power.max(more.power);
        let old = power_of_two(before.power - power);
        let new = power_of_two(more.power - power);
        let fold = |old_value: f32, value: f32| value.mul_add(new, old_value * old);
        let values = before.values.iter().zip(&more.values).map(|(&b, &m)| fold(b, m)).collect();
        Self { power, sum: fold(before.sum, more.sum), values }
    }
}

/// Softmax state of one span of scores with their values.
fn span(scores: &[f32], values: &[&[f32]]) -> Folded {
    let max = scores.iter().fold(f32::NEG_INFINITY, |max, s| if *s > max { *s } else { max });
    let exponent = max * std::f32::consts::LOG2_E;
    let within = exponent.abs() <= 4_194_304.0;
    let power = if within { rne(exponent) as i32 } else { 0 };
    let weights: Vec<f32> = scores.iter().map(|&s| weight(s, max, power)).collect();
    let mut chains = [0.0f32; 16];
    for (i, weight) in weights.iter().enumerate() {
        chains[i % 16] += weight;
    }
    let sum = if within { halve(&mut chains) } else { f32::NAN };
    let mut sums = vec![0.0f32; values[0].len()];
    for (weight, values) in weights.iter().zip(values) {
        for (sum, value) in sums.iter_mut().zip(*values) {
            *sum = weight.mul_add(*value, *sum);
        }
    }
    Folded { power, sum, values: sums }
}

/// Attention of one row over positions from `first` on; `score` maps a dot product to a score. A
/// sink is a score without a value.
pub fn attention(
    q: &[f32],
    keys: &[&[f32]],
    values: &[&[f32]],
    first: usize,
    sink: Option<f32>,
    score: impl Fn(f32) -> f32,
) -> Vec<f32> {
    let score = |(p, key): (usize, &&[f32])| {
        let dot = q.iter().zip(*key).fold(0.0f32, |dot, (&q, &k)| q.mul_add(k, dot));
        if p < first { f32::NEG_INFINITY } else { score(dot) }
    };
    let scores: Vec<f32> = keys.iter().enumerate().map(score).collect();
    let mut whole = None;
    for (run, (scores, values)) in scores.chunks(256).zip(values.chunks(256)).enumerate() {
        let mut group = None;
        for (span, (scores, values)) in scores.chunks(32).zip(values.chunks(32)).enumerate() {
            if 256 * run + 32 * span + scores.len() > first {
                group = Some(Folded::fold(group, self::span(scores, values)));
            }
        }
        whole = match group {
            Some(group) => Some(Folded::fold(whole, group)),
            None => whole,
        };
    }
    if let Some(sink) = sink {
        whole = Some(Folded::fold(whole, span(&[sink], &[&vec![0.0; q.len()]])));
    }
    let whole = whole.unwrap();
    whole.values.iter().map(|value| value / whole.sum).collect()
}
