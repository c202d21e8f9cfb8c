//! Operands of the mixture of experts (MoE), and the selection of experts. `graph::mixture` defines
//! what it computes.

use crate::buffer::{Scalar, View};
use crate::elementwise::Activation;

/// [`Op::Mixture`](crate::Op::Mixture): passes each row of `x` through the experts that its router
/// selects, and sums their weighted results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixture<T = View> {
    /// `F32 [M, D]`, as is `out`.
    pub x: T,
    /// Router logits, `F32 [M, E]`.
    pub logits: T,
    /// Bias on the scores for the selection only, not for the weights: `F32 [E]`.
    pub preference: Option<T>,
    /// Factor on each expert's output: `F32 [E]`.
    pub scales: Option<T>,
    pub routing: Routing,
    pub gating: Gating,
    /// `[E, F, D]`.
    pub gate: Experts<T>,
    /// `[E, F, D]`.
    pub up: Experts<T>,
    /// `[E, D, F]`.
    pub down: Experts<T>,
    pub out: T,
}

/// One matrix of every expert, in a single tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts<T = View> {
    /// `[E, R, C]`.
    pub weight: T,
    /// `F32 [E, R]`.
    pub bias: Option<T>,
}

/// Selection of experts and their weights from the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Experts per row, K.
    pub chosen: usize,
    pub scores: RouterScores,
    /// True if the weights of a row are divided by their sum.
    pub normalised: bool,
    /// Factor on the weights.
    pub scale: Scalar,
}

/// Weight of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// Softmax over all experts' logits.
    Softmax,
    /// Sigmoid of the expert's logit.
    Sigmoid,
}

/// Combination of the gate and up products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// `activation(gate) * up`.
    Glu(Activation),
    /// gpt-oss: `g * sigmoid(1.702 g) * (u + 1)` with `g = min(gate, 7)` and `u` = up clamped to
    /// -7..7.
    ClampedSwiGlu,
}

impl Gating {
    /// Factor on the gate inside the sigmoid of [`Gating::ClampedSwiGlu`].
    pub const SLOPE: f32 = 1.702;
    /// Bound of gate and up in [`Gating::ClampedSwiGlu`].
    pub const LIMIT: f32 = 7.0;
}

impl<T> Mixture<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> Mixture<U> {
        Mixture {
            x: read(&self.x),
            logits: read(&self.logits),
            preference: self.preference.as_ref().map(&mut read),
            scales: self.scales.as_ref().map(&mut read),
            routing: self.routing,
            gating: self.gating,
            gate: self.gate.map(&mut read),
            up: self.up.map(&mut read),
            down: self.down.map(&mut read),
            out: write(&self.out),
        }
    }
}

impl<T> Experts<T> {
    fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Experts<U> {
        Experts { weight: f(&self.weight), bias: self.bias.as_ref().map(f) }
    }
}

impl Mixture {
    /// Number of experts, E.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.gate.weight.shape.first().copied().unwrap_or(0)
    }

    /// Width of the hidden layer between gate and down, F.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.gate.weight.shape.get(1).copied().unwrap_or(0)
    }

    /// Most experts that the rows of a step can select.
    #[must_use]
    pub fn touched(&self) -> usize {
        let rows = self.x.shape.first().copied().unwrap_or(0);
        self.experts().min(rows * self.routing.chosen)
    }

    /// True if the operand has one entry per expert.
    #[must_use]
    pub fn of_experts(&self, view: &View) -> bool {
        let mut all = [&self.gate, &self.up, &self.down].into_iter();
        all.any(|experts| experts.weight == *view || experts.bias.as_ref() == Some(view))
    }

    /// Checks the shapes that a device relies on.
    pub(crate) fn check(&self) -> Result<(), String> {
        let [rows, width] = self.x.shape[..] else {
            return Err(format!("x is {:?}", self.x.shape));
        };
        let (experts, hidden) = (self.experts(), self.hidden());
        if !(1..=experts).contains(&self.routing.chosen) {
            return Err(format!("{} of {experts} experts", self.routing.chosen));
        }
        let fits = self.logits.shape == [rows, experts]
            && self.out.shape == self.x.shape
            && [&self.preference, &self.scales].into_iter().flatten().all(|v| v.shape == [experts])
            && [
                (&self.gate, hidden, width),
                (&self.up, hidden, width),
                (&self.down, width, hidden),
            ]
            .into_iter()
            .all(|(of, r, c)| {
                of.weight.shape == [experts, r, c]
                    && of.bias.as_ref().is_none_or(|bias| bias.shape == [experts, r])
            });
        if fits { Ok(()) } else { Err("the shapes of a mixture of experts do not fit".into()) }
    }
}

/// Top-k: indices of the greatest elements, greatest first, equal elements in index order. A NaN
/// ranks above every number, so that it propagates into its row's result.
///
/// # Panics
/// If `best` is longer than `values`.
pub fn top_k(values: &[f32], best: &mut [u32]) {
    assert!(best.len() <= values.len(), "{} of {} elements", best.len(), values.len());
    let above = |a: f32, b: f32| a > b || (a.is_nan() && !b.is_nan());
    let mut count = 0;
    for (index, &value) in (0..).zip(values) {
        let behind = best[..count].partition_point(|&other| !above(value, values[other as usize]));
        if behind == best.len() {
            continue;
        }
        count = best.len().min(count + 1);
        best[behind..count].rotate_right(1);
        best[behind] = index;
    }
}

#[cfg(test)]
mod tests {
    use super::top_k;

    #[test]
    fn top_k_sorts_by_value_then_index() {
        let of = |values: &[f32], count: usize| {
            let mut best = vec![u32::MAX; count];
            top_k(values, &mut best);
            best
        };
        assert_eq!(of(&[1.0, 3.0, 2.0, 3.0], 3), [1, 3, 2]);
        assert_eq!(of(&[0.0, -0.0, 0.0], 2), [0, 1]);
        assert_eq!(of(&[f32::NEG_INFINITY, 5.0, f32::NAN, f32::INFINITY], 4), [2, 3, 1, 0]);
        assert_eq!(of(&[1.0], 0), [0u32; 0]);
    }
}
