//! Where 8-bit activations are too coarse: a rule that every quantised device follows alike.

use plan::{Binary, Class, Op, Plan, Product, Project, Step, View};

/// Residual planes of quantised activations that a projection's operand is brought into: as many as the
/// most delicate of its results needs.
pub(super) fn residual_planes(plan: &Plan, project: &Project) -> usize {
    match &project.product {
        Product::Each(each) => {
            each.iter().map(|linear| residual_planes_of(plan, &linear.out)).max().unwrap_or(1)
        }
        Product::Glu { out, .. } | Product::Residual { out, .. } => residual_planes_of(plan, out),
    }
}

/// Residual planes that one result of a projection needs: two for keys, logits and the steps of gated delta rules, one
/// for the rest. The errors of scores, logits and decays end up in an exponent; of what makes a score, keys are the
/// fewest columns.
pub(super) fn residual_planes_of(plan: &Plan, out: &View) -> usize {
    1 + usize::from(is_delicate(plan, out))
}

fn is_delicate(plan: &Plan, out: &View) -> bool {
    let becomes = |step: &Step| match &step.op {
        Op::RopeKv(rope) => rope.k.buffer == out.buffer,
        Op::GatedDelta(delta) => delta.step.buffer == out.buffer,
        // On its way: logits to what they become, any product to its sum with that of an adapter.
        Op::Scale { x, out: next, .. }
        | Op::SoftCap { x, out: next, .. }
        | Op::Bias { x, out: next, .. } => x.buffer == out.buffer && is_delicate(plan, next),
        Op::Binary { op: Binary::Add, a, b, out: next } => {
            [a, b].iter().any(|x| x.buffer == out.buffer) && is_delicate(plan, next)
        }
        Op::Project(Project { product: Product::Residual { residual, out: next, .. }, .. }) => {
            residual.buffer == out.buffer && is_delicate(plan, next)
        }
        _ => false,
    };
    plan.buffer(out.buffer).class == Class::Output || plan.steps.iter().any(becomes)
}
