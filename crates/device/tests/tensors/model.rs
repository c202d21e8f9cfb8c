//! Scalar model of primitives in `f64` without rounding, for gradients and devices to compare with. Halves are not
//! rounded either, so that the difference quotient of a cast is 1.

use std::collections::HashMap;

use plan::{Binary, Class, Gather, Op, Plan, Reduce, Unary, View};

/// Values of all buffers, by buffer index.
pub(crate) struct Model<'a> {
    plan: &'a Plan,
    buffers: Vec<Vec<f64>>,
}

/// Element offsets of a view.
fn places(view: &View) -> Vec<usize> {
    let mut all = vec![view.offset];
    for (&n, &stride) in view.shape.iter().zip(&view.strides) {
        let next = |at: usize, i: usize| at.wrapping_add_signed(i as isize * stride);
        all = all.iter().flat_map(|&at| (0..n).map(move |i| next(at, i))).collect();
    }
    all
}

impl<'a> Model<'a> {
    /// Runs a plan with these mailboxes, weights and states; all other buffers are zero at first.
    pub(crate) fn run(plan: &'a Plan, inputs: &HashMap<String, Vec<f64>>) -> Self {
        let value = |buffer: &plan::Buffer| match buffer.class {
            Class::Constant(value) => vec![f64::from(value.get())],
            _ => inputs.get(&buffer.name).cloned().unwrap_or(vec![0.0; buffer.elements()]),
        };
        let buffers = plan.buffers.iter().map(value).collect();
        let mut model = Self { plan, buffers };
        plan.steps.iter().for_each(|step| model.step(&step.op));
        model
    }

    pub(crate) fn output(&self, name: &str) -> &[f64] {
        &self.buffers[self.plan.find(Class::Output, name).unwrap().index()]
    }

    fn read(&self, view: &View) -> Vec<f64> {
        places(view).into_iter().map(|at| self.buffers[view.buffer.index()][at]).collect()
    }

    fn row(indices: &[Vec<f64>], table: &View, row: usize) -> Option<usize> {
        indices.iter().enumerate().try_fold(table.offset, |at, (axis, index)| {
            let index = index[row];
            let inside = index >= 0.0 && (index as usize) < table.shape[axis];
            inside.then(|| at.wrapping_add_signed(index as isize * table.strides[axis]))
        })
    }

    /// Element offsets of a row of the table.
    fn rest(table: &View, axes: usize, start: usize) -> Vec<usize> {
        let (shape, strides) = (table.shape[axes..].to_vec(), table.strides[axes..].to_vec());
        places(&View { offset: start, shape, strides, ..*table })
    }

    /// Writes rows to a table, or adds them to a table of zeroes.
    fn scatter(&mut self, indices: &[View], values: &View, table: &View, adds: bool) {
        let rows: Vec<_> = indices.iter().map(|index| self.read(index)).collect();
        let values = self.read(values);
        let to = &mut self.buffers[table.buffer.index()];
        if adds {
            to.fill(0.0);
        }
        for row in 0..rows[0].len() {
            let Some(at) = Self::row(&rows, table, row) else { continue };
            let places = Self::rest(table, rows.len(), at);
            for (i, place) in places.iter().enumerate() {
                let value = values[row * places.len() + i];
                to[*place] = if adds { to[*place] + value } else { value };
            }
        }
    }

