//! Number of residual planes of quantised activations: a rule that all quantised devices share.

use plan::{Binary, Class, Op, Plan, Product, Project, Step, View};

/// Residual planes of a projection's activations: the most that one of its results needs.
pub(super) fn residual_planes(plan: &Plan, project: &Project) -> usize {
    match &project.product {
        Product::Each(each) => {
            each.iter().map(|linear| residual_planes_of(plan, &linear.out)).max().unwrap_or(1)
        }
        Product::Glu { out, .. } | Product::Residual { out, .. } => residual_planes_of(plan, out),
    }
}

/// Residual planes for one result of a projection: two for keys, logits and the steps of gated
/// delta rules, else one. Errors of scores, logits and decays end up in an exponent; keys are the
/// narrowest operand of a score.
pub(super) fn residual_planes_of(plan: &Plan, out: &View) -> usize {
    1 + usize::from(is_delicate(plan, out))
}

fn is_delicate(plan: &Plan, out: &View) -> bool {
    let becomes = |step: &Step| match &step.op {
        Op::RopeKv(rope) => rope.k.buffer == out.buffer,
        Op::GatedDelta(delta) => delta.step.buffer == out.buffer,
        // Continue with the operation's result: logits after scale, cap or bias, a product after adding an adapter's.
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
