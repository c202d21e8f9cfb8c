//! Products of token rows with weight matrices: packing of activations, projections, gated linear units.

use std::ops::Range;

use super::context::{Context, PACK_COLUMNS};
use super::operand::{Matrix, Operand};
use super::pool::Worker;
use super::row_ops::normalise;
use super::variant::{TILE_STRIDE, Variant};
use plan::{Activation, Linear, Norm};
use simd::activations::{self, ActivationFormat, TILE};
use simd::matmul::{Product, matmul};
use simd::norm;
use simd::packed::PackedLayout;
use simd::vector::LANES;

/// Packs rows, normalised if there is a norm, into the blocks that products read.
pub(super) struct PackActivations {
    pub(super) x: Operand,
    pub(super) norm: Option<Norm<Operand>>,
    /// Format for quantised weights.
    pub(super) q8: Option<ActivationFormat>,
    /// True if a weight matrix is not quantised.
    pub(super) f32: bool,
}

/// Products of the packed rows with up to three matrices.
pub(super) struct Project {
    pub(super) linears: Vec<Linear<Operand>>,
    /// For each matrix, the number of residual planes that its product uses.
    pub(super) used_planes: Vec<usize>,
    pub(super) rows: usize,
    pub(super) residual_planes: usize,
    /// Added to the product of the only matrix.
    pub(super) residual: Option<Operand>,
    pub(super) variant: Variant,
}

/// `activation(x gate^T) * (x up^T)` of the packed rows.
pub(super) struct ProjectGlu {
    pub(super) activation: Activation,
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) rows: usize,
    pub(super) residual_planes: usize,
    pub(super) out: *mut f32,
    pub(super) variant: Variant,
}

/// This thread's share of packing: whole rows if they are normalised, pieces of rows otherwise.
///
/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn pack_activations(p: &PackActivations, c: &Context<'_>, w: &Worker<'_>) {
    let (k, rows) = (p.x.last, c.rows(p.x.rows()));
    // SAFETY: blocks of different rows or pieces are different; the thread's scratch holds a row.
    unsafe {
        let piece = if p.norm.is_some() { k } else { PACK_COLUMNS.min(k) };
        let pieces = k.div_ceil(piece.max(1));
        for item in w.part(rows * pieces) {
            let (row, start) = (item / pieces, item % pieces * piece);
            let n = piece.min(k - start);
            let mut x = p.x.f32().add(row * k + start);
            if let Some(norm) = &p.norm {
                let normed = c.memory.thread(w.index());
                normalise(c.isa, norm, x, normed, n);
                x = normed;
            }
            let (blocks, before) = (activations::blocks(k), start / activations::BLOCK);
            if let Some(format) = p.q8 {
                let planes = format.residual_planes;
                let at = activations::place(row, rows, blocks * planes);
                let dst = c.memory.q8().add(at.first + before * planes * at.step);
                activations::quantise(c.isa, x, n, dst, at.step, format);
            }
            if p.f32 {
                let at = activations::place(row, rows, blocks);
                let dst = c.memory.f32().add(at.first + before * at.step);
                activations::arrange(c.isa, x, n, dst, at.step);
            }
        }
    }
}

/// Claims part of a product: the rows of one activation tile (L2), and `claim` of `groups` row groups. Tiles are claimed
/// in order, so that a thread reads one tile's activations from its cache while weights stream by.
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

