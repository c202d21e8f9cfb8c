//! Recurrent layers with a state of fixed size: the two primitives, and the gated delta rule built
//! from them.

use super::builder::{Graph, Kind, Recurrence, Result, Tensor};
use crate::{
    Binary, Class, DType, DeltaHeads, DeltaRule, GatedDelta, Op, Reduce, Scalar, ShortConv, Unary,
};

/// Gates of a [`GatedDelta`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaGates {
    pub step: Tensor,
    pub strength: Tensor,
    pub rate: Tensor,
    pub bias: Tensor,
}

/// Operands of a [`DeltaRule`].
#[derive(Clone, Copy, Debug)]
pub struct DeltaOperands {
    pub query: Tensor,
    pub decay: Tensor,
    pub key: Tensor,
    pub value: Tensor,
    pub take: Tensor,
    pub add: Tensor,
}

impl Graph {
    /// See [`ShortConv`]: `[M, C]`.
    pub fn short_conv(&mut self, x: Tensor, weight: Tensor, memory: Recurrence) -> Result {
        let (&[rows, channels], &[of, taps]) = (self.shape(x), self.shape(weight)) else {
            return Err(self.shape_error("short_conv", &[x, weight], "[M, C] and [C, L] expected"));
        };
        let fits = channels == of && taps > 1;
        let reason = "two weights or more of each channel expected";
        self.want(fits, "short_conv", &[x, weight], reason)?;
        self.check_state("short_conv", memory, rows, &[taps - 1, channels])?;
        let op = |out| Op::ShortConv(ShortConv { x, weight, memory, out });
        Ok(self.compute(vec![rows, channels], DType::F32, op))
    }

    /// See [`GatedDelta`]: `[M, H, V]`.
    pub fn gated_delta(
        &mut self,
        mixed: Tensor,
        gates: DeltaGates,
        heads: DeltaHeads,
        eps: f32,
        memory: Recurrence,
    ) -> Result {
        let DeltaHeads { keys, values, key_size, value_size, grouped } = heads;
        let DeltaGates { step, strength, rate, bias } = gates;
        let reason = "[M, 2 HK K + H V] expected, HK a divisor of H";
        let rows = self.shape(mixed)[0];
        let fits = *self.shape(mixed) == [rows, heads.columns()]
            && keys > 0
            && values.is_multiple_of(keys);
        self.want(fits, "gated_delta", &[mixed], reason)?;
        self.check_state("gated_delta", memory, rows, &[values, key_size, value_size])?;
        let added = Scalar::new(eps);
        let delta =
            |out| GatedDelta { mixed, step, strength, rate, bias, heads, eps: added, memory, out };
        let op = |out| Op::GatedDelta(delta(out));
        self.composite(op, |g| {
            let keyed = |g: &mut Self, at: usize, factor: f32| {
                let x = g.slice(mixed, 1, at * keys * key_size, keys * key_size)?;
                let x = g.reshape(x, &[rows, keys, key_size])?;
                let x = g.l2_normalise(x, eps)?;
                let factor = g.constant(factor);
                let x = g.binary(Binary::Mul, x, factor)?;
                // Repeats keys so that every value head has its own.
                let [one, all] = if grouped {
                    [[rows, keys, 1, key_size], [rows, keys, values / keys, key_size]]
                } else {
                    [[rows, 1, keys, key_size], [rows, values / keys, keys, key_size]]
                };
                let x = g.reshape(x, &one)?;
                let x = g.expand(x, &all)?;
                g.reshape(x, &[rows, values, key_size])
            };
            let query = keyed(g, 0, 1.0 / (key_size as f32).sqrt())?;
            let key = keyed(g, 1, 1.0)?;
            let value = g.slice(mixed, 1, 2 * keys * key_size, values * value_size)?;
            let value = g.reshape(value, &[rows, values, value_size])?;

            let step = g.binary(Binary::Add, step, bias)?;
            let step = g.softplus(step)?;
            let decay = g.binary(Binary::Mul, step, rate)?;
            let decay = g.unary(Unary::Exp, decay)?;
            let decay = g.reshape(decay, &[rows, values, 1])?;
            let beta = g.sigmoid(strength)?;
            let beta = g.reshape(beta, &[rows, values, 1])?;
            let value = g.binary(Binary::Mul, value, beta)?;
            let taken = g.binary(Binary::Mul, decay, beta)?;
            let taken = g.unary(Unary::Neg, taken)?;
            let add = g.binary(Binary::Mul, key, taken)?;
            let decay = g.expand(decay, &[rows, values, key_size])?;
            g.delta_rule(DeltaOperands { query, decay, key, value, take: key, add }, memory)
        })
    }

