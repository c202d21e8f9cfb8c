//! Recurrent layers: a short convolution and a gated delta rule, on reference and CPU, compared
//! with formulas in `f64`; repeated steps, steps past the end, and reused slots.

use std::num::NonZeroUsize;

use device::Device;
use device::cpu::{Cpu, Isa};
use device::reference::Reference;
use parity::case::{BuildError, Case, Sketch, noise};
use plan::graph::{DeltaGates, Recurrence, Rows};
use plan::{Bucket, Class, DType, DeltaHeads, Outputs};

const TAPS: usize = 4;
const SLOTS: usize = 3;
const EPS: f32 = 1e-5;

const HEADS: DeltaHeads =
    DeltaHeads { keys: 2, values: 4, key_size: 12, value_size: 20, grouped: false };

/// Rows of one sequence: slot, first position, number, and number with padding.
#[derive(Clone, Copy, Debug)]
struct Run {
    slot: i32,
    position: usize,
    rows: usize,
    chunk: usize,
}

const fn run(position: usize, rows: usize) -> Run {
    Run { slot: 1, position, rows, chunk: rows }
}

/// Values of a row, which depend on the position only.
fn row(seed: u64, position: usize, n: usize) -> Vec<f32> {
    noise(1000 * seed + position as u64, n)
}

fn rate(heads: &DeltaHeads) -> Vec<f32> {
    noise(4, heads.values).into_iter().map(|v| -1.0 - v.abs()).collect()
}

/// Runs a step for each run and returns its rows.
fn results(device: &dyn Device, heads: DeltaHeads, runs: &[Run]) -> Vec<Vec<f32>> {
    let columns = heads.columns();
    let mut case = Case::new("recurrent", "", 0.0);
    for &Run { slot, position, rows, chunk } in runs {
        let build = |s: &mut Sketch<'_>| -> Result<(), BuildError> {
            let padded = |seed, n| {
                let at = |i: usize| row(seed, if i < rows { position + i } else { 77 + i }, n);
                (0..chunk).flat_map(at).collect::<Vec<f32>>()
            };
            let x = s.floats("x", &[chunk, columns], padded(1, columns))?;
            let step = s.floats("step", &[chunk, heads.values], padded(2, heads.values))?;
            let strength = s.floats("strength", &[chunk, heads.values], padded(3, heads.values))?;
            let slots = (0..chunk).map(|i| if i < rows { slot } else { -1 }).collect();
            let slots = s.ints("slots", &[chunk], slots)?;
            let positions =
                (0..chunk).map(|i| if i < rows { position + i } else { 0 } as i32).collect();
            let positions = s.ints("positions", &[chunk], positions)?;
            let mut memory = |name: &str, size: &[usize]| -> Result<Recurrence, BuildError> {
                let shape = [&[SLOTS, 2], size].concat();
                let state = s.g.source(Class::State, name, DType::F32, &shape)?;
                let held = format!("{name}.held");
                let held = s.g.source(Class::State, &held, DType::I32, &[SLOTS, 2])?;
                Ok(Recurrence { state, held, rows: Rows { slots, positions }, chunk })
            };
            let of_conv = memory("conv", &[TAPS - 1, columns])?;
            let of_delta = memory("delta", &[heads.values, heads.key_size, heads.value_size])?;
            let weight =
                s.quantised("weight", DType::F32, &[columns * TAPS], &noise(9, columns * TAPS))?;
            let weight = s.g.reshape(weight, &[columns, TAPS])?;
            let rate = s.quantised("rate", DType::F32, &[heads.values], &rate(&heads))?;
            let bias = s.quantised("bias", DType::F32, &[heads.values], &noise(5, heads.values))?;
            let mixed = s.g.short_conv(x, weight, of_conv)?;
            let gates = DeltaGates { step, strength, rate, bias };
            let y = s.g.gated_delta(mixed, gates, heads, EPS, of_delta)?;
            s.g.output("y", y);
            Ok(())
        };
        let bucket = Bucket::prefill(chunk, 64, Outputs::None);
        case = case.stage(bucket, build).unwrap();
    }
    let all = case.run(device).unwrap();
    assert_eq!(all.len(), runs.len());
    let width = heads.values * heads.value_size;
    all.into_iter().zip(runs).map(|((_, y), run)| y[..run.rows * width].to_vec()).collect()
}

