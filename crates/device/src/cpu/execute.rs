//! Execution of kernel calls on the threads of a pool.
//!
//! Every thread calls [`run`] for every kernel call, with a barrier in between. Inside, the work is divided so that no
//! two threads write the same element. The division never changes a result.

use super::attention::{attend, rope_kv};
use super::context::{Context, Sampler};
use super::operand::{Operand, Storage};
use super::pool::Worker;
use super::program::KernelCall;
use super::row_ops::{index, normalise, rotate};
use super::{moe, projection, recurrent};
use plan::sample::{self, Adjustment, Sampling};
use plan::{Binary, Gather, Op, RopeTable, Sample};
use simd::{norm, rope, scores};

/// This thread's share of a kernel call.
///
/// # Safety
///
/// The call was resolved for the context's memory. All threads of the region, and no other, execute this same call.
pub(super) unsafe fn run(call: &KernelCall, c: &Context<'_>, w: &Worker<'_>) {
    let scratch = c.memory.thread(w.index());
    // SAFETY: the operands were resolved from a valid plan, so rows and widths stay inside their
    // buffers; each arm divides what it writes among the threads.
    unsafe {
        match call {
            KernelCall::Op(op) => operation(op, c, w),
            KernelCall::PackActivations(pack) => projection::pack_activations(pack, c, w),
            KernelCall::Project(project) => projection::project(project, c, w),
            KernelCall::ProjectGlu(glu) => projection::project_glu(glu, c, w),
            KernelCall::Mixture(phase, mixture) => moe::run(*phase, mixture, c, w),
            KernelCall::PrepareDelta(delta) => recurrent::prepare(delta, c, w),
            KernelCall::RecordVersions(memory) => recurrent::record_versions(memory, w),
            KernelCall::Group(kernel) => kernel.run(c.isa, w, scratch),
            KernelCall::FusedRows(rows) => rows.run(c.isa, w, scratch),
            KernelCall::Pack(pack) => pack.run(c.isa, w),
            KernelCall::MatMul(product) => product.run(c.isa, w, scratch),
            KernelCall::MatMulChain(chain) => chain.run(c.isa, w, scratch),
            KernelCall::Winograd(conv) => conv.run(c.isa, w, scratch),
            KernelCall::Depthwise(conv) => conv.run(c.isa, w, scratch),
            KernelCall::Gather(gather) => gather.run(c.isa, w),
            KernelCall::Scatter(scatter) => scatter.run(c.isa, w, scratch),
            KernelCall::TopK(top_k) => top_k.run(c.isa, w, scratch),
        }
    }
}

/// This thread's share of an operation.
///
/// # Safety
///
/// As for [`run`].
unsafe fn operation(op: &Op<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    // SAFETY: the caller's contract.
    unsafe {
        match op {
            Op::Gather(op) => gather(op, c, w),
            Op::RopeTable(table) => rope_table(table, c, w),
            Op::Normalise(plan::Normalise { x, norm, out }) => {
                for row in w.part(c.rows(x.rows())) {
                    let (from, to) = (x.f32().add(row * x.last), out.f32().add(row * x.last));
                    normalise(c.isa, norm, from, to, x.last);
                }
            }
            Op::Glu { gate: x, out, .. }
            | Op::Binary { a: x, out, .. }
            | Op::Gate { x, out, .. }
            | Op::Bias { x, out, .. }
            | Op::Scale { x, out, .. }
            | Op::SoftCap { x, out, .. }
            | Op::Activate { x, out, .. } => elementwise(op, x, out, c, w),
            Op::Rope { style, x, table, out } => {
                let (heads, dim) = (x.heads(), x.last);
                for item in w.part(c.rows(x.first) * heads) {
                    let to = out.f32().add(item * dim);
                    to.copy_from_nonoverlapping(x.f32().add(item * dim), dim);
                    rotate(c.isa, table, *style, item / heads, to);
                }
            }
            Op::RopeKv(op) => rope_kv(op, c, w),
            Op::Attention(op) => attend(op, c, w),
            Op::ShortConv(op) => recurrent::short_conv(op, c, w),
            Op::GatedDelta(op) => recurrent::gated_delta(op, c, w),
            Op::DeltaRule(op) => recurrent::delta_rule(op, c, w),
            Op::Sample(op) => {
                for row in w.part(c.rows(op.logits.rows())) {
                    sample(op, c, w, row);
                }
            }
            op => unreachable!("{} is no kernel call of its own", op.name()),
        }
    }
}

/// Rows of a table, decoded if it is packed; zeroes for an index out of range.
///
/// # Safety
///
/// As for [`run`].
unsafe fn gather(op: &Gather<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    let Gather { table, indices, out } = op;
    let (ids, width) = (&indices[0], table.elements / table.first.max(1));
    for row in w.part(c.rows(ids.elements)) {
        // SAFETY: the caller's contract; rows are divided among the threads.
        unsafe {
            let (id, to) = (*ids.i32().add(row * ids.stride), out.f32().add(row * width));
            let Some(id) = index(id, table.first) else {
                to.write_bytes(0, width);
                continue;
            };
            match &table.storage {
                Storage::Matrix(layout) => {
                    let to = std::slice::from_raw_parts_mut(to, width);
                    layout.dequantise_row(table.matrix().weights(0), id, to);
                }
                Storage::Packed(packed) => packed.line(c.isa, table.f32(), id, to),
                Storage::Plain | Storage::Cache(_) => {
                    to.copy_from_nonoverlapping(table.f32().add(id * width), width);
                }
            }
        }
    }
}

