//! A mixture of experts: rows are put in order of the experts that they chose, so that an expert's weights are
//! read once for all rows that need them, and not at all where none does.
//!
//! A *pair* is a row and one of its experts. Pairs lie in order of their experts, then of their rows; those of
//! one expert are a *segment*, a product of its own. Which rows share a segment does not show in a result.

use super::execute::{ARRANGE, Context};
use super::pool::Worker;
use super::program::Matrix;
use super::variant::{STRIP, Variant};
use plan::{Gating, RouterScores, Routing};
use simd::activations::{self, ActivationFormat, TILE};
use simd::matmul::{Activations, Product, Q8Activations, matmul};
use simd::packed::PackedLayout;
use simd::vector::LANES;
use simd::{norm, scores};

/// The stages of a mixture, in their order.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Which experts each row chooses, and their weights.
    Route,
    /// Where each pair lies.
    Group,
    ArrangeRows,
    /// Products with gate and up, and their elementwise part.
    Gate,
    ArrangeHidden,
    Down,
    /// The sum of each row's pairs.
    Combine,
}

impl Part {
    pub(super) const ALL: [Self; 7] = [
        Self::Route,
        Self::Group,
        Self::ArrangeRows,
        Self::Gate,
        Self::ArrangeHidden,
        Self::Down,
        Self::Combine,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Group => "group",
            Self::ArrangeRows | Self::ArrangeHidden => "arrange-experts",
            Self::Gate => "gate-experts",
            Self::Down => "down-experts",
            Self::Combine => "combine",
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Mixture {
    pub(super) x: *const f32,
    pub(super) logits: *const f32,
    pub(super) preference: Option<*const f32>,
    pub(super) scales: Option<*const f32>,
    pub(super) routing: Routing,
    pub(super) gating: Gating,
    pub(super) experts: usize,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) hidden: usize,
    pub(super) gate: Experts,
    pub(super) up: Experts,
    pub(super) down: Experts,
    pub(super) variant: Variant,
    pub(super) work: Work,
    pub(super) out: *mut f32,
}

/// The same matrix of every expert, one after the other, and its bias.
#[derive(Clone, Copy)]
pub(super) struct Experts {
    /// The first expert's.
    pub(super) matrix: Matrix,
    pub(super) bias: Option<*const f32>,
}

impl Experts {
    /// # Safety
    ///
    /// The expert is one of them, and the weights stay as they are meanwhile.
    const unsafe fn weights(&self, expert: usize) -> &[u8] {
        let bytes = self.matrix.layout.bytes();
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts(self.matrix.packed.add(expert * bytes), bytes) }
    }
}

/// The pairs of one expert.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    expert: usize,
    /// Its first pair.
    first: usize,
    pairs: usize,
    /// Tiles of the segments before it.
    tiles: usize,
}

/// What is kept between the stages.
#[derive(Clone, Copy)]
pub(super) struct Work {
    /// Experts of each row, best first, then their weights.
    chosen: *mut u32,
    weights: *mut f32,
    /// Where a row's pairs lie, and the row of each pair.
    places: *mut u32,
    rows: *mut u32,
    /// Segments in order of their experts; the last one's end is in `ends`.
    segments: *mut Segment,
    ends: *mut Ends,
    /// A row of hidden values, and of results, for each pair.
    hidden: *mut f32,
    results: *mut f32,
}

#[derive(Clone, Copy)]
pub(super) struct Ends {
    segments: usize,
    tiles: usize,
}

/// How much a mixture needs beside its operands.
pub(super) struct Needs {
    pairs: usize,
    experts: usize,
    hidden: usize,
    /// Blocks of activations.
    pub(super) blocks: usize,
    pub(super) bytes: usize,
}

impl Needs {
    pub(super) fn of(mixture: &plan::Mixture) -> Self {
        let [rows, width] = mixture.x.shape[..] else { unreachable!("plans are validated") };
        let (pairs, experts) = (rows * mixture.routing.chosen, mixture.experts());
        let hidden = mixture.hidden();
        let blocks = pairs * activations::blocks(width.max(hidden));
        let mut needs = Self { pairs, experts, hidden, blocks, bytes: 0 };
        needs.bytes = needs.offsets().last().map_or(0, |start| start + 4 * pairs * width);
        needs
    }

    /// Where each part of [`Work`] begins.
    fn offsets(&self) -> [usize; 8] {
        let pairs = 4 * self.pairs;
        let sizes = [
            size_of::<Ends>(),
            self.experts * size_of::<Segment>(),
            pairs,
            pairs,
            pairs,
            pairs,
            pairs * self.hidden,
        ];
        let mut offsets = [0; 8];
        for (i, size) in sizes.into_iter().enumerate() {
            offsets[i + 1] = offsets[i] + size.next_multiple_of(64);
        }
        offsets
    }

