//! Reverse-mode gradients: one rule per primitive, itself in primitives. Composites need no rule,
//! since their nodes are primitives. Lowering drops gradients that nothing reads.
//!
//! Gradients are always `F32`. Equal maxima share the gradient evenly.

use super::builder::{Error, Graph, Kind, Node, Result, Tensor};
use crate::{Binary, Gather, Op, Reduce, Unary, Window};

/// Inputs of a node, each with its gradient.
type Parts = Vec<(Tensor, Tensor)>;

impl Graph {
    /// Gradients of `loss`, a single `F32`, with respect to the tensors in `of`; zeroes for tensors
    /// that it does not depend on.
    ///
    /// # Errors
    /// [`Error::Gradient`] names an operation in between that has no derivative.
    pub fn gradients(&mut self, loss: Tensor, of: &[Tensor]) -> Result<Vec<Tensor>> {
        let single = self.shape(loss).iter().all(|&extent| extent == 1);
        self.want(single, "gradients", &[loss], "of a single element")?;
        let mut depends = vec![false; loss.0 + 1];
        for i in 0..=loss.0 {
            let inputs = self.nodes[i].kind.inputs(Tensor(i));
            depends[i] = of.contains(&Tensor(i)) || inputs.iter().any(|input| depends[input.0]);
        }
        let mut gradients: Vec<Option<Tensor>> = vec![None; loss.0 + 1];
        let one = self.constant(1.0);
        let shape = self.shape(loss).to_vec();
        gradients[loss.0] = Some(self.expand(one, &shape)?);
        for i in (0..=loss.0).rev().filter(|&i| depends[i]) {
            let (Some(gradient), node) = (gradients[i], self.nodes[i].clone()) else { continue };
            self.at(self.labels[node.label].clone());
            let parts = self.rule(Tensor(i), &node, gradient, &depends)?;
            for (input, part) in parts.into_iter().filter(|(input, _)| depends[input.0]) {
                gradients[input.0] = Some(match gradients[input.0] {
                    Some(sum) => self.binary(Binary::Add, sum, part)?,
                    None => part,
                });
            }
        }
        let zero = self.constant(0.0);
        let of = of.iter().map(|tensor| match gradients.get(tensor.0) {
            Some(&Some(gradient)) => Ok(gradient),
            _ => {
                let shape = self.shape(*tensor).to_vec();
                self.expand(zero, &shape)
            }
        });
        of.collect()
    }

