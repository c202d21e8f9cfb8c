//! Uses of weights by the plans of a request, which determine their layout on a device.

use std::collections::HashMap;

use crate::Request;
use plan::{Class, Op, Plan, View};

/// Uses of a weight; all false if no step reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Used as whole matrices, by projections or experts.
    pub(crate) matrices: bool,
    /// Rows by one index each, which any layout supports.
    pub(crate) rows: bool,
    /// Used as numbers in any order.
    pub(crate) numbers: bool,
}

impl Uses {
    /// Uses of every weight that a step of the request reads, by name.
    pub(crate) fn of<'a>(request: &Request<'a>) -> HashMap<&'a str, Self> {
        let mut all: HashMap<&str, Self> = HashMap::new();
        for (plan, op) in request.plans.iter().flat_map(steps) {
            let mut note = |view: &View, note: fn(&mut Self)| {
                let buffer = plan.buffer(view.buffer);
                if buffer.class == Class::Weight {
                    note(all.entry(&buffer.name).or_default());
                }
            };
            match op {
                Op::Gather(gather) if is_table(plan, gather) => {
                    note(&gather.table, |uses| uses.rows = true);
                }
                _ => matrices(op).into_iter().for_each(|v| note(v, |uses| uses.matrices = true)),
            }
            for view in numbers(plan, op) {
                note(view, |uses| uses.numbers = true);
            }
        }
        all
    }
}

fn steps(plan: &Plan) -> impl Iterator<Item = (&Plan, &Op)> {
    plan.steps.iter().map(move |step| (plan, &step.op))
}

/// Operands that a step reads as matrices.
fn matrices(op: &Op) -> Vec<&View> {
    match op {
        Op::Project(project) => project.product.weights(),
        Op::Mixture(mixture) => {
            [&mixture.gate, &mixture.up, &mixture.down].map(|e| &e.weight).into()
        }
        _ => Vec::new(),
    }
}

/// Other operands that a step reads, except gathered rows.
pub(crate) fn numbers<'a>(plan: &Plan, op: &'a Op) -> Vec<&'a View> {
    let mut views = op.reads();
    let packed = match op {
        Op::Gather(gather) if is_table(plan, gather) => vec![&gather.table],
        op => matrices(op),
    };
    for view in packed {
        // Once per view: a matmul may add the matrix that it multiplies.
        if let Some(at) = views.iter().position(|other| *other == view) {
            views.remove(at);
        }
    }
    views
}

/// Returns whether a step gathers rows of a whole weight by one index each.
pub(crate) fn is_table(plan: &Plan, gather: &plan::Gather) -> bool {
    let buffer = plan.buffer(gather.table.buffer);
    buffer.class == Class::Weight
        && buffer.shape.len() == 2
        && !buffer.dtype.is_integer()
        && gather.table.shape == buffer.shape
        && gather.table.is_contiguous()
        && matches!(&gather.indices[..], [ids] if ids.is_contiguous())
}
