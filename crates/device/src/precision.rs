//! Where 8-bit activations are too coarse: a rule that every quantised device follows alike.

use plan::{Class, Op, Plan, Product, Project, View};

/// Residual planes of quantised activations that a projection's operand is brought into: as many as the
/// most delicate of its results needs.
pub(super) fn residual_planes(plan: &Plan, project: &Project) -> usize {
    match &project.product {
        Product::Each(each) => {
            each.iter().map(|linear| residual_planes_of(plan, &linear.out)).max().unwrap_or(1)
        }
        Product::SwiGlu { out, .. } | Product::Residual { out, .. } => {
            residual_planes_of(plan, out)
        }
    }
}

/// Residual planes that one result of a projection needs: two for keys and logits, one for the rest. The
/// errors of scores and logits end up in an exponent; of what makes a score, keys are the fewest columns.
pub(super) fn residual_planes_of(plan: &Plan, out: &View) -> usize {
    let delicate = plan.buffer(out.buffer).class == Class::Output
        || plan
            .steps
            .iter()
            .any(|step| matches!(&step.op, Op::RopeKv(rope) if rope.k.buffer == out.buffer));
    1 + usize::from(delicate)
}
