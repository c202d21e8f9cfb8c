//! Launches of elementwise functions and norms.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{elements_grid, rows_grid};
use orind_kernels::params::{ElementwiseParams, Function, NormParams, RowsParams};

use super::{Lowering, count, rows_of};
use crate::Result;
use crate::gpu::launch::{Params, Region};
use crate::gpu::storage::unsupported;
use plan::{Activation, Binary, Norm, NormKind, Op, View};

/// Second operand of a function.
enum SecondOperand<'a> {
    /// A constant.
    Number(f32),
    /// The same element of another operand.
    Same(&'a View),
    /// The same column of one row.
    Row(&'a View),
    /// One value per row.
    Column(&'a View),
}

impl Lowering<'_> {
    /// Launches an elementwise step; false for any other step.
    pub(super) fn elementwise(&mut self, label: &str, op: &Op) -> Result<bool> {
        let (function, x, beside, out) = match op {
            Op::Binary { op: Binary::Add, a, b, out } => {
                (Function::Add, a, SecondOperand::Same(b), out)
            }
            Op::Binary { op: Binary::Mul, a, b, out } => {
                (Function::Multiply, a, SecondOperand::Same(b), out)
            }
            Op::Bias { x, bias, out } => (Function::Add, x, SecondOperand::Row(bias), out),
            Op::Gate { gate, x, out } if gate.elements() == x.elements() => {
                (Function::Gate, x, SecondOperand::Same(gate), out)
            }
            Op::Gate { gate, x, out } => (Function::Gate, x, SecondOperand::Column(gate), out),
            Op::Scale { factor, x, out } => {
                (Function::Scale, x, SecondOperand::Number(factor.get()), out)
            }
            Op::SoftCap { cap, x, out } => {
                (Function::SoftCap, x, SecondOperand::Number(cap.get()), out)
            }
            Op::Activate { activation, x, out } => {
                let function = match activation {
                    Activation::Silu => Function::Silu,
                    Activation::Gelu => Function::Gelu,
                };
                (function, x, SecondOperand::Number(0.0), out)
            }
            Op::Glu { activation, gate, up, out } => {
                let function = match activation {
                    Activation::Silu => Function::SwiGlu,
                    Activation::Gelu => Function::GeGlu,
                };
                (function, gate, SecondOperand::Same(up), out)
            }
            _ => return Ok(false),
        };
        let (a, out) = (self.f32(x)?, self.f32(out)?);
        let (mut rows, mut n) = rows_of(x);
        let (mut b, mut strides, mut by) = (None, [0, 0], 0.0);
        match beside {
            SecondOperand::Number(number) => by = number,
            SecondOperand::Row(row) => (b, strides) = (Some(self.f32(row)?), [0, 1]),
            SecondOperand::Column(column) => (b, strides) = (Some(self.f32(column)?), [1, 0]),
            SecondOperand::Same(other) if other.is_contiguous() => {
                (b, strides) = (Some(self.f32(other)?), [0, 1]);
                (rows, n) = (1, rows * n);
            }
            SecondOperand::Same(other) => {
                let (region, stride) = self.rows_apart(other)?;
                (b, strides) = (Some(region), [stride, 1]);
            }
        }
        let (n, rows) = (count(n)?, count(rows)?);
        let grid = elements_grid(n, rows);
        let reads = std::iter::once(a).chain(b).collect();
        // Both operands whole: these functions have their own kernels.
        let own = match function {
            Function::Add => Some(Kernel::Add),
            Function::SwiGlu => Some(Kernel::SwiGlu),
            _ => None,
        };
        if let (Some(kernel), Some(b), [0, 1], 1) = (own, b, strides, rows) {
            let (a, b) = (a.address, b.address);
            let params = RowsParams { a, b, out: out.address, n, rows, ..RowsParams::default() };
            self.launch(label, kernel, grid, Params::Rows(params), reads, vec![out]);
            return Ok(true);
        }
        let params = ElementwiseParams {
            a: a.address,
            b: b.map_or(0, |b| b.address),
            out: out.address,
            n,
            rows,
            row_stride: strides[0],
            column_stride: strides[1],
            function: function as u32,
            by,
        };
        let grid = elements_grid(params.n, params.rows);
        let reads = std::iter::once(a).chain(b).collect();
        self.launch(
            label,
            Kernel::Elementwise,
            grid,
            Params::Elementwise(params),
            reads,
            vec![out],
        );
        Ok(true)
    }

    /// A matrix with dense rows, and the row stride in elements.
    fn rows_apart(&self, view: &View) -> Result<(Region, u32)> {
        let (&[rows, n], Some(&[stride, 1])) = (&view.shape[..], view.forward().as_deref()) else {
            let name = &self.buffer(view).name;
            return Err(unsupported(format!("`{name}` with strides as an operand here")));
        };
        let elements = (rows.max(1) - 1) * stride + n;
        Ok((Region::new(self.address(view)?, 4 * elements as u64), count(stride)?))
    }

    /// Launches the norm of `rows` rows of `n` values.
    pub(super) fn norm(
        &mut self,
        label: &str,
        norm: &Norm,
        (rows, n): (usize, usize),
        x: Region,
        out: Region,
    ) -> Result<()> {
        let (weight, eps) = (self.f32(&norm.weight)?.address, norm.eps.get());
        let (n, rows) = (count(n)?, count(rows)?);
        let (kernel, params) = match (norm.kind, &norm.bias) {
            (NormKind::Rms, None) => {
                let (a, b, out) = (x.address, weight, out.address);
                (Kernel::RmsNorm, Params::Rows(RowsParams { a, b, out, n, rows, eps, reserved: 0 }))
            }
            (kind, bias) => {
                let (x, bias, out) = (x.address, self.optional(bias.as_ref())?, out.address);
                let centred = u32::from(kind == NormKind::Layer);
                (
                    Kernel::Norm,
                    Params::Norm(NormParams { x, weight, bias, out, n, rows, centred, eps }),
                )
            }
        };
        self.launch(label, kernel, rows_grid(rows), params, vec![x], vec![out]);
        Ok(())
    }
}
