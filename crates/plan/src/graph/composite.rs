//! Composites, each defined once in primitives. The definition is the reference on every device.

use super::builder::{Caches, Graph, Result, Rows, Tensor};
use crate::{
    Activation, Attention, Binary, DType, Norm, NormKind, Normalise, Op, Reduce, RopeStyle,
    RopeTable, Scalar, Scores, Temperature, Unary,
};

impl Graph {
    /// `x / sqrt(mean(x^2) + eps) * weight` over the last axis.
    pub fn rms_norm(&mut self, x: Tensor, weight: Tensor, eps: f32) -> Result {
        self.normalise(x, Norm { kind: NormKind::Rms, weight, bias: None, eps: Scalar::new(eps) })
    }

    /// Norm of `x` over the last axis: subtracts the mean (LayerNorm only), divides by the root
    /// mean square, multiplies by `weight`, adds `bias`.
    pub fn normalise(&mut self, x: Tensor, norm: super::builder::Norm) -> Result {
        let op = |out| Op::Normalise(Normalise { x, norm, out });
        self.composite(op, |g| {
            let axis = g.last_axis("normalise", x)?;
            let count = g.constant(1.0 / g.shape(x)[axis] as f32);
            let x = match norm.kind {
                NormKind::Rms => x,
                NormKind::Layer => {
                    let sum = g.reduce(Reduce::Sum, x, axis)?;
                    let mean = g.binary(Binary::Mul, sum, count)?;
                    g.binary(Binary::Sub, x, mean)?
                }
            };
            let square = g.binary(Binary::Mul, x, x)?;
            let sum = g.reduce(Reduce::Sum, square, axis)?;
            let mean = g.binary(Binary::Mul, sum, count)?;
            let eps = g.constant(norm.eps.get());
            let mean = g.binary(Binary::Add, mean, eps)?;
            let root = g.unary(Unary::Sqrt, mean)?;
            let scale = g.unary(Unary::Recip, root)?;
            let normed = g.binary(Binary::Mul, x, scale)?;
            let weighed = g.binary(Binary::Mul, normed, norm.weight)?;
            match norm.bias {
                Some(bias) => g.binary(Binary::Add, weighed, bias),
                None => Ok(weighed),
            }
        })
    }

    /// `x [.., D]` plus `bias [D]`.
    pub fn bias(&mut self, x: Tensor, bias: Tensor) -> Result {
        let op = |out| Op::Bias { x, bias, out };
        self.composite(op, |g| {
            let axis = g.last_axis("bias", x)?;
            let fits = g.shape(x)[axis..] == *g.shape(bias);
            g.want(fits, "bias", &[x, bias], "a value for each column expected")?;
            g.binary(Binary::Add, x, bias)
        })
    }

    /// `x * factor`
    pub fn scale(&mut self, x: Tensor, factor: f32) -> Result {
        let op = |out| Op::Scale { factor: Scalar::new(factor), x, out };
        self.composite(op, |g| {
            let factor = g.constant(factor);
            g.binary(Binary::Mul, x, factor)
        })
    }

    /// `cap * tanh(x / cap)`
    pub fn soft_cap(&mut self, x: Tensor, cap: f32) -> Result {
        let op = |out| Op::SoftCap { cap: Scalar::new(cap), x, out };
        self.composite(op, |g| g.capped(x, cap))
    }

    pub fn activate(&mut self, activation: Activation, x: Tensor) -> Result {
        let op = |out| Op::Activate { activation, x, out };
        self.composite(op, |g| g.activated(activation, x))
    }

    /// `activation(gate) * up`
    pub fn glu(&mut self, activation: Activation, gate: Tensor, up: Tensor) -> Result {
        let op = |out| Op::Glu { activation, gate, up, out };
        self.composite(op, |g| {
            let gate = g.activated(activation, gate)?;
            g.binary(Binary::Mul, gate, up)
        })
    }

    /// `x [M, N]` times `1 / (1 + exp(-gate))`, the gate `[M, N]` or `[M, 1]`.
    pub fn gate(&mut self, gate: Tensor, x: Tensor) -> Result {
        let op = |out| Op::Gate { gate, x, out };
        let fits = matches!((self.shape(gate), self.shape(x)),
            ([rows, 1], [of, _]) if rows == of)
            || self.shape(gate) == self.shape(x);
        self.want(fits, "gate", &[gate, x], "a gate for each value or row expected")?;
        self.composite(op, |g| {
            let open = g.sigmoid(gate)?;
            g.binary(Binary::Mul, x, open)
        })
    }

