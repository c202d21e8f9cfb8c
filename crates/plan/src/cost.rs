//! What a step moves and computes, derived from its operands.

use super::buffer::bytes_of;
use super::{Bucket, Buffer, Class, Composite, Cost, Epilogue, Op, View};

/// Cost of `op` over its operands. Attention is charged one pass over the band of every sequence
/// (not of every row): the rows of a chunk share it.
pub(crate) fn cost_of(
    op: &Op,
    reads: &[View],
    writes: &[View],
    buffers: &[Buffer],
    bucket: &Bucket,
) -> Cost {
    let mut cost = Cost { flops: flops_of(op, reads, writes, bucket), ..Cost::default() };
    let result = writes.first().map_or(0, View::elements);
    for (i, view) in reads.iter().enumerate() {
        let buffer = &buffers[view.buffer.index()];
        let elements = match (op, i) {
            // A gather touches only the rows it fetches.
            (Op::Gather, 0) => result,
            (Op::Composite(Composite::Attention { .. }), 1 | 2) => {
                bucket.batch * bucket.context * view.shape[2..].iter().product::<usize>()
            }
            _ => view.distinct_elements(),
        };
        charge(&mut cost, buffer, elements);
    }
    for view in writes {
        let buffer = &buffers[view.buffer.index()];
        let elements = match op {
            // A scatter touches only the rows it stores; the values are its last operand.
            Op::Scatter | Op::Composite(Composite::KvWrite) => {
                reads.last().map_or(0, View::elements)
            }
            Op::RopeKv { queries, .. } if buffer.class == Class::State => {
                reads[usize::from(*queries)].elements()
            }
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

fn flops_of(op: &Op, reads: &[View], writes: &[View], bucket: &Bucket) -> u64 {
    let elements = |views: &[View], i: usize| views.get(i).map_or(0, View::elements) as u64;
    let product = |x: &View, w: &View| {
        let inner = x.shape.last().copied().unwrap_or(0) as u64;
        let rows = x.elements() as u64 / inner.max(1);
        2 * rows * inner * w.shape.get(w.shape.len().wrapping_sub(2)).copied().unwrap_or(0) as u64
    };
    match op {
        Op::Unary(_) | Op::Binary(_) => elements(writes, 0),
        Op::Reduce { .. } => elements(reads, 0),
        Op::MatMul => product(&reads[0], &reads[1]),
        Op::Cast | Op::Copy | Op::Pad { .. } | Op::Iota | Op::Gather | Op::Scatter | Op::Assign => {
            0
        }
        Op::Sample | Op::SampleAdvance => 2 * elements(reads, 0),
        Op::Composite(composite) => match composite {
            Composite::RmsNorm { .. } => 4 * elements(reads, 0),
            Composite::RopeTable { .. } => 2 * elements(writes, 0),
            Composite::Rope { .. } => 3 * elements(reads, 0),
            Composite::SwiGlu => 5 * elements(reads, 0),
            Composite::KvWrite => 0,
            // Scores and the weighted sum: two products over the band for each element of q.
            Composite::Attention { .. } => 4 * elements(reads, 0) * bucket.context as u64,
        },
        Op::Project { norm, weights, epilogue } => {
            let first = 1 + usize::from(norm.is_some());
            let mut flops: u64 =
                reads[first..first + weights].iter().map(|w| product(&reads[0], w)).sum();
            if norm.is_some() {
                flops += 4 * elements(reads, 0);
            }
            flops
                + match epilogue {
                    Epilogue::None => 0,
                    Epilogue::SwiGlu => 5 * elements(writes, 0),
                    Epilogue::Residual => elements(writes, 0),
                }
        }
        Op::RopeKv { norm, queries, .. } => {
            let per = if norm.is_some() { 7 } else { 3 };
            per * (0..=usize::from(*queries)).map(|i| elements(reads, i)).sum::<u64>()
        }
    }
}
