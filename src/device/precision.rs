//! Where 8-bit activations are too coarse: a rule that every quantised device follows alike.

use crate::plan::{Class, Op, Plan, Step, View};

/// Planes of quantised activations that a projection's operand is brought into: two for queries,
/// keys, values and logits, one for the rest. The errors of scores and logits end up in an
/// exponent, and together these are few enough columns that a second pass costs little.
pub(super) fn planes(plan: &Plan, step: &Step) -> usize {
    let delicate = |written: &View| {
        let rotated = |step: &Step| {
            matches!(step.op, Op::RopeKv { .. })
                && step.reads[..3].iter().any(|read| read.buffer == written.buffer)
        };
        plan.buffer(written.buffer).class == Class::Output || plan.steps.iter().any(rotated)
    };
    1 + usize::from(step.writes.iter().any(delicate))
}