    /// In memory from `base` on.
    pub(super) fn at(&self, base: *mut u8) -> Work {
        let [ends, segments, chosen, weights, places, rows, hidden, results] =
            self.offsets().map(|offset| base.wrapping_add(offset));
        Work {
            chosen: chosen.cast(),
            weights: weights.cast(),
            places: places.cast(),
            rows: rows.cast(),
            segments: segments.cast(),
            ends: ends.cast(),
            hidden: hidden.cast(),
            results: results.cast(),
        }
    }
}

impl Work {
    /// # Safety
    ///
    /// The group stage has run, and nobody writes meanwhile.
    const unsafe fn segments(&self) -> (&[Segment], usize) {
        // SAFETY: the caller's contract: as many have been written.
        unsafe {
            let Ends { segments, tiles } = *self.ends;
            (std::slice::from_raw_parts(self.segments, segments), tiles)
        }
    }
}

/// This thread's share of a stage.
///
/// # Safety
///
/// As for [`super::execute::stage`].
pub(super) unsafe fn part(part: Part, m: &Mixture, c: &Context<'_>, w: &Worker<'_>) {
    // SAFETY: the caller's contract; each divides what it writes among the threads.
    unsafe {
        match part {
            Part::Route => {
                for row in w.part(c.rows(m.rows)) {
                    route(m, c, w, row);
                }
            }
            Part::Group if w.index() == 0 => group(m, c.rows(m.rows)),
            Part::Group => {}
            Part::ArrangeRows => {
                let layout = m.gate.matrix.layout;
                arrange(m, c, w, &layout, |pair| {
                    m.x.add(*m.work.rows.add(pair) as usize * m.width)
                });
            }
            Part::Gate => gate(m, c, w),
            Part::ArrangeHidden => {
                let layout = m.down.matrix.layout;
                arrange(m, c, w, &layout, |pair| m.work.hidden.add(pair * m.hidden));
            }
            Part::Down => down(m, c, w),
            Part::Combine => combine(m, c, w),
        }
    }
}

/// A row's experts and their weights.
///
/// # Safety
///
/// As for [`part`]; the row is this thread's.
unsafe fn route(m: &Mixture, c: &Context<'_>, w: &Worker<'_>, row: usize) {
    let (experts, count) = (m.experts, m.routing.chosen);
    // SAFETY: a row of each operand; the thread's scratch holds two values of each expert.
    unsafe {
        let logits = m.logits.add(row * experts);
        let worth = c.memory.thread(w.index());
        match m.routing.scores {
            RouterScores::Softmax => scores::softmax(c.isa, logits, worth, experts),
            RouterScores::Sigmoid => scores::sigmoid(c.isa, logits, worth, experts),
        }
        let chosen = std::slice::from_raw_parts_mut(m.work.chosen.add(row * count), count);
        let weights = std::slice::from_raw_parts_mut(m.work.weights.add(row * count), count);
        let preferred = match m.preference {
            Some(preference) => {
                let preferred = worth.add(experts);
                norm::add(c.isa, worth, preference, preferred, experts);
                preferred.cast_const()
            }
            None => logits,
        };
        plan::top_k(std::slice::from_raw_parts(preferred, experts), chosen);
        let mut sum = 0.0;
        for (weight, &expert) in weights.iter_mut().zip(chosen.iter()) {
            *weight = *worth.add(expert as usize);
            sum += *weight;
        }
        for (weight, &expert) in weights.iter_mut().zip(chosen.iter()) {
            if m.routing.normalised {
                *weight /= sum;
            }
            *weight *= m.routing.scale.get();
            if let Some(scales) = m.scales {
                *weight *= *scales.add(expert as usize);
            }
        }
    }
}

/// Puts the pairs of `rows` rows in order.
///
/// # Safety
///
/// As for [`part`]; no other thread does it.
unsafe fn group(m: &Mixture, rows: usize) {
    let count = m.routing.chosen;
    // SAFETY: every pair's expert is one of the mixture's, every place is below the number of pairs.
    unsafe {
        let chosen = std::slice::from_raw_parts(m.work.chosen, rows * count);
        let segments = std::slice::from_raw_parts_mut(m.work.segments, m.experts);
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
            *m.work.places.add(pair) = place as u32;
            *m.work.rows.add(place) = (pair / count) as u32;
        }
        let (mut used, mut tiles) = (0, 0);
        for expert in 0..m.experts {
            let segment = Segment { tiles, ..segments[expert] };
            if segment.pairs > 0 {
                segments[used] = segment;
                (used, tiles) = (used + 1, tiles + segment.pairs.div_ceil(TILE));
            }
        }
        *m.work.ends = Ends { segments: used, tiles };
    }
}

