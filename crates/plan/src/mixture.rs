//! A mixture of experts as one operation: its operands, and how a row chooses among experts. What it computes
//! is `graph`'s to say.

use crate::{Activation, Scalar, View};

/// [`Op::Mixture`](crate::Op::Mixture): each row of `x` through the experts that its router chose, their
/// results weighted and added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mixture<T = View> {
    /// `F32 [M, D]`, as is `out`.
    pub x: T,
    /// What the router says, `F32 [M, E]`.
    pub logits: T,
    /// Added to the scores where experts are chosen, and not where they are weighted: `F32 [E]`.
    pub preference: Option<T>,
    /// Factor on what each expert gives: `F32 [E]`.
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

/// The same matrix of every expert, in one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts<T = View> {
    /// `[E, R, C]`.
    pub weight: T,
    /// `F32 [E, R]`.
    pub bias: Option<T>,
}

/// How logits become a choice of experts and their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Experts of a row, K.
    pub chosen: usize,
    pub scores: RouterScores,
    /// Whether the weights of a row are divided by their sum.
    pub normalised: bool,
    /// Factor on the weights.
    pub scale: Scalar,
}

/// What an expert is weighted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// Softmax over all experts' logits.
    Softmax,
    /// Sigmoid of its logit.
    Sigmoid,
}

/// What becomes of the products with gate and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// `activation(gate) * up`.
    Glu(Activation),
    /// gpt-oss: `g * sigmoid(1.702 g) * (u + 1)` with `g = min(gate, 7)` and `u` = up within -7 to 7.
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
    /// How many experts there are, E.
    #[must_use]
    pub fn experts(&self) -> usize {
        self.gate.weight.shape.first().copied().unwrap_or(0)
    }

    /// Width between gate and down, F.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.gate.weight.shape.get(1).copied().unwrap_or(0)
    }

    /// Most experts that a step's rows can choose.
    #[must_use]
    pub fn touched(&self) -> usize {
        let rows = self.x.shape.first().copied().unwrap_or(0);
        self.experts().min(rows * self.routing.chosen)
    }

    /// Whether an operand is of every expert.
    #[must_use]
    pub fn of_experts(&self, view: &View) -> bool {
        let mut all = [&self.gate, &self.up, &self.down].into_iter();
        all.any(|experts| experts.weight == *view || experts.bias.as_ref() == Some(view))
    }

    /// What a device may rely on beside what holds for every operation.
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
        if fits { Ok(()) } else { Err("shapes of a mixture that do not fit".into()) }
    }
}

/// The greatest elements, by index: the greatest first, of equal ones the one with the lower index. A NaN is
/// greater than any number, so that it shows in what becomes of its row.
///
/// # Panics
/// More elements are asked for than there are.
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
    fn the_best_come_in_order_and_the_first_of_equals_first() {
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
