//! Definitions of composite operations, compared with their formulas in `f64`.

use half::f16;
use plan::graph::{Caches, Norm, Rows, Tensor};
use plan::{Activation, DType, NormKind, RopeStyle, Scalar, Scores, Temperature};

use super::{Case, assert_close, noise};

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

#[test]
fn rms_norm() {
    let (rows, width, eps) = (3, 40, 1e-5f32);
    let (x, w) = (noise(1, rows * width), noise(2, width));
    let mut case = Case::new();
    let (tx, tw) = (case.float(&[rows, width], &x), case.float(&[width], &w));
    let normed = case.g.rms_norm(tx, tw, eps).unwrap();
    let want: Vec<f64> = wide(&x)
        .chunks(width)
        .flat_map(|row| {
            let mean = row.iter().map(|v| v * v).sum::<f64>() / width as f64;
            let root = (mean + f64::from(eps)).sqrt();
            row.iter().zip(&w).map(move |(v, w)| v / root * f64::from(*w)).collect::<Vec<_>>()
        })
        .collect();
    assert_close(&case.run(&[normed])[0], &want, 1e-6);
}

#[test]
fn layer_norm() {
    let (rows, width, eps) = (3, 40, 1e-5f32);
    let x: Vec<f32> = noise(21, rows * width).iter().map(|v| v + 3.0).collect();
    let (w, b) = (noise(22, width), noise(23, width));
    let mut case = Case::new();
    let tx = case.float(&[rows, width], &x);
    let (weight, bias) = (case.float(&[width], &w), Some(case.float(&[width], &b)));
    let norm = Norm { kind: NormKind::Layer, weight, bias, eps: Scalar::new(eps) };
    let normed = case.g.normalise(tx, norm).unwrap();
    let mut want = Vec::new();
    for row in wide(&x).chunks(width) {
        let mean = row.iter().sum::<f64>() / width as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
        let root = (variance + f64::from(eps)).sqrt();
        let value = |i: usize| (row[i] - mean) / root * f64::from(w[i]) + f64::from(b[i]);
        want.extend((0..width).map(value));
    }
    assert_close(&case.run(&[normed])[0], &want, 1e-5);
}

#[test]
fn biases_factors_caps_and_gelu() {
    let (rows, width) = (3, 20);
    let x: Vec<f32> = noise(24, rows * width).iter().map(|v| v * 8.0).collect();
    let b = noise(25, width);
    let mut case = Case::new();
    let (tx, tb) = (case.float(&[rows, width], &x), case.float(&[width], &b));
    let outputs = [
        case.g.bias(tx, tb).unwrap(),
        case.g.scale(tx, 0.3).unwrap(),
        case.g.soft_cap(tx, 5.0).unwrap(),
        case.g.activate(Activation::Gelu, tx).unwrap(),
    ];
    let gelu = |x: f64| {
        let root = (2.0 / std::f64::consts::PI).sqrt();
        0.5 * x * (1.0 + (root * (x + 0.044_715 * x.powi(3))).tanh())
    };
    let formulas: [&dyn Fn(usize, f64) -> f64; 4] = [
        &|i, x| x + f64::from(b[i % width]),
        &|_, x| x * f64::from(0.3f32),
        &|_, x| 5.0 * (x / 5.0).tanh(),
        &|_, x| gelu(x),
    ];
    for (have, formula) in case.run(&outputs).iter().zip(formulas) {
        let want: Vec<f64> = wide(&x).into_iter().enumerate().map(|(i, x)| formula(i, x)).collect();
        assert_close(have, &want, 2e-6);
    }
}

#[test]
fn swiglu() {
    let (gate, up) = (noise(3, 50), noise(4, 50));
    let gate: Vec<f32> = gate.iter().map(|v| v * 200.0).collect();
    let mut case = Case::new();
    let (tg, tu) = (case.float(&[50], &gate), case.float(&[50], &up));
    let out = case.g.glu(Activation::Silu, tg, tu).unwrap();
    let want: Vec<f64> =
        wide(&gate).iter().zip(wide(&up)).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    assert_close(&case.run(&[out])[0], &want, 1e-6);
}

