//! Running a program's stages on the threads of a pool.
//!
//! Every thread calls [`stage`] for every stage, with a barrier in between; inside, the work is
//! divided so that no two threads write the same element. How it is divided never shows in the
//! result.

use std::cell::UnsafeCell;
use std::ops::Range;

use super::memory::{Cache, Memory};
use super::pool::Worker;
use super::program::{
    Arrange, Attention, Elementwise, Gate, KvRows, Linear, Matrix, NextInputs, Norm, Program,
    Project, RopeKv, Rotation, Sample, Stage,
};
use super::variant::STRIP;
use super::{mixture, recurrent};
use crate::BLOCK;
use crate::slots::NOWHERE;
use plan::sample::{self, Adjustment, Candidate, Sampling};
use plan::{NormKind, Scores, Temperature};
use simd::activations::{self, TILE};
use simd::attention::{self, Attend, Places};
use simd::cache::{HeadCache, kv_write};
use simd::matmul::{Activations, Product, Q8Activations, matmul};
use simd::packed::PackedLayout;
use simd::vector::LANES;
use simd::{Isa, norm, rope, scores};

/// Columns of a row that are arranged at a time where rows alone do not keep the threads busy: whole
/// spans of activations.
pub(super) const ARRANGE: usize = 1024;

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
pub(super) struct Work(Vec<UnsafeCell<Choice>>);

/// Candidates, and the logits of a row that something is done to.
struct Choice {
    candidates: Vec<Candidate>,
    adjusted: Vec<f32>,
}

// SAFETY: entry `i` is only touched by thread `i` of a region.
unsafe impl Sync for Work {}