    /// Gradients of the inputs of node `y`, from its own gradient `g`.
    fn rule(&mut self, y: Tensor, node: &Node, g: Tensor, depends: &[bool]) -> Result<Parts> {
        let wanted = |tensor: Tensor| depends[tensor.0];
        let op = match &node.kind {
            Kind::Source { .. } | Kind::Constant(_) => return Ok(vec![]),
            Kind::Reshape(x) => {
                let shape = self.shape(*x).to_vec();
                return Ok(vec![(*x, self.reshape(g, &shape)?)]);
            }
            Kind::Permute(x, axes) => {
                let mut back = vec![0; axes.len()];
                axes.iter().enumerate().for_each(|(to, &from)| back[from] = to);
                return Ok(vec![(*x, self.permute(g, &back)?)]);
            }
            Kind::Expand(x) => {
                let repeated: Vec<bool> =
                    self.shape(*x).iter().zip(&node.shape).map(|(a, b)| a != b).collect();
                return Ok(vec![(*x, self.sum_of(g, &repeated)?)]);
            }
            Kind::Slice { x, axis, start } => {
                let after = self.shape(*x)[*axis] - start - node.shape[*axis];
                return Ok(vec![(*x, self.pad(g, *axis, *start, after)?)]);
            }
            Kind::Window { x, axis, window } => {
                return Ok(vec![(*x, self.unwound(g, *axis, *window, self.shape(*x)[*axis])?)]);
            }
            Kind::Flip { x, axis } => return Ok(vec![(*x, self.flip(g, *axis)?)]),
            Kind::Compute(op) | Kind::Update(op) => op,
        };
        let none = |reason| Err(Error::Gradient { op: op.name(), reason });
        match op {
            Op::Unary { op: Unary::Floor | Unary::Round, .. } => Ok(vec![]),
            Op::Binary { op, .. } if op.is_comparison() => Ok(vec![]),
            Op::Unary { op, x, .. } => Ok(vec![(*x, self.of_unary(*op, *x, y, g)?)]),
            Op::Binary { op, a, b, .. } => self.of_binary(*op, [*a, *b], y, g),
            Op::Where { condition, a, b, .. } => {
                let zero = self.constant(0.0);
                let of_a = self.select(*condition, g, zero)?;
                Ok(vec![(*a, of_a), (*b, self.select(*condition, zero, g)?)])
            }
            Op::Cast { x, .. } if node.dtype.is_integer() || self.dtype(*x).is_integer() => {
                Ok(vec![])
            }
            Op::Cast { x, .. } | Op::Copy { x, .. } => Ok(vec![(*x, g)]),
            Op::Reduce { op: Reduce::Sum, x, .. } => {
                let shape = self.shape(*x).to_vec();
                Ok(vec![(*x, self.expand(g, &shape)?)])
            }
            Op::Reduce { op: Reduce::Max, axis, x, .. } => {
                let (zero, largest) = (self.constant(0.0), self.binary(Binary::LessEqual, y, *x)?);
                let count = self.reduce(Reduce::Sum, largest, *axis)?;
                let share = self.unary(Unary::Recip, count)?;
                let share = self.binary(Binary::Mul, g, share)?;
                Ok(vec![(*x, self.select(largest, share, zero)?)])
            }
            Op::Pad { axis, before, x, .. } => {
                Ok(vec![(*x, self.slice(g, *axis, *before, self.shape(*x)[*axis])?)])
            }
            Op::MatMul { a, b, .. } => {
                if self.dtype(*a).is_quantised() || self.dtype(*b).is_quantised() {
                    return none("one of its operands is quantised");
                }
                // g [.., M, N]: the gradient of a [.., M, K] is g b, that of b [.., N, K] is g^T a.
                let (a_columns, b_columns) = (self.transposed(*a)?, self.transposed(*b)?);
                let mut of = Vec::new();
                if wanted(*a) {
                    of.push((*a, self.matmul(g, b_columns)?));
                }
                if wanted(*b) {
                    let g = self.transposed(g)?;
                    of.push((*b, self.matmul(g, a_columns)?));
                }
                Ok(of)
            }
            Op::Gather(Gather { table, indices, .. }) => {
                let leading = self.shape(*table)[..indices.len()].to_vec();
                Ok(vec![(*table, self.scatter_add(&leading, indices, g)?)])
            }
            Op::ScatterAdd { indices, values, .. } => Ok(vec![(*values, self.gather(g, indices)?)]),
            // Assumes distinct rows: two values for one row would both receive its gradient.
            Op::Scatter { indices, values, table } => {
                let written = self.gather(g, indices)?;
                let leading = self.shape(*table)[..indices.len()].to_vec();
                let there = self.scatter_add(&leading, indices, written)?;
                let kept = self.binary(Binary::Sub, g, there)?;
                Ok(vec![(*values, written), (*table, kept)])
            }
            Op::Assign { value, .. } => Ok(vec![(*value, g)]),
            // Piecewise constant: no gradient.
            Op::Iota { .. } | Op::TopK { .. } => Ok(vec![]),
            Op::Sample(_) => none("a choice has no derivative"),
            Op::ShortConv(_) | Op::DeltaRule(_) => none("it remembers from step to step"),
            composite => unreachable!("{} is not a node", composite.name()),
        }
    }

    /// Gradient of `x` for `y = op(x)`.
    fn of_unary(&mut self, op: Unary, x: Tensor, y: Tensor, g: Tensor) -> Result {
        let slope = match op {
            Unary::Neg => return self.unary(Unary::Neg, g),
            Unary::Exp => y,
            Unary::Ln => self.unary(Unary::Recip, x)?,
            Unary::Sqrt => {
                let (half, inverse) = (self.constant(0.5), self.unary(Unary::Recip, y)?);
                self.binary(Binary::Mul, inverse, half)?
            }
            Unary::Recip => {
                let square = self.binary(Binary::Mul, y, y)?;
                self.unary(Unary::Neg, square)?
            }
            Unary::Sin => self.unary(Unary::Cos, x)?,
            Unary::Cos => {
                let sine = self.unary(Unary::Sin, x)?;
                self.unary(Unary::Neg, sine)?
            }
            Unary::Tanh => {
                let (square, one) = (self.binary(Binary::Mul, y, y)?, self.constant(1.0));
                self.binary(Binary::Sub, one, square)?
            }
            Unary::Floor | Unary::Round => unreachable!("flat but for its steps"),
        };
        self.binary(Binary::Mul, g, slope)
    }

