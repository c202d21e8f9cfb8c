//! Bytes that a step moves and operations that it computes, derived from its operands.

use crate::attention::{Attention, RopeKv, RopeTable};
use crate::buffer::{Buffer, Class, View, bytes_of};
use crate::conv::Conv;
use crate::elementwise::Activation;
use crate::op::{Gather, Op, Sample};
use crate::plan::Bucket;
use crate::project::{Normalise, Product, Project};
use crate::recurrent::{DeltaRule, GatedDelta, ShortConv};
use crate::step::Cost;

/// Cost of an operation. Attention is charged one pass over the context band per sequence (not per
/// row): the rows of a chunk share it.
pub(crate) fn cost_of(op: &Op, buffers: &[Buffer], bucket: &Bucket) -> Cost {
    let mut cost = Cost { flops: flops_of(op, bucket), ..Cost::default() };
    for view in op.reads() {
        let elements = match op {
            // A gather reads only the rows it fetches, and a table row that it fetches twice only
            // once.
            Op::Gather(Gather { table, out, .. }) if view == table => {
                out.elements().min(table.elements())
            }
            Op::Mixture(mixture) if mixture.of_experts(view) => {
                view.elements() / mixture.experts() * mixture.touched()
            }
            Op::Attention(Attention { scores, caches, .. })
                if *view == caches.keys || *view == caches.values =>
            {
                let band = scores.band(bucket.context, bucket.chunk);
                bucket.batch * band * view.shape[2..].iter().product::<usize>()
            }
            _ => view.distinct_elements(),
        };
        charge(&mut cost, &buffers[view.buffer.index()], elements);
    }
    for view in op.writes() {
        let buffer = &buffers[view.buffer.index()];
        let elements = match op {
            // Only the stored rows of a table or cache.
            Op::Scatter { values, .. } | Op::KvWrite { values, .. } => values.elements(),
            // One version is read, the other written.
            _ if op.memory().is_some_and(|memory| memory.state == *view) => {
                op.memory().map_or(0, |memory| 2 * memory.sequences() * memory.size())
            }
            _ if op.memory().is_some_and(|memory| memory.held == *view) => {
                op.memory().map_or(0, |memory| 4 * memory.sequences())
            }
            Op::RopeKv(RopeKv { k, .. }) if buffer.class == Class::State => k.elements(),
            _ => view.elements(),
        };
        charge(&mut cost, buffer, elements);
    }
    cost
}

fn charge(cost: &mut Cost, buffer: &Buffer, elements: usize) {
    let bytes = bytes_of(buffer.dtype, elements);
    match buffer.class {
        Class::Weight => cost.weight_bytes += bytes,
        Class::State => cost.state_bytes += bytes,
        Class::Mailbox | Class::Output | Class::Scratch => cost.other_bytes += bytes,
        Class::Constant(_) => {}
    }
}

/// Operations per element of an activation.
fn activated(activation: Option<Activation>) -> u64 {
    activation.map_or(0, |_| 4)
}

fn flops_of(op: &Op, bucket: &Bucket) -> u64 {
    let n = |view: &View| view.elements() as u64;
    let product = |x: &View, w: &View| {
        let inner = x.shape.last().copied().unwrap_or(0) as u64;
        let rows = n(x) / inner.max(1);
        2 * rows * inner * w.shape.get(w.shape.len().wrapping_sub(2)).copied().unwrap_or(0) as u64
    };
    match op {
        Op::Unary { out, .. } | Op::Binary { out, .. } | Op::Where { out, .. } => n(out),
        Op::Reduce { x, .. } | Op::ScatterAdd { values: x, .. } => n(x),
        Op::MatMul { a, b, .. } => product(a, b),
        Op::Cast { .. }
        | Op::Copy { .. }
        | Op::Pad { .. }
        | Op::Iota { .. }
        | Op::Gather(_)
        | Op::Scatter { .. }
        | Op::Assign { .. }
        | Op::KvWrite { .. } => 0,
        Op::TopK { x, .. } => n(x),
        Op::ShortConv(ShortConv { x, weight, .. }) => {
            2 * n(x) * weight.shape.last().copied().unwrap_or(0) as u64
        }
        Op::DeltaRule(DeltaRule { query, out, .. }) => {
            8 * n(query) * out.shape.last().copied().unwrap_or(0) as u64
        }
        Op::GatedDelta(GatedDelta { mixed, heads, out, .. }) => {
            4 * n(mixed) + 7 * n(out) * heads.key_size as u64
        }
        Op::Conv(Conv { weight, bias, out, .. }) => {
            let taps = weight.shape[1..].iter().product::<usize>() as u64;
            n(out) * (2 * taps + u64::from(bias.is_some()))
        }
        Op::Mixture(mixture) => {
            let [rows, width] = mixture.x.shape[..] else { return 0 };
            let pairs = (rows * mixture.routing.chosen) as u64;
            let hidden = mixture.hidden() as u64;
            pairs * (6 * hidden * width as u64 + 5 * hidden + 2 * width as u64)
                + 5 * n(&mixture.logits)
        }
        Op::Sample(Sample { logits, .. }) => 2 * n(logits),
        Op::Normalise(Normalise { x, .. }) => 4 * n(x),
        Op::Bias { x, .. } | Op::Scale { x, .. } => n(x),
        Op::SoftCap { x, .. } | Op::Activate { x, .. } => 4 * n(x),
        Op::Glu { gate, .. } => 5 * n(gate),
        Op::Gate { gate, x, .. } => 3 * n(gate) + n(x),
        Op::RopeTable(RopeTable { out, .. }) => 2 * n(out),
        Op::Rope { x, .. } => 3 * n(x),
        // Scores and the weighted sum: two products over the band for each element of q.
        Op::Attention(Attention { scores, q, .. }) => {
            4 * n(q) * scores.band(bucket.context, 1) as u64
        }
        Op::Project(Project { x, norm, product: p }) => {
            let products: u64 = p.weights().into_iter().map(|weight| product(x, weight)).sum();
            let norm = if norm.is_some() { 4 * n(x) } else { 0 };
            let after = match p {
                Product::Each(each) => each
                    .iter()
                    .map(|l| n(&l.out) * (u64::from(l.bias.is_some()) + activated(l.activation)))
                    .sum(),
                Product::Glu { out, .. } => 5 * n(out),
                Product::Residual { bias, out, .. } => n(out) * (1 + u64::from(bias.is_some())),
            };
            products + norm + after
        }
        Op::RopeKv(RopeKv { queries, k, norm, .. }) => {
            let each = if norm.is_some() { 7 } else { 3 };
            each * (queries.as_ref().map_or(0, |queries| n(&queries.q)) + n(k))
        }
    }
}
