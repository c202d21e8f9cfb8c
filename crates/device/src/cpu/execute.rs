//! Running a program's stages on the threads of a pool.
//!
//! Every thread calls [`stage`] for every stage, with a barrier in between; inside, the work is
//! divided so that no two threads write the same element. How it is divided never shows in the
//! result.

use std::cell::UnsafeCell;
use std::ops::Range;

use super::activations::{self, Form, TILE};
use super::attention::{self, Attend};
use super::matmul::{Loops, Product, Rows, matmul};
use super::memory::Memory;
use super::pool::Worker;
use super::program::{Matrix, Norm, Program, Stage};
use super::simd::LANES;
use super::variant::STRIP;
use super::{Isa, norm, rope};
use plan::sample::{self, Candidate, Sampling};

/// Columns of a row that are arranged at a time where rows alone do not keep the threads busy: whole
/// spans of activations.
const ARRANGE: usize = 1024;

/// Neighbouring rows that one thread rotates or attends for, where there are enough.
const ROWS_PER_CLAIM: usize = 16;

/// What stages need beside their operands.
pub(super) struct Context<'a> {
    pub(super) isa: Isa,
    pub(super) memory: &'a Memory,
    pub(super) work: &'a Work,
    /// Rows of tokens in the bucket, and how many of them are not padding.
    pub(super) rows: usize,
    pub(super) active: usize,
}

/// Sampling scratch, one per thread.
pub(super) struct Work(Vec<UnsafeCell<Vec<Candidate>>>);

// SAFETY: entry `i` is only touched by thread `i` of a region.
unsafe impl Sync for Work {}

impl Work {
    pub(super) fn new(threads: usize, vocabulary: usize) -> Self {
        Self((0..threads).map(|_| UnsafeCell::new(Vec::with_capacity(vocabulary))).collect())
    }
}

impl Program {
    /// Rows before the trailing padding.
    ///
    /// # Safety
    ///
    /// Nobody writes the slots mailbox meanwhile.
    pub(super) unsafe fn active(&self) -> usize {
        let Some(slots) = self.slots else { return self.rows };
        // SAFETY: the mailbox has one element per row.
        let slots = unsafe { std::slice::from_raw_parts(slots, self.rows) };
        slots.iter().rposition(|&slot| slot >= 0).map_or(0, |last| last + 1)
    }
}

impl Context<'_> {
    /// Rows of a stage that count.
    fn rows(&self, rows: usize) -> usize {
        if rows == self.rows { self.active } else { rows }
    }
}

