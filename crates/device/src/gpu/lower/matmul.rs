//! Launches of matmuls of many rows: conversion of activations (quantised, half precision, or
//! normalised), then products.

use orind_kernels::catalogue::launch::{
    HALF_ROWS, HALF_TILE, MATMUL_HALF_SHARED_BYTES, matmul_grid, matmul_shared_bytes, matmul_takes,
    quantise_grid, quantise_shared_bytes, rows_grid,
};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{MatmulParams, QuantiseParams, RowsParams};

use super::project::{Matrix, Projection, segments};
use super::{Lowering, count};
use crate::Result;
use crate::gpu::launch::{Launch, Params, Region};
use crate::gpu::storage::unsupported;
use crate::gpu::{limit, variant};
use plan::{Plan, Precision};

/// Row limits and precision of a matmul.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    /// Rows of a block.
    tile: u32,
    /// Most rows of a launch.
    most: usize,
    /// True if it uses half precision.
    half: bool,
}

/// Returns whether a plan's steps of `rows` rows use half precision where kernels support it.
pub(super) fn takes_half(plan: &Plan, rows: usize) -> bool {
    plan.precision == Precision::Half && plan.bucket.chunk >= HALF_ROWS && rows >= HALF_ROWS
}

/// Returns whether a matmul of this shape and weight type uses half precision.
pub(in crate::gpu) fn takes_halves(plan: &Plan, weight: Weight, rows: usize, k: usize) -> bool {
    takes_half(plan, rows)
        && weight.is_half()
        && matmul_takes(weight, k)
        && quantise_shared_bytes(weight, 1, k).is_some()
}

impl Lowering<'_> {
    /// Tile for products of `rows` rows with matrices of one type; `None` for projection kernels.
    pub(super) fn tiles(
        &self,
        projection: &Projection,
        matrices: &[Matrix],
        planes: u32,
        rows: usize,
    ) -> Result<Option<Tiles>> {
        let &Projection { k, glu, .. } = projection;
        let (weight, segments, cols) = (matrices[0].weight, segments(matrices), count(k)?);
        if takes_halves(self.plan, weight, rows, k) {
            let most = limit::rows_of_matmul(weight, HALF_TILE, &segments, cols);
            return Ok(most.map(|most| Tiles { tile: HALF_TILE, most: most as usize, half: true }));
        }
        let case = |batch| variant::case(weight, planes, batch, &segments, glu > 0, cols);
        let tile = self.addresses.tuning.tile(weight, rows, case);
        let tile = tile.filter(|_| matmul_takes(weight, k));
        let tiles = tile.and_then(|tile| {
            let most = limit::rows_of_matmul(weight, tile, &segments, cols)?;
            Some(Tiles { tile, most: most as usize, half: false })
        });
        Ok(tiles)
    }

    /// Launches a matmul of many rows with matrices of one type, split into launches of limited
    /// size.
    pub(super) fn matmul(
        &mut self,
        label: &str,
        projection: &Projection,
        matrices: &[Matrix],
        planes: u32,
        all: usize,
        tiles: Tiles,
    ) -> Result<()> {
        let &Projection { x, k, residual, glu, .. } = projection;
        let (weight, k) = (matrices[0].weight, count(k)?);
        let Tiles { tile, most, half } = tiles;
        let (kernel, shared_bytes) = if half {
            (Kernel::MatmulHalf(weight), MATMUL_HALF_SHARED_BYTES)
        } else {
            (Kernel::Matmul { weight, tile }, matmul_shared_bytes(weight, tile))
        };
        let segments = segments(matrices);
        let ns: Vec<u32> = matrices.iter().map(|m| m.n).take(if glu > 0 { 1 } else { 3 }).collect();
        for first in (0..all).step_by(most) {
            let rows = most.min(all - first);
            // Rows of these launches within the rows of the step.
            let part = |whole: Region, n: u32| {
                let (first, rows, n) = (first as u64, rows as u64, u64::from(n));
                Region::new(whole.address + 4 * n * first, 4 * n * rows)
            };
            let x = part(x, k);
            let rows = count(rows)?;
            let activations =
                self.activations(label, projection, weight, planes, x, rows, tiles)?;
            let mut of_rows = segments;
            let mut writes = Vec::new();
            for (segment, matrix) in of_rows.iter_mut().zip(matrices) {
                let Some(out) = matrix.out.map(|out| part(out, matrix.n)) else { continue };
                segment.out = out.address;
                writes.push(out);
            }
            let residual = residual.map(|r| part(r, segments[0].n));
            let params = MatmulParams {
                activations: activations.address,
                residual: residual.map_or(0, |r| r.address),
                segments: of_rows,
                k,
                rows,
                swiglu: glu,
                planes,
                share: 1,
                ..MatmulParams::default()
            };
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel,
                grid: matmul_grid(tile, rows, &ns, glu > 0),
                shared_bytes,
                params: Params::Matmul(params),
                reads: std::iter::once(activations).chain(residual).collect(),
                writes,
            });
        }
        Ok(())
    }

    /// Launches the conversion of activations; none for plain weights without norm.
    #[expect(clippy::too_many_arguments, reason = "all parts of a launch")]
    fn activations(
        &mut self,
        label: &str,
        projection: &Projection,
        weight: Weight,
        planes: u32,
        x: Region,
        rows: u32,
        Tiles { tile, half, .. }: Tiles,
    ) -> Result<Region> {
        let &Projection { norm_weight, eps, k: columns, .. } = projection;
        let k = count(columns)?;
        let out = self.addresses.activations();
        let (kernel, grid, shared_bytes, params) = if half || weight.is_quantised() {
            let kernel = if half { Kernel::Halves(weight) } else { Kernel::Quantise(weight) };
            let shared_bytes = quantise_shared_bytes(weight, planes, columns).ok_or_else(|| {
                unsupported(format!("{k} columns of {} ({label})", weight.name()))
            })?;
            let params = QuantiseParams {
                x: x.address,
                norm_weight,
                out: out.address,
                pairs: 0,
                k,
                rows,
                tile,
                planes,
                eps,
                share: 1,
            };
            let grid = quantise_grid(tile, rows);
            (kernel, grid, shared_bytes, Params::Quantise(params))
        } else if norm_weight != 0 {
            let (a, b, out) = (x.address, norm_weight, out.address);
            let params = RowsParams { a, b, out, n: k, rows, eps, reserved: 0 };
            (Kernel::RmsNorm, rows_grid(rows), 0, Params::Rows(params))
        } else {
            return Ok(x);
        };
        self.launches.push(Launch {
            step: self.at,
            label: label.to_owned(),
            kernel,
            grid,
            shared_bytes,
            params,
            reads: vec![x],
            writes: vec![out],
        });
        Ok(out)
    }
}
