//! Primitives: sources, views, elementwise operations, reductions, products, gather and scatter.

use super::builder::{Error, Graph, Kind, Result, SampleInputs, Tensor};
use crate::sample::Adjustment;
use crate::{Binary, Class, DType, Gather, MAX_INDICES, Op, Reduce, Sample, Scalar, Unary, Window};

impl Graph {
    /// A named buffer of the model or the engine.
    pub fn source(&mut self, class: Class, name: &str, dtype: DType, shape: &[usize]) -> Result {
        let tensor = self.named(class, name, |graph| {
            graph.push(Kind::Source { class, name: name.to_owned() }, shape.to_vec(), dtype)
        });
        let node = self.node(tensor);
        if node.dtype != dtype || node.shape != shape {
            return Err(Error::Redeclared { class, name: name.to_owned() });
        }
        Ok(tensor)
    }

    /// A scalar, broadcast where it is used.
    pub fn constant(&mut self, value: f32) -> Tensor {
        self.push(Kind::Constant(Scalar::new(value)), vec![], DType::F32)
    }

    /// `0, 1, 2, .. len - 1` as `F32`.
    pub fn iota(&mut self, len: usize) -> Tensor {
        self.compute(vec![len], DType::F32, |out| Op::Iota { out })
    }

    /// The same elements in row-major order with another shape.
    pub fn reshape(&mut self, x: Tensor, shape: &[usize]) -> Result {
        let node = self.node(x);
        let fits = node.shape.iter().product::<usize>() == shape.iter().product::<usize>();
        self.want(fits, "reshape", &[x], "the element count must stay")?;
        let dtype = node.dtype;
        Ok(self.push(Kind::Reshape(x), shape.to_vec(), dtype))
    }

    /// Dimensions reordered: dimension `i` of the result is `axes[i]` of `x`.
    pub fn permute(&mut self, x: Tensor, axes: &[usize]) -> Result {
        let node = self.node(x);
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        let fits = sorted.into_iter().eq(0..node.shape.len());
        self.want(fits, "permute", &[x], "axes must be a permutation")?;
        let shape = axes.iter().map(|&a| node.shape[a]).collect();
        let dtype = node.dtype;
        Ok(self.push(Kind::Permute(x, axes.to_vec()), shape, dtype))
    }

    /// Dimensions of extent 1 repeated; missing leading dimensions are added.
    pub fn expand(&mut self, x: Tensor, shape: &[usize]) -> Result {
        let have = self.shape(x).to_vec();
        if have == shape {
            return Ok(x);
        }
        let missing = shape.len().checked_sub(have.len());
        let fits = missing
            .is_some_and(|m| have.iter().zip(&shape[m..]).all(|(h, want)| h == want || *h == 1));
        let Some(missing) = missing.filter(|_| fits) else {
            return Err(self.shape_error("expand", &[x], "only extents of 1 repeat"));
        };
        let mut padded = vec![1; missing];
        padded.extend(&have);
        let x = if missing > 0 { self.reshape(x, &padded)? } else { x };
        let dtype = self.dtype(x);
        Ok(self.push(Kind::Expand(x), shape.to_vec(), dtype))
    }

    /// `len` entries of `axis` from `start`.
    pub fn slice(&mut self, x: Tensor, axis: usize, start: usize, len: usize) -> Result {
        let node = self.node(x);
        let end = start.checked_add(len);
        let fits = node.shape.get(axis).is_some_and(|&n| end.is_some_and(|end| end <= n));
        self.want(fits, "slice", &[x], "the range must lie inside the axis")?;
        let (mut shape, dtype) = (node.shape.clone(), node.dtype);
        shape[axis] = len;
        Ok(self.push(Kind::Slice { x, axis, start }, shape, dtype))
    }

    /// Windows over `axis`. The axis becomes the window count, and a new last axis indexes within a
    /// window.
    pub fn window(&mut self, x: Tensor, axis: usize, window: Window) -> Result {
        let (mut shape, dtype) = (self.shape(x).to_vec(), self.dtype(x));
        let count = shape.get(axis).and_then(|&extent| window.count(extent));
        let Some(count) = count else {
            return Err(self.shape_error("window", &[x], "no window fits the axis"));
        };
        shape[axis] = count;
        shape.push(window.size);
        Ok(self.push(Kind::Window { x, axis, window }, shape, dtype))
    }

