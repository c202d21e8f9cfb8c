//! Rejects plans with steps that no kernel supports, before anything is laid out or launched.

use crate::Result;
use crate::gpu::storage::unsupported;
use orind_kernels::catalogue::launch::{CACHE_TILE, MOST_EXPERTS, MOST_KEY, MOST_TAPS};
use plan::{Attention, Caches, Op, Plan, RopeKv, ShortConv};

/// Checks every step of a plan.
pub(in crate::gpu) fn check(plan: &Plan) -> Result<()> {
    match plan.steps.iter().find_map(|step| Some((lacking(&step.op)?, step))) {
        Some((lacking, step)) => Err(unsupported(format!("{lacking} ({})", step.label))),
        None => Ok(()),
    }
}

/// Unsupported feature of a step.
fn lacking(op: &Op) -> Option<&'static str> {
    match op {
        Op::RopeKv(RopeKv { caches: Caches { keys, ring: true, .. }, .. })
        | Op::Attention(Attention { caches: Caches { keys, ring: true, .. }, .. }) => {
            let whole = keys.shape[1].is_multiple_of(CACHE_TILE as usize);
            (!whole).then_some("a ring of keys and values of no whole number of spans")
        }
        Op::Mixture(mixture) => {
            (mixture.experts() > MOST_EXPERTS as usize).then_some("more than 1024 experts")
        }
        Op::ShortConv(ShortConv { weight, .. }) => {
            let taps = weight.shape.last().copied().unwrap_or(0);
            (!(2..=MOST_TAPS as usize).contains(&taps)).then_some("a convolution of that length")
        }
        Op::DeltaRule(rule) => {
            let size = rule.query.shape.last().copied().unwrap_or(0);
            (size > MOST_KEY as usize).then_some("keys of more than 128 values")
        }
        Op::GatedDelta(delta) => {
            (delta.heads.key_size > MOST_KEY as usize).then_some("keys of more than 128 values")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::{BufferId, Recurrence, Rows, Scores, View};

    #[test]
    fn unsupported_steps_are_named() {
        let view = |shape: &[usize]| View::whole(BufferId(0), shape);
        let one = || view(&[1]);
        let conv = |taps| {
            let rows = Rows { slots: one(), positions: one() };
            let (state, held) = (view(&[1, 2, taps - 1, 64]), view(&[1, 2]));
            Op::ShortConv(ShortConv {
                x: view(&[1, 64]),
                weight: view(&[64, taps]),
                memory: Recurrence { state, held, rows, chunk: 1 },
                out: view(&[1, 64]),
            })
        };
        let attention = |positions, ring| {
            let rows = Rows { slots: one(), positions: one() };
            let cache = || view(&[2, positions, 1, 64]);
            let caches = Caches { keys: cache(), values: cache(), ring };
            let scores = Scores::scaled(0.1);
            Op::Attention(Attention { scores, q: one(), caches, rows, sinks: None, out: one() })
        };
        for (op, expected) in [
            (Op::Copy { x: one(), out: one() }, None),
            (attention(40, false), None),
            (attention(64, true), None),
            (attention(40, true), Some("a ring of keys and values of no whole number of spans")),
            (conv(8), None),
            (conv(9), Some("a convolution of that length")),
        ] {
            assert_eq!(lacking(&op), expected, "{}", op.name());
        }
    }
}
