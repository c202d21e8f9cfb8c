//! The primitives: sources, views, elementwise, reductions, products, gather and scatter.

use super::{Error, Graph, Kind, SampleInputs, Tensor};
use crate::{Binary, Class, DType, Gather, Op, Reduce, Sample, Scalar, Unary};

impl Graph {
    /// A named buffer of the model or the engine.
    ///
    /// # Errors
    /// [`Error::Redeclared`] when the name exists with another shape or type.
    pub fn source(
        &mut self,
        class: Class,
        name: &str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<Tensor, Error> {
        let kind = Kind::Source { class, name: name.to_owned() };
        if let Some(i) = self.nodes.iter().position(|node| node.kind == kind) {
            let node = &self.nodes[i];
            if node.dtype != dtype || node.shape != shape {
                return Err(Error::Redeclared { class, name: name.to_owned() });
            }
            return Ok(Tensor(i));
        }
        Ok(self.push(kind, shape.to_vec(), dtype))
    }

    /// A scalar, broadcast where it is used.
    pub fn constant(&mut self, value: f32) -> Tensor {
        self.push(Kind::Constant(Scalar::new(value)), vec![], DType::F32)
    }

    /// `0, 1, 2, .. len - 1` as `F32`.
    pub fn iota(&mut self, len: usize) -> Tensor {
        self.compute(vec![len], DType::F32, |out| Op::Iota { out })
    }

    /// The same elements in row-major order under another shape.
    ///
    /// # Errors
    /// [`Error::Shape`] when the element counts differ.
    pub fn reshape(&mut self, x: Tensor, shape: &[usize]) -> Result<Tensor, Error> {
        let node = self.node(x);
        if node.shape.iter().product::<usize>() != shape.iter().product::<usize>() {
            return Err(self.shape_error("reshape", &[x], "the element count must stay"));
        }
        let dtype = node.dtype;
        Ok(self.push(Kind::Reshape(x), shape.to_vec(), dtype))
    }

    /// Dimensions reordered: dimension `i` of the result is `axes[i]` of `x`.
    ///
    /// # Errors
    /// [`Error::Shape`] when `axes` is not a permutation.
    pub fn permute(&mut self, x: Tensor, axes: &[usize]) -> Result<Tensor, Error> {
        let node = self.node(x);
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        if sorted != (0..node.shape.len()).collect::<Vec<_>>() {
            return Err(self.shape_error("permute", &[x], "axes must be a permutation"));
        }
        let shape = axes.iter().map(|&a| node.shape[a]).collect();
        let dtype = node.dtype;
        Ok(self.push(Kind::Permute(x, axes.to_vec()), shape, dtype))
    }

    /// Dimensions of extent 1 repeated; missing leading dimensions are added.
    ///
    /// # Errors
    /// [`Error::Shape`] when `x` does not broadcast to `shape`.
    pub fn expand(&mut self, x: Tensor, shape: &[usize]) -> Result<Tensor, Error> {
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
    ///
    /// # Errors
    /// [`Error::Shape`] when the range leaves the axis.
    pub fn slice(
        &mut self,
        x: Tensor,
        axis: usize,
        start: usize,
        len: usize,
    ) -> Result<Tensor, Error> {
        let node = self.node(x);
        if node.shape.get(axis).is_none_or(|&n| start.checked_add(len).is_none_or(|end| end > n)) {
            return Err(self.shape_error("slice", &[x], "the range must lie inside the axis"));
        }
        let (mut shape, dtype) = (node.shape.clone(), node.dtype);
        shape[axis] = len;
        Ok(self.push(Kind::Slice { x, axis, start }, shape, dtype))
    }

    /// Zeroes around `axis`.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such axis, [`Error::DType`] when `x` is not `F32`.
    pub fn pad(
        &mut self,
        x: Tensor,
        axis: usize,
        before: usize,
        after: usize,
    ) -> Result<Tensor, Error> {
        self.want_f32("pad", x)?;
        let mut shape = self.shape(x).to_vec();
        let Some(extent) = shape.get_mut(axis) else {
            return Err(self.shape_error("pad", &[x], "no such axis"));
        };
        *extent += before + after;
        Ok(self.compute(shape, DType::F32, |out| Op::Pad { axis, before, x, out }))
    }

    /// Elementwise, one operand.
    ///
    /// # Errors
    /// [`Error::DType`] when `x` is not `F32`.
    pub fn unary(&mut self, op: Unary, x: Tensor) -> Result<Tensor, Error> {
        self.want_f32("unary", x)?;
        let shape = self.shape(x).to_vec();
        Ok(self.compute(shape, DType::F32, |out| Op::Unary { op, x, out }))
    }

    /// Elementwise, two operands, broadcast against each other. Both `F32`, or an `I32` and a
    /// constant.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] when they do not fit.
    pub fn binary(&mut self, op: Binary, a: Tensor, b: Tensor) -> Result<Tensor, Error> {
        let dtype = self.dtype(a);
        if dtype == DType::I32 && matches!(self.node(b).kind, Kind::Constant(_)) {
            let shape = self.shape(a).to_vec();
            let b = self.expand(b, &shape)?;
            return Ok(self.compute(shape, dtype, |out| Op::Binary { op, a, b, out }));
        }
        self.want_f32("binary", a)?;
        self.want_f32("binary", b)?;
        let (sa, sb) = (self.shape(a), self.shape(b));
        let rank = sa.len().max(sb.len());
        let extent = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
        let shape: Vec<usize> = (0..rank).map(|i| extent(sa, i).max(extent(sb, i))).collect();
        let (a, b) = (self.expand(a, &shape)?, self.expand(b, &shape)?);
        Ok(self.compute(shape, DType::F32, |out| Op::Binary { op, a, b, out }))
    }

    /// Conversion between `F32`, `F16`, `BF16` and `I32`.
    ///
    /// # Errors
    /// [`Error::DType`] for quantised types.
    pub fn cast(&mut self, x: Tensor, dtype: DType) -> Result<Tensor, Error> {
        let found = self.dtype(x);
        if found == dtype {
            return Ok(x);
        }
        if found.is_quantised() || dtype.is_quantised() {
            let found = if found.is_quantised() { found } else { dtype };
            return Err(Error::DType { op: "cast", found, expected: "plain" });
        }
        let shape = self.shape(x).to_vec();
        Ok(self.compute(shape, dtype, |out| Op::Cast { x, out }))
    }

    /// Reduction along one axis, which stays with extent 1.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such axis, [`Error::DType`] when `x` is not `F32`.
    pub fn reduce(&mut self, op: Reduce, x: Tensor, axis: usize) -> Result<Tensor, Error> {
        self.want_f32("reduce", x)?;
        let mut shape = self.shape(x).to_vec();
        let Some(extent) = shape.get_mut(axis) else {
            return Err(self.shape_error("reduce", &[x], "no such axis"));
        };
        *extent = 1;
        Ok(self.compute(shape, DType::F32, |out| Op::Reduce { op, axis, x, out }))
    }

    /// `a [.., M, K]` times `b [.., N, K]` transposed: `[.., M, N]` in `F32`. `b` may be a quantised
    /// matrix.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] when they do not fit.
    pub fn matmul(&mut self, a: Tensor, b: Tensor) -> Result<Tensor, Error> {
        self.want_f32("matmul", a)?;
        let (sa, sb) = (self.shape(a), self.shape(b));
        let (ra, rb) = (sa.len(), sb.len());
        let fits = ra >= 2 && rb == ra && sa[ra - 1] == sb[rb - 1] && sa[..ra - 2] == sb[..rb - 2];
        if !fits {
            return Err(self.shape_error("matmul", &[a, b], "[.., M, K] and [.., N, K] expected"));
        }
        if self.dtype(b) == DType::I32 {
            return Err(Error::DType {
                op: "matmul",
                found: DType::I32,
                expected: "floating-point or quantised",
            });
        }
        let mut shape = sa.to_vec();
        shape[ra - 1] = sb[rb - 2];
        Ok(self.compute(shape, DType::F32, |out| Op::MatMul { a, b, out }))
    }

    /// Rows of `table [A.., rest..]` chosen by one `I32 [M]` index per leading axis: `[M, rest..]`,
    /// as `F32` unless the table holds integers. A negative index gives zeroes.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] when they do not fit.
    pub fn gather(&mut self, table: Tensor, indices: &[Tensor]) -> Result<Tensor, Error> {
        let rows = self.index_rows("gather", table, indices)?;
        let mut shape = vec![rows];
        shape.extend(&self.shape(table)[indices.len()..]);
        let dtype = if self.dtype(table) == DType::I32 { DType::I32 } else { DType::F32 };
        let indices = indices.to_vec();
        Ok(self.compute(shape, dtype, |out| Op::Gather(Gather { table, indices, out })))
    }

    /// `state [A.., rest..]` with rows overwritten by `values [M, rest..]` (in the state's type),
    /// chosen by one `I32 [M]` index per leading axis; a row with a negative index is skipped.
    /// Happens in place: use the returned version afterwards.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] when they do not fit.
    pub fn scatter(
        &mut self,
        state: Tensor,
        indices: &[Tensor],
        values: Tensor,
    ) -> Result<Tensor, Error> {
        let rows = self.index_rows("scatter", state, indices)?;
        let node = self.node(state);
        let (shape, dtype) = (node.shape.clone(), node.dtype);
        let have = self.shape(values);
        if have.first() != Some(&rows) || have[1..] != shape[indices.len()..] {
            return Err(self.shape_error(
                "scatter",
                &[state, values],
                "values must be [M, rest of the state..]",
            ));
        }
        if self.dtype(values) != dtype {
            return Err(Error::DType {
                op: "scatter",
                found: self.dtype(values),
                expected: "the state's type",
            });
        }
        let scatter = Op::Scatter { indices: indices.to_vec(), values, table: state };
        Ok(self.push(Kind::Update(scatter), shape, dtype))
    }

    /// A mailbox overwritten by `value`, for the next step. Use the returned version afterwards.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::DType`] when they do not fit.
    pub fn assign(&mut self, mailbox: Tensor, value: Tensor) -> Result<Tensor, Error> {
        let (shape, dtype) = (self.shape(mailbox).to_vec(), self.dtype(mailbox));
        if self.shape(value) != shape {
            return Err(self.shape_error("assign", &[mailbox, value], "both must have one shape"));
        }
        if self.dtype(value) != dtype {
            return Err(Error::DType {
                op: "assign",
                found: self.dtype(value),
                expected: "the mailbox's type",
            });
        }
        Ok(self.push(Kind::Update(Op::Assign { value, mailbox }), shape, dtype))
    }

    /// Token ids `[N]` chosen from `logits [N, V]`; see [`crate::sample`].
    ///
    /// # Errors
    /// [`Error::Shape`] when the parameters are not one per row.
    pub fn sample(&mut self, logits: Tensor, inputs: SampleInputs) -> Result<Tensor, Error> {
        self.want_f32("sample", logits)?;
        let SampleInputs { temperature, top_k, top_p, seed, positions } = inputs;
        let rows = self.shape(logits)[0];
        let fits = self.shape(logits).len() == 2
            && [temperature, top_k, top_p, positions].iter().all(|t| *self.shape(*t) == [rows])
            && *self.shape(seed) == [rows, 2];
        if !fits {
            return Err(self.shape_error(
                "sample",
                &[logits, temperature, top_k, top_p, seed],
                "one per row",
            ));
        }
        let op = |ids| Op::Sample(Sample { logits, inputs, ids, next: None });
        Ok(self.compute(vec![rows], DType::I32, op))
    }

    fn index_rows(
        &self,
        op: &'static str,
        table: Tensor,
        indices: &[Tensor],
    ) -> Result<usize, Error> {
        let Some(&first) = indices.first() else {
            return Err(self.shape_error(op, &[table], "an index per leading axis expected"));
        };
        let rows = self.shape(first).to_vec();
        let fits = rows.len() == 1
            && indices.len() <= self.shape(table).len()
            && indices.iter().all(|i| *self.shape(*i) == *rows);
        if !fits {
            return Err(self.shape_error(
                op,
                &[&[table], indices].concat(),
                "indices must be [M], at most one an axis",
            ));
        }
        for &index in indices {
            if self.dtype(index) != DType::I32 {
                return Err(Error::DType { op, found: self.dtype(index), expected: "I32" });
            }
        }
        Ok(rows[0])
    }

    fn want_f32(&self, op: &'static str, x: Tensor) -> Result<(), Error> {
        match self.dtype(x) {
            DType::F32 => Ok(()),
            found => Err(Error::DType { op, found, expected: "F32" }),
        }
    }

    pub(super) fn shape_error(
        &self,
        op: &'static str,
        operands: &[Tensor],
        reason: &'static str,
    ) -> Error {
        Error::Shape {
            op,
            shapes: operands.iter().map(|t| self.shape(*t).to_vec()).collect(),
            reason,
        }
    }
}