/// This thread's share of a stage.
///
/// # Safety
///
/// The stage was resolved for the context's memory, and all threads of the region, and nobody else,
/// are in the same stage.
pub(super) unsafe fn stage(stage: &Stage, c: &Context<'_>, w: &Worker<'_>) {
    // SAFETY: the operands were resolved from a valid plan, so rows and widths stay inside their
    // buffers; each arm divides what it writes among the threads.
    unsafe {
        match *stage {
            Stage::Embed { matrix, ids, rows, out } => {
                let k = matrix.layout.k();
                let packed = std::slice::from_raw_parts(matrix.packed, matrix.layout.bytes());
                for row in w.part(c.rows(rows)) {
                    let out = std::slice::from_raw_parts_mut(out.add(row * k), k);
                    match index(*ids.add(row), matrix.layout.rows()) {
                        Some(id) => matrix.layout.dequantise_row(packed, id, out),
                        None => out.fill(0.0),
                    }
                }
            }
            Stage::Gather { table, extent, width, ids, rows, out } => {
                for row in w.part(c.rows(rows)) {
                    let out = out.add(row * width);
                    match index(*ids.add(row), extent) {
                        Some(id) => out.copy_from_nonoverlapping(table.add(id * width), width),
                        None => out.write_bytes(0, width),
                    }
                }
            }
            Stage::RopeTable { positions, frequencies, half, magnitude, rows, out } => {
                for row in w.part(c.rows(rows)) {
                    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
                    let position = *positions.add(row) as f32;
                    for i in 0..half {
                        let angle = f64::from(position * *frequencies.add(i));
                        let at = out.add(2 * row * half + i);
                        *at = angle.cos() as f32 * magnitude;
                        *at.add(half) = angle.sin() as f32 * magnitude;
                    }
                }
            }
            Stage::RmsNorm { x, norm, n, rows, out } => {
                for row in w.part(c.rows(rows)) {
                    normalise(c.isa, norm, x.add(row * n), out.add(row * n), n);
                }
            }
            Stage::Add { a, b, n, rows, out } => {
                let part = w.part(n * c.rows(rows));
                let at = part.start;
                norm::add(c.isa, a.add(at), b.add(at), out.add(at), part.len());
            }
            Stage::SwiGlu { gate, up, n, rows, out } => {
                let part = w.part(n * c.rows(rows));
                let at = part.start;
                norm::swiglu(c.isa, gate.add(at), up.add(at), out.add(at), part.len());
            }
            Stage::Arrange { x, norm, k, rows, q8, f32 } => {
                arrange(c, w, (x, norm, k), c.rows(rows), (q8, f32));
            }
            Stage::Project { ref weights, rows, planes, residual, variant } => {
                // A claim is of whole panels, in every matrix.
                let beside = |m: &Matrix| m.layout.beside();
                let unit = weights.iter().flatten().map(|(m, ..)| beside(m)).max().unwrap_or(1);
                let room = |m: &Matrix| m.layout.groups().next_multiple_of(unit);
                let total = weights.iter().flatten().map(|(m, ..)| room(m)).sum();
                let of = c.rows(rows);
                let claim = variant.claim(of).next_multiple_of(unit);
                while let Some((rows, range)) = claim_product(w, of, total, claim) {
                    let mut base = 0;
                    for &(matrix, out, used) in weights.iter().flatten() {
                        let n = matrix.layout.groups();
                        let groups = range.start.max(base)..range.end.min(base + n);
                        if groups.start < groups.end {
                            let groups = groups.start - base..groups.end - base;
                            let x = (rows.clone(), of, [planes, used]);
                            let out = (out, matrix.layout.rows());
                            product(c, (&matrix, variant.loops), groups, x, out, residual);
                        }
                        base += room(&matrix);
                    }
                }
            }
            Stage::Gate { gate, up, rows, planes, out, variant } => {
                let (of, n) = (c.rows(rows), gate.layout.rows());
                let side = c.memory.thread(w.index());
                let total = gate.layout.groups();
                let unit = gate.layout.beside().max(up.layout.beside());
                let (claim, loops) = (variant.claim(of).next_multiple_of(unit), variant.loops);
                while let Some((rows, groups)) = claim_product(w, of, total, claim) {
                    let (first, end) = (groups.start * LANES, n.min(groups.end * LANES));
                    let x = (rows.clone(), of, [planes; 2]);
                    product(c, (&gate, loops), groups.clone(), x.clone(), (out, n), None);
                    // The strip beside it starts at its first row and column.
                    let strip = side.wrapping_sub(rows.start * STRIP + first);
                    product(c, (&up, loops), groups, x, (strip, STRIP), None);
                    for row in rows {
                        let (g, u) =
                            (out.add(row * n + first), strip.wrapping_add(row * STRIP + first));
                        norm::swiglu(c.isa, g, u, g, end - first);
                    }
                }
            }
            Stage::RopeKv { cache, rows, .. } => {
                // Row by row, as queries lie; neighbouring rows, whose keys share lines, with one thread.
                let items = c.rows(rows) * cache.heads;
                let claim = (items / (4 * w.threads())).clamp(1, ROWS_PER_CLAIM * cache.heads);
                while let Some(items) = w.claim(items, claim) {
                    for item in items {
                        rope_kv(stage, c, w, item / cache.heads, item % cache.heads);
                    }
                }
            }
            Stage::Attend { cache, rows, .. } => {
                // Head by head, so that neighbouring rows of one head stay with one thread.
                let rows = c.rows(rows);
                let chunk = rows.clamp(1, ROWS_PER_CLAIM);
                let per_head = rows.div_ceil(chunk);
                while let Some(items) = w.claim(cache.heads * per_head, 1) {
                    let (head, first) = (items.start / per_head, items.start % per_head * chunk);
                    attend(stage, c, w, first..rows.min(first + chunk), head);
                }
            }
            Stage::Sample { rows, .. } => {
                for row in w.part(c.rows(rows)) {
                    choose(stage, c, w, row);
                }
            }
        }
    }
}

