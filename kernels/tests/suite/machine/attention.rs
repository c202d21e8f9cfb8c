//! Attention with and without rotation and KV write, and the rotation by itself.

use half::f16;
use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{
    attention_counters, attention_grid, attention_partial_bytes, rope_kv_grid,
};
use orind_kernels::params::AttentionParams;

use super::device::Device;
use orind_testing::random::Random;

/// A model's heads, and the rows of a step.
#[derive(Clone, Copy)]
struct Shape<'a> {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    splits: usize,
    interleaved: bool,
    norm: bool,
    capacity: usize,
    /// Slot and position of each row.
    rows: &'a [(i32, i32)],
}

const SLOTS: usize = 4;
const EPS: f32 = 1e-6;

/// What a step reads.
struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    table: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    keys: Vec<f16>,
    values: Vec<f16>,
}

impl Inputs {
    fn random(s: &Shape<'_>, random: &mut Random) -> Self {
        let rows = s.rows.len();
        let cache = SLOTS * s.kv_heads * s.capacity * s.dim;
        let table = s.rows.iter().flat_map(|&(_, position)| {
            let dim = s.dim as f64;
            let angle =
                move |i: usize| f64::from(position) * 10_000_f64.powf(-2.0 * i as f64 / dim);
            let half = s.dim / 2;
            let cos = (0..half).map(move |i| angle(i).cos() as f32);
            cos.chain((0..half).map(move |i| angle(i).sin() as f32))
        });
        Self {
            table: table.collect(),
            q: random.reals(rows * s.heads * s.dim, 2.0),
            k: random.reals(rows * s.kv_heads * s.dim, 2.0),
            v: random.reals(rows * s.kv_heads * s.dim, 1.0),
            q_norm: random.reals(s.dim, 2.0),
            k_norm: random.reals(s.dim, 2.0),
            keys: (0..cache).map(|_| f16::from_f32(random.real(2.0))).collect(),
            values: (0..cache).map(|_| f16::from_f32(random.real(1.0))).collect(),
        }
    }

    /// One head normalised and rotated.
    fn rotate(&self, s: &Shape<'_>, row: usize, x: &[f32], norm: &[f32]) -> Vec<f64> {
        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        let factor = 1.0 / (squares / s.dim as f64 + f64::from(EPS)).sqrt();
        let scaled = x.iter().zip(norm).map(|(&x, &w)| f64::from(x) * factor * f64::from(w));
        let x: Vec<f64> =
            if s.norm { scaled.collect() } else { x.iter().map(|&x| f64::from(x)).collect() };
        let (half, table) = (s.dim / 2, &self.table[row * s.dim..][..s.dim]);
        let mut out = vec![0.0; s.dim];
        for i in 0..half {
            let (a, b) = if s.interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (cos, sin) = (f64::from(table[i]), f64::from(table[half + i]));
            out[a] = x[a] * cos - x[b] * sin;
            out[b] = x[a] * sin + x[b] * cos;
        }
        out
    }
}

/// Where a head's position lies in a cache.
fn place(s: &Shape<'_>, slot: i32, kv_head: usize, position: usize) -> usize {
    ((slot as usize * s.kv_heads + kv_head) * s.capacity + position) * s.dim
}

