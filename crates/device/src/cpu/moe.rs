//! Mixture of experts: rows are grouped by the experts that they chose, so that an expert's weights are read once for all
//! of its rows, and not at all without rows.
//!
//! A *pair* is a row and one of its experts. Pairs are sorted by expert, then by row. The pairs of one expert are a
//! *segment*, a product of its own. The rows that share a segment do not change a result.

use super::context::{Context, PACK_COLUMNS};
use super::moe_workspace::{Buffers, Ends, Segment};
use super::operand::Operand;
use super::pool::Worker;
use super::variant::{TILE_STRIDE, Variant};
use plan::{Experts, Gating, RouterScores};
use simd::activations::{self, ActivationFormat, TILE};
use simd::matmul::{Activations, Product, Q8Activations, matmul};
use simd::packed::PackedLayout;
use simd::vector::LANES;
use simd::{norm, scores};

/// Kernel calls of an MoE layer, in order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Choose the experts of each row, and their weights.
    Route,
    /// Sort the pairs by expert.
    Group,
    PackRows,
    /// Products with gate and up, and their elementwise part.
    Gate,
    PackHidden,
    Down,
    /// Add up the results of each row's pairs.
    Combine,
}

impl Phase {
    pub(super) const ALL: [Self; 7] = [
        Self::Route,
        Self::Group,
        Self::PackRows,
        Self::Gate,
        Self::PackHidden,
        Self::Down,
        Self::Combine,
    ];

    /// Kernel name in profiles.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Group => "group",
            Self::PackRows | Self::PackHidden => "arrange-experts",
            Self::Gate => "gate-experts",
            Self::Down => "down-experts",
            Self::Combine => "combine",
        }
    }
}

/// A mixture of experts with its buffers.
#[derive(Clone)]
pub(super) struct Mixture {
    pub(super) op: plan::Mixture<Operand>,
    pub(super) experts: usize,
    /// Width between gate and down.
    pub(super) hidden: usize,
    pub(super) variant: Variant,
    pub(super) buffers: Buffers,
}

/// This thread's share of a phase.
///
/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn run(phase: Phase, m: &Mixture, c: &Context<'_>, w: &Worker<'_>) {
    // SAFETY: the caller's contract; each divides what it writes among the threads.
    unsafe {
        match phase {
            Phase::Route => {
                for row in w.part(c.rows(m.op.x.rows())) {
                    route(m, c, w, row);
                }
            }
            Phase::Group if w.index() == 0 => group(m, c.rows(m.op.x.rows())),
            Phase::Group => {}
            Phase::PackRows => {
                let layout = m.op.gate.weight.matrix().layout;
                let x = |pair| m.op.x.f32().add(*m.buffers.rows.add(pair) as usize * m.op.x.last);
                pack(m, c, w, &layout, |pair| x(pair).cast_const());
            }
            Phase::Gate => gate(m, c, w),
            Phase::PackHidden => {
                let layout = m.op.down.weight.matrix().layout;
                pack(m, c, w, &layout, |pair| m.buffers.hidden.add(pair * m.hidden).cast_const());
            }
            Phase::Down => down(m, c, w),
            Phase::Combine => combine(m, c, w),
        }
    }
}

/// Chooses a row's experts and their weights.
///
/// # Safety
///
/// As for [`run`]; the row is this thread's.
unsafe fn route(m: &Mixture, c: &Context<'_>, w: &Worker<'_>, row: usize) {
    let (experts, count) = (m.experts, m.op.routing.chosen);
    // SAFETY: a row of each operand; the thread's scratch holds two values per expert.
    unsafe {
        let logits = m.op.logits.f32().add(row * experts);
        let worth = c.memory.thread(w.index());
        match m.op.routing.scores {
            RouterScores::Softmax => scores::softmax(c.isa, logits, worth, experts),
            RouterScores::Sigmoid => scores::sigmoid(c.isa, logits, worth, experts),
        }
        let chosen = std::slice::from_raw_parts_mut(m.buffers.chosen.add(row * count), count);
        let weights = std::slice::from_raw_parts_mut(m.buffers.weights.add(row * count), count);
        let preferred = match m.op.preference {
            Some(preference) => {
                let preferred = worth.add(experts);
                norm::add(c.isa, worth, preference.f32(), preferred, experts);
                preferred.cast_const()
            }
            None => logits.cast_const(),
        };
        plan::top_k(std::slice::from_raw_parts(preferred, experts), chosen);
        let mut sum = 0.0;
        for (weight, &expert) in weights.iter_mut().zip(chosen.iter()) {
            *weight = *worth.add(expert as usize);
            sum += *weight;
        }
        for (weight, &expert) in weights.iter_mut().zip(chosen.iter()) {
            if m.op.routing.normalised {
                *weight /= sum;
            }
            *weight *= m.op.routing.scale.get();
            if let Some(scales) = m.op.scales {
                *weight *= *scales.f32().add(expert as usize);
            }
        }
    }
}

