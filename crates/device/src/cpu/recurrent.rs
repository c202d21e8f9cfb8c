//! Recurrent layers: assignment of rows to sequences, and division of state updates among threads.
//!
//! States with 4-byte elements have the layout of their buffers. A kernel call reads the token counts of a state's
//! versions. A later call updates them, after all threads have read them.

use super::context::Context;
use super::operand::{Operand, sequences, version_size};
use super::pool::Worker;
use super::row_ops::index;
use plan::{DeltaHeads, DeltaRule, GatedDelta, Recurrence, ShortConv, Turn};
use simd::norm;
use simd::recurrent::{self as kernels};
use simd::vector::LANES;

/// Update of one sequence's state in a step.
struct SequenceUpdate {
    slot: usize,
    turn: Turn,
    /// First row, and number of rows before the padding.
    first: usize,
    rows: usize,
}

/// The sequence `number` of a step; `None` without a slot.
///
/// # Safety
///
/// No other thread writes mailboxes or the versions' token counts meanwhile.
unsafe fn sequence(memory: &Recurrence<Operand>, number: usize) -> Option<SequenceUpdate> {
    let first = number * memory.chunk;
    // SAFETY: the mailboxes have an element for each row, `held` two for each slot.
    unsafe {
        let slots = memory.rows.slots.i32().add(first);
        let slots = std::slice::from_raw_parts(slots, memory.chunk);
        let slot = index(slots[0], memory.state.first)?;
        let rows = slots.iter().take_while(|&&slot| slot >= 0).count();
        let held = memory.held.i32().add(2 * slot);
        // A chunk has fewer than 2^31 rows.
        let position = *memory.rows.positions.i32().add(first);
        let turn = Turn::new([*held, *held.add(1)], position, rows as i32);
        Some(SequenceUpdate { slot, turn, first, rows })
    }
}

/// First element of a version of a slot's state.
fn version(memory: &Recurrence<Operand>, slot: usize, version: usize) -> *mut f32 {
    memory.state.f32().wrapping_add((2 * slot + version) * version_size(memory))
}

/// Records the token counts of the versions after the step.
///
/// # Safety
///
/// As for [`super::execute::run`]; the kernel calls that read the state are complete.
pub(super) unsafe fn record_versions(memory: &Recurrence<Operand>, w: &Worker<'_>) {
    for number in w.part(sequences(memory)) {
        // SAFETY: the caller's contract; no other sequence of the step has this slot.
        unsafe {
            if let Some(SequenceUpdate { slot, turn, .. }) = sequence(memory, number) {
                *memory.held.i32().add(2 * slot) = turn.held[0];
                *memory.held.i32().add(2 * slot + 1) = turn.held[1];
            }
        }
    }
}

/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn short_conv(op: &ShortConv<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    let ShortConv { x, weight, memory, out } = op;
    let (channels, taps) = (weight.first, weight.last);
    let blocks = channels.div_ceil(LANES);
    for item in w.part(sequences(memory) * blocks) {
        let channel = item % blocks * LANES;
        // SAFETY: the caller's contract; channels of a sequence are one thread's.
        unsafe {
            let Some(SequenceUpdate { slot, turn, first, rows }) = sequence(memory, item / blocks)
            else {
                continue;
            };
            let job = kernels::ShortConv {
                rows,
                channels: LANES.min(channels - channel),
                x: x.f32().add(first * channels + channel),
                stride: channels,
                weight: weight.f32().add(channel * taps),
                taps,
                from: turn.from.map(|from| version(memory, slot, from).add(channel).cast_const()),
                to: version(memory, slot, turn.to).add(channel),
                out: out.f32().add(first * channels + channel),
            };
            kernels::short_conv(c.isa, &job);
        }
    }
}

/// Scratch of a gated delta layer: normalised queries and keys, `[rows, 2 HK K]`, then decay and beta, `[rows, 2
/// H]`.
fn delta_buffers(op: &GatedDelta<Operand>, c: &Context<'_>) -> (*mut f32, *mut f32) {
    let keyed = c.memory.step_scratch().cast::<f32>();
    (keyed, keyed.wrapping_add(op.mixed.first * 2 * op.heads.keys * op.heads.key_size))
}