    /// See [`DeltaRule`]: `[M, H, V]`.
    pub fn delta_rule(&mut self, operands: DeltaOperands, memory: Recurrence) -> Result {
        let DeltaOperands { query, decay, key, value, take, add } = operands;
        let of_keys = [query, decay, key, take, add];
        let (&[rows, heads, keys], &[_, _, values]) = (self.shape(query), self.shape(value)) else {
            return Err(self.shape_error("delta_rule", &[query, value], "three axes expected"));
        };
        let fits = of_keys.iter().all(|&tensor| *self.shape(tensor) == [rows, heads, keys])
            && *self.shape(value) == [rows, heads, values];
        let all = [query, decay, key, value, take, add];
        self.want(fits, "delta_rule", &all, "[M, H, K], and [M, H, V] of values, expected")?;
        self.check_state("delta_rule", memory, rows, &[heads, keys, values])?;
        let op =
            |out| Op::DeltaRule(DeltaRule { query, decay, key, value, take, add, memory, out });
        Ok(self.compute(vec![rows, heads, values], DType::F32, op))
    }

    /// L2-normalises the rows of `x`; `eps` is added to the squared norm.
    pub fn l2_normalise(&mut self, x: Tensor, eps: f32) -> Result {
        let axis = self.shape(x).len() - 1;
        let square = self.binary(Binary::Mul, x, x)?;
        let sum = self.reduce(Reduce::Sum, square, axis)?;
        let eps = self.constant(eps);
        let sum = self.binary(Binary::Add, sum, eps)?;
        let length = self.unary(Unary::Sqrt, sum)?;
        let inverse = self.unary(Unary::Recip, length)?;
        self.binary(Binary::Mul, x, inverse)
    }

    /// `ln(1 + exp(x))`, as `max(x, 0) + ln(1 + exp(-|x|))`.
    fn softplus(&mut self, x: Tensor) -> Result {
        let (zero, one) = (self.constant(0.0), self.constant(1.0));
        let negative = self.unary(Unary::Neg, x)?;
        let size = self.binary(Binary::Max, x, negative)?;
        let size = self.unary(Unary::Neg, size)?;
        let exp = self.unary(Unary::Exp, size)?;
        let sum = self.binary(Binary::Add, exp, one)?;
        let rest = self.unary(Unary::Ln, sum)?;
        let positive = self.binary(Binary::Max, x, zero)?;
        self.binary(Binary::Add, positive, rest)
    }

    /// Returns an error unless the state has two versions of `size` per slot.
    fn check_state(
        &self,
        op: &'static str,
        memory: Recurrence,
        rows: usize,
        size: &[usize],
    ) -> Result<()> {
        let Recurrence { state, held, rows: at, chunk } = memory;
        let slots = self.shape(held).first().copied().unwrap_or(0);
        let fits = *self.shape(held) == [slots, 2]
            && *self.shape(state) == [&[slots, 2], size].concat()
            && *self.shape(at.slots) == [rows]
            && *self.shape(at.positions) == [rows]
            && chunk > 0
            && rows.is_multiple_of(chunk)
            && [state, held].iter().all(|tensor| {
                matches!(self.node(*tensor).kind, Kind::Source { class: Class::State, .. })
            });
        self.want(fits, op, &[state, held], "two versions of a state for each slot expected")
    }
}