/// All rows of a sequence of length `n`, in `f64`.
fn exact(heads: DeltaHeads, n: usize) -> Vec<f64> {
    let DeltaHeads { keys, values, key_size, value_size, .. } = heads;
    let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<f64>>();
    let (columns, weight) = (heads.columns(), wide(noise(9, heads.columns() * TAPS)));
    let (rate, bias) = (wide(rate(&heads)), wide(noise(5, values)));
    let inputs: Vec<Vec<f64>> = (0..n).map(|i| wide(row(1, i, columns))).collect();
    let mut state = vec![0.0; values * key_size * value_size];
    let mut all = Vec::new();
    for i in 0..n {
        let conv = |column: usize| -> f64 {
            (0..TAPS)
                .filter_map(|tap| (i + tap + 1).checked_sub(TAPS).map(|at| (tap, at)))
                .map(|(tap, at)| inputs[at][column] * weight[column * TAPS + tap])
                .sum()
        };
        let mixed: Vec<f64> = (0..columns).map(conv).collect();
        let unit = |at: usize| {
            let x = &mixed[at * key_size..][..key_size];
            let length = (x.iter().map(|v| v * v).sum::<f64>() + f64::from(EPS)).sqrt();
            x.iter().map(|v| v / length).collect::<Vec<f64>>()
        };
        let (step, strength) = (wide(row(2, i, values)), wide(row(3, i, values)));
        for head in 0..values {
            let with = if heads.grouped { head / (values / keys) } else { head % keys };
            let (query, key) = (unit(with), unit(keys + with));
            let decay = (rate[head] * (step[head] + bias[head]).exp().ln_1p()).exp();
            let beta = 1.0 / (1.0 + (-strength[head]).exp());
            let matrix = &mut state[head * key_size * value_size..][..key_size * value_size];
            matrix.iter_mut().for_each(|s| *s *= decay);
            for column in 0..value_size {
                let value = mixed[2 * keys * key_size + head * value_size + column];
                let dot = |with: &[f64], matrix: &[f64]| -> f64 {
                    (0..key_size).map(|k| with[k] * matrix[k * value_size + column]).sum()
                };
                let new = beta * (value - dot(&key, matrix));
                for k in 0..key_size {
                    matrix[k * value_size + column] += key[k] * new;
                }
                all.push(dot(&query, matrix) / (key_size as f64).sqrt());
            }
        }
    }
    all
}

fn cpus(threads: usize) -> impl Iterator<Item = Cpu> {
    Isa::available().map(move |isa| Cpu::new(isa, NonZeroUsize::new(threads).unwrap()))
}

#[test]
fn recurrent_layers_match_the_formula_in_chunks_of_any_length() {
    let padded = |run: Run, chunk| Run { chunk, ..run };
    let chunks = [
        vec![run(0, 11)],
        vec![run(0, 4), padded(run(4, 3), 8), run(7, 4)],
        vec![run(0, 2), run(2, 2), run(4, 1), run(5, 6)],
        (0..11).map(|i| run(i, 1)).collect(),
    ];
    for grouped in [false, true] {
        let heads = DeltaHeads { grouped, ..HEADS };
        let want = exact(heads, 11);
        let same = results(&cpus(1).next().unwrap(), heads, &chunks[0]).concat();
        for runs in &chunks {
            super::assert_close(&results(&Reference, heads, runs).concat(), &want, 1e-5);
            for cpu in cpus(3) {
                let got = results(&cpu, heads, runs).concat();
                super::assert_close(&got, &want, 1e-5);
                assert_eq!(got, same, "{runs:?}");
            }
        }
    }
}

/// A step is repeated after a fault; a step may run past an end token; a slot is reused.
#[test]
fn repeated_steps_extra_steps_and_reused_slots_have_the_right_state() {
    let plain = [run(0, 6), run(6, 1), run(7, 1), run(8, 3)];
    let again = [
        run(0, 6),
        run(0, 6),
        run(6, 1),
        run(6, 1),
        run(6, 1),
        run(7, 1),
        run(8, 1),
        run(8, 3),
        run(8, 3),
    ];
    let other = Run { slot: 2, ..run(0, 5) };
    let anew = [run(0, 9), other, run(0, 6), Run { slot: 2, ..run(5, 2) }, run(6, 1)];
    for device in [Box::new(Reference) as Box<dyn Device>, Box::new(cpus(2).next().unwrap())] {
        let want = results(&*device, HEADS, &plain);
        let got = results(&*device, HEADS, &again);
        for (i, of) in [0, 0, 1, 1, 1, 2, 3, 3, 3].into_iter().enumerate() {
            let (got, want) = (&got[i], &want[of]);
            assert_eq!(got[..], want[..got.len()], "step {i}");
        }
        let got = results(&*device, HEADS, &anew);
        assert_eq!((&got[2], &got[4]), (&want[0], &want[1]));
        // The same tokens in another slot, in the same steps.
        assert_eq!(got[1], want[0][..got[1].len()]);
    }
}
