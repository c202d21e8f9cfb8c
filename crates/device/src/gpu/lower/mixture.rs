//! Launches of MoE layers: the router, matmuls of pairs (row and expert), and the weighted sum. The
//! device chooses the experts while the launches run. Few pairs run individually; the many pairs of
//! a prompt are grouped by expert, so that a tile shares the weights it reads.

use orind_kernels::catalogue::launch::{
    GROUP_GRID, GROUP_TILE, elements_grid, experts_grid, group_tiles, matmul_activations_bytes,
    matmul_grid, matmul_shared_bytes, matmul_takes, project_shared_bytes, quantise_grid,
    quantise_shared_bytes, rows_grid,
};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{
    CLAMPED, CombineParams, ExpertsParams, GroupParams, MatmulParams, QuantiseParams, RouteParams,
    Segment,
};

use super::{Lowering, count, number_of};
use crate::Result;
use crate::gpu::launch::{Launch, Params, Region};
use crate::gpu::limit;
use crate::gpu::storage::{ALIGN, unsupported};
use plan::{Class, Experts, Gating, Mixture, Plan, RouterScores};

/// Blocks per SM that the pairs of a step share.
const BLOCKS_PER_SM: u32 = 8;

/// Average pairs per expert from which pairs are grouped. A tile costs the instructions of about
/// five individual pairs, and reads the weights once.
const GROUPED: usize = 4;

/// Intermediate results of an MoE layer: experts of each pair, weights, hidden values, results,
/// grouped pairs, and the experts of tiles.
const PARTS: usize = 6;

/// Size of each part in bytes.
fn parts(op: &Mixture) -> [u64; PARTS] {
    let [rows, width] = op.x.shape[..] else { unreachable!("plans are validated") };
    let (pairs, tiles) = ((rows * op.routing.chosen) as u64, u64::from(tiles(op)));
    let hidden = op.hidden() as u64;
    let places = tiles * u64::from(GROUP_TILE);
    [4 * pairs, 4 * pairs, 4 * pairs * hidden, 4 * pairs * width as u64, 4 * places, 4 * tiles]
}

/// Size of all intermediate results in bytes.
pub(in crate::gpu) fn work_bytes(op: &Mixture) -> u64 {
    parts(op).iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum()
}

/// Most tiles of grouped pairs; 0 if they are not grouped.
fn tiles(op: &Mixture) -> u32 {
    let pairs = op.x.shape[0] * op.routing.chosen;
    let grouped = pairs >= GROUPED * op.experts();
    if grouped { group_tiles(pairs as u32, op.experts() as u32) } else { 0 }
}

/// Bytes of quantised activations of all pairs.
pub(in crate::gpu) fn activations_bytes(plan: &Plan, op: &Mixture) -> u64 {
    let places = tiles(op) * GROUP_TILE;
    let bytes = |experts: &Experts| {
        let (buffer, k) = (plan.buffer(experts.weight.buffer), experts.weight.shape[2]);
        let weight = Weight::of(buffer.dtype).filter(|weight| weight.is_quantised());
        weight.map(|weight| matmul_activations_bytes(weight, GROUP_TILE, places, 1, k as u32))
    };
    bytes(&op.gate).max(bytes(&op.down)).unwrap_or(0)
}

/// The same matrix of every expert.
#[derive(Clone, Copy)]
struct Matrices {
    address: u64,
    weight: Weight,
    /// Bytes between consecutive experts.
    stride: u64,
    /// Bias of every expert; 0 for none.
    bias: u64,
    n: usize,
    k: usize,
}

/// Pairs of a step.
struct Pairs {
    /// Expert of each pair.
    chosen: Region,
    all: u32,
    /// Pairs per row; a row's pairs are in one launch.
    of_row: u32,
    /// Grouped pairs, and the experts of tiles.
    by_expert: Region,
    experts: Region,
    tiles: u32,
}

/// Matmul of pairs, and destination of the products.
struct Products<'a> {
    matrices: &'a Matrices,
    /// Up projection of a gated unit, and its activation.
    up: Option<(&'a Matrices, u32)>,
    x: Region,
    /// Consecutive pairs that share a row of `x`.
    share: u32,
    out: Region,
}

