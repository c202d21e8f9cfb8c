//! Launches of projections: kernel selection for a step's matrices and rows, and launches for few
//! rows.

use std::ops::Range;

use orind_kernels::catalogue::launch::{
    matmul_takes, matmul_tile, project_shared_bytes, project_tiles,
};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{ProjectParams, Segment};

use super::{Addresses, Lowering, count, number_of, rows_of};
use crate::gpu::launch::{Launch, Params, Region};
use crate::gpu::storage::unsupported;
use crate::gpu::variant::{self, Shape};
use crate::{Result, precision};
use plan::{Class, Cost, Linear, NormKind, Op, Plan, Product, Project, View};

/// Most rows of activations of a projection launch.
pub(super) const PROJECT_ROWS: usize = 8;

/// A weight matrix and the destination of its products; with a gated unit only the gate has one.
#[derive(Clone, Copy)]
pub(super) struct Matrix {
    pub(super) address: u64,
    pub(super) weight: Weight,
    pub(super) n: u32,
    /// Planes of activations to multiply.
    pub(super) planes: u32,
    /// Bias, 0 for none; then the activation's number.
    pub(super) bias: u64,
    pub(super) activation: u32,
    pub(super) out: Option<Region>,
}

impl Matrix {
    /// Segment of a launch that writes to `out`.
    fn segment(&self, out: Option<Region>) -> Segment {
        let &Self { address, n, planes, bias, activation, .. } = self;
        let out = out.map_or(0, |out| out.address);
        Segment { weights: address, out, bias, n, planes, activation, reserved: 0 }
    }
}

/// Segments of a launch, with the destinations of the step's first row.
pub(super) fn segments(matrices: &[Matrix]) -> [Segment; 3] {
    let mut segments = [Segment::default(); 3];
    for (segment, matrix) in segments.iter_mut().zip(matrices) {
        *segment = matrix.segment(matrix.out);
    }
    segments
}

/// A projection without its matrices.
pub(super) struct Projection {
    pub(super) x: Region,
    pub(super) k: usize,
    /// 0 for no norm.
    pub(super) norm_weight: u64,
    pub(super) eps: f32,
    pub(super) residual: Option<Region>,
    /// Activation's number of a gated unit, else 0.
    pub(super) glu: u32,
}

/// Rows of activations of one launch.
#[derive(Clone, Copy)]
struct Chunk {
    first: usize,
    rows: usize,
    /// Rows that the kernel is compiled for.
    room: u32,
    planes: u32,
    shared_bytes: u32,
}

/// The first rows, as many as one launch supports.
fn chunk(weight: Weight, planes: u32, rows: Range<usize>, k: usize) -> Option<Chunk> {
    (1..=rows.len().min(PROJECT_ROWS)).rev().find_map(|take| {
        let kernel = Kernel::project(weight, u32::try_from(take).ok()?, planes)?;
        let Kernel::Project { rows: room, .. } = kernel else { return None };
        let shared_bytes = project_shared_bytes(weight, room, planes, k)?;
        Some(Chunk { first: rows.start, rows: take, room, planes, shared_bytes })
    })
}

/// All rows, split into launches. `None` if no kernel supports this many columns.
fn chunks(weight: Weight, planes: u32, rows: usize, k: usize) -> Option<Vec<Chunk>> {
    let mut chunks = Vec::new();
    let mut first = 0;
    while first < rows {
        let chunk = chunk(weight, planes, first..rows, k)?;
        first += chunk.rows;
        chunks.push(chunk);
    }
    Some(chunks)
}

/// Planes of activations for products with a matrix.
fn planes(plan: &Plan, weight: Weight, out: &View) -> u32 {
    if weight.is_quantised() { precision::residual_planes_of(plan, out) as u32 } else { 1 }
}

/// Cost of a plan, counting that each launch of a projection reads its matrices again.
pub(in crate::gpu) fn cost(plan: &Plan) -> Cost {
    let mut cost = plan.cost();
    for step in &plan.steps {
        let Op::Project(project) = &step.op else { continue };
        let (rows, k) = rows_of(&project.x);
        let of = |view: &View| Weight::of(plan.buffer(view.buffer).dtype);
        for view in project.product.weights() {
            let few = of(view)
                .filter(|&weight| !matmul_takes(weight, k) || matmul_tile(weight, rows).is_none());
            let launches = few.and_then(|weight| {
                let planes = match &project.product {
                    Product::Each(each) => each
                        .iter()
                        .filter(|linear| of(&linear.weight) == Some(weight))
                        .map(|linear| planes(plan, weight, &linear.out))
                        .max()?,
                    Product::Glu { out, .. } | Product::Residual { out, .. } => {
                        planes(plan, weight, out)
                    }
                };
                chunks(weight, planes, rows, k)
            });
            // Steps without kernel are rejected by `lower`.
            let again = launches.map_or(0, |launches| launches.len() - 1);
            cost.weight_bytes += plan.buffer(view.buffer).bytes() * again as u64;
        }
    }
    cost
}

#[expect(clippy::cast_precision_loss, reason = "dimensions are far below 2^24")]
fn inverse(n: usize) -> f32 {
    1.0 / n as f32
}