/// Sorts the pairs of `rows` rows by expert.
///
/// # Safety
///
/// As for [`run`]; only one thread calls it.
unsafe fn group(m: &Mixture, rows: usize) {
    let count = m.op.routing.chosen;
    // SAFETY: every pair's expert is one of the layer's, every place is below the number of pairs.
    unsafe {
        let chosen = std::slice::from_raw_parts(m.buffers.chosen, rows * count);
        let segments = std::slice::from_raw_parts_mut(m.buffers.segments, m.experts);
        segments.fill(Segment { expert: 0, first: 0, pairs: 0, tiles: 0 });
        for &expert in chosen {
            segments[expert as usize].pairs += 1;
        }
        let mut first = 0;
        for (expert, segment) in segments.iter_mut().enumerate() {
            (segment.expert, segment.first) = (expert, first);
            first += segment.pairs;
            segment.pairs = 0;
        }
        for (pair, &expert) in chosen.iter().enumerate() {
            let segment = &mut segments[expert as usize];
            let place = segment.first + segment.pairs;
            segment.pairs += 1;
            // A plan has fewer than 2^32 pairs.
            *m.buffers.places.add(pair) = place as u32;
            *m.buffers.rows.add(place) = (pair / count) as u32;
        }
        let (mut used, mut tiles) = (0, 0);
        for expert in 0..m.experts {
            let segment = Segment { tiles, ..segments[expert] };
            if segment.pairs > 0 {
                segments[used] = segment;
                (used, tiles) = (used + 1, tiles + segment.pairs.div_ceil(TILE));
            }
        }
        *m.buffers.ends = Ends { segments: used, tiles };
    }
}

/// Packs pairs into the blocks that products read, each segment by itself.
///
/// # Safety
///
/// As for [`run`]; `row` returns a row of the layout's columns for each pair.
unsafe fn pack(
    m: &Mixture,
    c: &Context<'_>,
    w: &Worker<'_>,
    layout: &PackedLayout,
    row: impl Fn(usize) -> *const f32,
) {
    let k = layout.k();
    let (blocks, piece) = (activations::blocks(k), PACK_COLUMNS.min(k));
    let pieces = k.div_ceil(piece);
    // SAFETY: blocks of different pairs or pieces are different.
    unsafe {
        let (segments, _) = m.buffers.segments();
        let pairs = segments.last().map_or(0, |last| last.first + last.pairs);
        for item in w.part(pairs * pieces) {
            let (pair, start) = (item / pieces, item % pieces * piece);
            let segment = &segments[segments.partition_point(|s| s.first <= pair) - 1];
            let at = activations::place(pair - segment.first, segment.pairs, blocks);
            let first = segment.first * blocks + at.first + start / activations::BLOCK * at.step;
            let (x, n) = (row(pair).add(start), piece.min(k - start));
            if layout.quantised() {
                let format = ActivationFormat { residual_planes: 1, span: layout.span() };
                activations::quantise(c.isa, x, n, c.memory.q8().add(first), at.step, format);
            } else {
                activations::arrange(c.isa, x, n, c.memory.f32().add(first), at.step);
            }
        }
    }
}

/// Part of a segment's product: a tile (L2) of its pairs, and some row groups.
struct Claim<'a> {
    segment: &'a Segment,
    rows: std::ops::Range<usize>,
    groups: std::ops::Range<usize>,
}

/// Claims part of the segments' products. The claims of a segment are consecutive, so that its weights are read
/// once.
///
/// # Safety
///
/// As for [`Buffers::segments`].
unsafe fn claim<'a>(
    m: &'a Mixture,
    w: &Worker<'_>,
    layout: &PackedLayout,
    unit: usize,
) -> Option<Claim<'a>> {
    // SAFETY: the caller's contract.
    let (segments, tiles) = unsafe { m.buffers.segments() };
    let (groups, claim) = (layout.groups(), m.variant.claim(1).next_multiple_of(unit));
    let per_tile = groups.div_ceil(claim);
    let item = w.claim(per_tile * tiles, 1)?.start;
    let (tile, group) = (item / per_tile, item % per_tile * claim);
    let segment = &segments[segments.partition_point(|s| s.tiles <= tile) - 1];
    let row = (tile - segment.tiles) * TILE;
    Some(Claim {
        segment,
        rows: row..segment.pairs.min(row + TILE),
        groups: group..groups.min(group + claim),
    })
}

