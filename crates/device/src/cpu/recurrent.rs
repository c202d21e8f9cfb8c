//! Layers that remember: which sequence has which rows, and who moves which part of a state on.
//!
//! A state of 4-byte elements lies as its buffer says. A stage reads how many tokens the versions hold and a
//! later one notes it, when all threads have read it.

use super::execute::Context;
use super::pool::Worker;
use super::program::KvRows;
use plan::{DeltaHeads, Turn};
use simd::norm;
use simd::recurrent::{self as kernels};
use simd::vector::LANES;

/// A state and the rows that move it on.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) state: *mut f32,
    pub(super) held: *mut i32,
    pub(super) at: KvRows,
    pub(super) slots: usize,
    /// Sequences of a step, and the rows of each.
    pub(super) sequences: usize,
    pub(super) chunk: usize,
    /// Elements of a version.
    pub(super) size: usize,
}

#[derive(Clone, Copy)]
pub(super) struct ShortConv {
    pub(super) x: *const f32,
    pub(super) weight: *const f32,
    pub(super) channels: usize,
    pub(super) taps: usize,
    pub(super) memory: Memory,
    pub(super) out: *mut f32,
}

#[derive(Clone, Copy)]
pub(super) struct GatedDelta {
    pub(super) mixed: *const f32,
    pub(super) step: *const f32,
    pub(super) strength: *const f32,
    pub(super) rate: *const f32,
    pub(super) bias: *const f32,
    pub(super) heads: DeltaHeads,
    pub(super) eps: f32,
    pub(super) memory: Memory,
    /// Queries and keys of length 1, `[rows, 2 HK K]`, and of each head decay and beta, `[rows, 2 H]`.
    pub(super) keyed: *mut f32,
    pub(super) gates: *mut f32,
    pub(super) rows: usize,
    pub(super) out: *mut f32,
}

#[derive(Clone, Copy)]
pub(super) struct DeltaRule {
    pub(super) query: *const f32,
    pub(super) decay: *const f32,
    pub(super) key: *const f32,
    pub(super) value: *const f32,
    pub(super) take: *const f32,
    pub(super) add: *const f32,
    pub(super) heads: usize,
    pub(super) key_size: usize,
    pub(super) value_size: usize,
    pub(super) memory: Memory,
    pub(super) out: *mut f32,
}

/// `f32` values that a gated delta layer of `rows` rows keeps between its stages.
pub(super) const fn needs(rows: usize, heads: &DeltaHeads) -> usize {
    rows * 2 * (heads.keys * heads.key_size + heads.values)
}

/// What a step does to the state of one of its sequences.
struct Sequence {
    slot: usize,
    turn: Turn,
    /// Its first row, and how many follow that are no padding.
    first: usize,
    rows: usize,
}

impl Memory {
    /// A sequence that has a slot.
    ///
    /// # Safety
    ///
    /// Nobody writes mailboxes or what versions hold meanwhile.
    unsafe fn sequence(&self, number: usize) -> Option<Sequence> {
        let first = number * self.chunk;
        // SAFETY: the mailboxes have an element for each row, `held` two for each slot.
        unsafe {
            let slots = std::slice::from_raw_parts(self.at.slots.add(first), self.chunk);
            let slot = usize::try_from(slots[0]).ok().filter(|&slot| slot < self.slots)?;
            let rows = slots.iter().take_while(|&&slot| slot >= 0).count();
            let held = [*self.held.add(2 * slot), *self.held.add(2 * slot + 1)];
            // A chunk has fewer than 2^31 rows.
            let turn = Turn::new(held, *self.at.positions.add(first), rows as i32);
            Some(Sequence { slot, turn, first, rows })
        }
    }

    /// Where a version begins.
    fn version(&self, slot: usize, version: usize) -> *mut f32 {
        self.state.wrapping_add((2 * slot + version) * self.size)
    }
}

/// Notes what the versions hold after the step.
///
/// # Safety
///
/// As for [`super::execute::stage`]; the stages that use the state are over.
pub(super) unsafe fn note(memory: &Memory, w: &Worker<'_>) {
    for number in w.part(memory.sequences) {
        // SAFETY: the caller's contract; no other sequence of the step has this slot.
        unsafe {
            if let Some(Sequence { slot, turn, .. }) = memory.sequence(number) {
                *memory.held.add(2 * slot) = turn.held[0];
                *memory.held.add(2 * slot + 1) = turn.held[1];
            }
        }
    }
}

/// # Safety
///
/// As for [`super::execute::stage`].
pub(super) unsafe fn short_conv(stage: &ShortConv, c: &Context<'_>, w: &Worker<'_>) {
    let ShortConv { x, weight, channels, taps, memory, out } = *stage;
    let blocks = channels.div_ceil(LANES);
    for item in w.part(memory.sequences * blocks) {
        let channel = item % blocks * LANES;
        // SAFETY: the caller's contract; channels of a sequence are one thread's.
        unsafe {
            let Some(Sequence { slot, turn, first, rows }) = memory.sequence(item / blocks) else {
                continue;
            };
            let job = kernels::ShortConv {
                rows,
                channels: LANES.min(channels - channel),
                x: x.add(first * channels + channel),
                stride: channels,
                weight: weight.add(channel * taps),
                taps,
                from: turn.from.map(|from| memory.version(slot, from).add(channel).cast_const()),
                to: memory.version(slot, turn.to).add(channel),
                out: out.add(first * channels + channel),
            };
            kernels::short_conv(c.isa, &job);
        }
    }
}

