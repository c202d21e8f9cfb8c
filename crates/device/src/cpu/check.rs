//! Plans that this device can run: checks beyond `Plan::validate`.

use super::errors::unsupported;
use super::width::{Width, stored};
use crate::uses::is_table;
use crate::{Error, Result};
use plan::{Binary, Class, DType, Op, Plan, Step, View};
use simd::recurrent::TAPS;

/// Largest number of elements of a tensor.
const LARGEST: usize = i32::MAX as usize;

pub(super) fn check(plan: &Plan) -> Result<()> {
    plan.validate().map_err(|e| Error::Invalid(e.to_string()))?;
    for step in &plan.steps {
        let op = &step.op;
        let fits = match op {
            _ if is_tensor_op(plan, op) => {
                check_tensors(plan, step)?;
                continue;
            }
            Op::ShortConv(conv) => (2..=TAPS).contains(&conv.weight.shape[1]),
            _ => true,
        };
        if !fits {
            return Err(unsupported(format!("step {} ({})", op.name(), step.label)));
        }
        let cached = |view: &View| plan.buffer(view.buffer).class == Class::State;
        let rows_apart = |view: &View| {
            matches!(op, Op::Glu { up, .. } if view == up) && row_stride(view).is_some()
        };
        let mut views = op.reads().into_iter().chain(op.writes());
        if views.any(|view| !view.is_contiguous() && !cached(view) && !rows_apart(view)) {
            return Err(unsupported(format!("strides in {} ({})", op.name(), step.label)));
        }
    }
    Ok(())
}

/// True for primitives on tensors with any strides, except those with a kernel call for token rows.
pub(super) fn is_tensor_op(plan: &Plan, op: &Op) -> bool {
    let of = |view: &View| plan.buffer(view.buffer);
    let plain = |view: &View| {
        view.is_contiguous() && !matches!(of(view).class, Class::Constant(_) | Class::State)
    };
    match op {
        Op::Binary { op: Binary::Add | Binary::Mul, a, b, out } => {
            of(out).dtype != DType::F32 || ![a, b].into_iter().all(plain)
        }
        Op::Gather(gather) => {
            let table = of(&gather.table);
            let word = Width::of(table.dtype) == Some(Width::Word);
            gather.indices.len() != 1
                || !plain(&gather.table)
                || !plain(&gather.indices[0])
                || !(word || is_table(plan, gather))
        }
        Op::MatMul { .. }
        | Op::Conv(_)
        | Op::Scatter { .. }
        | Op::ScatterAdd { .. }
        | Op::TopK { .. } => true,
        op => plan::elementwise(op).is_some() || matches!(op, Op::Reduce { .. }),
    }
}

/// Checks of tensor operations that `Plan::validate` leaves to the device.
fn check_tensors(plan: &Plan, step: &Step) -> Result<()> {
    let Step { op, label, .. } = step;
    let name = || format!("{} ({label})", op.name());
    for view in op.reads().into_iter().chain(op.writes()) {
        let buffer = plan.buffer(view.buffer);
        if buffer.elements() > LARGEST || view.elements() > LARGEST {
            let elements = buffer.elements().max(view.elements());
            return Err(unsupported(format!(
                "{elements} elements in {}: 2^31 - 1 are the most",
                name()
            )));
        }
        if stored(buffer).is_none() {
            return Err(unsupported(format!(
                "`{}` of {} in {}",
                buffer.name,
                buffer.dtype,
                name()
            )));
        }
    }
    // An output must not overlap an input: a kernel writes blocks before it has read all others.
    for out in op.writes() {
        let apart = |view: &&View| {
            view.buffer == out.buffer && (view.offset != out.offset || !view.is_contiguous())
        };
        if op.reads().iter().any(apart) {
            return Err(unsupported(format!("what {} reads written in another place", name())));
        }
    }
    Ok(())
}

/// Rows and columns of a view whose last axis is the columns.
pub(super) fn rows_of(view: &View) -> (usize, usize) {
    let n = view.shape.last().copied().unwrap_or(1);
    (view.elements() / n.max(1), n)
}

/// Distance between the rows of a matrix with dense rows.
pub(super) fn row_stride(view: &View) -> Option<usize> {
    match (&view.shape[..], &view.strides[..]) {
        _ if view.is_contiguous() => Some(rows_of(view).1),
        ([_, _], &[stride, 1]) => usize::try_from(stride).ok(),
        _ => None,
    }
}

/// The strides of a view whose elements are read in ascending order.
pub(super) fn forward(view: &View) -> Result<Vec<usize>> {
    view.forward().ok_or_else(|| unsupported("a product or rows of what goes backward".into()))
}