impl Work {
    pub(super) fn new(threads: usize, vocabulary: usize) -> Self {
        let choice = || Choice {
            candidates: Vec::with_capacity(vocabulary),
            adjusted: Vec::with_capacity(vocabulary),
        };
        Self((0..threads).map(|_| UnsafeCell::new(choice())).collect())
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
    pub(super) fn rows(&self, rows: usize) -> usize {
        if rows == self.rows { self.active } else { rows }
    }

    /// What the last arrangement left for products with `matrix`.
    fn activations(
        &self,
        matrix: &Matrix,
        residual_planes: usize,
        used_planes: usize,
    ) -> Activations {
        if matrix.layout.quantised() {
            let blocks = self.memory.q8();
            Activations::Q8(Q8Activations { blocks, residual_planes, used_planes })
        } else {
            Activations::F32(self.memory.f32())
        }
    }
}

impl Matrix {
    /// # Safety
    ///
    /// The weights stay as they are meanwhile, as they do while a program runs.
    const unsafe fn weights(&self) -> &[u8] {
        // SAFETY: the caller's contract; a matrix is as large as its layout says.
        unsafe { std::slice::from_raw_parts(self.packed, self.layout.bytes()) }
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
                let packed = matrix.weights();
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
            Stage::Lines { panels, table, ids, step, rows, out } => {
                let (lines, width) = (panels.lines.0, panels.steps.0);
                for row in w.part(c.rows(rows)) {
                    let out = out.add(row * width);
                    match index(*ids.add(row * step), lines) {
                        Some(line) => panels.line(c.isa, table, line, out),
                        None => out.write_bytes(0, width),
                    }
                }
            }
            Stage::RopeTable { positions, frequencies, half, magnitude, rows, out } => {
                for row in w.part(c.rows(rows)) {
                    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
                    let position = *positions.add(row) as f32;
                    let out = out.add(2 * row * half);
                    rope::table(c.isa, position, frequencies, half, magnitude, out);
                }
            }
            Stage::Normalise { x, norm, n, rows, out } => {
                for row in w.part(c.rows(rows)) {
                    normalise(c.isa, norm, x.add(row * n), out.add(row * n), n);
                }
            }
            Stage::Elementwise { op, x, n, rows, out } => {
                let part = w.part(n * c.rows(rows));
                elementwise(c.isa, op, x, n, part, out);
            }
            Stage::Rope { x, rotation, heads, dim, rows, out } => {
                for item in w.part(c.rows(rows) * heads) {
                    let out = out.add(item * dim);
                    out.copy_from_nonoverlapping(x.add(item * dim), dim);
                    rotate(c.isa, rotation, item / heads, out);
                }
            }
            Stage::Arrange(ref stage) => arrange(stage, c, w),
            Stage::Project(ref stage) => project(stage, c, w),
            Stage::Gate(ref stage) => gate(stage, c, w),
            Stage::RopeKv(ref stage) => {
                // Row by row, as queries lie; neighbouring rows, whose keys share lines, with one thread.
                let heads = stage.cache.heads;
                let items = c.rows(stage.rows) * heads;
                let claim = (items / (4 * w.threads())).clamp(1, ROWS_PER_CLAIM * heads);
                while let Some(items) = w.claim(items, claim) {
                    for item in items {
                        rope_kv(stage, c, w, item / heads, item % heads);
                    }
                }
            }
            Stage::Attention(ref stage) => {
                // Head by head, so that neighbouring rows of one head stay with one thread.
                let rows = c.rows(stage.rows);
                let chunk = rows.clamp(1, ROWS_PER_CLAIM);
                let per_head = rows.div_ceil(chunk);
                while let Some(items) = w.claim(stage.cache.heads * per_head, 1) {
                    let (head, first) = (items.start / per_head, items.start % per_head * chunk);
                    attend(stage, c, w, first..rows.min(first + chunk), head);
                }
            }
            Stage::Mixture(part, ref stage) => mixture::part(part, stage, c, w),
            Stage::ShortConv(ref stage) => recurrent::short_conv(stage, c, w),
            Stage::PrepareDelta(ref stage) => recurrent::prepare(stage, c, w),
            Stage::GatedDelta(ref stage) => recurrent::gated_delta(stage, c, w),
            Stage::DeltaRule(ref stage) => recurrent::delta_rule(stage, c, w),
            Stage::Note(ref memory) => recurrent::note(memory, w),
            Stage::Group(ref kernel) => kernel.run(c.isa, w, c.memory.thread(w.index())),
            Stage::Rows(ref rows) => rows.run(c.isa, w, c.memory.thread(w.index())),
            Stage::Pack(ref pack) => pack.run(c.isa, w),
            Stage::MatMul(ref product) => product.run(c.isa, w, c.memory.thread(w.index())),
            Stage::Between(ref both) => both.run(c.isa, w, c.memory.thread(w.index())),
            Stage::Winograd(ref conv) => conv.run(c.isa, w, c.memory.thread(w.index())),
            Stage::Depthwise(ref conv) => conv.run(c.isa, w, c.memory.thread(w.index())),
            Stage::TakeRows(ref gather) => gather.run(c.isa, w),
            Stage::PutRows(ref scatter) => scatter.run(c.isa, w, c.memory.thread(w.index())),
            Stage::TopK(ref top_k) => top_k.run(c.isa, w, c.memory.thread(w.index())),
            Stage::Sample(ref stage) => {
                for row in w.part(c.rows(stage.rows)) {
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
    let Norm { kind, weight, bias, eps } = norm;
    // SAFETY: the caller's contract.
    unsafe {
        let mut x = x;
        if kind == NormKind::Layer {
            norm::centre(isa, x, out, n);
            x = out;
        }
        norm::rms_norm(isa, x, weight, out, n, eps);
        if let Some(bias) = bias {
            norm::add(isa, out, bias, out, n);
        }
    }
}

/// Elements of rows of `n`, from `part.start` to `part.end`, row by row.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn elementwise(
    isa: Isa,
    op: Elementwise,
    x: *const f32,
    n: usize,
    part: Range<usize>,
    out: *mut f32,
) {
    let mut at = part.start;
    while at < part.end {
        let (row, column) = (at / n, at % n);
        let len = (n - column).min(part.end - at);
        // SAFETY: the caller's contract.
        unsafe {
            let (x, y) = (x.add(at), out.add(at));
            match op {
                Elementwise::Add(other) => norm::add(isa, x, other.add(at), y, len),
                Elementwise::Multiply(other) => norm::multiply(isa, x, other.add(at), y, len),
                Elementwise::Gate { gate, each: true } => norm::gate(isa, gate.add(at), x, y, len),
                Elementwise::Gate { gate, each: false } => {
                    let mut open = 0.0;
                    scores::sigmoid(isa, gate.add(row), &raw mut open, 1);
                    norm::scale(isa, open, x, y, len);
                }
                Elementwise::Bias(bias) => norm::add(isa, x, bias.add(column), y, len),
                Elementwise::Scale(factor) => norm::scale(isa, factor, x, y, len),
                Elementwise::SoftCap(cap) => norm::soft_cap(isa, cap, x, y, len),
                Elementwise::Activate(activation) => norm::activate(isa, activation, x, y, len),
                Elementwise::Glu { activation, up, stride } => {
                    norm::glu(isa, activation, x, up.add(row * stride + column), y, len);
                }
            }
        }
        at += len;
    }
}

/// One head of a row, in place.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn rotate(isa: Isa, rotation: Rotation, row: usize, head: *mut f32) {
    let Rotation { table, half, style } = rotation;
    // SAFETY: the caller's contract.
    unsafe {
        let cos = table.add(2 * row * half);
        rope::rope(isa, head, 2 * half, cos, cos.add(half), style);
    }
}

/// Rows into the blocks that products read: whole rows where they are normalised, pieces of rows
/// otherwise.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn arrange(stage: &Arrange, c: &Context<'_>, w: &Worker<'_>) {
    let Arrange { x, norm, k, rows, q8, f32 } = *stage;
    let rows = c.rows(rows);
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
            if let Some(format) = q8 {
                let planes = format.residual_planes;
                let at = activations::place(row, rows, blocks * planes);
                let dst = c.memory.q8().add(at.first + before * planes * at.step);
                activations::quantise(c.isa, x, n, dst, at.step, format);
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

/// The arranged rows times each matrix.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn project(stage: &Project, c: &Context<'_>, w: &Worker<'_>) {
    let &Project { ref linears, rows, residual_planes, residual, variant } = stage;
    // A claim is of whole panels, in every matrix.
    let width = |layout: &PackedLayout| layout.panel_width();
    let unit = linears.iter().flatten().map(|l| width(&l.matrix.layout)).max().unwrap_or(1);
    let room = |layout: &PackedLayout| layout.groups().next_multiple_of(unit);
    let total = linears.iter().flatten().map(|l| room(&l.matrix.layout)).sum();
    let of = c.rows(rows);
    let claim = variant.claim(of).next_multiple_of(unit);
    while let Some((rows, range)) = claim_product(w, of, total, claim) {
        let mut base = 0;
        for &Linear { ref matrix, bias, activation, out, used_planes } in linears.iter().flatten() {
            let layout = &matrix.layout;
            let groups = range.start.max(base)..range.end.min(base + layout.groups());
            if groups.start < groups.end {
                let groups = groups.start - base..groups.end - base;
                let (first, end) = (groups.start * LANES, layout.rows().min(groups.end * LANES));
                // SAFETY: the caller's contract; no other thread claims these groups of these rows.
                unsafe {
                    let product = Product {
                        layout,
                        weights: matrix.weights(),
                        groups,
                        x: c.activations(matrix, residual_planes, used_planes),
                        rows: rows.clone(),
                        of,
                        out,
                        stride: layout.rows(),
                        residual: residual.filter(|_| bias.is_none()),
                        loops: variant.loops,
                    };
                    matmul(c.isa, &product);
                    let alone = bias.is_none() && activation.is_none();
                    for row in rows.clone().filter(|_| !alone) {
                        let (at, n) = (row * layout.rows() + first, end - first);
                        let y = out.add(at);
                        if let Some(bias) = bias {
                            norm::add(c.isa, y, bias.add(first), y, n);
                        }
                        if let Some(activation) = activation {
                            norm::activate(c.isa, activation, y, y, n);
                        }
                        if let Some(residual) = residual {
                            norm::add(c.isa, residual.add(at), y, y, n);
                        }
                    }
                }
            }
            base += room(layout);
        }
    }
}

/// The arranged rows times both matrices of a gate, and its elementwise part on what comes out, while that is
/// in the thread's cache.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn gate(stage: &Gate, c: &Context<'_>, w: &Worker<'_>) {
    let &Gate { activation, ref gate, ref up, rows, residual_planes, out, variant } = stage;
    let (of, n) = (c.rows(rows), gate.layout.rows());
    let side = c.memory.thread(w.index());
    let unit = gate.layout.panel_width().max(up.layout.panel_width());
    let claim = variant.claim(of).next_multiple_of(unit);
    while let Some((rows, groups)) = claim_product(w, of, gate.layout.groups(), claim) {
        let (first, end) = (groups.start * LANES, n.min(groups.end * LANES));
        // The strip beside it starts at its first row and column.
        let strip = side.wrapping_sub(rows.start * STRIP + first);
        // SAFETY: the caller's contract; no other thread claims these groups of these rows.
        unsafe {
            for (matrix, out, stride) in [(gate, out, n), (up, strip, STRIP)] {
                let product = Product {
                    layout: &matrix.layout,
                    weights: matrix.weights(),
                    groups: groups.clone(),
                    x: c.activations(matrix, residual_planes, residual_planes),
                    rows: rows.clone(),
                    of,
                    out,
                    stride,
                    residual: None,
                    loops: variant.loops,
                };
                matmul(c.isa, &product);
            }
            for row in rows {
                let (g, u) = (out.add(row * n + first), strip.wrapping_add(row * STRIP + first));
                norm::glu(c.isa, activation, g, u, g, end - first);
            }
        }
    }
}

/// One row and KV head: its queries rotated, its key and value into the cache.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn rope_kv(stage: &RopeKv, c: &Context<'_>, w: &Worker<'_>, row: usize, head: usize) {
    let RopeKv { q, k, v, rotation, at, heads, cache, out, keys, values, .. } = *stage;
    // SAFETY: the caller's contract: rows and heads are within the operands; slot and position are
    // checked against the cache.
    unsafe {
        let (dim, group) = (cache.dim, heads / cache.heads);
        let turn = |x: *const f32, norm: Option<Norm>, to: *mut f32| {
            match norm {
                Some(norm) => normalise(c.isa, norm, x, to, dim),
                None => to.copy_from_nonoverlapping(x, dim),
            }
            rotate(c.isa, rotation, row, to);
        };
        for query in head * group..(head + 1) * group {
            let offset = (row * heads + query) * dim;
            turn(q.add(offset), stage.q_norm, out.add(offset));
        }
        if let Some((slot, position)) = place(at, cache, row) {
            let offset = (row * cache.heads + head) * dim;
            let rotated = c.memory.thread(w.index());
            turn(k.add(offset), stage.k_norm, rotated);
            let (piece, position) = match cache.ring {
                true => (slot, position % cache.capacity),
                false => (block(at, slot, position) as usize, position % BLOCK),
            };
            let base = (piece * cache.heads + head) * cache.head_bytes();
            let (keys, values, v) = (keys.add(base), values.add(base), v.add(offset));
            let head = HeadCache { format: cache.format, dim, keys, values };
            kv_write(c.isa, head, position, rotated, v);
        }
    }
}

