//! Launches of mixtures of experts: each row's choice, products of pairs (a row and one of its experts) with the
//! experts' matrices, the weighted sum. Which experts those are is decided on the device, while the launches run.

use orind_kernels::catalogue::launch::{
    elements_grid, experts_grid, project_shared_bytes, rows_grid,
};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{CLAMPED, CombineParams, ExpertsParams, RouteParams};

use super::{Lowering, count, number_of};
use crate::Result;
use crate::gpu::launch::{Launch, Params, Region};
use crate::gpu::layout::{ALIGN, WeightLayout, unsupported};
use crate::gpu::limit;
use plan::{Class, Experts, Gating, Mixture, RouterScores};

/// Blocks of a pair's products for each SM that the pairs of a step share.
const BLOCKS_PER_SM: u32 = 8;

/// What a mixture keeps between its launches: experts of each pair, their weights, hidden values, results.
const PARTS: usize = 4;

/// Bytes of each part.
fn parts(op: &Mixture) -> [u64; PARTS] {
    let [rows, width] = op.x.shape[..] else { unreachable!("plans are validated") };
    let pairs = (rows * op.routing.chosen) as u64;
    [4 * pairs, 4 * pairs, 4 * pairs * op.hidden() as u64, 4 * pairs * width as u64]
}

/// Bytes that it keeps.
pub(in crate::gpu) fn work_bytes(op: &Mixture) -> u64 {
    parts(op).iter().map(|bytes| bytes.next_multiple_of(ALIGN)).sum()
}

/// The same matrix of every expert.
#[derive(Clone, Copy)]
struct Matrices {
    address: u64,
    weight: Weight,
    /// Bytes to the next expert's.
    stride: u64,
    /// Of every expert; 0 for none.
    bias: u64,
    n: usize,
    k: usize,
}

impl Lowering<'_> {
    fn experts(&self, experts: &Experts) -> Result<Matrices> {
        let buffer = self.buffer(&experts.weight);
        match (self.addresses.weights.get(&buffer.name), &buffer.shape[..]) {
            (Some(&(address, layout @ WeightLayout::Experts(matrix, _))), &[_, n, k])
                if buffer.class == Class::Weight && experts.weight.shape == buffer.shape =>
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
        let [chosen, weights, hidden, results] = parts(op).map(|bytes| {
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

        let glu = match op.gating {
            Gating::Glu(activation) => number_of(activation),
            Gating::ClampedSwiGlu => CLAMPED,
        };
        let pairs = Pairs { x, chosen, out: hidden, share: picks, step: picks };
        self.pairs(label, &gate, Some((&up, glu)), &pairs, rows * picks)?;
        let pairs = Pairs { x: hidden, chosen, out: results, share: 1, step: picks };
        self.pairs(label, &down, None, &pairs, rows * picks)?;

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

    /// Products of pairs with the matrices of their experts, of a gate and what it meets together; as many pairs as
    /// one launch may have.
    fn pairs(
        &mut self,
        label: &str,
        matrices: &Matrices,
        up: Option<(&Matrices, u32)>,
        pairs: &Pairs,
        all: u32,
    ) -> Result<()> {
        let &Matrices { address, weight, stride, bias, n, k } = matrices;
        let &Pairs { x, chosen, out, share, step } = pairs;
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
            glu: up.map_or(0, |(_, glu)| glu),
            reserved: 0,
        };
        let most = (limit::pairs_of_experts(&whole) / step).max(1) * step;
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

/// What pairs are multiplied with, and where their products go.
struct Pairs {
    x: Region,
    chosen: Region,
    out: Region,
    /// Neighbouring pairs that share a row of `x`.
    share: u32,
    /// Pairs that are launched together.
    step: u32,
}
