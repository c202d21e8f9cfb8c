//! Tests of recurrent layers: bit-exact with `docs/numerics.md`, in chunks of any length, with
//! padding and reused slots.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{gated_delta_grid, short_conv_grid};
use orind_kernels::params::{GatedDeltaParams, Recurrence, ShortConvParams};
use orind_testing::numerics::{exp, norm};
use orind_testing::random::Random;
use plan::{DeltaHeads, sample};

use super::device::Device;

const SLOTS: usize = 3;

/// Chunk of a sequence: slot, first position, rows, and rows with padding.
type Chunk = (i32, usize, usize, usize);

/// Chunks in order: a whole prompt, one in parts, repeated steps, a step too far, a reused slot.
const CHUNKS: [Chunk; 9] = [
    (1, 0, 21, 21),
    (2, 0, 5, 8),
    (2, 5, 1, 1),
    (2, 5, 1, 1),
    (2, 6, 1, 1),
    (2, 6, 3, 4),
    (2, 6, 15, 40),
    (1, 0, 2, 2),
    (-1, 3, 0, 2),
];

/// Versions of each slot, and the tokens that they cover.
struct Memory {
    state: u64,
    held: u64,
    size: usize,
}

impl Memory {
    fn new(device: &mut Device, size: usize) -> Self {
        let (state, held) = (device.scratch(SLOTS * 2 * size), device.integers(&[0; 2 * SLOTS]));
        Self { state, held, size }
    }

    fn params(&self, device: &mut Device, chunks: &[Chunk]) -> Recurrence {
        let chunk = chunks[0].3;
        let rows = |of: fn(Chunk, usize) -> i32| -> Vec<i32> {
            chunks.iter().flat_map(|&c| (0..chunk).map(move |row| of(c, row))).collect()
        };
        let slots = rows(|(slot, _, rows, _), row| if row < rows { slot } else { -1 });
        let positions =
            rows(|(_, at, rows, _), row| if row < rows { (at + row) as i32 } else { 0 });
        Recurrence {
            state: self.state,
            held: self.held,
            slots: device.integers(&slots),
            positions: device.integers(&positions),
            counter: device.integers(&vec![0; chunks.len()]),
            slot_count: SLOTS as u32,
            sequences: chunks.len() as u32,
            chunk: chunk as u32,
            size: self.size as u32,
        }
    }
}

/// Values of a row, which depend on slot and position only.
fn row(seed: u64, (slot, position): (i32, usize), n: usize) -> Vec<f32> {
    Random(seed * 10_007 + slot as u64 * 1009 + position as u64 + 1).reals(n, 2.0)
}

/// Rows of chunks, with random padding.
fn rows(seed: u64, chunks: &[Chunk], n: usize) -> Vec<f32> {
    let row = |&(slot, at, _, chunk): &Chunk| {
        (0..chunk).flat_map(move |i| row(seed, (slot.max(0), at + i), n)).collect::<Vec<f32>>()
    };
    chunks.iter().flat_map(row).collect()
}

/// Compares each chunk's rows with those of a whole sequence, and padding with zeroes.
fn compare(chunks: &[Chunk], got: &[f32], n: usize, whole: &dyn Fn(i32) -> Vec<Vec<f32>>) {
    for (&(slot, at, rows, chunk), got) in chunks.iter().zip(got.chunks(chunks[0].3 * n)) {
        let want = whole(slot.max(0));
        for (row, got) in got.chunks(n).enumerate().take(chunk) {
            for (i, got) in got.iter().enumerate() {
                let want = if row < rows { want[at + row][i] } else { 0.0 };
                let what = format!("slot {slot}, row {row} from {at}, column {i}");
                assert_eq!(got.to_bits(), want.to_bits(), "{what}: {got:e}, not {want:e}");
            }
        }
    }
}

#[test]
fn short_convolutions() {
    for (seed, (channels, taps)) in (1..).zip([(140, 3), (33, 8), (5, 2)]) {
        let weight = Random(seed).reals(channels * taps, 1.0);
        let whole = |slot: i32| -> Vec<Vec<f32>> {
            let x: Vec<Vec<f32>> = (0..24).map(|at| row(seed, (slot, at), channels)).collect();
            let value = |at: usize, channel: usize| {
                (0..taps).fold(0.0f32, |sum, tap| {
                    let past = (at + tap + 1).checked_sub(taps).map_or(0.0, |at| x[at][channel]);
                    weight[channel * taps + tap].mul_add(past, sum)
                })
            };
            (0..24).map(|at| (0..channels).map(|channel| value(at, channel)).collect()).collect()
        };
        let mut device = Device::new(seed);
        let memory = Memory::new(&mut device, (taps - 1) * channels);
        let weight = device.floats(&weight);
        let mut run = |chunks: &[Chunk]| {
            let count = chunks.len() * chunks[0].3;
            let params = ShortConvParams {
                memory: memory.params(&mut device, chunks),
                x: device.floats(&rows(seed, chunks, channels)),
                weight,
                out: device.scratch(count * channels),
                channels: channels as u32,
                taps: taps as u32,
            };
            let (chunk, sequences) = (params.memory.chunk, params.memory.sequences);
            let grid = short_conv_grid(params.channels, chunk, sequences);
            device.launch(Kernel::ShortConv, grid, 0, &params);
            assert!(device.words(params.memory.counter).iter().all(|&c| c == 0), "left at 0");
            compare(chunks, &device.read(params.out), channels, &whole);
        };
        CHUNKS.iter().for_each(|chunk| run(&[*chunk]));
        // Two sequences, and one without slot.
        run(&[(1, 2, 1, 1), (2, 21, 1, 1), (-1, 0, 0, 1)]);
    }
}