impl Products<'_> {
    fn glu(&self) -> u32 {
        self.up.map_or(0, |(_, glu)| glu)
    }

    /// The first expert's matrices for a `matmul_*` launch.
    fn segments(&self) -> Result<[Segment; 3]> {
        let mut segments = [Segment::default(); 3];
        let matrices = std::iter::once(self.matrices).chain(self.up.map(|(up, _)| up));
        for (segment, &Matrices { address, bias, n, .. }) in segments.iter_mut().zip(matrices) {
            let (weights, n) = (address, count(n)?);
            *segment = Segment { weights, bias, n, planes: 1, ..Segment::default() };
        }
        segments[0].out = self.out.address;
        Ok(segments)
    }
}

impl Lowering<'_> {
    fn experts(&self, experts: &Experts) -> Result<Matrices> {
        let buffer = self.buffer(&experts.weight);
        match (self.addresses.weights.get(&buffer.name), &buffer.shape[..]) {
            (Some(&(address, layout)), &[_, n, k])
                if let Some((matrix, _)) = layout.matrices()
                    && buffer.class == Class::Weight
                    && experts.weight.shape == buffer.shape =>
            {
                let (weight, bias) = (matrix.weight(), self.optional(experts.bias.as_ref())?);
                Ok(Matrices { address, weight, stride: layout.stride(), bias, n, k })
            }
            _ => Err(unsupported(format!("`{}` as matrices of experts", buffer.name))),
        }
    }

    pub(super) fn mixture(&mut self, label: &str, op: &Mixture) -> Result<()> {
        let [gate, up, down] = [&op.gate, &op.up, &op.down].map(|experts| self.experts(experts));
        let (gate, up, down) = (gate?, up?, down?);
        if (gate.weight, gate.stride) != (up.weight, up.stride) {
            return Err(unsupported(format!("gate and up of different types ({label})")));
        }
        let [x, logits, out] = [&op.x, &op.logits, &op.out].map(|view| self.f32(view));
        let (x, logits, out) = (x?, logits?, out?);
        let mut at = self.addresses.mixture();
        let [chosen, weights, hidden, results, by_expert, experts] = parts(op).map(|bytes| {
            let part = Region::new(at, bytes);
            at += bytes.next_multiple_of(ALIGN);
            part
        });
        let (rows, picks) = (count(op.x.shape[0])?, count(op.routing.chosen)?);
        let params = RouteParams {
            logits: logits.address,
            preference: self.optional(op.preference.as_ref())?,
            scales: self.optional(op.scales.as_ref())?,
            chosen: chosen.address,
            weights: weights.address,
            experts: count(op.experts())?,
            count: picks,
            rows,
            sigmoid: u32::from(op.routing.scores == RouterScores::Sigmoid),
            normalised: u32::from(op.routing.normalised),
            scale: op.routing.scale.get(),
        };
        let (params, writes) = (Params::Route(params), vec![chosen, weights]);
        self.launch(label, Kernel::Route, rows_grid(rows), params, vec![logits], writes);

        let (all, tiles) = (rows * picks, tiles(op));
        let pairs = Pairs { chosen, all, of_row: picks, by_expert, experts, tiles };
        if tiles > 0 {
            let params = GroupParams {
                chosen: chosen.address,
                pairs: by_expert.address,
                experts: experts.address,
                count: all,
                of: count(op.experts())?,
                tile: GROUP_TILE,
                tiles,
            };
            let (params, writes) = (Params::Group(params), vec![by_expert, experts]);
            self.launch(label, Kernel::Group, GROUP_GRID, params, vec![chosen], writes);
        }
        let glu = match op.gating {
            Gating::Glu(activation) => number_of(activation),
            Gating::ClampedSwiGlu => CLAMPED,
        };
        let up = Some((&up, glu));
        let products = Products { matrices: &gate, up, x, share: picks, out: hidden };
        self.products(label, &products, &pairs)?;
        let products = Products { matrices: &down, up: None, x: hidden, share: 1, out: results };
        self.products(label, &products, &pairs)?;

        let params = CombineParams {
            results: results.address,
            weights: weights.address,
            out: out.address,
            n: count(down.n)?,
            rows,
            count: picks,
            reserved: 0,
        };
        let (grid, params) = (elements_grid(params.n, rows), Params::Combine(params));
        self.launch(label, Kernel::Combine, grid, params, vec![results, weights], vec![out]);
        Ok(())
    }

    /// Launches the products of pairs with their experts' matrices; gate and up together.
    fn products(&mut self, label: &str, products: &Products<'_>, pairs: &Pairs) -> Result<()> {
        let &Matrices { weight, k, .. } = products.matrices;
        if pairs.tiles > 0 && matmul_takes(weight, k) {
            let most = limit::tiles_of_experts(weight, &products.segments()?, count(k)?);
            if let Some(most) = most {
                return self.grouped(label, products, pairs, most);
            }
        }
        self.pairs(label, products, pairs)
    }

    /// Grouped pairs: converts activations if needed, then launches a limited number of tiles at a
    /// time.
    fn grouped(
        &mut self,
        label: &str,
        products: &Products<'_>,
        pairs: &Pairs,
        most: u32,
    ) -> Result<()> {
        let &Products { matrices, x, share, out, .. } = products;
        let &Matrices { weight, stride, n, k, .. } = matrices;
        let &Pairs { all, by_expert, experts, tiles, .. } = pairs;
        let (segments, glu) = (products.segments()?, products.glu());
        let (n, columns) = (count(n)?, count(k)?);
        let (mut activations, mut of_tile) = (x, 0);
        if weight.is_quantised() {
            activations = self.addresses.activations();
            of_tile = matmul_activations_bytes(weight, GROUP_TILE, GROUP_TILE, 1, columns);
            let shared_bytes = quantise_shared_bytes(weight, 1, k).ok_or_else(|| {
                unsupported(format!("{k} columns of {} ({label})", weight.name()))
            })?;
            let params = QuantiseParams {
                x: x.address,
                norm_weight: 0,
                out: activations.address,
                pairs: by_expert.address,
                k: columns,
                rows: all,
                tile: GROUP_TILE,
                planes: 1,
                eps: 0.0,
                share,
            };
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel: Kernel::Quantise(weight),
                grid: quantise_grid(GROUP_TILE, tiles * GROUP_TILE),
                shared_bytes,
                params: Params::Quantise(params),
                reads: vec![x, by_expert],
                writes: vec![activations],
            });
        }
        for first in (0..tiles).step_by(most as usize) {
            let (tiles, at) = (most.min(tiles - first), u64::from(first));
            let params = MatmulParams {
                activations: activations.address + at * of_tile,
                residual: 0,
                pairs: by_expert.address + 4 * at * u64::from(GROUP_TILE),
                experts: experts.address + 4 * at,
                stride,
                segments,
                k: columns,
                rows: all,
                swiglu: glu,
                planes: 1,
                share,
                reserved: 0,
            };
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel: Kernel::Matmul { weight, tile: GROUP_TILE },
                grid: matmul_grid(GROUP_TILE, tiles * GROUP_TILE, &[n], glu > 0),
                shared_bytes: matmul_shared_bytes(weight, GROUP_TILE),
                params: Params::Matmul(params),
                reads: vec![activations, by_expert, experts],
                writes: vec![out],
            });
        }
        Ok(())
    }

    /// Individual pairs, up to the launch limit at a time.
    fn pairs(&mut self, label: &str, products: &Products<'_>, pairs: &Pairs) -> Result<()> {
        let &Products { matrices, up, x, share, out } = products;
        let &Matrices { address, weight, stride, bias, n, k } = matrices;
        let &Pairs { chosen, all, of_row, .. } = pairs;
        let shared_bytes = project_shared_bytes(weight, 1, 1, k)
            .ok_or_else(|| unsupported(format!("{k} columns of {} ({label})", weight.name())))?;
        let whole = ExpertsParams {
            x: x.address,
            chosen: chosen.address,
            first: address,
            second: up.map_or(0, |(up, _)| up.address),
            stride,
            first_bias: bias,
            second_bias: up.map_or(0, |(up, _)| up.bias),
            out: out.address,
            n: count(n)?,
            k: count(k)?,
            pairs: all,
            share,
            glu: products.glu(),
            reserved: 0,
        };
        let most = (limit::pairs_of_experts(&whole) / of_row).max(1) * of_row;
        let blocks = (self.addresses.sms * BLOCKS_PER_SM).div_ceil(all);
        for first in (0..all).step_by(most as usize) {
            let (pairs, at) = (most.min(all - first), u64::from(first));
            let params = ExpertsParams {
                x: x.address + 4 * at / u64::from(share) * k as u64,
                chosen: chosen.address + 4 * at,
                out: out.address + 4 * at * n as u64,
                pairs,
                ..whole
            };
            self.launches.push(Launch {
                step: self.at,
                label: label.to_owned(),
                kernel: Kernel::Experts(weight),
                grid: experts_grid(weight, whole.n, up.is_some(), pairs, blocks),
                shared_bytes,
                params: Params::Experts(params),
                reads: vec![x, chosen],
                writes: vec![out],
            });
        }
        Ok(())
    }
}