    /// `axis` in reverse order.
    pub fn flip(&mut self, x: Tensor, axis: usize) -> Result {
        let (shape, dtype) = (self.shape(x).to_vec(), self.dtype(x));
        self.want(axis < shape.len(), "flip", &[x], "no such axis")?;
        Ok(self.push(Kind::Flip { x, axis }, shape, dtype))
    }

    /// Pads `axis` with zeroes.
    pub fn pad(&mut self, x: Tensor, axis: usize, before: usize, after: usize) -> Result {
        let (x, dtype) = self.word("pad", x)?;
        let mut shape = self.shape(x).to_vec();
        let Some(extent) = shape.get_mut(axis) else {
            return Err(self.shape_error("pad", &[x], "no such axis"));
        };
        *extent += before + after;
        Ok(self.compute(shape, dtype, |out| Op::Pad { axis, before, x, out }))
    }

    /// Concatenates tensors along an axis. Every element stays as it is, to the bit.
    pub fn concat(&mut self, all: &[Tensor], axis: usize) -> Result {
        let extents = all.iter().map(|x| self.shape(*x).get(axis).copied().unwrap_or(0));
        let extents: Vec<usize> = extents.collect();
        let total: usize = extents.iter().sum();
        let (mut before, mut whole) = (0, None);
        for (&x, extent) in all.iter().zip(extents) {
            let part = self.pad(x, axis, before, total - before - extent)?;
            before += extent;
            whole = Some(match whole {
                Some(whole) => self.binary(Binary::Or, whole, part)?,
                None => part,
            });
        }
        whole.ok_or_else(|| self.shape_error("concat", all, "at least one tensor"))
    }

    pub fn unary(&mut self, op: Unary, x: Tensor) -> Result {
        let x = self.number("unary", x)?;
        // Folds operations on constants that are exact.
        if let Kind::Constant(value) = self.node(x).kind {
            match op {
                Unary::Neg => return Ok(self.constant(-value.get())),
                Unary::Recip => return Ok(self.constant(1.0 / value.get())),
                _ => {}
            }
        }
        let shape = self.shape(x).to_vec();
        Ok(self.compute(shape, DType::F32, |out| Op::Unary { op, x, out }))
    }

    /// Elementwise, two operands broadcast against each other: both floats, both integers, or an
    /// integer and a constant (its integer part).
    pub fn binary(&mut self, op: Binary, a: Tensor, b: Tensor) -> Result {
        let (a, dtype) = self.word("binary", a)?;
        if op.is_of_bits() && (op, dtype) != (Binary::Or, DType::F32) {
            self.want_type("binary", a, "I32", |found| found == DType::I32)?;
        }
        if let (Kind::Constant(x), Kind::Constant(y)) = (&self.node(a).kind, &self.node(b).kind) {
            let (x, y) = (x.get(), y.get());
            match op {
                Binary::Add => return Ok(self.constant(x + y)),
                Binary::Sub => return Ok(self.constant(x - y)),
                Binary::Mul => return Ok(self.constant(x * y)),
                Binary::Div => return Ok(self.constant(x / y)),
                _ => {}
            }
        }
        let mut b = b;
        if !matches!(self.node(b).kind, Kind::Constant(_)) {
            b = self.word("binary", b)?.0;
            self.want_type("binary", b, "the other's type", |found| found == dtype)?;
        }
        let ([a, b], shape) = self.broadcast([a, b])?;
        let dtype = if op.is_comparison() { DType::F32 } else { dtype };
        Ok(self.compute(shape, dtype, |out| Op::Binary { op, a, b, out }))
    }

    /// `a` where the condition (`F32` or `BOOL`) is not 0, else `b`; all three broadcast.
    pub fn select(&mut self, condition: Tensor, a: Tensor, b: Tensor) -> Result {
        let condition = self.number("where", condition)?;
        let (a, dtype) = self.word("where", a)?;
        let (b, _) = self.word("where", b)?;
        self.want_type("where", b, "the other's type", |found| found == dtype)?;
        let ([condition, a, b], shape) = self.broadcast([condition, a, b])?;
        Ok(self.compute(shape, dtype, |out| Op::Where { condition, a, b, out }))
    }