/// Queries and keys of length 1, decay and beta of each row.
///
/// # Safety
///
/// As for [`super::execute::stage`].
pub(super) unsafe fn prepare(stage: &GatedDelta, c: &Context<'_>, w: &Worker<'_>) {
    let GatedDelta { heads, keyed, gates, .. } = *stage;
    let DeltaHeads { keys, values, key_size: size, .. } = heads;
    #[expect(clippy::cast_precision_loss, reason = "a head is far below 2^24 values")]
    let n = size as f32;
    let factors = c.memory.thread(w.index());
    // SAFETY: the caller's contract; rows are one thread's, the thread's scratch holds a head.
    unsafe {
        for row in w.part(c.rows(stage.rows)) {
            for (part, factor) in [(0, 1.0 / n), (1, 1.0 / n.sqrt())] {
                std::slice::from_raw_parts_mut(factors, size).fill(factor);
                for head in 0..keys {
                    let at = (part * keys + head) * size;
                    let x = stage.mixed.add(row * heads.columns() + at);
                    let y = keyed.add(row * 2 * keys * size + at);
                    norm::rms_norm(c.isa, x, factors, y, size, stage.eps / n);
                }
            }
            let (at, to) = (row * values, gates.add(2 * row * values));
            let (step, strength) = (stage.step.add(at), stage.strength.add(at));
            let (bias, rate) = (stage.bias, stage.rate);
            kernels::gates(c.isa, step, bias, rate, strength, values, to);
        }
    }
}

/// # Safety
///
/// As for [`super::execute::stage`]; [`prepare`] is over.
pub(super) unsafe fn gated_delta(stage: &GatedDelta, c: &Context<'_>, w: &Worker<'_>) {
    let GatedDelta { mixed, heads, memory, keyed, gates, out, .. } = *stage;
    let DeltaHeads { keys, values, key_size, value_size, .. } = heads;
    let blocks = value_size.div_ceil(LANES);
    for item in w.part(memory.sequences * values * blocks) {
        let (head, column) = (item / blocks % values, item % blocks * LANES);
        // SAFETY: the caller's contract; columns of a head's matrix are one thread's.
        unsafe {
            let Some(sequence) = memory.sequence(item / blocks / values) else { continue };
            let Sequence { slot, turn, first, rows } = sequence;
            let at = head * key_size * value_size + column;
            let key_stride = 2 * keys * key_size;
            let query = keyed.add(first * key_stride + heads.key_of(head) * key_size);
            let decay = gates.add(2 * first * values + head);
            let value = 2 * keys * key_size + head * value_size + column;
            let job = kernels::GatedDelta {
                rows,
                size: key_size,
                columns: LANES.min(value_size - column),
                query,
                key: query.add(keys * key_size),
                key_stride,
                value: mixed.add(first * heads.columns() + value),
                value_stride: heads.columns(),
                decay,
                beta: decay.add(values),
                gate_stride: 2 * values,
                from: turn.from.map(|from| memory.version(slot, from).add(at).cast_const()),
                to: memory.version(slot, turn.to).add(at),
                state_stride: value_size,
                scratch: c.memory.thread(w.index()),
                out: out.add((first * values + head) * value_size + column),
                out_stride: values * value_size,
            };
            kernels::gated_delta(c.isa, &job);
        }
    }
}

/// # Safety
///
/// As for [`super::execute::stage`].
pub(super) unsafe fn delta_rule(stage: &DeltaRule, c: &Context<'_>, w: &Worker<'_>) {
    let DeltaRule { heads, key_size, value_size, memory, .. } = *stage;
    let blocks = value_size.div_ceil(LANES);
    for item in w.part(memory.sequences * heads * blocks) {
        let (head, column) = (item / blocks % heads, item % blocks * LANES);
        // SAFETY: the caller's contract; columns of a head's matrix are one thread's.
        unsafe {
            let Some(sequence) = memory.sequence(item / blocks / heads) else { continue };
            let Sequence { slot, turn, first, rows } = sequence;
            let at = head * key_size * value_size + column;
            let of_keys = (first * heads + head) * key_size;
            let of_values = (first * heads + head) * value_size + column;
            let job = kernels::DeltaRule {
                rows,
                size: key_size,
                columns: LANES.min(value_size - column),
                query: stage.query.add(of_keys),
                decay: stage.decay.add(of_keys),
                key: stage.key.add(of_keys),
                take: stage.take.add(of_keys),
                add: stage.add.add(of_keys),
                key_stride: heads * key_size,
                value: stage.value.add(of_values),
                out: stage.out.add(of_values),
                value_stride: heads * value_size,
                from: turn.from.map(|from| memory.version(slot, from).add(at).cast_const()),
                to: memory.version(slot, turn.to).add(at),
                state_stride: value_size,
                scratch: c.memory.thread(w.index()),
            };
            kernels::delta_rule(c.isa, &job);
        }
    }
}
