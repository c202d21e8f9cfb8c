//! Validity checks of a plan; devices rely on them.

use crate::attention::{QkNorm, RopeKv};
use crate::buffer::Class;
use crate::dtype::DType;
use crate::op::{Gather, MAX_INDICES, Op};
use crate::plan::Plan;
use crate::project::{MAX_WEIGHTS, Product, Project};
use crate::schedule::takes_any_order;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {step} ({label}, {op}): {reason}")]
pub struct Invalid {
    pub step: usize,
    pub label: String,
    pub op: String,
    pub reason: String,
}

impl Plan {
    /// Checks the invariants that devices rely on: every view is inside its buffer, every step has
    /// the operand counts of its operation, scratch is written before it is read, weights and
    /// constants are never written.
    ///
    /// # Errors
    /// [`Invalid`] names the first step that breaks one.
    pub fn validate(&self) -> Result<(), Invalid> {
        let mut written = vec![false; self.buffers.len()];
        self.check_repeats()?;
        for (at, step) in self.steps.iter().enumerate() {
            let fail = |reason: String| Invalid {
                step: at,
                label: step.label.clone(),
                op: step.op.name(),
                reason,
            };
            check_counts(&step.op).map_err(fail)?;
            self.check_cast(&step.op).map_err(fail)?;
            let (reads, writes) = (step.op.reads(), step.op.writes());
            for &view in reads.iter().chain(&writes) {
                let Some(buffer) = self.buffers.get(view.buffer.index()) else {
                    return Err(fail(format!("buffer {} does not exist", view.buffer.0)));
                };
                let inside = view.span().is_some_and(|span| span.end <= buffer.elements().max(1));
                if view.shape.len() != view.strides.len() || !inside {
                    return Err(fail(format!(
                        "{view:?} leaves `{}`, which has {} elements",
                        buffer.name,
                        buffer.elements()
                    )));
                }
                if view.forward().is_none() && !takes_any_order(&step.op) {
                    return Err(fail(format!("`{}` is read in reverse", buffer.name)));
                }
                if buffer.dtype.is_quantised() && !view.is_contiguous() {
                    return Err(fail(format!(
                        "quantised `{}` is read through strides",
                        buffer.name
                    )));
                }
            }
            for view in reads {
                let buffer = self.buffer(view.buffer);
                if buffer.class == Class::Scratch && !written[view.buffer.index()] {
                    return Err(fail(format!(
                        "reads scratch `{}` before it is written",
                        buffer.name
                    )));
                }
            }
            for view in writes {
                let buffer = self.buffer(view.buffer);
                if matches!(buffer.class, Class::Weight | Class::Constant(_)) {
                    return Err(fail(format!("writes `{}`, a {:?}", buffer.name, buffer.class)));
                }
                if !view.is_contiguous() {
                    return Err(fail(format!("writes `{}` through strides", buffer.name)));
                }
                written[view.buffer.index()] = true;
            }
        }
        Ok(())
    }

    /// The steps of a repeated body are neighbours, and its count is known.
    fn check_repeats(&self) -> Result<(), Invalid> {
        let mut seen = vec![false; self.repeats.len()];
        for (steps, _) in self.blocks() {
            let step = &self.steps[steps.start];
            let Some(repeat) = step.repeat else { continue };
            if seen.get(repeat.0 as usize) != Some(&false) || self.executions(step) == 0 {
                return Err(Invalid {
                    step: steps.start,
                    label: step.label.clone(),
                    op: step.op.name(),
                    reason: format!("belongs to the repeated body {}", repeat.0),
                });
            }
            seen[repeat.0 as usize] = true;
        }
        Ok(())
    }

    /// Types narrower than 4 bytes convert only from and to the type they are computed in.
    fn check_cast(&self, op: &Op) -> Result<(), String> {
        let Op::Cast { x, out } = op else { return Ok(()) };
        let [from, to] =
            [x, out].map(|view| self.buffers.get(view.buffer.index()).map(|buffer| buffer.dtype));
        // The check of views reports a missing buffer.
        let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
        let word = |dtype: DType| dtype.widened() == Some(dtype);
        let fits = (word(from) && word(to))
            || to.widened() == Some(from)
            || from.widened() == Some(to)
            || (from == DType::F32 && to.is_quantised());
        if fits { Ok(()) } else { Err(format!("{from} to {to} in one step")) }
    }
}

/// Checks counts that the operands' names leave open.
fn check_counts(op: &Op) -> Result<(), String> {
    if let Some(memory) = op.memory() {
        memory.check()?;
    }
    let within = |what: &str, n: usize, most: usize| {
        if (1..=most).contains(&n) {
            Ok(())
        } else {
            Err(format!("{n} {what}, 1 to {most} expected"))
        }
    };
    match op {
        Op::Gather(Gather { indices, .. })
        | Op::Scatter { indices, .. }
        | Op::ScatterAdd { indices, .. } => within("indices", indices.len(), MAX_INDICES),
        Op::Project(Project { product: Product::Each(each), .. }) => {
            within("weights", each.len(), MAX_WEIGHTS)
        }
        Op::Mixture(mixture) => mixture.check(),
        Op::RopeKv(RopeKv { queries, norm: Some(QkNorm { q, .. }), .. })
            if q.is_some() != queries.is_some() =>
        {
            Err("queries and the norm's weight for them go together".into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Caches, Linear, Rows, Scalar, View};

    #[test]
    fn operand_counts_are_checked() {
        let view = || View::whole(crate::BufferId(0), &[1]);
        let project = |n| {
            let linear = Linear { weight: view(), bias: None, activation: None, out: view() };
            let each = vec![linear; n];
            Op::Project(Project { x: view(), norm: None, product: Product::Each(each) })
        };
        let gather =
            |n| Op::Gather(Gather { table: view(), indices: vec![view(); n], out: view() });
        let rope = |q: Option<View>| {
            Op::RopeKv(RopeKv {
                style: crate::RopeStyle::HalfSplit,
                queries: None,
                k: view(),
                v: view(),
                table: view(),
                rows: Rows { slots: view(), positions: view() },
                norm: Some(QkNorm { q, k: view(), eps: Scalar::new(1e-6) }),
                caches: Caches { keys: view(), values: view(), ring: false },
            })
        };
        for n in 0..5 {
            assert_eq!(check_counts(&project(n)).is_ok(), (1..=3).contains(&n), "{n} weights");
            assert_eq!(check_counts(&gather(n)).is_ok(), (1..=3).contains(&n), "{n} indices");
        }
        assert_eq!(check_counts(&rope(None)), Ok(()));
        check_counts(&rope(Some(view()))).unwrap_err();
    }
}