fn halves(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn as_halves(words: &[u32]) -> Vec<f16> {
    words
        .iter()
        .flat_map(|w| [f16::from_bits(*w as u16), f16::from_bits((w >> 16) as u16)])
        .collect()
}

/// Output, keys and values after a step.
fn run(s: &Shape<'_>, inputs: &Inputs, fused: bool, seed: u64) -> (Vec<f32>, Vec<f16>, Vec<f16>) {
    let mut device = Device::new(seed);
    let rows = s.rows.len();
    let kernel = Kernel::attention(s.dim as u32, (s.heads / s.kv_heads) as u32, fused).unwrap();
    let [heads, kv_heads, splits, count] =
        [s.heads, s.kv_heads, s.splits, rows].map(|n| u32::try_from(n).unwrap());
    let grid = attention_grid(kernel, heads, kv_heads, splits, count).unwrap();
    let [rows_, heads_, dim_, splits_] = [rows, s.heads, s.dim, s.splits].map(|n| n as u64);
    let partial = attention_partial_bytes(rows_, heads_, dim_, splits_);
    let (slots, positions): (Vec<i32>, Vec<i32>) = s.rows.iter().copied().unzip();
    let mut params = AttentionParams {
        q: device.floats(&inputs.q),
        k: device.floats(&inputs.k),
        v: device.floats(&inputs.v),
        table: device.floats(&inputs.table),
        slots: device.integers(&slots),
        positions: device.integers(&positions),
        q_norm: if s.norm { device.floats(&inputs.q_norm) } else { 0 },
        k_norm: if s.norm { device.floats(&inputs.k_norm) } else { 0 },
        keys: device.bytes(&halves(&inputs.keys)),
        values: device.bytes(&halves(&inputs.values)),
        q_out: device.scratch(rows * s.heads * s.dim),
        out: device.scratch(rows * s.heads * s.dim),
        partial: device.scratch(partial as usize / 4),
        counters: device.integers(&vec![0; attention_counters(grid) as usize]),
        rows: count,
        heads,
        kv_heads,
        dim: s.dim as u32,
        slot_count: SLOTS as u32,
        capacity: s.capacity as u32,
        splits,
        interleaved: u32::from(s.interleaved),
        eps: EPS,
        inverse_dim: 1.0 / s.dim as f32,
        scale: 1.0 / (s.dim as f32).sqrt(),
        reserved: 0,
    };
    if !fused {
        device.launch(Kernel::RopeKv, rope_kv_grid(heads, kv_heads, count), 0, &params);
        params.q = params.q_out;
    }
    device.launch(kernel, grid, 0, &params);
    assert!(device.words(params.counters).iter().all(|&c| c == 0), "counters are left at 0");
    let cache = |address| as_halves(&device.words(address));
    (device.read(params.out), cache(params.keys), cache(params.values))
}

fn check(s: &Shape<'_>, fused: bool, seed: u64) {
    let mut random = Random(seed);
    let inputs = Inputs::random(s, &mut random);
    let (out, keys, values) = run(s, &inputs, fused, seed);
    let (mut want_keys, mut want_values) = (inputs.keys.clone(), inputs.values.clone());
    let inside = |slot: i32, position: i32| {
        (0..SLOTS as i32).contains(&slot) && (0..s.capacity as i32).contains(&position)
    };
    for (row, &(slot, position)) in s.rows.iter().enumerate().filter(|(_, r)| inside(r.0, r.1)) {
        for g in 0..s.kv_heads {
            let (at, from) = (place(s, slot, g, position as usize), (row * s.kv_heads + g) * s.dim);
            let key = inputs.rotate(s, row, &inputs.k[from..from + s.dim], &inputs.k_norm);
            for i in 0..s.dim {
                let error = (keys[at + i].to_f64() - key[i]).abs();
                assert!(error <= 1e-3 * key[i].abs() + 1e-4, "key {i} of row {row}: {error:e}");
                want_keys[at + i] = keys[at + i];
                want_values[at + i] = f16::from_f32(inputs.v[from + i]);
            }
        }
    }
    assert!(keys == want_keys && values == want_values, "nothing else in the caches changed");
    for (row, &(slot, position)) in s.rows.iter().enumerate() {
        for head in 0..s.heads {
            let at = (row * s.heads + head) * s.dim;
            let got = &out[at..at + s.dim];
            if !inside(slot, position) {
                assert!(got.iter().all(|x| *x == 0.0), "row {row} has no place");
                continue;
            }
            let q = inputs.rotate(s, row, &inputs.q[at..at + s.dim], &inputs.q_norm);
            let g = head / (s.heads / s.kv_heads);
            let of = |cache: &[f16], p: usize, i: usize| cache[place(s, slot, g, p) + i].to_f64();
            let scores: Vec<f64> = (0..=position as usize)
                .map(|p| (0..s.dim).map(|i| q[i] * of(&keys, p, i)).sum::<f64>())
                .map(|dot| dot / (s.dim as f64).sqrt())
                .collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for (i, got) in got.iter().enumerate() {
                let mixed = weights.iter().enumerate().map(|(p, w)| w * of(&values, p, i));
                let error = (mixed.sum::<f64>() / sum - f64::from(*got)).abs();
                assert!(error <= 1e-5, "row {row} head {head} value {i}: {error:e}, seed {seed}");
            }
        }
    }
}

const LLAMA: Shape<'_> = Shape {
    heads: 8,
    kv_heads: 2,
    dim: 64,
    splits: 4,
    interleaved: true,
    norm: false,
    capacity: 320,
    rows: &[(0, 0), (2, 63), (1, 64), (-1, 5), (3, 319)],
};