    /// Cosines and sines `[M, 2, D/2]` of `positions [M]` times `frequencies [D/2]`.
    pub fn rope_table(&mut self, positions: Tensor, frequencies: Tensor, magnitude: f32) -> Result {
        let scalar = Scalar::new(magnitude);
        let op = |out| Op::RopeTable(RopeTable { magnitude: scalar, positions, frequencies, out });
        self.composite(op, |g| {
            let (rows, half) = (g.shape(positions)[0], g.shape(frequencies)[0]);
            let positions = g.cast(positions, DType::F32)?;
            let positions = g.reshape(positions, &[rows, 1, 1])?;
            let frequencies = g.reshape(frequencies, &[1, 1, half])?;
            let angle = g.binary(Binary::Mul, positions, frequencies)?;
            let cos = g.unary(Unary::Cos, angle)?;
            let sin = g.unary(Unary::Sin, angle)?;
            let both = g.concat(&[cos, sin], 1)?;
            let magnitude = g.constant(magnitude);
            g.binary(Binary::Mul, both, magnitude)
        })
    }

    /// Rotates the first R of each head's D values, `x [M, H, D]`, by the table `[M, 2, R/2]`.
    pub fn rope(&mut self, x: Tensor, table: Tensor, style: RopeStyle) -> Result {
        let op = |out| Op::Rope { style, x, table, out };
        self.composite(op, |g| {
            let &[rows, heads, dim] = g.shape(x) else {
                return Err(g.shape_error("rope", &[x, table], "x must be [M, H, D]"));
            };
            let &[_, 2, half] = g.shape(table) else {
                return Err(g.shape_error("rope", &[x, table], "the table must be [M, 2, R/2]"));
            };
            g.want(2 * half <= dim, "rope", &[x, table], "R must be at most D")?;
            let rest = g.slice(x, 2, 2 * half, dim - 2 * half)?;
            let x = g.slice(x, 2, 0, 2 * half)?;
            // Pairs along `axis` of [M, H, ..]: [D/2, 2] interleaved, or [2, D/2] for split halves.
            let (split, axis) = match style {
                RopeStyle::Interleaved => ([rows, heads, half, 2], 3),
                RopeStyle::HalfSplit => ([rows, heads, 2, half], 2),
            };
            let mut part_shape = split;
            part_shape[axis] = 1;
            let x = g.reshape(x, &split)?;
            let (a, b) = (g.slice(x, axis, 0, 1)?, g.slice(x, axis, 1, 1)?);
            let mut row = |at: usize| {
                let part = g.slice(table, 1, at, 1)?;
                let one_head = [rows, 1, part_shape[2], part_shape[3]];
                g.reshape(part, &one_head)
            };
            let (cos, sin) = (row(0)?, row(1)?);
            let (ac, bs) = (g.binary(Binary::Mul, a, cos)?, g.binary(Binary::Mul, b, sin)?);
            let (as_, bc) = (g.binary(Binary::Mul, a, sin)?, g.binary(Binary::Mul, b, cos)?);
            let first = g.binary(Binary::Sub, ac, bs)?;
            let second = g.binary(Binary::Add, as_, bc)?;
            let rotated = g.concat(&[first, second], axis)?;
            let rotated = g.reshape(rotated, &[rows, heads, 2 * half])?;
            if 2 * half == dim { Ok(rotated) } else { g.concat(&[rotated, rest], 2) }
        })
    }

    /// Writes `values [M, KVH, D]` at `(slot, position)` into the cache `[slots, C, KVH, D]`; a
    /// ring takes the position modulo C.
    pub fn kv_write(&mut self, cache: Tensor, rows: Rows, values: Tensor, ring: bool) -> Result {
        let op = |_| Op::KvWrite { rows, values, cache, ring };
        let &[_, capacity, ..] = self.shape(cache) else {
            return Err(self.shape_error("kv-write", &[cache], "a cache is [slots, C, KVH, D]"));
        };
        self.composite(op, |g| {
            let mut places = rows.positions;
            if ring {
                let capacity = g.constant(capacity as f32);
                places = g.binary(Binary::Rem, places, capacity)?;
            }
            let values = g.cast(values, g.dtype(cache))?;
            g.scatter(cache, &[rows.slots, places], values)
        })
    }