/// A token id, slot or position from a mailbox, if it is one.
fn index(value: i32, extent: usize) -> Option<usize> {
    usize::try_from(value).ok().filter(|&i| i < extent)
}

/// # Safety
///
/// As for [`norm::rms_norm`].
unsafe fn normalise(isa: Isa, norm: Norm, x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: the caller's contract.
    unsafe { norm::rms_norm(isa, x, norm.weight, out, n, norm.eps) }
}

/// Rows into the blocks that products read: whole rows where they are normalised, pieces of rows
/// otherwise.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn arrange(
    c: &Context<'_>,
    w: &Worker<'_>,
    (x, norm, k): (*const f32, Option<Norm>, usize),
    rows: usize,
    (q8, f32): (Option<Form>, bool),
) {
    // SAFETY: blocks of different rows or pieces are different; the thread's scratch holds a row.
    unsafe {
        let piece = if norm.is_some() { k } else { ARRANGE.min(k) };
        let pieces = k.div_ceil(piece.max(1));
        for item in w.part(rows * pieces) {
            let (row, start) = (item / pieces, item % pieces * piece);
            let n = piece.min(k - start);
            let mut x = x.add(row * k + start);
            if let Some(norm) = norm {
                let normed = c.memory.thread(w.index());
                normalise(c.isa, norm, x, normed, n);
                x = normed;
            }
            let (blocks, before) = (activations::blocks(k), start / activations::BLOCK);
            if let Some(form) = q8 {
                let at = activations::place(row, rows, blocks * form.planes);
                let dst = c.memory.q8().add(at.first + before * form.planes * at.step);
                activations::quantise(c.isa, x, n, dst, at.step, form);
            }
            if f32 {
                let at = activations::place(row, rows, blocks);
                let dst = c.memory.f32().add(at.first + before * at.step);
                activations::arrange(c.isa, x, n, dst, at.step);
            }
        }
    }
}

/// Claims part of a product: a tile's rows, and `claim` of `groups` row groups. Tile follows tile, so
/// that a thread reads the activations of one tile from its cache while weights stream by.
fn claim_product(
    w: &Worker<'_>,
    rows: usize,
    groups: usize,
    claim: usize,
) -> Option<(Range<usize>, Range<usize>)> {
    let per_tile = groups.div_ceil(claim);
    let item = w.claim(per_tile * rows.div_ceil(TILE), 1)?.start;
    let (row, group) = (item / per_tile * TILE, item % per_tile * claim);
    Some((row..rows.min(row + TILE), group..groups.min(group + claim)))
}

/// One matrix times some of the arranged rows (which, of how many, in how many planes of which how many
/// count), for some row groups.
///
/// # Safety
///
/// As for [`matmul`].
unsafe fn product(
    c: &Context<'_>,
    (matrix, loops): (&Matrix, Loops),
    groups: Range<usize>,
    (rows, of, [planes, used]): (Range<usize>, usize, [usize; 2]),
    (out, stride): (*mut f32, usize),
    residual: Option<*const f32>,
) {
    let layout = &matrix.layout;
    // SAFETY: the caller's contract; the weights stay as they are while a program runs.
    unsafe {
        let weights = std::slice::from_raw_parts(matrix.packed, layout.bytes());
        let x = if layout.quantised() {
            Rows::Q8 { blocks: c.memory.q8(), planes, used }
        } else {
            Rows::F32(c.memory.f32())
        };
        let product =
            Product { layout, weights, groups, x, rows, of, out, stride, residual, loops };
        matmul(c.isa, &product);
    }
}

