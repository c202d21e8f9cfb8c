//! Computed indices outside of their axis. A device reads zeroes there, so the graph computes, as one
//! more output, whether a step had such an index.

use nn::functions as f;
use plan::DType;
use plan::graph::Tensor;

use crate::error::NodeResult;
use crate::import::Import;

/// Name of the output: 1 if an index was outside of its axis. No name of a file begins like this.
pub(crate) const OUTSIDE: &str = "\0outside";

impl Import {
    /// Checks that indices, `I32` and counted from the front, are below `extent` when they are
    /// computed.
    pub(crate) fn check_indices(&mut self, indices: Tensor, extent: usize) -> NodeResult<()> {
        let g = &mut self.g;
        let count = g.shape(indices).iter().product();
        if count == 0 {
            return Ok(());
        }
        let (zero, end) = (g.constant(0.0), g.constant(extent as f32));
        let indices = g.cast(indices, DType::I32)?;
        let before = f::less(g, indices, zero)?;
        let not_behind = f::less(g, indices, end)?;
        let outside = f::sub(g, before, not_behind)?;
        let outside = f::plus(g, outside, 1.0)?;
        let outside = g.reshape(outside, &[count])?;
        let outside = f::amax(g, outside, &[0])?;
        let outside = g.reshape(outside, &[1])?;
        self.outside.push(outside);
        Ok(())
    }

    /// Number of checks so far.
    pub(crate) const fn checks(&self) -> usize {
        self.outside.len()
    }

    /// Drops the checks from `first` on: what they check is not part of the network.
    pub(crate) fn drop_checks(&mut self, first: usize) {
        self.outside.truncate(first);
    }

    /// One result for the checks from `first` on and for `before`, instead of these checks.
    pub(crate) fn join_checks(&mut self, first: usize, before: Tensor) -> NodeResult<Tensor> {
        let mut all = before;
        for check in self.outside.split_off(first) {
            all = f::maximum(&mut self.g, all, check)?;
        }
        Ok(all)
    }

    /// Adds the result of checks in a repeated body.
    pub(crate) fn add_check(&mut self, outside: Tensor) {
        self.outside.push(outside);
    }

    /// Restricts checks to steps in which a branch is taken: `taken` is 1 then, else 0.
    pub(crate) fn restrict_checks(
        &mut self,
        checks: std::ops::Range<usize>,
        taken: Tensor,
    ) -> NodeResult<()> {
        for check in &mut self.outside[checks] {
            *check = f::mul(&mut self.g, *check, taken)?;
        }
        Ok(())
    }

    /// Makes the result of all checks an output. Returns whether there are any.
    pub(crate) fn output_checks(&mut self) -> NodeResult<bool> {
        let Some(&first) = self.outside.first() else { return Ok(false) };
        let all = self.join_checks(1, first)?;
        self.outside.clear();
        self.g.output(OUTSIDE, all);
        Ok(true)
    }
}