/// This thread's share of the products of the packed rows with each matrix.
///
/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn project(p: &Project, c: &Context<'_>, w: &Worker<'_>) {
    // A claim never splits row groups that are stored interleaved, in any of the matrices.
    let width = |layout: &PackedLayout| layout.interleave();
    let layouts = || p.linears.iter().map(|linear| linear.weight.matrix().layout);
    let unit = layouts().map(|layout| width(&layout)).max().unwrap_or(1);
    let padded = |layout: &PackedLayout| layout.groups().next_multiple_of(unit);
    let total = layouts().map(|layout| padded(&layout)).sum();
    let of = c.rows(p.rows);
    let claim = p.variant.claim(of).next_multiple_of(unit);
    while let Some((rows, range)) = claim_product(w, of, total, claim) {
        let mut base = 0;
        for (linear, &used_planes) in p.linears.iter().zip(&p.used_planes) {
            let matrix = linear.weight.matrix();
            let groups = range.start.max(base)..range.end.min(base + matrix.layout.groups());
            if groups.start < groups.end {
                let groups = groups.start - base..groups.end - base;
                // SAFETY: the caller's contract; no other thread claims these groups of these rows.
                unsafe {
                    let x = c.activations(&matrix, p.residual_planes, used_planes);
                    let residual = p.residual.map(|residual| residual.f32().cast_const());
                    let product = Product {
                        layout: &matrix.layout,
                        weights: matrix.weights(0),
                        groups,
                        x,
                        rows: rows.clone(),
                        of,
                        out: linear.out.f32(),
                        stride: matrix.layout.rows(),
                        residual: residual.filter(|_| linear.bias.is_none()),
                        loops: p.variant.loops,
                    };
                    matmul(c.isa, &product);
                    project_epilogue(linear, &product, residual, c);
                }
            }
            base += padded(&matrix.layout);
        }
    }
}

/// Bias, activation and residual of the part of a product that was just computed.
///
/// # Safety
///
/// As for [`project`].
unsafe fn project_epilogue(
    linear: &Linear<Operand>,
    product: &Product<'_>,
    residual: Option<*const f32>,
    c: &Context<'_>,
) {
    let &Linear { bias, activation, out, .. } = linear;
    if bias.is_none() && activation.is_none() {
        return;
    }
    let (first, n) = (product.groups.start * LANES, product.layout.rows());
    let count = n.min(product.groups.end * LANES) - first;
    for row in product.rows.clone() {
        // SAFETY: the caller's contract.
        unsafe {
            let at = row * n + first;
            let y = out.f32().add(at);
            if let Some(bias) = bias {
                norm::add(c.isa, y, bias.f32().add(first), y, count);
            }
            if let Some(activation) = activation {
                norm::activate(c.isa, activation, y, y, count);
            }
            if let Some(residual) = residual {
                norm::add(c.isa, residual.add(at), y, y, count);
            }
        }
    }
}

/// This thread's share of a gated linear unit: the products with both matrices, then the elementwise part while the
/// results are in the thread's cache.
///
/// # Safety
///
/// As for [`super::execute::run`].
pub(super) unsafe fn project_glu(p: &ProjectGlu, c: &Context<'_>, w: &Worker<'_>) {
    let (of, n) = (c.rows(p.rows), p.gate.layout.rows());
    let scratch = c.memory.thread(w.index());
    let unit = p.gate.layout.interleave().max(p.up.layout.interleave());
    let claim = p.variant.claim(of).next_multiple_of(unit);
    while let Some((rows, groups)) = claim_product(w, of, p.gate.layout.groups(), claim) {
        let (first, end) = (groups.start * LANES, n.min(groups.end * LANES));
        // The scratch tile begins at the claim's first row and column.
        let tile = scratch.wrapping_sub(rows.start * TILE_STRIDE + first);
        // SAFETY: the caller's contract; no other thread claims these groups of these rows.
        unsafe {
            for (matrix, out, stride) in [(&p.gate, p.out, n), (&p.up, tile, TILE_STRIDE)] {
                let product = Product {
                    layout: &matrix.layout,
                    weights: matrix.weights(0),
                    groups: groups.clone(),
                    x: c.activations(matrix, p.residual_planes, p.residual_planes),
                    rows: rows.clone(),
                    of,
                    out,
                    stride,
                    residual: None,
                    loops: p.variant.loops,
                };
                matmul(c.isa, &product);
            }
            for row in rows {
                let g = p.out.add(row * n + first);
                let u = tile.wrapping_add(row * TILE_STRIDE + first);
                norm::glu(c.isa, p.activation, g, u, g, end - first);
            }
        }
    }
}