#[test]
fn decode_rows_of_every_length() {
    for seed in 1..4 {
        check(&LLAMA, true, seed);
        // Qwen3: pairs split in halves, QK-norm; and a dim, a group and splits of no power of two.
        let rows = &[(3, 300), (0, 17)];
        let qwen =
            Shape { heads: 4, dim: 128, splits: 8, interleaved: false, norm: true, rows, ..LLAMA };
        check(&qwen, true, seed);
        let odd = Shape { heads: 3, kv_heads: 1, dim: 40, splits: 5, norm: true, rows, ..LLAMA };
        check(&odd, true, seed);
    }
}

/// Rows of one prompt share a slot: rotation and write first, then attention.
#[test]
fn a_chunk_of_a_prompt() {
    let rows = &[(1, 126), (1, 127), (1, 128), (1, 129), (4, 0), (0, 320)];
    check(&Shape { rows, ..LLAMA }, false, 5);
    check(&Shape { rows, heads: 8, kv_heads: 1, dim: 96, norm: true, ..LLAMA }, false, 6);
}

#[test]
fn company_and_order_change_no_bit() {
    let mut random = Random(9);
    let inputs = Inputs::random(&LLAMA, &mut random);
    let (out, ..) = run(&LLAMA, &inputs, true, 1);
    let (again, ..) = run(&LLAMA, &inputs, true, 2);
    assert_eq!(out, again, "whatever the order of blocks and warps");
    let width = LLAMA.heads * LLAMA.dim;
    let alone = Shape { rows: &LLAMA.rows[..1], ..LLAMA };
    let (first, ..) = run(&alone, &inputs, true, 3);
    assert_eq!(first, out[..width], "whatever the batch");
}

/// Whatever a key or a value is that is no number: who sees it gets no number, who does not see it gets the
/// same bits as without it.
#[test]
fn what_is_no_number_reaches_who_sees_it_and_nobody_else() {
    // Of nine positions each group of lanes has one at most.
    let shape = Shape { rows: &[(0, 8), (2, 63), (3, 319)], ..LLAMA };
    let inputs = || Inputs::random(&shape, &mut Random(12));
    let (out, ..) = run(&shape, &inputs(), true, 1);
    let width = shape.heads * shape.dim;
    for (row, position) in [(0, 0), (0, 5), (1, 62), (2, 0), (2, 100), (2, 318)] {
        for (odd, in_keys) in [(f16::NAN, true), (f16::INFINITY, true), (f16::NAN, false)] {
            let mut inputs = inputs();
            let Inputs { keys, values, .. } = &mut inputs;
            // Behind the positions of all rows there are more of them.
            for &(slot, last) in shape.rows.iter().filter(|(_, last)| *last + 1 < 320) {
                for cache in [&mut *keys, &mut *values] {
                    cache[place(&shape, slot, 1, last as usize + 1)..][..shape.dim].fill(odd);
                }
            }
            let cache = if in_keys { keys } else { values };
            cache[place(&shape, shape.rows[row].0, 1, position)..][..shape.dim].fill(odd);
            let (got, ..) = run(&shape, &inputs, true, 1);
            let seen = row * width + width / shape.kv_heads..(row + 1) * width;
            let what = format!("{odd} at {position} of row {row}, in keys: {in_keys}");
            for (i, (got, was)) in got.iter().zip(&out).enumerate() {
                if seen.contains(&i) {
                    assert!(!got.is_finite(), "{what}: {i} is {got}");
                } else {
                    assert_eq!(got, was, "{what}: {i}");
                }
            }
        }
    }
}
