//! RWKV-7: time mixing and token shift.

use super::builder::Builder;
use crate::error::Result;
use crate::hyper::Ranks;
use crate::ports;
use plan::graph::{DeltaOperands, Norm, Rows, Tensor};
use plan::{Binary, NormKind, Reduce, Scalar, Unary};

/// The negative logarithm of the smallest decay: `exp(-1/2)`, which llama.cpp has to six digits.
const MAX_DECAY: f32 = 0.606_530_66;
/// Epsilon of the norm of each head's output, for heads of 64 values.
const HEAD_NORM_EPS: f32 = 64e-5;

impl Builder<'_> {
    /// Time mixing (Peng et al., 2025, section 4), before its output projection.
    pub(super) fn time_mix(
        &mut self,
        i: usize,
        [heads, size]: [usize; 2],
        ranks: Ranks,
        h: Tensor,
        rows: Rows,
    ) -> Result<Tensor> {
        let (m, width) = (self.step.bucket.rows(), self.hyper.width);
        let part = |name: &str| format!("blk.{i}.time_mix_{name}");
        let difference = self.token_shift(&ports::conv_state(i), h, rows)?;
        let mut mixes = Vec::new();
        for at in 0..6 {
            mixes.push(self.lerp(&part("lerp_fused"), h, difference, at, &[6, 1, 1, width])?);
        }
        let [xr, xw, xk, xv, xa, xg] = mixes[..] else { unreachable!("six were pushed") };
        let query = self.product(&part("receptance"), xr, width, width)?;
        let mut key = self.product(&part("key"), xk, width, width)?;
        let value = self.product(&part("value"), xv, width, width)?;

        let decay = self.product(&part("w1"), xw, ranks.decay, width)?;
        let decay = self.g.soft_cap(decay, 1.0)?;
        let decay = self.low_rank_gate(&part("w"), decay, ranks.decay)?;
        let most = self.g.constant(-MAX_DECAY);
        let decay = self.g.binary(Binary::Mul, decay, most)?;
        let decay = self.g.unary(Unary::Exp, decay)?;
        let rate = self.product(&part("a1"), xa, ranks.rate, width)?;
        let rate = self.low_rank_gate(&part("a"), rate, ranks.rate)?;
        let value = self.value_residual(&part("v"), value, xv, ranks.value)?;

        self.g.at(part("wkv"));
        let split = |builder: &mut Self, x| builder.g.reshape(x, &[m, heads, size]);
        let scale = self.vector(&format!("{}.weight", part("k_k")), width)?;
        let take = self.g.binary(Binary::Mul, key, scale)?;
        let take = split(self, take)?;
        let take = self.g.l2_normalise(take, 1e-24)?;
        let share = self.vector(&format!("{}.weight", part("k_a")), width)?;
        let share = self.g.binary(Binary::Mul, key, share)?;
        let scaled = self.g.binary(Binary::Mul, rate, share)?;
        let scaled = self.g.binary(Binary::Sub, scaled, share)?;
        key = self.g.binary(Binary::Add, key, scaled)?;
        let rate = split(self, rate)?;
        let add = self.g.binary(Binary::Mul, take, rate)?;
        let take = self.g.unary(Unary::Neg, take)?;
        let (query, decay) = (split(self, query)?, split(self, decay)?);
        let (key, value) = (split(self, key)?, split(self, value)?);
        let state = self.recurrence(&ports::delta_state(i), &[heads, size, size], rows)?;
        let operands = DeltaOperands { query, decay, key, value, take, add };
        let y = self.g.delta_rule(operands, state)?;

        // Heads are normalised one by one; the norm's weights cover all of them.
        let ones = self.derived(&ports::ones(size), &vec![1.0; size])?;
        let (kind, eps) = (NormKind::Layer, Scalar::new(HEAD_NORM_EPS));
        let y = self.g.normalise(y, Norm { kind, weight: ones, bias: None, eps })?;
        let y = self.g.reshape(y, &[m, width])?;
        let weight = self.vector(&format!("{}.weight", part("ln")), width)?;
        let y = self.g.binary(Binary::Mul, y, weight)?;
        let y = self.biased(&part("ln"), y, width)?;

        let bonus = self.vector(&format!("{}.weight", part("r_k")), width)?;
        let bonus = self.g.reshape(bonus, &[1, heads, size])?;
        let score = self.g.binary(Binary::Mul, key, query)?;
        let score = self.g.binary(Binary::Mul, score, bonus)?;
        let score = self.g.reduce(Reduce::Sum, score, 2)?;
        let own = self.g.binary(Binary::Mul, value, score)?;
        let own = self.g.reshape(own, &[m, width])?;
        let y = self.g.binary(Binary::Add, y, own)?;

        let gate = self.product(&part("g1"), xg, ranks.gate, width)?;
        let gate = self.g.sigmoid(gate)?;
        let gate = self.product(&part("g2"), gate, width, ranks.gate)?;
        Ok(self.g.binary(Binary::Mul, y, gate)?)
    }

    /// `value`, in layers after the first moved toward the values of the first layer.
    fn value_residual(
        &mut self,
        name: &str,
        value: Tensor,
        x: Tensor,
        rank: usize,
    ) -> Result<Tensor> {
        let Some(first) = self.first_values else {
            self.first_values = Some(value);
            return Ok(value);
        };
        let share = self.product(&format!("{name}1"), x, rank, self.hyper.width)?;
        let share = self.low_rank_gate(name, share, rank)?;
        let difference = self.g.binary(Binary::Sub, first, value)?;
        let difference = self.g.binary(Binary::Mul, difference, share)?;
        Ok(self.g.binary(Binary::Add, value, difference)?)
    }

    /// Second matrix of a low-rank product, its bias, and a sigmoid.
    fn low_rank_gate(&mut self, name: &str, x: Tensor, rank: usize) -> Result<Tensor> {
        let width = self.hyper.width;
        let x = self.product(&format!("{name}2"), x, width, rank)?;
        let bias = self.vector(&format!("{name}0.weight"), width)?;
        let x = self.g.bias(x, bias)?;
        Ok(self.g.sigmoid(x)?)
    }

    /// The previous row minus each row; the row before the first is zero.
    pub(super) fn token_shift(&mut self, state: &str, x: Tensor, rows: Rows) -> Result<Tensor> {
        let width = self.hyper.width;
        self.g.at(state);
        let last = self.recurrence(state, &[1, width], rows)?;
        let weight = self.derived(&ports::step_back(width), &[1.0, -1.0].repeat(width))?;
        let weight = self.g.reshape(weight, &[width, 2])?;
        Ok(self.g.short_conv(x, weight, last)?)
    }

    /// `x + difference * share`. Row `at` of the tensor `name` of shape `shape` contains the share of each column.
    pub(super) fn lerp(
        &mut self,
        name: &str,
        x: Tensor,
        difference: Tensor,
        at: usize,
        shape: &[usize],
    ) -> Result<Tensor> {
        self.g.at(name);
        let shares = self.flat(&format!("{name}.weight"), shape)?;
        let width = self.hyper.width;
        let shares = self.g.reshape(shares, &[shape[0], width])?;
        let share = self.g.slice(shares, 0, at, 1)?;
        let difference = self.g.binary(Binary::Mul, difference, share)?;
        Ok(self.g.binary(Binary::Add, x, difference)?)
    }
}