/// Slot and position of a row; `None` where it has none, or its position lies nowhere.
///
/// # Safety
///
/// As for [`stage`]: there is such a row.
unsafe fn place(at: KvRows, cache: Cache, row: usize) -> Option<(usize, usize)> {
    // SAFETY: the caller's contract; slot and position are inside the table.
    unsafe {
        let slot = index(*at.slots.add(row), cache.slots)?;
        let position = index(*at.positions.add(row), cache.positions())?;
        let nowhere = !cache.ring && block(at, slot, position) == NOWHERE;
        (!nowhere).then_some((slot, position))
    }
}

/// The block that holds a position of a slot, or [`NOWHERE`].
///
/// # Safety
///
/// As for [`stage`]: both are inside the table.
unsafe fn block(at: KvRows, slot: usize, position: usize) -> u32 {
    // SAFETY: the caller's contract.
    unsafe { *at.table.add(slot * at.entries + position / BLOCK) }
}

/// Some rows and one KV head: attention of their queries. Zeroes for a row without slot.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn attend(
    stage: &Attention,
    c: &Context<'_>,
    w: &Worker<'_>,
    part: Range<usize>,
    head: usize,
) {
    let Attention { q, at, heads, cache, ref scores, sinks, out, keys, values, .. } = *stage;
    // SAFETY: as in `rope_kv`.
    unsafe {
        let (dim, group) = (cache.dim, heads / cache.heads);
        let place = |row: usize| place(at, cache, row);
        let mut row = part.start;
        while row < part.end {
            let offset = (row * heads + head * group) * dim;
            let Some((slot, position)) = place(row) else {
                out.add(offset).write_bytes(0, group * dim);
                row += 1;
                continue;
            };
            // Tokens that follow one another, with one factor on their scores, go together.
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
                let (table, pitch) = (at.table.add(slot * at.entries), cache.heads * BLOCK);
                (0, Places::Blocks { table, positions: BLOCK, pitch })
            };
            let base = (piece * cache.heads + head) * cache.head_bytes();
            let job = Attend {
                q: q.add(offset),
                rows,
                stride: heads * dim,
                heads: group,
                dim,
                format: cache.format,
                places,
                keys: keys.add(base),
                values: values.add(base),
                positions: position + 1,
                window: scores.window.unwrap_or(usize::MAX),
                scale,
                cap: scores.cap.map(plan::Scalar::get),
                sinks: sinks.map(|sinks| sinks.add(head * group)),
                scratch: c.memory.thread(w.index()),
                out: out.add(offset),
            };
            attention::attend(c.isa, &job);
            row += rows;
        }
    }
}

