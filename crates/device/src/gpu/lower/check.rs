//! What the kernels cannot do is refused before anything is laid out or launched, by name.

use crate::Result;
use crate::gpu::layout::unsupported;
use plan::{Activation, Attention, Norm, NormKind, Op, Plan, Product, Project, RopeKv, Scores};

/// Refuses a plan with a step that the kernels cannot do.
pub(in crate::gpu) fn check(plan: &Plan) -> Result<()> {
    match plan.steps.iter().find_map(|step| Some((lacking(&step.op)?, step))) {
        Some((lacking, step)) => Err(unsupported(format!("{lacking} ({})", step.label))),
        None => Ok(()),
    }
}

/// What a step asks for that the kernels cannot do.
fn lacking(op: &Op) -> Option<&'static str> {
    let norm = |norm: &Norm| match norm {
        Norm { kind: NormKind::Rms, bias: None, .. } => None,
        _ => Some("LayerNorm"),
    };
    let not_silu = |activation| (activation != Activation::Silu).then_some("GELU");
    match op {
        Op::Normalise(step) => norm(&step.norm),
        Op::Bias { .. } => Some("biases"),
        Op::Scale { .. } => Some("factors on activations"),
        Op::SoftCap { .. } => Some("soft caps"),
        Op::Activate { .. } => Some("feed-forward parts without a gate"),
        Op::Rope { .. } => Some("queries over the cache of another layer"),
        Op::Glu { activation, .. } => not_silu(*activation),
        Op::Project(Project { norm: before, product, .. }) => {
            let after = match product {
                Product::Each(each) if each.iter().any(|l| l.activation.is_some()) => {
                    Some("an activation in a projection")
                }
                Product::Each(each) if each.iter().any(|l| l.bias.is_some()) => Some("biases"),
                Product::Residual { bias: Some(_), .. } => Some("biases"),
                Product::Glu { activation, .. } => not_silu(*activation),
                Product::Each(_) | Product::Residual { .. } => None,
            };
            before.as_ref().and_then(norm).or(after)
        }
        Op::RopeKv(RopeKv { k, table, .. }) => {
            let [rotated, dim] = [table, k].map(|view| view.shape.last().copied().unwrap_or(0));
            (2 * rotated != dim).then_some("rotation of a part of each head")
        }
        Op::Attention(Attention { scores, .. }) => match scores {
            Scores { window: Some(_), .. } => Some("attention within a window"),
            Scores { cap: Some(_), .. } => Some("soft-capped attention"),
            Scores { temperature: Some(_), .. } => Some("attention with a temperature"),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{BufferId, Caches, Linear, Rows, Scalar, Temperature, View};

    #[test]
    fn what_the_kernels_cannot_do_is_named() {
        let view = |shape: &[usize]| View::whole(BufferId(0), shape);
        let one = || view(&[1, 64]);
        let norm = |kind| Norm { kind, weight: view(&[64]), bias: None, eps: Scalar::new(1e-5) };
        let project = |norm, product| Op::Project(Project { x: one(), norm: Some(norm), product });
        let linear = |bias, activation| {
            Product::Each(vec![Linear { weight: one(), bias, activation, out: one() }])
        };
        let glu = |activation| Product::Glu { activation, gate: one(), up: one(), out: one() };
        let attention = |scores| {
            let (rows, caches) =
                (Rows { slots: one(), positions: one() }, Caches { keys: one(), values: one() });
            Op::Attention(Attention { scores, q: one(), caches, rows, out: one() })
        };
        let plain = Scores::scaled(0.1);
        let temperature = Temperature { slope: Scalar::new(0.1), length: 64 };
        for (op, expected) in [
            (project(norm(NormKind::Rms), linear(None, None)), None),
            (project(norm(NormKind::Layer), linear(None, None)), Some("LayerNorm")),
            (project(norm(NormKind::Rms), linear(Some(one()), None)), Some("biases")),
            (project(norm(NormKind::Rms), glu(Activation::Silu)), None),
            (project(norm(NormKind::Rms), glu(Activation::Gelu)), Some("GELU")),
            (Op::Bias { x: one(), bias: one(), out: one() }, Some("biases")),
            (attention(plain), None),
            (attention(Scores { window: Some(8), ..plain }), Some("attention within a window")),
            (
                attention(Scores { cap: Some(Scalar::new(5.0)), ..plain }),
                Some("soft-capped attention"),
            ),
            (
                attention(Scores { temperature: Some(temperature), ..plain }),
                Some("attention with a temperature"),
            ),
        ] {
            assert_eq!(lacking(&op), expected, "{}", op.name());
        }
    }
}