impl Claim<'_> {
    /// Computes the claimed part of a matrix's product, with its bias; output rows begin at `out`, `stride` apart.
    ///
    /// # Safety
    ///
    /// As for [`run`]; no other thread writes the claimed part.
    unsafe fn product(
        &self,
        m: &Mixture,
        c: &Context<'_>,
        of: &Experts<Operand>,
        out: *mut f32,
        stride: usize,
    ) {
        let matrix = of.weight.matrix();
        let layout = &matrix.layout;
        let first = self.segment.first * activations::blocks(layout.k());
        // SAFETY: the caller's contract; the segment has been arranged for the layout's columns.
        unsafe {
            let x = if layout.quantised() {
                let blocks = c.memory.q8().add(first);
                Activations::Q8(Q8Activations { blocks, residual_planes: 1, used_planes: 1 })
            } else {
                Activations::F32(c.memory.f32().add(first))
            };
            let product = Product {
                layout,
                weights: matrix.weights(self.segment.expert),
                groups: self.groups.clone(),
                x,
                rows: self.rows.clone(),
                of: self.segment.pairs,
                out,
                stride,
                residual: None,
                loops: m.variant.loops,
            };
            matmul(c.isa, &product);
            if let Some(bias) = of.bias {
                let (start, n) = self.columns(layout.rows());
                let bias = bias.f32().add(self.segment.expert * layout.rows() + start);
                for row in self.rows.clone() {
                    let to = out.wrapping_add(row * stride + start);
                    norm::add(c.isa, to, bias, to, n);
                }
            }
        }
    }

    /// First column of the claim, and number of columns, for a matrix with `rows` rows.
    fn columns(&self, rows: usize) -> (usize, usize) {
        let start = self.groups.start * LANES;
        (start, rows.min(self.groups.end * LANES) - start)
    }
}

/// # Safety
///
/// As for [`run`].
unsafe fn gate(m: &Mixture, c: &Context<'_>, w: &Worker<'_>) {
    let side = c.memory.thread(w.index());
    let width = |of: &Experts<Operand>| of.weight.matrix().layout.interleave();
    let unit = width(&m.op.gate).max(width(&m.op.up));
    // SAFETY: the caller's contract; a claim is this thread's.
    unsafe {
        while let Some(claim) = claim(m, w, &m.op.gate.weight.matrix().layout, unit) {
            let out = m.buffers.hidden.add(claim.segment.first * m.hidden);
            let (first, n) = claim.columns(m.hidden);
            // The scratch tile begins at the claim's first row and column.
            let tile = side.wrapping_sub(claim.rows.start * TILE_STRIDE + first);
            claim.product(m, c, &m.op.gate, out, m.hidden);
            claim.product(m, c, &m.op.up, tile, TILE_STRIDE);
            for row in claim.rows {
                let g = out.add(row * m.hidden + first);
                let u = tile.wrapping_add(row * TILE_STRIDE + first);
                match m.op.gating {
                    Gating::Glu(activation) => norm::glu(c.isa, activation, g, u, g, n),
                    Gating::ClampedSwiGlu => {
                        norm::clamped_swiglu(c.isa, g, u, g, n, Gating::SLOPE, Gating::LIMIT);
                    }
                }
            }
        }
    }
}

/// # Safety
///
/// As for [`run`].
unsafe fn down(m: &Mixture, c: &Context<'_>, w: &Worker<'_>) {
    let layout = &m.op.down.weight.matrix().layout;
    // SAFETY: the caller's contract; a claim is this thread's.
    unsafe {
        while let Some(claim) = claim(m, w, layout, layout.interleave()) {
            let out = m.buffers.results.add(claim.segment.first * m.op.x.last);
            claim.product(m, c, &m.op.down, out, m.op.x.last);
        }
    }
}

/// Adds up the weighted results of each row's pairs, best expert first.
///
/// # Safety
///
/// As for [`run`].
unsafe fn combine(m: &Mixture, c: &Context<'_>, w: &Worker<'_>) {
    let count = m.op.routing.chosen;
    let piece = PACK_COLUMNS.min(m.op.x.last);
    let pieces = m.op.x.last.div_ceil(piece);
    // SAFETY: the caller's contract; pieces of rows are different.
    unsafe {
        for item in w.part(c.rows(m.op.x.rows()) * pieces) {
            let (row, start) = (item / pieces, item % pieces * piece);
            let n = piece.min(m.op.x.last - start);
            let out = m.op.out.f32().add(row * m.op.x.last + start);
            out.write_bytes(0, n);
            for pair in row * count..(row + 1) * count {
                let from = *m.buffers.places.add(pair) as usize * m.op.x.last + start;
                norm::add_scaled(
                    c.isa,
                    *m.buffers.weights.add(pair),
                    m.buffers.results.add(from),
                    out,
                    n,
                );
            }
        }
    }
}