    fn step(&mut self, op: &Op) {
        let (out, values): (&View, Vec<f64>) = match op {
            Op::Unary { op, x, out } => {
                let f: fn(f64) -> f64 = match op {
                    Unary::Neg => |x| -x,
                    Unary::Exp => f64::exp,
                    Unary::Ln => f64::ln,
                    Unary::Sqrt => f64::sqrt,
                    Unary::Recip => f64::recip,
                    Unary::Sin => f64::sin,
                    Unary::Cos => f64::cos,
                    Unary::Floor => f64::floor,
                    Unary::Round => f64::round_ties_even,
                    Unary::Tanh => f64::tanh,
                };
                (out, self.read(x).into_iter().map(f).collect())
            }
            Op::Binary { op, a, b, out } => {
                let f = |(a, b): (f64, f64)| match op {
                    Binary::Add => a + b,
                    Binary::Sub => a - b,
                    Binary::Mul => a * b,
                    Binary::Div => a / b,
                    Binary::Max => a.max(b),
                    Binary::Rem => a % b,
                    Binary::LessEqual => f64::from(u8::from(a <= b)),
                    Binary::Less => f64::from(u8::from(a < b)),
                    Binary::Equal => f64::from(u8::from(a == b)),
                    // Parts padded with zeroes.
                    Binary::Or if a == 0.0 => b,
                    Binary::Or if b == 0.0 => a,
                    op => f64::from(op.of_ints(a as i32, b as i32)),
                };
                (out, self.read(a).into_iter().zip(self.read(b)).map(f).collect())
            }
            Op::Where { condition, a, b, out } => {
                let pairs = self.read(a).into_iter().zip(self.read(b));
                let f = |(c, (a, b)): (f64, (f64, f64))| if c == 0.0 { b } else { a };
                (out, self.read(condition).into_iter().zip(pairs).map(f).collect())
            }
            Op::Cast { x, out } if self.plan.buffer(out.buffer).dtype == plan::DType::I32 => {
                (out, self.read(x).into_iter().map(f64::trunc).collect())
            }
            Op::Cast { x, out } | Op::Copy { x, out } | Op::Assign { value: x, mailbox: out } => {
                (out, self.read(x))
            }
            Op::Reduce { op, axis, x, out } => {
                let line = |i: usize| self.read(&x.slice(*axis, i, 1));
                let empty = if *op == Reduce::Sum { 0.0 } else { f64::NEG_INFINITY };
                let mut all = vec![empty; out.elements()];
                for i in 0..x.shape[*axis] {
                    for (all, value) in all.iter_mut().zip(line(i)) {
                        *all = if *op == Reduce::Sum { *all + value } else { all.max(value) };
                    }
                }
                (out, all)
            }
            Op::Pad { axis, before, x, out } => {
                let mut all = vec![0.0; out.elements()];
                let own = View { offset: 0, ..out.clone() };
                let inside = own.slice(*axis, *before, x.shape[*axis]);
                places(&inside).into_iter().zip(self.read(x)).for_each(|(at, v)| all[at] = v);
                (out, all)
            }
            Op::Iota { out } => (out, (0..out.elements()).map(|i| i as f64).collect()),
            Op::MatMul { a, b, out } => {
                let rank = a.shape.len();
                let [m, n, k] = [a.shape[rank - 2], b.shape[rank - 2], a.shape[rank - 1]];
                let (left, right) = (self.read(a), self.read(b));
                let value = |at: usize| {
                    let (pair, i, j) = (at / (m * n), at / n % m, at % n);
                    let product = |l| left[(pair * m + i) * k + l] * right[(pair * n + j) * k + l];
                    (0..k).map(product).sum()
                };
                (out, (0..out.elements()).map(value).collect())
            }
            Op::TopK { x, out } => {
                let row = |row: &[f64]| {
                    let mut order: Vec<usize> = (0..row.len()).collect();
                    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                    order.into_iter().take(out.shape[1]).map(|i| i as f64).collect::<Vec<_>>()
                };
                (out, self.read(x).chunks(x.shape[1]).flat_map(row).collect())
            }
            Op::Gather(Gather { table, indices, out }) => {
                let axes = indices.len();
                let indices: Vec<_> = indices.iter().map(|index| self.read(index)).collect();
                let width: usize = table.shape[axes..].iter().product();
                let values = &self.buffers[table.buffer.index()];
                let row = |row| match Self::row(&indices, table, row) {
                    Some(at) => {
                        Self::rest(table, axes, at).into_iter().map(|i| values[i]).collect()
                    }
                    None => vec![0.0; width],
                };
                (out, (0..indices[0].len()).flat_map(row).collect())
            }
            Op::ScatterAdd { indices, values, out: table }
            | Op::Scatter { indices, values, table } => {
                self.scatter(indices, values, table, matches!(op, Op::ScatterAdd { .. }));
                return;
            }
            op => panic!("{} is not supported by this model", op.name()),
        };
        let to = &mut self.buffers[out.buffer.index()];
        places(out).into_iter().zip(values).for_each(|(at, value)| to[at] = value);
    }
}