/// Each pair is rotated by `position * frequency`; the styles store the same pairs differently.
#[test]
fn rope_in_both_styles() {
    let (rows, heads, dim, magnitude) = (4, 3, 8, 1.25f32);
    let positions = [0, 1, 17, 900];
    let frequencies = [1.0f32, 0.3, 0.05, 0.001];
    let x = noise(5, rows * heads * dim);
    for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
        let mut case = Case::new();
        let (tp, tf) = (case.int(&positions), case.float(&[dim / 2], &frequencies));
        let tx = case.float(&[rows, heads, dim], &x);
        let table = case.g.rope_table(tp, tf, magnitude).unwrap();
        let rotated = case.g.rope(tx, table, style).unwrap();
        let mut want = vec![0.0; x.len()];
        for (row, position) in positions.iter().enumerate() {
            for head in 0..heads {
                for (pair, frequency) in frequencies.iter().enumerate() {
                    let (a, b) = match style {
                        RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                        RopeStyle::HalfSplit => (pair, pair + dim / 2),
                    };
                    let base = (row * heads + head) * dim;
                    let angle = f64::from(*position) * f64::from(*frequency);
                    let (sin, cos) = angle.sin_cos();
                    let (u, v) = (f64::from(x[base + a]), f64::from(x[base + b]));
                    let m = f64::from(magnitude);
                    want[base + a] = m * (u * cos - v * sin);
                    want[base + b] = m * (u * sin + v * cos);
                }
            }
        }
        // The angle is rounded to f32: half an ulp of 900.
        assert_close(&case.run(&[rotated])[0], &want, 1e-4);
    }
}

/// Two slots and a padding row in one batch, grouped heads, a context shorter than the cache. Each row reads its own
/// slot up to its position, in the cache's half precision. Later positions hold NaN, and the last row's own.
#[test]
fn attention_over_written_caches() {
    const SLOTS: usize = 3;
    const LENGTH: usize = 8;
    const BAND: usize = 5;
    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const DIM: usize = 6;
    let slots = [1, 1, 2, 1, -1, 2, 1];
    let positions = [0, 1, 0, 2, 0, 1, 3];
    let rows = slots.len();
    let q = noise(6, rows * HEADS * DIM);
    let [mut k, mut v] = [7, 8].map(|seed| noise(seed, rows * KV_HEADS * DIM));
    for (values, odd) in [(&mut k, f32::NAN), (&mut v, f32::INFINITY)] {
        values[(rows - 1) * KV_HEADS * DIM..].fill(odd);
    }

    let mut case = Case::new();
    let at = Rows { slots: case.int(&slots), positions: case.int(&positions) };
    let cache = |case: &mut Case, name: &str, values: &[f32]| -> Tensor {
        let state = case.state(name, DType::F16, &[SLOTS, LENGTH, KV_HEADS, DIM]);
        let values = case.float(&[rows, KV_HEADS, DIM], values);
        case.g.kv_write(state, at, values, false).unwrap()
    };
    let (keys, values) = (cache(&mut case, "k", &k), cache(&mut case, "v", &v));
    let caches = Caches { keys, values, ring: false };
    let tq = case.float(&[rows, HEADS, DIM], &q);
    let mut scores = Scores::scaled(1.0 / (DIM as f32).sqrt());
    let plain = case.g.attention(tq, caches, at, None, scores, BAND).unwrap();
    let sinks = [0.5f32, -2.0, 3.0, 100.0];
    let of_heads = case.float(&[HEADS], &sinks);
    let sunk = case.g.attention(tq, caches, at, Some(of_heads), scores, BAND).unwrap();
    scores.window = Some(2);
    scores.cap = Some(Scalar::new(0.5));
    scores.temperature = Some(Temperature { slope: Scalar::new(0.7), length: 2 });
    let dressed = case.g.attention(tq, caches, at, None, scores, BAND).unwrap();
    let outputs = case.run(&[plain, dressed, sunk]);

    let stored = |values: &[f32], row: usize, head: usize, d: usize| {
        f64::from(f16::from_f32(values[(row * KV_HEADS + head) * DIM + d]))
    };
    for (have, (dressed, sunk)) in
        outputs.iter().zip([(false, false), (true, false), (false, true)])
    {
        let score = |dot: f64, position: i32| {
            if !dressed {
                return dot;
            }
            let factor = 1.0 + 0.7 * (1.0 + f64::from(position / 2)).ln();
            0.5 * (dot * factor / 0.5).tanh()
        };
        let near = |row: usize, other: usize| !dressed || positions[row] - positions[other] < 2;
        assert!(have[(rows - 1) * HEADS * DIM..].iter().all(|x| x.is_nan()), "it sees itself");
        for row in (0..rows - 1).filter(|&row| slots[row] >= 0) {
            let seen: Vec<usize> = (0..rows)
                .filter(|&other| slots[other] == slots[row] && positions[other] <= positions[row])
                .filter(|&other| near(row, other))
                .collect();
            for (head, &sink) in sinks.iter().enumerate() {
                let kv_head = head / (HEADS / KV_HEADS);
                let at = (row * HEADS + head) * DIM;
                let weights: Vec<f64> = seen
                    .iter()
                    .map(|&other| {
                        let dot: f64 = (0..DIM)
                            .map(|d| f64::from(q[at + d]) * stored(&k, other, kv_head, d))
                            .sum();
                        score(dot / (DIM as f64).sqrt(), positions[row]).exp()
                    })
                    .collect();
                let sink = if sunk { f64::from(sink).exp() } else { 0.0 };
                let total: f64 = weights.iter().sum::<f64>() + sink;
                let want: Vec<f64> = (0..DIM)
                    .map(|d| {
                        let mixed: f64 = seen
                            .iter()
                            .zip(&weights)
                            .map(|(&other, w)| w * stored(&v, other, kv_head, d))
                            .sum();
                        mixed / total
                    })
                    .collect();
                assert_close(&have[at..at + DIM], &want, 1e-6);
            }
        }
    }
}

