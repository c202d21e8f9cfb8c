//! RoPE, KV cache writes and attention of token rows.

use std::ops::Range;

use super::context::Context;
use super::layout::Cache;
use super::operand::Operand;
use super::pool::Worker;
use super::row_ops::{index, normalise, rotate};
use crate::BLOCK;
use crate::slots::NOWHERE;
use plan::{Attention, Norm, NormKind, RopeKv, Rows, Scalar, Scores, Temperature, sample};
use simd::attention::{self, Attend, Places};
use simd::cache::{HeadCache, kv_write};

/// Most neighbouring rows that one thread rotates or attends for at a time.
const ROWS_PER_CLAIM: usize = 16;

/// This thread's share of rotating queries and keys and writing keys and values to their caches.
///
/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn rope_kv(op: &RopeKv<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    // Items are in row order, as in the query buffer. Neighbouring rows go to one thread: their keys share cache lines.
    let heads = op.caches.keys.cache().heads;
    let items = c.rows(op.k.first) * heads;
    let claim = (items / (4 * w.threads())).clamp(1, ROWS_PER_CLAIM * heads);
    while let Some(items) = w.claim(items, claim) {
        for item in items {
            // SAFETY: the caller's contract.
            unsafe { rope_kv_head(op, c, w, item / heads, item % heads) };
        }
    }
}

/// One row and KV head: rotates its queries, and writes its key and value to the cache.
///
/// # Safety
///
/// As for [`super::execute::run`].
unsafe fn rope_kv_head(
    op: &RopeKv<Operand>,
    c: &Context<'_>,
    w: &Worker<'_>,
    row: usize,
    head: usize,
) {
    let cache = op.caches.keys.cache();
    let norm = |weight: Operand, eps: Scalar| Norm { kind: NormKind::Rms, weight, bias: None, eps };
    // SAFETY: the caller's contract: rows and heads are within the operands; slot and position are
    // checked against the cache.
    unsafe {
        let dim = cache.dim;
        let turn = |x: *const f32, norm: Option<Norm<Operand>>, to: *mut f32| {
            match norm {
                Some(norm) => normalise(c.isa, &norm, x, to, dim),
                None => to.copy_from_nonoverlapping(x, dim),
            }
            rotate(c.isa, &op.table, op.style, row, to);
        };
        if let Some(queries) = &op.queries {
            let (heads, group) = (queries.q.heads(), queries.q.heads() / cache.heads);
            let q_norm = op.norm.as_ref().and_then(|qk| Some(norm(qk.q?, qk.eps)));
            for query in head * group..(head + 1) * group {
                let offset = (row * heads + query) * dim;
                turn(queries.q.f32().add(offset), q_norm, queries.out.f32().add(offset));
            }
        }
        if let Some((slot, position)) = slot_position(&op.rows, c, cache, row) {
            let offset = (row * cache.heads + head) * dim;
            let rotated = c.memory.thread(w.index());
            let k_norm = op.norm.as_ref().map(|qk| norm(qk.k, qk.eps));
            turn(op.k.f32().add(offset), k_norm, rotated);
            let (piece, position) = match cache.ring {
                true => (slot, position % cache.capacity),
                false => (block(c, slot, position) as usize, position % BLOCK),
            };
            let base = (piece * cache.heads + head) * cache.head_bytes();
            let (keys, values) =
                (op.caches.keys.address.add(base), op.caches.values.address.add(base));
            let head = HeadCache { format: cache.format, dim, keys, values };
            kv_write(c.isa, head, position, rotated, op.v.f32().add(offset));
        }
    }
}

/// Slot and position of a row; `None` for a row without a slot, or a position without a block.
///
/// # Safety
///
/// As for [`super::execute::run`]: there is such a row.
unsafe fn slot_position(
    rows: &Rows<Operand>,
    c: &Context<'_>,
    cache: Cache,
    row: usize,
) -> Option<(usize, usize)> {
    // SAFETY: the caller's contract; slot and position are inside the table.
    unsafe {
        let slot = index(*rows.slots.i32().add(row), cache.slots)?;
        let position = index(*rows.positions.i32().add(row), cache.positions())?;
        let nowhere = !cache.ring && block(c, slot, position) == NOWHERE;
        (!nowhere).then_some((slot, position))
    }
}