    /// Causal attention of `q [M, H, D]` over the first `context` positions of each row's slot in
    /// the caches `[slots, C, KVH, D]`: `[M, H, D]`. An attention sink `[H]` is one extra score per
    /// head, without a value.
    pub fn attention(
        &mut self,
        q: Tensor,
        caches: Caches,
        rows: Rows,
        sinks: Option<Tensor>,
        scores: Scores,
        context: usize,
    ) -> Result {
        let &[m, heads, dim] = self.shape(q) else {
            return Err(self.shape_error("attention", &[q], "q must be [M, H, D]"));
        };
        let Some(&[_, capacity, kv_heads, _]) = self.shape(caches.keys).first_chunk::<4>() else {
            let reason = "caches must be [slots, C, KVH, D]";
            return Err(self.shape_error("attention", &[caches.keys], reason));
        };
        let fits = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        self.want(fits, "attention", &[q, caches.keys], "H must be a multiple of KVH")?;
        let held = if caches.ring { scores.window.unwrap_or(usize::MAX) } else { context };
        let reason = "the context, of a ring the window, must lie inside C";
        self.want(held <= capacity, "attention", &[caches.keys], reason)?;
        if let Some(sinks) = sinks {
            let fits = *self.shape(sinks) == [heads];
            self.want(fits, "attention", &[q, sinks], "a sink of each head expected")?;
        }
        let group = heads / kv_heads;
        let op = |out| Op::Attention(Attention { scores, q, caches, rows, sinks, out });
        self.composite(op, |g| {
            let at = g.iota(context);
            let positions = g.cast(rows.positions, DType::F32)?;
            let positions = g.reshape(positions, &[m, 1])?;
            let mut visible = g.binary(Binary::LessEqual, at, positions)?;
            if let Some(window) = scores.window {
                let further = g.constant(window as f32 - 1.0);
                let last_seen_by = g.binary(Binary::Add, at, further)?;
                let near = g.binary(Binary::LessEqual, positions, last_seen_by)?;
                visible = g.binary(Binary::Mul, visible, near)?;
            }
            // Index of each visible position, or -1, which gathers zeroes instead of stale cache
            // contents.
            let mut places = at;
            if caches.ring {
                let capacity = g.constant(capacity as f32);
                places = g.binary(Binary::Rem, places, capacity)?;
            }
            let one = g.constant(1.0);
            let from_one = g.binary(Binary::Add, places, one)?;
            let from_one = g.binary(Binary::Mul, from_one, visible)?;
            let places = g.binary(Binary::Sub, from_one, one)?;
            let places = g.cast(places, DType::I32)?;
            let places = g.reshape(places, &[m * context])?;
            let slots = g.reshape(rows.slots, &[m, 1])?;
            let slots = g.expand(slots, &[m, context])?;
            let slots = g.reshape(slots, &[m * context])?;
            let mut band = |cache: Tensor| {
                let rows = g.gather(cache, &[slots, places])?;
                g.reshape(rows, &[m, context, kv_heads, dim])
            };
            let (keys, values) = (band(caches.keys)?, band(caches.values)?);
            let q = g.reshape(q, &[m, kv_heads, group, dim])?;
            let keys = g.permute(keys, &[0, 2, 1, 3])?;
            let mut products = g.matmul(q, keys)?;
            let scale = g.constant(scores.scale.get());
            products = g.binary(Binary::Mul, products, scale)?;
            if let Some(temperature) = scores.temperature {
                let factor = g.temperature(temperature, positions, context)?;
                let factor = g.reshape(factor, &[m, 1, 1, 1])?;
                products = g.binary(Binary::Mul, products, factor)?;
            }
            if let Some(cap) = scores.cap {
                products = g.capped(products, cap.get())?;
            }
            // ln 1 = 0 for visible positions, ln 0 = -inf for the others.
            let bias = g.unary(Unary::Ln, visible)?;
            let bias = g.reshape(bias, &[m, 1, 1, context])?;
            let products = g.binary(Binary::Add, products, bias)?;
            let shape = [1, kv_heads, group, 1];
            let sinks = sinks.map(|sinks| g.reshape(sinks, &shape)).transpose()?;
            let weights = g.softmax(products, sinks)?;
            let values = g.permute(values, &[0, 2, 3, 1])?;
            let mixed = g.matmul(weights, values)?;
            g.reshape(mixed, &[m, heads, dim])
        })
    }