    /// Expands the operands to their common shape.
    fn broadcast<const N: usize>(&mut self, all: [Tensor; N]) -> Result<([Tensor; N], Vec<usize>)> {
        let rank = all.iter().map(|t| self.shape(*t).len()).max().unwrap_or(0);
        let extent = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
        let shape = (0..rank).map(|i| {
            let mut extents = all.iter().map(|t| extent(self.shape(*t), i));
            extents.find(|extent| *extent != 1).unwrap_or(1)
        });
        let shape: Vec<usize> = shape.collect();
        let mut expanded = all;
        for tensor in &mut expanded {
            *tensor = self.expand(*tensor, &shape)?;
        }
        Ok((expanded, shape))
    }

    /// Converts between all types except block formats, and `F32` to the block formats of
    /// [`crate::quant::store`].
    ///
    /// Narrow types convert through their 4-byte type. Floats truncate towards 0 to integers, which
    /// keep their lowest bits ([`DType::stored`]). `BOOL` is 1 for every value that is not 0.
    pub fn cast(&mut self, x: Tensor, dtype: DType) -> Result {
        let found = self.dtype(x);
        if found == dtype {
            return Ok(x);
        }
        let stored = matches!(dtype, DType::Q8_0 | DType::Q4_0)
            && found == DType::F32
            && self.shape(x).last().is_some_and(|n| n.is_multiple_of(dtype.block_len()));
        if stored {
            return Ok(self.converted(x, dtype));
        }
        let (Some(from), Some(to)) = (found.widened(), dtype.widened()) else {
            let found = if found.is_quantised() { found } else { dtype };
            return Err(Error::DType { op: "cast", found, expected: "plain, or whole blocks" });
        };
        let mut x = self.converted(x, from);
        if dtype == DType::BOOL && from == DType::F32 {
            let (one, zero) = (self.constant(1.0), self.constant(0.0));
            x = self.select(x, one, zero)?;
        }
        x = self.converted(x, to);
        Ok(self.converted(x, dtype))
    }

    /// A single cast step, from or to the 4-byte type.
    fn converted(&mut self, x: Tensor, dtype: DType) -> Tensor {
        if self.dtype(x) == dtype {
            return x;
        }
        let shape = self.shape(x).to_vec();
        self.compute(shape, dtype, |out| Op::Cast { x, out })
    }

    /// Reduction along one axis, which stays with extent 1.
    pub fn reduce(&mut self, op: Reduce, x: Tensor, axis: usize) -> Result {
        let (x, dtype) = self.word("reduce", x)?;
        let mut shape = self.shape(x).to_vec();
        let Some(extent) = shape.get_mut(axis) else {
            return Err(self.shape_error("reduce", &[x], "no such axis"));
        };
        *extent = 1;
        Ok(self.compute(shape, dtype, |out| Op::Reduce { op, axis, x, out }))
    }

    /// `a [.., M, K]` times the transpose of `b [.., N, K]`: `[.., M, N]` in `F32`. `b` may be a
    /// quantised matrix.
    pub fn matmul(&mut self, a: Tensor, b: Tensor) -> Result {
        let a = self.number("matmul", a)?;
        let b = if self.dtype(b).block_bytes() == 1 { self.number("matmul", b)? } else { b };
        let (sa, sb) = (self.shape(a), self.shape(b));
        let (ra, rb) = (sa.len(), sb.len());
        let fits = ra >= 2 && rb == ra && sa[ra - 1] == sb[rb - 1] && sa[..ra - 2] == sb[..rb - 2];
        self.want(fits, "matmul", &[a, b], "[.., M, K] and [.., N, K] expected")?;
        let expected = "floating-point or quantised";
        self.want_type("matmul", b, expected, |found| found != DType::I32)?;
        let mut shape = sa.to_vec();
        shape[ra - 1] = sb[rb - 2];
        let (a, b) = (self.in_memory(a), self.in_memory(b));
        Ok(self.compute(shape, DType::F32, |out| Op::MatMul { a, b, out }))
    }

    /// Indices of the `count` greatest elements of each row of `x [M, E]`, greatest first: `I32 [M,
    /// count]`; see [`crate::top_k`].
    pub fn top_k(&mut self, x: Tensor, count: usize) -> Result {
        let x = self.number("top_k", x)?;
        let fits = matches!(self.shape(x), [_, extent] if (1..=*extent).contains(&count));
        self.want(fits, "top_k", &[x], "[M, E] expected, and 1 to E elements of a row")?;
        let rows = self.shape(x)[0];
        let x = self.in_memory(x);
        Ok(self.compute(vec![rows, count], DType::I32, |out| Op::TopK { x, out }))
    }