#[test]
fn attention_refuses_mismatched_shapes() {
    let mut case = Case::new();
    let rows = Rows { slots: case.int(&[0]), positions: case.int(&[0]) };
    let keys = case.state("k", DType::F16, &[1, 8, 2, 4]);
    let values = case.state("v", DType::F16, &[1, 8, 2, 4]);
    let caches = Caches { keys, values, ring: false };
    let flat = case.float(&[1, 16], &[0.0; 16]);
    let odd = case.float(&[1, 3, 4], &[0.0; 12]);
    let q = case.float(&[1, 4, 4], &[0.0; 16]);
    let headless = case.float(&[1, 0, 4], &[]);
    let sinks = case.float(&[2], &[0.0; 2]);
    let [none, none_either] = ["none", "either"].map(|n| case.state(n, DType::F16, &[1, 8, 0, 4]));
    let none = Caches { keys: none, values: none_either, ring: false };
    let mut refused = |q, caches, sinks, context, message: &str| {
        let error = case
            .g
            .attention(q, caches, rows, sinks, Scores::scaled(1.0), context)
            .expect_err(message)
            .to_string();
        assert!(error.contains(message), "`{error}` does not say `{message}`");
    };
    refused(flat, caches, None, 8, "q must be [M, H, D]");
    refused(odd, caches, None, 8, "H must be a multiple of KVH");
    refused(headless, none, None, 8, "H must be a multiple of KVH");
    refused(q, Caches { keys: flat, ..caches }, None, 8, "caches must be [slots, C, KVH, D]");
    refused(q, caches, None, 9, "the context, of a ring the window, must lie inside C");
    refused(q, Caches { ring: true, ..caches }, None, 9, "of a ring the window, must lie inside C");
    refused(q, caches, Some(sinks), 8, "a sink of each head expected");
}