/// Normalises queries and keys, and computes decay and beta, of each row.
///
/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn prepare(op: &GatedDelta<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    let DeltaHeads { keys, values, key_size: size, .. } = op.heads;
    let (keyed, gates) = delta_buffers(op, c);
    #[expect(clippy::cast_precision_loss, reason = "a head is far below 2^24 values")]
    let n = size as f32;
    let factors = c.memory.thread(w.index());
    // SAFETY: the caller's contract; rows are one thread's, the thread's scratch holds a head.
    unsafe {
        for row in w.part(c.rows(op.mixed.first)) {
            for (part, factor) in [(0, 1.0 / n), (1, 1.0 / n.sqrt())] {
                std::slice::from_raw_parts_mut(factors, size).fill(factor);
                for head in 0..keys {
                    let at = (part * keys + head) * size;
                    let x = op.mixed.f32().add(row * op.heads.columns() + at);
                    let y = keyed.add(row * 2 * keys * size + at);
                    norm::rms_norm(c.isa, x, factors, y, size, op.eps.get() / n);
                }
            }
            let (at, to) = (row * values, gates.add(2 * row * values));
            let (step, strength) = (op.step.f32().add(at), op.strength.f32().add(at));
            let (bias, rate) = (op.bias.f32(), op.rate.f32());
            kernels::gates(c.isa, step, bias, rate, strength, values, to);
        }
    }
}

/// # Safety
///
/// As for [`super::execute::run`]; [`prepare`] is complete.
pub(super) unsafe fn gated_delta(op: &GatedDelta<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    let GatedDelta { mixed, heads, memory, out, .. } = op;
    let (keyed, gates) = delta_buffers(op, c);
    let &DeltaHeads { keys, values, key_size, value_size, .. } = heads;
    let blocks = value_size.div_ceil(LANES);
    for item in w.part(sequences(memory) * values * blocks) {
        let (head, column) = (item / blocks % values, item % blocks * LANES);
        // SAFETY: the caller's contract; columns of a head's matrix are one thread's.
        unsafe {
            let Some(sequence) = sequence(memory, item / blocks / values) else { continue };
            let SequenceUpdate { slot, turn, first, rows } = sequence;
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
                value: mixed.f32().add(first * heads.columns() + value),
                value_stride: heads.columns(),
                decay,
                beta: decay.add(values),
                gate_stride: 2 * values,
                from: turn.from.map(|from| version(memory, slot, from).add(at).cast_const()),
                to: version(memory, slot, turn.to).add(at),
                state_stride: value_size,
                scratch: c.memory.thread(w.index()),
                out: out.f32().add((first * values + head) * value_size + column),
                out_stride: values * value_size,
            };
            kernels::gated_delta(c.isa, &job);
        }
    }
}

/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn delta_rule(op: &DeltaRule<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    let DeltaRule { query, value, memory, .. } = op;
    let (heads, key_size, value_size) = (query.heads(), query.last, value.last);
    let blocks = value_size.div_ceil(LANES);
    for item in w.part(sequences(memory) * heads * blocks) {
        let (head, column) = (item / blocks % heads, item % blocks * LANES);
        // SAFETY: the caller's contract; columns of a head's matrix are one thread's.
        unsafe {
            let Some(sequence) = sequence(memory, item / blocks / heads) else { continue };
            let SequenceUpdate { slot, turn, first, rows } = sequence;
            let at = head * key_size * value_size + column;
            let of_keys = (first * heads + head) * key_size;
            let of_values = (first * heads + head) * value_size + column;
            let job = kernels::DeltaRule {
                rows,
                size: key_size,
                columns: LANES.min(value_size - column),
                query: op.query.f32().add(of_keys),
                decay: op.decay.f32().add(of_keys),
                key: op.key.f32().add(of_keys),
                take: op.take.f32().add(of_keys),
                add: op.add.f32().add(of_keys),
                key_stride: heads * key_size,
                value: op.value.f32().add(of_values),
                out: op.out.f32().add(of_values),
                value_stride: heads * value_size,
                from: turn.from.map(|from| version(memory, slot, from).add(at).cast_const()),
                to: version(memory, slot, turn.to).add(at),
                state_stride: value_size,
                scratch: c.memory.thread(w.index()),
            };
            kernels::delta_rule(c.isa, &job);
        }
    }
}
