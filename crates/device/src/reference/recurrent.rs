//! Recurrent primitives: row by row, from one version of a slot's state to the other.

use std::ops::Range;

use super::storage::{Operand, Storage, offsets};
use plan::{DeltaRule, Recurrence, ShortConv, Turn};

/// State of one sequence in a step.
struct SequenceState {
    slot: usize,
    turn: Turn,
    /// Rows without padding.
    rows: Range<usize>,
}

/// Sequences of a step that have a slot and rows.
fn sequences(memory: &Recurrence, storage: &[Storage]) -> Vec<SequenceState> {
    let ints = |view| Operand::of(view, storage).ints().collect::<Vec<i32>>();
    let (slots, positions) = (ints(&memory.rows.slots), ints(&memory.rows.positions));
    let held = ints(&memory.held);
    let sequence = |first: usize| {
        let all = &slots[first..first + memory.chunk];
        let rows = all.iter().take_while(|&&slot| slot >= 0).count();
        let slot = usize::try_from(all[0]).ok().filter(|&slot| slot < memory.state.shape[0])?;
        let turn = Turn::new([held[2 * slot], held[2 * slot + 1]], positions[first], rows as i32);
        Some(SequenceState { slot, turn, rows: first..first + rows })
    };
    (0..slots.len()).step_by(memory.chunk).filter_map(sequence).collect()
}

/// Runs `each` on every sequence with its state, and stores the new state.
fn remember(
    memory: &Recurrence,
    storage: &mut [Storage],
    mut each: impl FnMut(&[Storage], &mut [f32], Range<usize>),
) {
    for SequenceState { slot, turn, rows } in sequences(memory, storage) {
        let version = |version: usize| {
            offsets(&memory.state.slice(0, slot, 1).slice(1, version, 1)).collect::<Vec<_>>()
        };
        let values = &storage[memory.state.buffer.index()].values;
        let mut state: Vec<f32> = match turn.from {
            Some(from) => version(from).into_iter().map(|at| values[at]).collect(),
            None => vec![0.0; memory.size()],
        };
        each(storage, &mut state, rows);
        let values = &mut storage[memory.state.buffer.index()].values;
        for (at, value) in version(turn.to).into_iter().zip(state) {
            values[at] = value;
        }
        let held = &mut storage[memory.held.buffer.index()].values;
        for (at, count) in offsets(&memory.held.slice(0, slot, 1)).zip(turn.held) {
            held[at] = f32::from_bits(count as u32);
        }
    }
}

/// Results of all rows; zero for padding.
pub(super) fn short_conv(conv: &ShortConv, storage: &mut [Storage]) -> Vec<f32> {
    let [_, channels] = conv.x.shape[..] else { unreachable!("plans are validated") };
    let mut out = vec![0.0; conv.out.elements()];
    remember(&conv.memory, storage, |storage, state, rows| {
        let x: Vec<f32> = Operand::of(&conv.x, storage).elements().collect();
        let weight: Vec<f32> = Operand::of(&conv.weight, storage).elements().collect();
        let taps = conv.weight.shape[1];
        for row in rows {
            let x = &x[row * channels..][..channels];
            for (channel, &own) in x.iter().enumerate() {
                let past = (0..taps - 1).map(|tap| state[tap * channels + channel]);
                let weights = &weight[channel * taps..][..taps];
                let sum: f64 = past
                    .chain([own])
                    .zip(weights)
                    .map(|(value, weight)| f64::from(value) * f64::from(*weight))
                    .sum();
                out[row * channels + channel] = sum as f32;
            }
            state.copy_within(channels.., 0);
            let last = state.len() - channels;
            state[last..].copy_from_slice(x);
        }
    });
    out
}

/// Results of all rows; zero for padding.
pub(super) fn delta_rule(rule: &DeltaRule, storage: &mut [Storage]) -> Vec<f32> {
    let [_, heads, size] = rule.query.shape[..] else { unreachable!("plans are validated") };
    let width = rule.value.shape[2];
    let mut out = vec![0.0; rule.out.elements()];
    remember(&rule.memory, storage, |storage, state, rows| {
        let all = |view| Operand::of(view, storage).elements().collect::<Vec<f32>>();
        let [query, decay, key, take, add] =
            [&rule.query, &rule.decay, &rule.key, &rule.take, &rule.add].map(all);
        let value = all(&rule.value);
        for row in rows {
            for head in 0..heads {
                let at = (row * heads + head) * size;
                let matrix = &mut state[head * size * width..][..size * width];
                for column in 0..width {
                    let dot = |with: &[f32], matrix: &[f32]| -> f64 {
                        let term = |i: usize| {
                            f64::from(with[at + i]) * f64::from(matrix[i * width + column])
                        };
                        (0..size).map(term).sum()
                    };
                    let taken = dot(&take, matrix);
                    let value = f64::from(value[(row * heads + head) * width + column]);
                    for i in 0..size {
                        let kept = f64::from(decay[at + i]) * f64::from(matrix[i * width + column]);
                        let new = f64::from(add[at + i]) * taken + f64::from(key[at + i]) * value;
                        matrix[i * width + column] = (kept + new) as f32;
                    }
                    out[(row * heads + head) * width + column] = dot(&query, matrix) as f32;
                }
            }
        }
    });
    out
}