impl Lowering<'_> {
    pub(super) fn matrix(&self, view: &View, out: Option<&View>) -> Result<Matrix> {
        let buffer = self.buffer(view);
        match self.addresses.weights.get(&buffer.name) {
            Some(&(address, weight))
                if let Some((layout, 1)) = weight.matrices()
                    && buffer.class == Class::Weight
                    && view.shape.len() == 2
                    && view.shape == buffer.shape =>
            {
                let weight = layout.weight();
                let planes = out.map_or(1, |out| planes(self.plan, weight, out));
                let out = out.map(|out| self.f32(out)).transpose()?;
                let n = count(view.shape[0])?;
                Ok(Matrix { address, weight, n, planes, bias: 0, activation: 0, out })
            }
            _ => Err(unsupported(format!("`{}` as a matrix of weights", buffer.name))),
        }
    }

    fn linear(&self, linear: &Linear) -> Result<Matrix> {
        Ok(Matrix {
            bias: self.optional(linear.bias.as_ref())?,
            activation: linear.activation.map_or(0, number_of),
            ..self.matrix(&linear.weight, Some(&linear.out))?
        })
    }

    /// Launches products of the rows, one weight type at a time, with as many rows as a kernel
    /// supports.
    pub(super) fn project(&mut self, label: &str, project: &Project) -> Result<()> {
        let (rows, k) = rows_of(&project.x);
        let mut projection = Projection {
            x: self.f32(&project.x)?,
            k,
            norm_weight: 0,
            eps: 0.0,
            residual: None,
            glu: 0,
        };
        match &project.norm {
            Some(norm) if norm.kind == NormKind::Layer => {
                let normed = Region::new(self.addresses.normed().address, projection.x.bytes);
                self.norm(label, norm, (rows, k), projection.x, normed)?;
                projection.x = normed;
            }
            Some(norm) => {
                projection.norm_weight = self.f32(&norm.weight)?.address;
                projection.eps = norm.eps.get();
            }
            None => {}
        }
        let mut matrices = match &project.product {
            Product::Each(each) => {
                each.iter().map(|linear| self.linear(linear)).collect::<Result<Vec<_>, _>>()?
            }
            Product::Glu { activation, gate, up, out } => {
                projection.glu = number_of(*activation);
                let (gate, up) = (self.matrix(gate, Some(out))?, self.matrix(up, None)?);
                if gate.weight != up.weight {
                    let what = format!("gate and up of different types ({label})");
                    return Err(unsupported(what));
                }
                vec![gate, up]
            }
            Product::Residual { weight, bias, residual, out } => {
                projection.residual = Some(self.f32(residual)?);
                let bias = self.optional(bias.as_ref())?;
                vec![Matrix { bias, ..self.matrix(weight, Some(out))? }]
            }
        };
        while let Some(&Matrix { weight, .. }) = matrices.first() {
            let (same, rest): (Vec<_>, Vec<_>) =
                matrices.into_iter().partition(|m| m.weight == weight);
            matrices = rest;
            let planes = same.iter().map(|m| m.planes).max().unwrap_or(1);
            if let Some(tiles) = self.tiles(&projection, &same, planes, rows)? {
                self.matmul(label, &projection, &same, planes, rows, tiles)?;
                continue;
            }
            let chunks = chunks(weight, planes, rows, k).ok_or_else(|| {
                unsupported(format!("{k} columns of {} ({label})", weight.name()))
            })?;
            for chunk in chunks {
                self.project_rows(label, &projection, &same, chunk)?;
            }
        }
        Ok(())
    }

    /// One launch: a chunk of rows, and matrices of one type.
    fn project_rows(
        &mut self,
        label: &str,
        projection: &Projection,
        matrices: &[Matrix],
        chunk: Chunk,
    ) -> Result<()> {
        let &Projection { x, k, norm_weight, eps, residual, glu } = projection;
        let Chunk { first, rows, room, planes, shared_bytes } = chunk;
        // Rows of this launch within the rows of the step.
        let part = |whole: Region, n: u64| {
            Region::new(whole.address + 4 * n * first as u64, 4 * n * rows as u64)
        };
        let mut segments = [Segment::default(); 3];
        let mut writes = Vec::new();
        for (segment, matrix) in segments.iter_mut().zip(matrices) {
            let out = matrix.out.map(|out| part(out, u64::from(matrix.n)));
            writes.extend(out);
            *segment = matrix.segment(out);
        }
        let x = part(x, k as u64);
        let residual = residual.map(|r| part(r, u64::from(segments[0].n)));
        let params = ProjectParams {
            x: x.address,
            norm_weight,
            residual: residual.map_or(0, |r| r.address),
            segments,
            k: count(k)?,
            rows: count(rows)?,
            swiglu: glu,
            eps,
            inverse_k: inverse(k),
            ..ProjectParams::default()
        };
        let weight = matrices[0].weight;
        let Addresses { sms, tuning, .. } = self.addresses;
        let case = variant::case(weight, planes, room, &params.segments, glu > 0, params.k);
        let Shape { variant, blocks } = tuning.shape(weight, &case);
        let ns: Vec<u32> = matrices.iter().map(|m| m.n).take(if glu > 0 { 1 } else { 3 }).collect();
        self.launches.push(Launch {
            step: self.at,
            label: label.to_owned(),
            kernel: Kernel::Project { weight, rows: room, planes, variant },
            // More blocks than fit at a time would only stage the same activations again.
            grid: [project_tiles(variant, &ns, glu > 0).min(sms * blocks).max(1), 1, 1],
            shared_bytes,
            params: Params::Project(params),
            reads: std::iter::once(x).chain(residual).collect(),
            writes,
        });
        Ok(())
    }
}