    /// Gradients of both operands, which have the gradient's shape.
    fn of_binary(
        &mut self,
        op: Binary,
        [a, b]: [Tensor; 2],
        y: Tensor,
        g: Tensor,
    ) -> Result<Parts> {
        let of = match op {
            // A part joined with zeroes.
            Binary::Add | Binary::Or => [g, g],
            Binary::Sub => [g, self.unary(Unary::Neg, g)?],
            Binary::Mul => [self.binary(Binary::Mul, g, b)?, self.binary(Binary::Mul, g, a)?],
            Binary::Div => {
                let of_a = self.binary(Binary::Div, g, b)?;
                let of_b = self.binary(Binary::Mul, of_a, y)?;
                [of_a, self.unary(Unary::Neg, of_b)?]
            }
            Binary::Max => {
                let (zero, half) = (self.constant(0.0), self.constant(0.5));
                let half = self.binary(Binary::Mul, g, half)?;
                let not_below = self.binary(Binary::LessEqual, b, a)?;
                let not_above = self.binary(Binary::LessEqual, a, b)?;
                let (if_a, if_b) =
                    (self.select(not_above, half, g)?, self.select(not_below, half, g)?);
                [self.select(not_below, if_a, zero)?, self.select(not_above, if_b, zero)?]
            }
            Binary::Rem => {
                // The integer multiple of `b` that was subtracted.
                let (rest, inverse) = (self.binary(op, a, b)?, self.unary(Unary::Recip, b)?);
                let taken = self.binary(Binary::Sub, a, rest)?;
                let times = self.binary(Binary::Mul, taken, inverse)?;
                let of_b = self.binary(Binary::Mul, g, times)?;
                [g, self.unary(Unary::Neg, of_b)?]
            }
            op => unreachable!("{op:?} gives steps or integers"),
        };
        Ok(vec![(a, of[0]), (b, of[1])])
    }

    /// Sums over the `repeated` axes, which stay with extent 1. Adjacent axes are summed as one.
    fn sum_of(&mut self, mut x: Tensor, repeated: &[bool]) -> Result {
        let mut axis = repeated.len();
        while let Some(last) = repeated[..axis].iter().rposition(|&r| r) {
            let first = repeated[..last].iter().rposition(|&r| !r).map_or(0, |kept| kept + 1);
            let shape = self.shape(x).to_vec();
            let together = shape[first..=last].iter().product();
            x = self.reshape(x, &[&shape[..first], &[together], &shape[last + 1..]].concat())?;
            x = self.reduce(Reduce::Sum, x, first)?;
            let ones = vec![1; last + 1 - first];
            x = self.reshape(x, &[&shape[..first], &ones, &shape[last + 1..]].concat())?;
            axis = first;
        }
        Ok(x)
    }

    /// Scatters the gradient `g` of windows back to an axis of `extent` elements; overlapping
    /// windows add up.
    fn unwound(&mut self, g: Tensor, axis: usize, window: Window, extent: usize) -> Result {
        let Window { size, stride, dilation } = window;
        let (shape, last) = (self.shape(g).to_vec(), self.shape(g).len() - 1);
        let (count, reach) = (shape[axis], (shape[axis] - 1) * stride + 1);
        let mut sum = None;
        for place in 0..size {
            let part = self.slice(g, last, place, 1)?;
            let apart = [&shape[..=axis], &[1], &shape[axis + 1..last]].concat();
            let part = self.reshape(part, &apart)?;
            let part = self.pad(part, axis + 1, 0, stride - 1)?;
            let spread = [&shape[..axis], &[count * stride], &shape[axis + 1..last]].concat();
            let part = self.reshape(part, &spread)?;
            let part = self.slice(part, axis, 0, reach)?;
            let before = place * dilation;
            let part = self.pad(part, axis, before, extent - reach - before)?;
            sum = Some(match sum {
                Some(sum) => self.binary(Binary::Add, sum, part)?,
                None => part,
            });
        }
        sum.ok_or_else(|| self.shape_error("window", &[g], "no window fits the axis"))
    }

    /// Swaps the last two axes.
    fn transposed(&mut self, x: Tensor) -> Result {
        let rank = self.shape(x).len();
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 2, rank - 1);
        self.permute(x, &axes)
    }
}
