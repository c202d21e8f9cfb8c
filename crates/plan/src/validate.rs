//! Checks that a plan is well formed, so that a device may trust it.

use super::{Class, Composite, Epilogue, Op, Plan};

/// Why a plan is not well formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {step} ({label}, {op}): {reason}")]
pub struct Invalid {
    /// Index of the step.
    pub step: usize,
    /// Its label.
    pub label: String,
    /// Its operation.
    pub op: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Plan {
    /// Checks the invariants that devices rely on: every view lies inside its buffer, every step
    /// has the operands its operation documents, scratch is written before it is read, and weights
    /// and constants are never written.
    ///
    /// # Errors
    /// [`Invalid`] names the first step that breaks one.
    pub fn validate(&self) -> Result<(), Invalid> {
        let mut written = vec![false; self.buffers.len()];
        for (at, step) in self.steps.iter().enumerate() {
            let fail = |reason: String| Invalid {
                step: at,
                label: step.label.clone(),
                op: step.op.name(),
                reason,
            };
            let (reads, writes) = arity(&step.op);
            if !reads.contains(&step.reads.len()) || step.writes.len() != writes {
                return Err(fail(format!(
                    "{} reads and {} writes, {reads:?} and {writes} expected",
                    step.reads.len(),
                    step.writes.len()
                )));
            }
            for view in step.reads.iter().chain(&step.writes) {
                let Some(buffer) = self.buffers.get(view.buffer.index()) else {
                    return Err(fail(format!("buffer {} does not exist", view.buffer.0)));
                };
                if view.shape.len() != view.strides.len() || view.end() > buffer.elements().max(1) {
                    return Err(fail(format!(
                        "view reaches element {} of `{}`, which has {}",
                        view.end(),
                        buffer.name,
                        buffer.elements()
                    )));
                }
                if buffer.dtype.is_quantised() && !view.is_contiguous() {
                    return Err(fail(format!("quantised `{}` seen through strides", buffer.name)));
                }
            }
            for view in &step.reads {
                let buffer = self.buffer(view.buffer);
                if buffer.class == Class::Scratch && !written[view.buffer.index()] {
                    return Err(fail(format!(
                        "reads scratch `{}` before it is written",
                        buffer.name
                    )));
                }
            }
            for view in &step.writes {
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
}

/// Allowed numbers of operands read, and the number written.
fn arity(op: &Op) -> (std::ops::RangeInclusive<usize>, usize) {
    let exactly = |n: usize| n..=n;
    match op {
        Op::Unary(_) | Op::Cast | Op::Copy | Op::Reduce { .. } | Op::Pad { .. } | Op::Assign => {
            (exactly(1), 1)
        }
        Op::Binary(_) | Op::MatMul => (exactly(2), 1),
        Op::Iota => (exactly(0), 1),
        Op::Gather => (2..=4, 1),
        Op::Scatter => (2..=4, 1),
        Op::Sample => (exactly(6), 1),
        Op::SampleAdvance => (exactly(6), 3),
        Op::Composite(composite) => match composite {
            Composite::RmsNorm { .. }
            | Composite::RopeTable { .. }
            | Composite::Rope { .. }
            | Composite::SwiGlu => (exactly(2), 1),
            Composite::KvWrite => (exactly(3), 1),
            Composite::Attention { .. } => (exactly(5), 1),
        },
        Op::Project { norm, weights, epilogue } => {
            let reads = 1
                + usize::from(norm.is_some())
                + weights
                + usize::from(*epilogue == Epilogue::Residual);
            (exactly(reads), if *epilogue == Epilogue::None { *weights } else { 1 })
        }
        Op::RopeKv { norm, queries, .. } => {
            let rotated = 1 + usize::from(*queries);
            (exactly(4 + rotated * (1 + usize::from(norm.is_some()))), 1 + rotated)
        }
    }
}