/// The block of a slot's position, or [`NOWHERE`].
///
/// # Safety
///
/// As for [`super::execute::run`]: both are inside the block table.
unsafe fn block(c: &Context<'_>, slot: usize, position: usize) -> u32 {
    let (table, entries) = c.memory.block_table();
    // SAFETY: the caller's contract.
    unsafe { *table.add(slot * entries + position / BLOCK) }
}

/// This thread's share of attention.
///
/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn attend(op: &Attention<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    // Items are in head order, so that neighbouring rows of one head stay with one thread.
    let rows = c.rows(op.q.first);
    let chunk = rows.clamp(1, ROWS_PER_CLAIM);
    let per_head = rows.div_ceil(chunk);
    while let Some(items) = w.claim(op.caches.keys.cache().heads * per_head, 1) {
        let (head, first) = (items.start / per_head, items.start % per_head * chunk);
        // SAFETY: the caller's contract.
        unsafe { attend_rows(op, c, w, first..rows.min(first + chunk), head) };
    }
}

/// Attention of some rows' queries over one KV head. Rows without a slot get zeroes.
///
/// # Safety
///
/// As for [`super::execute::run`].
unsafe fn attend_rows(
    op: &Attention<Operand>,
    c: &Context<'_>,
    w: &Worker<'_>,
    part: Range<usize>,
    head: usize,
) {
    let Attention { scores, q, caches, rows: token_rows, sinks, out } = op;
    let (cache, heads, (table, entries)) = (caches.keys.cache(), q.heads(), c.memory.block_table());
    // SAFETY: as in `rope_kv_head`.
    unsafe {
        let (dim, group) = (cache.dim, heads / cache.heads);
        let place = |row: usize| slot_position(token_rows, c, cache, row);
        let mut row = part.start;
        while row < part.end {
            let offset = (row * heads + head * group) * dim;
            let Some((slot, position)) = place(row) else {
                out.f32().add(offset).write_bytes(0, group * dim);
                row += 1;
                continue;
            };
            // Consecutive tokens with one factor on their scores share a kernel call.
            let scale = factor(scores, position);
            let mut rows = 1;
            while row + rows < part.end
                && place(row + rows) == Some((slot, position + rows))
                && factor(scores, position + rows).to_bits() == scale.to_bits()
            {
                rows += 1;
            }
            let (piece, places) = if cache.ring {
                (slot, Places::Ring(cache.capacity))
            } else {
                let (table, pitch) = (table.add(slot * entries), cache.heads * BLOCK);
                (0, Places::Blocks { table, positions: BLOCK, pitch })
            };
            let base = (piece * cache.heads + head) * cache.head_bytes();
            let job = Attend {
                q: q.f32().add(offset),
                rows,
                stride: heads * dim,
                heads: group,
                dim,
                format: cache.format,
                places,
                keys: caches.keys.address.add(base),
                values: caches.values.address.add(base),
                positions: position + 1,
                window: scores.window.unwrap_or(usize::MAX),
                scale,
                cap: scores.cap.map(Scalar::get),
                sinks: sinks.map(|sinks| sinks.f32().add(head * group).cast_const()),
                scratch: c.memory.thread(w.index()),
                out: out.f32().add(offset),
            };
            attention::attend(c.isa, &job);
            row += rows;
        }
    }
}

/// Factor on the scores of a row at a position.
fn factor(scores: &Scores, position: usize) -> f32 {
    let scale = scores.scale.get();
    let Some(Temperature { slope, length }) = scores.temperature else { return scale };
    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
    let lengths = 1.0 + (position / length.max(1)) as f32;
    scale * slope.get().mul_add(sample::logarithm(lengths), 1.0)
}