/// Pairs into the blocks that products read, each segment by itself.
///
/// # Safety
///
/// As for [`part`]; `row` gives a row of the layout's columns for each pair.
unsafe fn arrange(
    m: &Mixture,
    c: &Context<'_>,
    w: &Worker<'_>,
    layout: &PackedLayout,
    row: impl Fn(usize) -> *const f32,
) {
    let k = layout.k();
    let (blocks, piece) = (activations::blocks(k), ARRANGE.min(k));
    let pieces = k.div_ceil(piece);
    // SAFETY: blocks of different pairs or pieces are different.
    unsafe {
        let (segments, _) = m.work.segments();
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

/// Part of a segment's product: a tile of its pairs, and some row groups.
struct Claim<'a> {
    segment: &'a Segment,
    rows: std::ops::Range<usize>,
    groups: std::ops::Range<usize>,
}

/// Claims part of the segments' products. A segment's weights follow one another, so that each is read once.
///
/// # Safety
///
/// As for [`Work::segments`].
unsafe fn claim<'a>(
    m: &'a Mixture,
    w: &Worker<'_>,
    layout: &PackedLayout,
    unit: usize,
) -> Option<Claim<'a>> {
    // SAFETY: the caller's contract.
    let (segments, tiles) = unsafe { m.work.segments() };
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
    /// The claimed part of a matrix's product, whose rows begin at `out`, `stride` apart; with its bias.
    ///
    /// # Safety
    ///
    /// As for [`part`]; no other thread writes the claimed part.
    unsafe fn product(
        &self,
        m: &Mixture,
        c: &Context<'_>,
        of: &Experts,
        out: *mut f32,
        stride: usize,
    ) {
        let layout = &of.matrix.layout;
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
                weights: of.weights(self.segment.expert),
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
                let bias = bias.add(self.segment.expert * layout.rows() + start);
                for row in self.rows.clone() {
                    let to = out.wrapping_add(row * stride + start);
                    norm::add(c.isa, to, bias, to, n);
                }
            }
        }
    }

    /// First column, and how many there are of a matrix with `rows` rows.
    fn columns(&self, rows: usize) -> (usize, usize) {
        let start = self.groups.start * LANES;
        (start, rows.min(self.groups.end * LANES) - start)
    }
}

/// # Safety
///
/// As for [`part`].
unsafe fn gate(m: &Mixture, c: &Context<'_>, w: &Worker<'_>) {
    let side = c.memory.thread(w.index());
    let width = |of: &Experts| of.matrix.layout.panel_width();
    let unit = width(&m.gate).max(width(&m.up));
    // SAFETY: the caller's contract; a claim is this thread's.
    unsafe {
        while let Some(claim) = claim(m, w, &m.gate.matrix.layout, unit) {
            let out = m.work.hidden.add(claim.segment.first * m.hidden);
            let (first, n) = claim.columns(m.hidden);
            // The strip beside it starts at its first row and column.
            let strip = side.wrapping_sub(claim.rows.start * STRIP + first);
            claim.product(m, c, &m.gate, out, m.hidden);
            claim.product(m, c, &m.up, strip, STRIP);
            for row in claim.rows {
                let g = out.add(row * m.hidden + first);
                let u = strip.wrapping_add(row * STRIP + first);
                match m.gating {
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
/// As for [`part`].
unsafe fn down(m: &Mixture, c: &Context<'_>, w: &Worker<'_>) {
    let layout = &m.down.matrix.layout;
    // SAFETY: the caller's contract; a claim is this thread's.
    unsafe {
        while let Some(claim) = claim(m, w, layout, layout.panel_width()) {
            let out = m.work.results.add(claim.segment.first * m.width);
            claim.product(m, c, &m.down, out, m.width);
        }
    }
}

/// Adds up the results of each row's pairs, best expert first.
///
/// # Safety
///
/// As for [`part`].
unsafe fn combine(m: &Mixture, c: &Context<'_>, w: &Worker<'_>) {
    let count = m.routing.chosen;
    let piece = ARRANGE.min(m.width);
    let pieces = m.width.div_ceil(piece);
    // SAFETY: the caller's contract; pieces of rows are different.
    unsafe {
        for item in w.part(c.rows(m.rows) * pieces) {
            let (row, start) = (item / pieces, item % pieces * piece);
            let n = piece.min(m.width - start);
            let out = m.out.add(row * m.width + start);
            out.write_bytes(0, n);
            for pair in row * count..(row + 1) * count {
                let from = *m.work.places.add(pair) as usize * m.width + start;
                norm::add_scaled(
                    c.isa,
                    *m.work.weights.add(pair),
                    m.work.results.add(from),
                    out,
                    n,
                );
            }
        }
    }
}