/// Cosines, then sines, of position times frequency.
///
/// # Safety
///
/// As for [`run`].
unsafe fn rope_table(op: &RopeTable<Operand>, c: &Context<'_>, w: &Worker<'_>) {
    let RopeTable { magnitude, positions, frequencies, out } = op;
    let half = frequencies.elements;
    for row in w.part(c.rows(positions.elements)) {
        // SAFETY: the caller's contract; rows are divided among the threads.
        unsafe {
            #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
            let position = *positions.i32().add(row) as f32;
            let to = out.f32().add(2 * row * half);
            rope::table(c.isa, position, frequencies.f32(), half, magnitude.get(), to);
        }
    }
}

/// This thread's elements of an elementwise operation on rows, row by row.
///
/// # Safety
///
/// As for [`run`].
unsafe fn elementwise(
    op: &Op<Operand>,
    x: &Operand,
    out: &Operand,
    c: &Context<'_>,
    w: &Worker<'_>,
) {
    let (isa, n) = (c.isa, x.last);
    let part = w.part(n * c.rows(x.rows()));
    let mut at = part.start;
    while at < part.end {
        let (row, column) = (at / n, at % n);
        let len = (n - column).min(part.end - at);
        // SAFETY: the caller's contract.
        unsafe {
            let (x, y) = (x.f32().add(at).cast_const(), out.f32().add(at));
            match op {
                Op::Binary { op: Binary::Add, b, .. } => {
                    norm::add(isa, x, b.f32().add(at), y, len);
                }
                Op::Binary { b, .. } => norm::multiply(isa, x, b.f32().add(at), y, len),
                Op::Gate { gate, .. } if gate.elements == out.elements => {
                    norm::gate(isa, gate.f32().add(at), x, y, len);
                }
                Op::Gate { gate, .. } => {
                    let mut open = 0.0;
                    scores::sigmoid(isa, gate.f32().add(row), &raw mut open, 1);
                    norm::scale(isa, open, x, y, len);
                }
                Op::Bias { bias, .. } => norm::add(isa, x, bias.f32().add(column), y, len),
                Op::Scale { factor, .. } => norm::scale(isa, factor.get(), x, y, len),
                Op::SoftCap { cap, .. } => norm::soft_cap(isa, cap.get(), x, y, len),
                Op::Activate { activation, .. } => norm::activate(isa, *activation, x, y, len),
                Op::Glu { activation, up, .. } => {
                    let up = up.f32().add(row * up.stride + column);
                    norm::glu(isa, *activation, x, up, y, len);
                }
                op => unreachable!("{} is not elementwise", op.name()),
            }
        }
        at += len;
    }
}

/// Samples the token of one row of logits, and writes the next step's inputs.
///
/// # Safety
///
/// As for [`run`]; `row` is this thread's.
unsafe fn sample(op: &Sample<Operand>, c: &Context<'_>, w: &Worker<'_>, row: usize) {
    let (inputs, vocabulary) = (&op.inputs, op.logits.last);
    // SAFETY: the caller's contract: `row` is within every operand; the scratch is this thread's.
    unsafe {
        let Sampler { candidates, edited } = c.sampling.of_thread(w.index());
        let logits = op.logits.f32().add(row * vocabulary);
        let mut logits = std::slice::from_raw_parts(logits, vocabulary);
        if let Some(words) = inputs.adjustments {
            let all = Adjustment::words(vocabulary);
            let words = std::slice::from_raw_parts(words.i32().add(row * all), all);
            if let Some(adjustment) = Adjustment::of(words, vocabulary) {
                edited.clear();
                edited.extend_from_slice(logits);
                adjustment.apply(edited);
                logits = edited;
            }
        }
        let temperature = *inputs.temperature.f32().add(row);
        let position = (*inputs.positions.i32().add(row)).cast_unsigned();
        let best = norm::argmax(c.isa, logits.as_ptr(), vocabulary)
            .and_then(|best| u32::try_from(best).ok());
        let token = match best {
            Some(best) if temperature > 0.0 => {
                let seed = inputs.seed.i32().add(2 * row);
                let half = |i: usize| u64::from((*seed.add(i)).cast_unsigned());
                let sampling = Sampling {
                    temperature,
                    top_k: (*inputs.top_k.i32().add(row)).cast_unsigned(),
                    top_p: *inputs.top_p.f32().add(row),
                    min_p: *inputs.min_p.f32().add(row),
                    seed: half(0) | half(1) << 32,
                };
                sample::choose_beside(best, logits, sampling, position, candidates)
            }
            // Greedy, as `sample` defines it.
            best => best.unwrap_or(sample::NOT_FINITE),
        };
        *op.ids.i32().add(row) = token.cast_signed();
        if let Some(next) = &op.next {
            *next.tokens.i32().add(row) = token.cast_signed();
            *next.positions.i32().add(row) = position.cast_signed().wrapping_add(1);
        }
    }
}
