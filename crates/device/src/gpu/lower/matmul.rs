//! Launches of products of many rows on tensor cores: the rows as integers, then the products.

use orind_kernels::catalogue::launch::{
    matmul_grid, matmul_shared_bytes, quantise_grid, quantise_shared_bytes,
};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{MatmulParams, QuantiseParams};

use super::project::{Matrix, PROJECT_ROWS, Projection, segments};
use super::{Lowering, count};
use crate::Result;
use crate::gpu::launch::{Launch, Params, Region};
use crate::gpu::layout::unsupported;

/// Whether so many rows meet a matrix on tensor cores: more than the kernels for few rows take at once.
pub(in crate::gpu) const fn is_matmul(weight: Weight, rows: usize) -> bool {
    weight.is_quantised() && rows > PROJECT_ROWS
}

impl Lowering<'_> {
    /// Products of many rows with matrices of one type: the rows as integers, then one launch for at `most` so
    /// many of them.
    pub(super) fn matmul(
        &mut self,
        label: &str,
        projection: &Projection,
        matrices: &[Matrix],
        planes: u32,
        all: usize,
        most: usize,
    ) -> Result<()> {
        let &Projection { x, k, norm_weight, eps, residual, swiglu } = projection;
        let (weight, k) = (matrices[0].weight, count(k)?);
        let segments = segments(matrices);
        let ns: Vec<u32> = matrices.iter().map(|m| m.n).take(if swiglu { 1 } else { 3 }).collect();
        let shared_bytes = quantise_shared_bytes(weight, planes, k as usize)
            .ok_or_else(|| unsupported(format!("{k} columns of {} ({label})", weight.name())))?;
        let activations = self.addresses.activations();
        for first in (0..all).step_by(most) {
            let rows = most.min(all - first);
            // The rows of these launches within the rows of the step.
            let part = |whole: Region, n: u32| {
                let (first, rows, n) = (first as u64, rows as u64, u64::from(n));
                Region::new(whole.address + 4 * n * first, 4 * n * rows)
            };
            let x = part(x, k);
            let rows = count(rows)?;
            let [quants, extras] = activations.map(|region| region.address);
            let quantise =
                QuantiseParams { x: x.address, norm_weight, quants, extras, k, rows, planes, eps };
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel: Kernel::Quantise(weight),
                grid: quantise_grid(rows),
                shared_bytes,
                params: Params::Quantise(quantise),
                reads: vec![x],
                writes: activations.to_vec(),
            });
            let mut of_rows = segments;
            let mut writes = Vec::new();
            for (segment, matrix) in of_rows.iter_mut().zip(matrices) {
                let Some(out) = matrix.out.map(|out| part(out, matrix.n)) else { continue };
                segment.out = out.address;
                writes.push(out);
            }
            let residual = residual.map(|r| part(r, segments[0].n));
            let params = MatmulParams {
                quants,
                extras,
                residual: residual.map_or(0, |r| r.address),
                segments: of_rows,
                k,
                rows,
                swiglu: u32::from(swiglu),
                reserved: 0,
            };
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel: Kernel::Matmul(weight),
                grid: matmul_grid(rows, &ns, swiglu),
                shared_bytes: matmul_shared_bytes(weight),
                params: Params::Matmul(params),
                reads: activations.into_iter().chain(residual).collect(),
                writes,
            });
        }
        Ok(())
    }
}