/// The factor on the scores of a row at a position.
fn factor(scores: &Scores, position: usize) -> f32 {
    let scale = scores.scale.get();
    let Some(Temperature { slope, length }) = scores.temperature else { return scale };
    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
    let lengths = 1.0 + (position / length.max(1)) as f32;
    scale * slope.get().mul_add(sample::logarithm(lengths), 1.0)
}

/// One row of logits: its token, and the next step's inputs.
///
/// # Safety
///
/// As for [`stage`].
unsafe fn choose(stage: &Sample, c: &Context<'_>, w: &Worker<'_>, row: usize) {
    let Sample {
        logits,
        vocabulary,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        positions,
        adjustments,
        ids,
        next,
        ..
    } = *stage;
    // SAFETY: the caller's contract: `row` is within every operand; the scratch is this thread's.
    unsafe {
        let Choice { candidates, adjusted } = &mut *c.work.0[w.index()].get();
        let mut logits = std::slice::from_raw_parts(logits.add(row * vocabulary), vocabulary);
        if let Some(words) = adjustments {
            let all = Adjustment::words(vocabulary);
            let words = std::slice::from_raw_parts(words.add(row * all), all);
            if let Some(adjustment) = Adjustment::of(words, vocabulary) {
                adjusted.clear();
                adjusted.extend_from_slice(logits);
                adjustment.apply(adjusted);
                logits = adjusted;
            }
        }
        let temperature = *temperature.add(row);
        let position = (*positions.add(row)).cast_unsigned();
        let best = norm::argmax(c.isa, logits.as_ptr(), vocabulary)
            .and_then(|best| u32::try_from(best).ok());
        let token = match best {
            Some(best) if temperature > 0.0 => {
                let half = |i: usize| u64::from((*seed.add(2 * row + i)).cast_unsigned());
                let sampling = Sampling {
                    temperature,
                    top_k: (*top_k.add(row)).cast_unsigned(),
                    top_p: *top_p.add(row),
                    min_p: *min_p.add(row),
                    seed: half(0) | half(1) << 32,
                };
                sample::choose_beside(best, logits, sampling, position, candidates)
            }
            // Greedy, as `sample` defines it.
            best => best.unwrap_or(sample::NOT_FINITE),
        };
        *ids.add(row) = token.cast_signed();
        if let Some(NextInputs { tokens, positions }) = next {
            *tokens.add(row) = token.cast_signed();
            *positions.add(row) = position.cast_signed().wrapping_add(1);
        }
    }
}
