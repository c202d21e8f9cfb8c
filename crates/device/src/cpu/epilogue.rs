//! Epilogues: elementwise operations that a matrix product or convolution applies to its results while they are in
//! cache.

use super::group::Kernel;
use plan::{Class, DType, Group, Op, Plan, Step, View};
use simd::dense::{Function, TileEpilogue};

/// Elementwise operations after a product.
pub(super) enum Epilogue {
    /// Applied to a register tile before it is written.
    Tile(TileEpilogue),
    Kernel(Kernel),
}

impl Default for Epilogue {
    fn default() -> Self {
        Self::Tile(TileEpilogue::default())
    }
}

impl Epilogue {
    /// The function to apply while results are written, and the epilogue to apply afterwards.
    pub(super) fn parts(&self) -> (Function, Option<TileEpilogue>) {
        match *self {
            Self::Tile(TileEpilogue { plus: [None, None], function, last: None }) => {
                (function, None)
            }
            Self::Tile(finish) => (Function::Same, Some(finish)),
            Self::Kernel(_) => (Function::Same, None),
        }
    }
}

/// Groups of a plan's steps; a product's group includes the elementwise steps after it.
pub(super) fn groups(plan: &Plan) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for group in plan::schedule(plan) {
        match groups.last_mut() {
            Some(product) if follows(plan, product, &group) => {
                (product.steps.end, product.inner) = (group.steps.end, group.inner);
            }
            _ => groups.push(group),
        }
    }
    groups
}

/// The result of a tensor product.
pub(super) fn result(op: &Op) -> Option<&View> {
    match op {
        Op::MatMul { out, .. } => Some(out),
        Op::Conv(conv) => Some(&conv.out),
        _ => None,
    }
}

/// True if a group only applies elementwise operations to a product's result, and does not write its operands.
fn follows(plan: &Plan, product: &Group, group: &Group) -> bool {
    let op = &plan.steps[product.steps.start].op;
    let Some(out) = result(op).filter(|_| product.steps.len() == 1) else { return false };
    let steps = &plan.steps[group.steps.clone()];
    let dense = |view: &View| view.offset == 0 && view.is_contiguous();
    let fits = |step: &Step| {
        let of_result = |view: &&View| view.buffer == out.buffer;
        let reads = step.op.reads();
        let over = plan::elementwise(&step.op).is_some_and(|o| o.elements() == out.elements());
        let places = matches!(step.op, Op::Pad { .. });
        over && reads.iter().filter(|view| of_result(view)).all(|view| dense(view) && !places)
            && step.op.writes().iter().all(|view| {
                !of_result(view) && op.reads().iter().all(|read| read.buffer != view.buffer)
            })
    };
    let reads_it = |step: &Step| step.op.reads().iter().any(|view| view.buffer == out.buffer);
    group.reduce.is_none()
        && steps[0].repeat == plan.steps[product.steps.start].repeat
        && group.is_kernel(plan)
        && dense(out)
        && steps.iter().any(reads_it)
        && steps.iter().all(fits)
}

/// The buffer that can store a product's result until the epilogue is done: the last buffer that the group writes,
/// if no other step reads the product's result.
pub(super) fn place<'a>(plan: &'a Plan, group: &Group) -> Option<&'a View> {
    let out = result(&plan.steps[group.steps.start].op)?;
    let [last] = plan.steps[group.steps.end - 1].op.writes()[..] else { return None };
    let mut others = plan.steps.iter().enumerate().filter(|(at, _)| !group.steps.contains(at));
    let inner = plan.buffer(out.buffer).class == Class::Scratch
        && others.all(|(_, step)| step.op.reads().iter().all(|view| view.buffer != out.buffer));
    let steps = &plan.steps[group.steps.clone()];
    let unread = |step: &Step| step.op.reads().iter().all(|view| view.buffer != last.buffer);
    let plain = plan.buffer(last.buffer).dtype == DType::F32
        && last.is_contiguous()
        && steps.iter().all(unread);
    (group.steps.len() > 1 && inner && plain).then_some(last)
}
