//! The named composites, each defined once in primitives. The definition is the meaning: the
//! reference on every device.

use super::{Caches, Graph, Result, Rows, Tensor};
use crate::{
    Attention, Binary, DType, Norm, Op, Reduce, RmsNorm, RopeStyle, RopeTable, Scalar, Unary,
};

impl Graph {
    /// `x / sqrt(mean(x^2) + eps) * weight` over the last axis.
    pub fn rms_norm(&mut self, x: Tensor, weight: Tensor, eps: f32) -> Result {
        let norm = Norm { weight, eps: Scalar::new(eps) };
        let op = |out| Op::RmsNorm(RmsNorm { x, norm, out });
        self.composite(op, |g| {
            let axis = g.last_axis("rms_norm", x)?;
            let count = g.constant(1.0 / g.shape(x)[axis] as f32);
            let square = g.binary(Binary::Mul, x, x)?;
            let sum = g.reduce(Reduce::Sum, square, axis)?;
            let mean = g.binary(Binary::Mul, sum, count)?;
            let eps = g.constant(eps);
            let mean = g.binary(Binary::Add, mean, eps)?;
            let root = g.unary(Unary::Sqrt, mean)?;
            let scale = g.unary(Unary::Recip, root)?;
            let normed = g.binary(Binary::Mul, x, scale)?;
            g.binary(Binary::Mul, normed, weight)
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
            let both = g.concat(cos, sin, 1)?;
            let magnitude = g.constant(magnitude);
            g.binary(Binary::Mul, both, magnitude)
        })
    }

    /// `x [M, H, D]` rotated by the table.
    pub fn rope(&mut self, x: Tensor, table: Tensor, style: RopeStyle) -> Result {
        let op = |out| Op::Rope { style, x, table, out };
        self.composite(op, |g| {
            let &[rows, heads, dim] = g.shape(x) else {
                return Err(g.shape_error("rope", &[x, table], "x must be [M, H, D]"));
            };
            let half = dim / 2;
            // Pairs along `axis` of [M, H, ..]: [D/2, 2] interleaved, [2, D/2] split in halves.
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
            let rotated = g.concat(first, second, axis)?;
            g.reshape(rotated, &[rows, heads, dim])
        })
    }

    /// `silu(gate) * up`.
    pub fn swiglu(&mut self, gate: Tensor, up: Tensor) -> Result {
        let op = |out| Op::SwiGlu { gate, up, out };
        self.composite(op, |g| {
            let negative = g.unary(Unary::Neg, gate)?;
            let exp = g.unary(Unary::Exp, negative)?;
            let one = g.constant(1.0);
            let sum = g.binary(Binary::Add, exp, one)?;
            let sigmoid = g.unary(Unary::Recip, sum)?;
            let silu = g.binary(Binary::Mul, gate, sigmoid)?;
            g.binary(Binary::Mul, silu, up)
        })
    }

    /// The cache `[slots, C, KVH, D]` with `values [M, KVH, D]` at `(slot, position)`.
    pub fn kv_write(&mut self, cache: Tensor, rows: Rows, values: Tensor) -> Result {
        let op = |_| Op::KvWrite { rows, values, cache };
        self.composite(op, |g| {
            let values = g.cast(values, g.dtype(cache))?;
            g.scatter(cache, &[rows.slots, rows.positions], values)
        })
    }

    /// Causal attention of `q [M, H, D]` over the first `context` positions of each row's slot in
    /// the caches `[slots, C, KVH, D]`: `[M, H, D]`.
    pub fn attention(&mut self, q: Tensor, caches: Caches, rows: Rows, context: usize) -> Result {
        let &[m, heads, dim] = self.shape(q) else {
            return Err(self.shape_error("attention", &[q], "q must be [M, H, D]"));
        };
        let Some(&[_, capacity, kv_heads, _]) = self.shape(caches.keys).first_chunk::<4>() else {
            let reason = "caches must be [slots, C, KVH, D]";
            return Err(self.shape_error("attention", &[caches.keys], reason));
        };
        let fits = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        self.want(fits, "attention", &[q, caches.keys], "H must be a multiple of KVH")?;
        let reason = "the context must lie inside C";
        self.want(context <= capacity, "attention", &[caches.keys], reason)?;
        let scale = 1.0 / (dim as f32).sqrt();
        let group = heads / kv_heads;
        let factor = Scalar::new(scale);
        let op = |out| Op::Attention(Attention { scale: factor, q, caches, rows, out });
        self.composite(op, |g| {
            let at = g.iota(context);
            let positions = g.cast(rows.positions, DType::F32)?;
            let positions = g.reshape(positions, &[m, 1])?;
            let visible = g.binary(Binary::LessEqual, at, positions)?;
            // Each row's slot and positions; -1, so zeroes, where a position is not visible, whatever was left there.
            let one = g.constant(1.0);
            let from_one = g.binary(Binary::Add, at, one)?;
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
            let scores = g.matmul(q, keys)?;
            let scale = g.constant(scale);
            let scores = g.binary(Binary::Mul, scores, scale)?;
            // ln 1 = 0 where the position is visible, ln 0 = -inf where it is not.
            let bias = g.unary(Unary::Ln, visible)?;
            let bias = g.reshape(bias, &[m, 1, 1, context])?;
            let scores = g.binary(Binary::Add, scores, bias)?;
            let largest = g.reduce(Reduce::Max, scores, 3)?;
            let shifted = g.binary(Binary::Sub, scores, largest)?;
            let weights = g.unary(Unary::Exp, shifted)?;
            let sum = g.reduce(Reduce::Sum, weights, 3)?;
            let inverse = g.unary(Unary::Recip, sum)?;
            let weights = g.binary(Binary::Mul, weights, inverse)?;
            let values = g.permute(values, &[0, 2, 3, 1])?;
            let mixed = g.matmul(weights, values)?;
            g.reshape(mixed, &[m, heads, dim])
        })
    }

    /// `a` and `b` one after the other along `axis`.
    fn concat(&mut self, a: Tensor, b: Tensor, axis: usize) -> Result {
        let (na, nb) = (self.shape(a)[axis], self.shape(b)[axis]);
        let a = self.pad(a, axis, 0, nb)?;
        let b = self.pad(b, axis, na, 0)?;
        self.binary(Binary::Add, a, b)
    }

    fn last_axis(&self, op: &'static str, x: Tensor) -> Result<usize> {
        self.shape(x)
            .len()
            .checked_sub(1)
            .ok_or_else(|| self.shape_error(op, &[x], "at least one axis"))
    }

    /// Runs a definition with its nodes tagged as the operation that `op` makes of its result; composites
    /// do not nest.
    fn composite(
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
