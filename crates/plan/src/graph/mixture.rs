//! Mixture of experts in primitives: route, gather by expert, multiply, sum.

use super::builder::{Experts, Graph, Result, Tensor};
use crate::{Binary, DType, Gating, Mixture, Op, Reduce, RouterScores, Routing, Unary};

/// Weights of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct MixtureWeights {
    /// See [`Mixture::preference`].
    pub preference: Option<Tensor>,
    /// See [`Mixture::scales`].
    pub scales: Option<Tensor>,
    /// `[E, F, D]`, as is `up`.
    pub gate: Experts,
    pub up: Experts,
    /// `[E, D, F]`.
    pub down: Experts,
}

impl Graph {
    /// Passes each row of `x [M, D]` through the experts that `logits [M, E]` select: `[M, D]`.
    pub fn mixture(
        &mut self,
        x: Tensor,
        logits: Tensor,
        weights: MixtureWeights,
        routing: Routing,
        gating: Gating,
    ) -> Result {
        let MixtureWeights { preference, scales, gate, up, down } = weights;
        let mixture =
            |out| Mixture { x, logits, preference, scales, routing, gating, gate, up, down, out };
        let op = |out| Op::Mixture(mixture(out));
        let (&[rows, width], &[scored, experts]) = (self.shape(x), self.shape(logits)) else {
            return Err(self.shape_error("mixture", &[x, logits], "[M, D] and [M, E] expected"));
        };
        let of_each = [preference, scales].into_iter().flatten();
        let fits = rows == scored && of_each.into_iter().all(|v| *self.shape(v) == [experts]);
        self.want(fits, "mixture", &[x, logits], "logits of every row and expert expected")?;
        let hidden = self.shape(gate.weight).get(1).copied().unwrap_or(0);
        for (of, shape) in [
            (gate, [experts, hidden, width]),
            (up, [experts, hidden, width]),
            (down, [experts, width, hidden]),
        ] {
            let fits = *self.shape(of.weight) == shape
                && of.bias.is_none_or(|bias| *self.shape(bias) == shape[..2]);
            let reason = "a matrix (and bias) of every expert expected";
            self.want(fits, "mixture", &[of.weight], reason)?;
        }
        self.composite(op, |g| {
            let count = routing.chosen;
            let scores = match routing.scores {
                RouterScores::Softmax => g.softmax(logits, None)?,
                RouterScores::Sigmoid => g.sigmoid(logits)?,
            };
            // Scores have the same order as the logits, which carry no extra rounding.
            let preferred = match preference {
                Some(preference) => g.binary(Binary::Add, scores, preference)?,
                None => logits,
            };
            let chosen = g.top_k(preferred, count)?;
            let chosen = g.reshape(chosen, &[rows * count])?;
            let row = g.iota(rows);
            let row = g.reshape(row, &[rows, 1])?;
            let row = g.expand(row, &[rows, count])?;
            let row = g.cast(row, DType::I32)?;
            let row = g.reshape(row, &[rows * count])?;

            let weights = g.gather(scores, &[row, chosen])?;
            let mut weights = g.reshape(weights, &[rows, count])?;
            if routing.normalised {
                let sum = g.reduce(Reduce::Sum, weights, 1)?;
                let inverse = g.unary(Unary::Recip, sum)?;
                weights = g.binary(Binary::Mul, weights, inverse)?;
            }
            let scale = g.constant(routing.scale.get());
            let mut weights = g.binary(Binary::Mul, weights, scale)?;
            if let Some(scales) = scales {
                let scales = g.gather(scales, &[chosen])?;
                let scales = g.reshape(scales, &[rows, count])?;
                weights = g.binary(Binary::Mul, weights, scales)?;
            }
            let weights = g.reshape(weights, &[rows, count, 1])?;

            let x = g.gather(x, &[row])?;
            let (a, b) = (g.by_expert(x, gate, chosen)?, g.by_expert(x, up, chosen)?);
            let h = g.gated(a, b, gating)?;
            let y = g.by_expert(h, down, chosen)?;
            let y = g.reshape(y, &[rows, count, width])?;
            let y = g.binary(Binary::Mul, y, weights)?;
            let y = g.reduce(Reduce::Sum, y, 1)?;
            g.reshape(y, &[rows, width])
        })
    }

    /// Multiplies each row of `x [N, C]` with the matrix of its expert: `[N, R]`.
    fn by_expert(&mut self, x: Tensor, experts: Experts, chosen: Tensor) -> Result {
        let weight = self.gather(experts.weight, &[chosen])?;
        let &[n, rows, columns] = self.shape(weight) else {
            return Err(self.shape_error("mixture", &[weight], "[E, R, C] expected"));
        };
        let x = self.reshape(x, &[n, 1, columns])?;
        let y = self.matmul(x, weight)?;
        let y = self.reshape(y, &[n, rows])?;
        match experts.bias {
            Some(bias) => {
                let bias = self.gather(bias, &[chosen])?;
                self.binary(Binary::Add, y, bias)
            }
            None => Ok(y),
        }
    }

    fn gated(&mut self, gate: Tensor, up: Tensor, gating: Gating) -> Result {
        match gating {
            Gating::Glu(activation) => {
                let gate = self.activated(activation, gate)?;
                self.binary(Binary::Mul, gate, up)
            }
            Gating::ClampedSwiGlu => {
                let gate = self.at_most(gate, Gating::LIMIT)?;
                let up = self.at_most(up, Gating::LIMIT)?;
                let least = self.constant(-Gating::LIMIT);
                let up = self.binary(Binary::Max, up, least)?;
                let slope = self.constant(Gating::SLOPE);
                let steep = self.binary(Binary::Mul, gate, slope)?;
                let sigmoid = self.sigmoid(steep)?;
                let gate = self.binary(Binary::Mul, gate, sigmoid)?;
                let one = self.constant(1.0);
                let up = self.binary(Binary::Add, up, one)?;
                self.binary(Binary::Mul, gate, up)
            }
        }
    }

    /// `min(x, limit)`.
    fn at_most(&mut self, x: Tensor, limit: f32) -> Result {
        let least = self.constant(-limit);
        let x = self.unary(Unary::Neg, x)?;
        let x = self.binary(Binary::Max, x, least)?;
        self.unary(Unary::Neg, x)
    }
}