    /// Rows of `table [A.., rest..]`, selected by one `I32 [M]` index per leading axis: `[M,
    /// rest..]`, as `F32`, or `I32` for integer tables. A negative index yields zeroes.
    pub fn gather(&mut self, table: Tensor, indices: &[Tensor]) -> Result {
        let (rows, indices) = self.index_rows("gather", table, indices)?;
        let mut shape = vec![rows];
        shape.extend(&self.shape(table)[indices.len()..]);
        let dtype = self.dtype(table).widened().unwrap_or(DType::F32);
        let table = self.in_memory(table);
        Ok(self.compute(shape, dtype, |out| Op::Gather(Gather { table, indices, out })))
    }

    /// Overwrites rows of `state [A.., rest..]` with `values [M, rest..]` (in the state's type),
    /// selected by one `I32 [M]` index per leading axis. Rows with a negative index are skipped.
    /// Updates in place: use the returned version afterwards.
    pub fn scatter(&mut self, state: Tensor, indices: &[Tensor], values: Tensor) -> Result {
        let (rows, indices) = self.index_rows("scatter", state, indices)?;
        let node = self.node(state);
        let (shape, dtype) = (node.shape.clone(), node.dtype);
        let have = self.shape(values);
        let fits = have.first() == Some(&rows) && have[1..] == shape[indices.len()..];
        let reason = "values must be [M, rest of the state..]";
        self.want(fits, "scatter", &[state, values], reason)?;
        self.want_type("scatter", values, "the state's type", |found| found == dtype)?;
        let scatter = Op::Scatter { indices, values, table: state };
        Ok(self.push(Kind::Update(scatter), shape, dtype))
    }

    /// Adds the rows of `values [M, rest..]` to zeroes `[A.., rest..]`, at one `I32 [M]` index per
    /// leading axis. The adjoint of [`Graph::gather`]. Rows with a negative index are skipped.
    pub fn scatter_add(&mut self, leading: &[usize], indices: &[Tensor], values: Tensor) -> Result {
        let values = self.number("scatter_add", values)?;
        let rows = self.shape(values).first().copied().unwrap_or(0);
        let fits = !self.shape(values).is_empty()
            && leading.len() == indices.len()
            && (1..=MAX_INDICES).contains(&indices.len())
            && indices.iter().all(|i| *self.shape(*i) == [rows]);
        let reason = "values must be [M, rest..], with an index [M] for each leading axis";
        self.want(fits, "scatter_add", &[values], reason)?;
        let indices = self.indices("scatter_add", indices)?;
        let shape = [leading, &self.shape(values)[1..]].concat();
        let values = self.in_memory(values);
        Ok(self.compute(shape, DType::F32, |out| Op::ScatterAdd { indices, values, out }))
    }

    /// Overwrites a mailbox or state with `value`, for the next step. Use the returned version
    /// afterwards.
    pub fn assign(&mut self, mailbox: Tensor, value: Tensor) -> Result {
        let (shape, dtype) = (self.shape(mailbox).to_vec(), self.dtype(mailbox));
        let fits = self.shape(value) == shape;
        self.want(fits, "assign", &[mailbox, value], "both must have one shape")?;
        self.want_type("assign", value, "the mailbox's type", |found| found == dtype)?;
        Ok(self.push(Kind::Update(Op::Assign { value, mailbox }), shape, dtype))
    }

    /// Samples token ids `[N]` from `logits [N, V]`; see [`crate::sample`].
    pub fn sample(&mut self, logits: Tensor, inputs: SampleInputs) -> Result {
        let logits = self.number("sample", logits)?;
        let SampleInputs { temperature, top_k, top_p, min_p, seed, positions, adjustments } =
            inputs;
        let rows = self.shape(logits)[0];
        let words =
            |of: &Tensor| *self.shape(*of) == [rows, Adjustment::words(self.shape(logits)[1])];
        let fits = self.shape(logits).len() == 2
            && adjustments.as_ref().is_none_or(words)
            && [temperature, top_k, top_p, min_p, positions]
                .iter()
                .all(|t| *self.shape(*t) == [rows])
            && *self.shape(seed) == [rows, 2];
        let operands = [logits, temperature, top_k, top_p, min_p, seed];
        self.want(fits, "sample", &operands, "one per row")?;
        let op = |ids| Op::Sample(Sample { logits, inputs, ids, next: None });
        Ok(self.compute(vec![rows], DType::I32, op))
    }