    /// `x * sigmoid(a x + b x^3)`, the form of every activation.
    pub(super) fn activated(&mut self, activation: Activation, x: Tensor) -> Result {
        let [linear, cubic] = activation.angle();
        let mut angle = x;
        if activation != Activation::Silu {
            let square = self.binary(Binary::Mul, x, x)?;
            let (linear, cubic) = (self.constant(linear), self.constant(cubic));
            let factor = self.binary(Binary::Mul, square, cubic)?;
            let factor = self.binary(Binary::Add, factor, linear)?;
            angle = self.binary(Binary::Mul, x, factor)?;
        }
        let sigmoid = self.sigmoid(angle)?;
        self.binary(Binary::Mul, x, sigmoid)
    }

    /// `1 / (1 + exp(-x))`
    pub fn sigmoid(&mut self, x: Tensor) -> Result {
        let negative = self.unary(Unary::Neg, x)?;
        let exp = self.unary(Unary::Exp, negative)?;
        let one = self.constant(1.0);
        let sum = self.binary(Binary::Add, exp, one)?;
        self.unary(Unary::Recip, sum)
    }

    /// `cap * tanh(x / cap)`; `tanh y = 2 sigmoid(2 y) - 1`.
    fn capped(&mut self, x: Tensor, cap: f32) -> Result {
        let (over, twice, cap) =
            (self.constant(2.0 / cap), self.constant(2.0 * cap), self.constant(cap));
        let x = self.binary(Binary::Mul, x, over)?;
        let sigmoid = self.sigmoid(x)?;
        let wide = self.binary(Binary::Mul, sigmoid, twice)?;
        self.binary(Binary::Sub, wide, cap)
    }

    /// Temperature factor of each of `positions [M, 1]`, all below `context`: `[M, 1]`.
    fn temperature(&mut self, of: Temperature, positions: Tensor, context: usize) -> Result {
        // Counts the multiples of `length` up to the position.
        let lengths = self.iota(context.div_ceil(of.length.max(1)).max(1));
        let (one, length) = (self.constant(1.0), self.constant(of.length as f32));
        let lengths = self.binary(Binary::Add, lengths, one)?;
        let lengths = self.binary(Binary::Mul, lengths, length)?;
        let reached = self.binary(Binary::LessEqual, lengths, positions)?;
        let count = self.reduce(Reduce::Sum, reached, 1)?;
        let count = self.binary(Binary::Add, count, one)?;
        let logarithm = self.unary(Unary::Ln, count)?;
        let slope = self.constant(of.slope.get());
        let more = self.binary(Binary::Mul, logarithm, slope)?;
        self.binary(Binary::Add, more, one)
    }

    /// `exp(x) / sum(exp(x))` along the last axis; the sum includes `exp(sink)`.
    pub(super) fn softmax(&mut self, x: Tensor, sink: Option<Tensor>) -> Result {
        let axis = self.last_axis("softmax", x)?;
        let mut largest = self.reduce(Reduce::Max, x, axis)?;
        if let Some(sink) = sink {
            largest = self.binary(Binary::Max, largest, sink)?;
        }
        let shifted = self.binary(Binary::Sub, x, largest)?;
        let weights = self.unary(Unary::Exp, shifted)?;
        let mut sum = self.reduce(Reduce::Sum, weights, axis)?;
        if let Some(sink) = sink {
            let shifted = self.binary(Binary::Sub, sink, largest)?;
            let lost = self.unary(Unary::Exp, shifted)?;
            sum = self.binary(Binary::Add, sum, lost)?;
        }
        let inverse = self.unary(Unary::Recip, sum)?;
        self.binary(Binary::Mul, weights, inverse)
    }

    fn last_axis(&self, op: &'static str, x: Tensor) -> Result<usize> {
        self.shape(x)
            .len()
            .checked_sub(1)
            .ok_or_else(|| self.shape_error(op, &[x], "at least one axis"))
    }

    /// Runs a definition and tags its nodes with the operation that `op` returns for its result.
    /// Composites do not nest.
    pub(super) fn composite(
        &mut self,
        op: impl FnOnce(Tensor) -> Op<Tensor>,
        define: impl FnOnce(&mut Self) -> Result,
    ) -> Result {
        let start = self.nodes.len();
        self.open_composite = true;
        let output = define(self);
        self.open_composite = false;
        match output {
            Ok(output) => self.composites.push(op(output)),
            Err(_) => self.nodes.truncate(start),
        }
        output
    }
}