/// One row and KV head: its queries rotated, its key and value into the cache.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn rope_kv(stage: &Stage, c: &Context<'_>, w: &Worker<'_>, row: usize, head: usize) {
    let Stage::RopeKv { q, k, v, table, at, norms, style, heads, cache, out, keys, values, .. } =
        *stage
    else {
        return;
    };
    // SAFETY: the caller's contract: rows and heads are within the operands; slot and position are
    // checked against the cache.
    unsafe {
        let (dim, group) = (cache.dim, heads / cache.heads);
        let cos = table.add(row * dim);
        let sin = cos.add(dim / 2);
        let rotate = |x: *const f32, norm: Option<Norm>, to: *mut f32| {
            match norm {
                Some(norm) => normalise(c.isa, norm, x, to, dim),
                None => to.copy_from_nonoverlapping(x, dim),
            }
            rope::rope(c.isa, to, dim, cos, sin, style);
        };
        for query in head * group..(head + 1) * group {
            let offset = (row * heads + query) * dim;
            rotate(q.add(offset), norms.map(|n| n.0), out.add(offset));
        }
        let slot = index(*at.slots.add(row), cache.slots);
        let position = index(*at.positions.add(row), cache.capacity);
        if let (Some(slot), Some(position)) = (slot, position) {
            let offset = (row * cache.heads + head) * dim;
            let rotated = c.memory.thread(w.index());
            rotate(k.add(offset), norms.map(|n| n.1), rotated);
            let base = (slot * cache.heads + head) * cache.head_len();
            let (keys, values) = (keys.add(base), values.add(base));
            rope::kv_write(c.isa, rotated, v.add(offset), dim, position, keys, values);
        }
    }
}

/// Some rows and one KV head: attention of their queries. Zeroes for a row without slot.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn attend(stage: &Stage, c: &Context<'_>, w: &Worker<'_>, part: Range<usize>, head: usize) {
    let Stage::Attend { q, at, heads, cache, scale, out, keys, values, .. } = *stage else {
        return;
    };
    // SAFETY: as in `rope_kv`.
    unsafe {
        let (dim, group) = (cache.dim, heads / cache.heads);
        let place = |row: usize| {
            let slot = index(*at.slots.add(row), cache.slots)?;
            Some((slot, index(*at.positions.add(row), cache.capacity)?))
        };
        let mut row = part.start;
        while row < part.end {
            let offset = (row * heads + head * group) * dim;
            let Some((slot, position)) = place(row) else {
                out.add(offset).write_bytes(0, group * dim);
                row += 1;
                continue;
            };
            // Tokens that follow one another go together.
            let mut rows = 1;
            while row + rows < part.end && place(row + rows) == Some((slot, position + rows)) {
                rows += 1;
            }
            let base = (slot * cache.heads + head) * cache.head_len();
            let job = Attend {
                q: q.add(offset),
                rows,
                stride: heads * dim,
                heads: group,
                dim,
                keys: keys.add(base),
                values: values.add(base),
                positions: position + 1,
                scale,
                scratch: c.memory.thread(w.index()),
                out: out.add(offset),
            };
            attention::attend(c.isa, &job);
            row += rows;
        }
    }
}

/// One row of logits: its token, and the next step's inputs.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn choose(stage: &Stage, c: &Context<'_>, w: &Worker<'_>, row: usize) {
    let Stage::Sample {
        logits,
        vocabulary,
        temperature,
        top_k,
        top_p,
        seed,
        positions,
        ids,
        advance,
        ..
    } = *stage
    else {
        return;
    };
    // SAFETY: the caller's contract: `row` is within every operand; the scratch is this thread's.
    unsafe {
        let logits = logits.add(row * vocabulary);
        let temperature = *temperature.add(row);
        let position = (*positions.add(row)).cast_unsigned();
        let token = if temperature > 0.0 {
            let half = |i: usize| u64::from((*seed.add(2 * row + i)).cast_unsigned());
            let sampling = Sampling {
                temperature,
                top_k: (*top_k.add(row)).cast_unsigned(),
                top_p: *top_p.add(row),
                seed: half(0) | half(1) << 32,
            };
            let logits = std::slice::from_raw_parts(logits, vocabulary);
            sample::choose(logits, sampling, position, &mut *c.work.0[w.index()].get())
        } else {
            // Greedy, as `sample` defines it.
            u32::try_from(norm::argmax(c.isa, logits, vocabulary)).unwrap_or(0)
        };
        *ids.add(row) = token.cast_signed();
        if let Some((tokens, next)) = advance {
            *tokens.add(row) = token.cast_signed();
            *next.add(row) = position.cast_signed().wrapping_add(1);
        }
    }
}
