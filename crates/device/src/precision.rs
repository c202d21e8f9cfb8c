//! Where 8-bit activations are too coarse: a rule that every quantised device follows alike.

use plan::{Class, Op, Plan, Step, View};

/// Planes of quantised activations that a projection's operand is brought into: as many as the most
/// delicate of its results needs.
pub(super) fn planes(plan: &Plan, step: &Step) -> usize {
    step.writes.iter().map(|written| planes_for(plan, written)).max().unwrap_or(1)
}

/// Planes that one result of a projection needs: two for keys and logits, one for the rest. The errors
/// of scores and logits end up in an exponent; of what makes a score, keys are the fewest columns.
pub(super) fn planes_for(plan: &Plan, written: &View) -> usize {
    let keys = |step: &Step| match step.op {
        Op::RopeKv { queries, .. } => {
            step.reads.get(usize::from(queries)).is_some_and(|keys| keys.buffer == written.buffer)
        }
        _ => false,
    };
    let delicate =
        plan.buffer(written.buffer).class == Class::Output || plan.steps.iter().any(keys);
    1 + usize::from(delicate)
}