    /// Copies an operand to memory if it is a constant behind any views. Steps other than
    /// elementwise ones read their operands element by element, in any order.
    fn in_memory(&mut self, x: Tensor) -> Tensor {
        let mut root = x;
        loop {
            match &self.node(root).kind {
                Kind::Reshape(inner)
                | Kind::Permute(inner, _)
                | Kind::Expand(inner)
                | Kind::Slice { x: inner, .. }
                | Kind::Window { x: inner, .. }
                | Kind::Flip { x: inner, .. } => root = *inner,
                Kind::Constant(_) => break,
                Kind::Source { .. } | Kind::Compute(_) | Kind::Update(_) => return x,
            }
        }
        self.gathered(x)
    }

    /// The elements contiguous in memory; a copy only if a view has another order.
    pub(super) fn dense(&mut self, x: Tensor) -> Tensor {
        let mut root = x;
        while let Kind::Reshape(inner) = &self.node(root).kind {
            root = *inner;
        }
        match &self.node(root).kind {
            Kind::Source { .. } | Kind::Compute(_) | Kind::Update(_) => x,
            _ => self.gathered(x),
        }
    }

    /// Copies the elements into contiguous memory.
    pub(super) fn gathered(&mut self, x: Tensor) -> Tensor {
        let (shape, dtype) = (self.shape(x).to_vec(), self.dtype(x));
        self.compute(shape, dtype, |out| Op::Copy { x, out })
    }

    /// Number of rows that the indices select, and the indices as `I32`.
    fn index_rows(
        &mut self,
        op: &'static str,
        table: Tensor,
        indices: &[Tensor],
    ) -> Result<(usize, Vec<Tensor>)> {
        let Some(&first) = indices.first() else {
            return Err(self.shape_error(op, &[table], "an index per leading axis expected"));
        };
        let rows = self.shape(first).to_vec();
        let fits = rows.len() == 1
            && indices.len() <= self.shape(table).len()
            && indices.iter().all(|i| *self.shape(*i) == *rows);
        let operands = [&[table], indices].concat();
        self.want(fits, op, &operands, "indices must be [M], at most one an axis")?;
        Ok((rows[0], self.indices(op, indices)?))
    }

    /// Indices as `I32`.
    fn indices(&mut self, op: &'static str, indices: &[Tensor]) -> Result<Vec<Tensor>> {
        let of = |&index| {
            let (index, _) = self.word(op, index)?;
            self.want_type(op, index, "I32", |found| found == DType::I32)?;
            Ok(index)
        };
        indices.iter().map(of).collect()
    }

    /// Converts an operand to the 4-byte type that it is computed in; returns it with that type,
    /// `F32` or `I32`.
    fn word(&mut self, op: &'static str, x: Tensor) -> Result<(Tensor, DType)> {
        // A loop that adds operations ends with the first beyond a limit.
        self.check_size()?;
        let found = self.dtype(x);
        let Some(dtype) = found.widened() else {
            return Err(Error::DType { op, found, expected: "F32 or I32" });
        };
        Ok((self.converted(x, dtype), dtype))
    }

    /// Converts an operand to `F32`, which represents halves and bytes exactly. Rejects `I32`,
    /// whose values it cannot all represent.
    fn number(&mut self, op: &'static str, x: Tensor) -> Result {
        self.check_size()?;
        let (found, expected) = (self.dtype(x), "F32");
        if found == DType::I32 || found.is_quantised() {
            return Err(Error::DType { op, found, expected });
        }
        self.cast(x, DType::F32)
    }

    fn want_type(
        &self,
        op: &'static str,
        x: Tensor,
        expected: &'static str,
        fits: impl Fn(DType) -> bool,
    ) -> Result<()> {
        let found = self.dtype(x);
        if fits(found) { Ok(()) } else { Err(Error::DType { op, found, expected }) }
    }

    /// Returns an error unless the operands' shapes fit.
    pub(super) fn want(
        &self,
        fits: bool,
        op: &'static str,
        operands: &[Tensor],
        reason: &'static str,
    ) -> Result<()> {
        self.check_size()?;
        if fits { Ok(()) } else { Err(self.shape_error(op, operands, reason)) }
    }

    pub(super) fn shape_error(
        &self,
        op: &'static str,
        operands: &[Tensor],
        reason: &'static str,
    ) -> Error {
        let shapes = operands.iter().map(|t| self.shape(*t).to_vec()).collect();
        Error::Shape { op, shapes, reason }
    }
}