/// All rows of a slot, by the definition in docs/numerics.md.
fn delta(heads: DeltaHeads, seed: u64, rate: &[f32], bias: &[f32], slot: i32) -> Vec<Vec<f32>> {
    let DeltaHeads { keys, values, key_size: k, value_size: v, .. } = heads;
    let sum = |terms: &mut dyn Iterator<Item = [f32; 2]>| {
        let mut chains = [0.0f32; 4];
        terms.enumerate().for_each(|(i, [a, b])| chains[i % 4] = a.mul_add(b, chains[i % 4]));
        (chains[0] + chains[1]) + (chains[2] + chains[3])
    };
    let mut state = vec![0.0f32; values * k * v];
    let mut all = Vec::new();
    for at in 0..24 {
        let mixed = row(seed, (slot, at), heads.columns());
        let (step, strength) =
            (row(seed + 1, (slot, at), values), row(seed + 2, (slot, at), values));
        let mut out = vec![0.0; values * v];
        for head in 0..values {
            let of = heads.key_of(head);
            let unit = |part: usize, factor: f32| {
                let x = &mixed[(part * keys + of) * k..][..k];
                norm(x, &vec![factor; k], 1e-6 / k as f32)
            };
            let (query, key) = (unit(0, 1.0 / k as f32), unit(1, 1.0 / (k as f32).sqrt()));
            let x = step[head] + bias[head];
            let softplus = x.max(0.0) + sample::logarithm(1.0 + exp(-x.abs()));
            let decay = exp(rate[head] * softplus);
            let beta = 1.0 / (1.0 + exp(-strength[head]));
            let matrix = &mut state[head * k * v..][..k * v];
            for column in 0..v {
                let value = mixed[2 * keys * k + head * v + column];
                let known = sum(&mut (0..k).map(|i| [matrix[i * v + column], key[i]]));
                let new = beta * (value - decay * known);
                for i in 0..k {
                    let s = &mut matrix[i * v + column];
                    *s = key[i].mul_add(new, decay * *s);
                }
                out[head * v + column] =
                    sum(&mut (0..k).map(|i| [matrix[i * v + column], query[i]]));
            }
        }
        all.push(out);
    }
    all
}

#[test]
fn the_gated_delta_rule() {
    let odd = DeltaHeads { keys: 2, values: 4, key_size: 12, value_size: 20, grouped: false };
    for (seed, heads) in [
        (10, odd),
        (20, DeltaHeads { grouped: true, ..odd }),
        (30, DeltaHeads { keys: 1, values: 1, key_size: 128, value_size: 40, ..odd }),
    ] {
        let DeltaHeads { keys, values, key_size, value_size, grouped } = heads;
        let rate: Vec<f32> = Random(seed).reals(values, 1.0).iter().map(|r| -r.abs()).collect();
        let bias = Random(seed + 1).reals(values, 1.0);
        let known: Vec<_> = (0..3).map(|slot| delta(heads, seed, &rate, &bias, slot)).collect();
        let whole = |slot: i32| known[slot as usize].clone();
        let mut device = Device::new(seed);
        let memory = Memory::new(&mut device, values * key_size * value_size);
        let (rate, bias) = (device.floats(&rate), device.floats(&bias));
        let mut run = |chunks: &[Chunk]| {
            let (count, width) = (chunks.len() * chunks[0].3, values * value_size);
            let size = key_size as f32;
            let params = GatedDeltaParams {
                memory: memory.params(&mut device, chunks),
                mixed: device.floats(&rows(seed, chunks, heads.columns())),
                step: device.floats(&rows(seed + 1, chunks, values)),
                strength: device.floats(&rows(seed + 2, chunks, values)),
                rate,
                bias,
                out: device.scratch(count * width),
                key_heads: keys as u32,
                heads: values as u32,
                key_size: key_size as u32,
                value_size: value_size as u32,
                grouped: u32::from(grouped),
                eps: 1e-6 / size,
                query_scale: 1.0 / size,
                key_scale: 1.0 / size.sqrt(),
            };
            let grid = gated_delta_grid(params.heads, params.value_size, params.memory.sequences);
            device.launch(Kernel::GatedDelta, grid, 0, &params);
            assert!(device.words(params.memory.counter).iter().all(|&c| c == 0), "left at 0");
            compare(chunks, &device.read(params.out), width, &whole);
        };
        CHUNKS.iter().for_each(|chunk| run(&[*chunk]));
        run(&[(1, 2, 1, 1), (2, 21, 1, 1), (-1, 0, 0, 1)]);
    }
}
