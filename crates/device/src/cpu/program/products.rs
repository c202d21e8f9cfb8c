//! Kernel calls of tensor products: packing of operands, and epilogues.

use super::KernelCall;
use super::resolve::Resolver;
use crate::Result;
use crate::cpu::check::forward;
use crate::cpu::conv_shape;
use crate::cpu::depthwise::Depthwise;
use crate::cpu::epilogue::{self, Epilogue};
use crate::cpu::group::Kernel;
use crate::cpu::matmul::{Columns, MatMul};
use crate::cpu::matmul_chain::MatMulChain;
use crate::cpu::packed_operand::{Pack, PackedOperand, Side};
use crate::cpu::row_fusion::{self, FusedRows};
use crate::cpu::width::Width;
use crate::cpu::winograd::Winograd;
use plan::{Group, Op, View};
use simd::dense::Lines;
use simd::windows::Image;

impl Resolver<'_> {
    /// Appends the kernel calls of a group that begins with a product.
    pub(super) fn product(&self, group: &Group, calls: &mut Vec<KernelCall>) -> Result<()> {
        let (out, epilogue) = self.epilogue(group)?;
        match &self.plan.steps[group.steps.start].op {
            Op::MatMul { a, b, .. } => {
                let mut free = self.memory.step_scratch().cast();
                let product = self.matmul([a, b], false, (out, epilogue), &mut free, calls)?;
                calls.push(KernelCall::MatMul(Box::new(product)));
                Ok(())
            }
            Op::Conv(conv) => self.convolution(conv, out, epilogue, calls),
            op => unreachable!("{} is no product of tensors", op.name()),
        }
    }

    /// Appends the kernel calls of two products with row operations between them.
    pub(super) fn matmul_chain(&self, set: &[Group], calls: &mut Vec<KernelCall>) -> Result<()> {
        let [first, groups @ .., second] = set else {
            unreachable!("two products and what is between them")
        };
        let mut free = self.memory.step_scratch().cast();
        let mut product = |group: &Group, calls: &mut Vec<KernelCall>| {
            let (out, epilogue) = self.epilogue(group)?;
            let Op::MatMul { a, b, .. } = &self.plan.steps[group.steps.start].op else {
                unreachable!("rows become rows by a product of matrices")
            };
            self.matmul([a, b], true, (out, epilogue), &mut free, calls)
        };
        let (first, second) = (product(first, calls)?, product(second, calls)?);
        let kernels = self.kernels(groups)?;
        let [m, length, _] = first.shape;
        let rows = FusedRows::new(kernels, first.count() * m, length);
        calls.push(KernelCall::MatMulChain(Box::new(MatMulChain { first, rows, second })));
        Ok(())
    }

    /// Kernels of groups that run row by row.
    pub(super) fn kernels(&self, groups: &[Group]) -> Result<Vec<Kernel>> {
        let place = row_fusion::place(self.plan, groups);
        let locate = |view: &View| match place {
            Some((kept, out)) if view.buffer == kept => {
                Ok((self.f32(out)?.wrapping_add(view.offset).cast(), Width::Word))
            }
            _ => self.locate(view),
        };
        groups.iter().map(|group| Kernel::new(self.plan, group, &locate)).collect()
    }

    /// Destination of a product, and its epilogue.
    fn epilogue(&self, group: &Group) -> Result<(*mut f32, Epilogue)> {
        let op = &self.plan.steps[group.steps.start].op;
        let Some(result) = epilogue::result(op) else {
            unreachable!("{} is no product of tensors", op.name())
        };
        if group.steps.len() == 1 {
            return Ok((self.f32(result)?, Epilogue::default()));
        }
        let place = epilogue::place(self.plan, group);
        let place = place.map(|view| self.f32(view)).transpose()?;
        let locate = |view: &View| match place {
            Some(at) if view.buffer == result.buffer => Ok((at.cast(), Width::Word)),
            _ => self.locate(view),
        };
        let steps = group.steps.start + 1..group.steps.end;
        let steps = Group { steps, reduce: None, inner: group.inner.clone() };
        let kernel = Kernel::steps(self.plan, &steps, &locate)?;
        let (columns, rows_repeat) = match op {
            Op::Conv(conv) => (conv.out.shape[2..].iter().product(), false),
            _ => (result.shape[result.shape.len() - 1], true),
        };
        let finish = place.and_then(|at| kernel.as_epilogue(at, columns, rows_repeat));
        let out = place.map_or_else(|| self.f32(result), Ok)?;
        Ok((out, finish.map_or_else(|| Epilogue::Kernel(kernel.ready()), Epilogue::Tile)))
    }

    /// Builds a matrix product. Appends calls that widen or pack its operands into free step scratch first; columns
    /// are packed if `packed` is set.
    fn matmul(
        &self,
        [a, b]: [&View; 2],
        packed: bool,
        (out, epilogue): (*mut f32, Epilogue),
        free: &mut *mut f32,
        calls: &mut Vec<KernelCall>,
    ) -> Result<MatMul> {
        let rank = a.shape.len();
        let shape @ [m, n, k] = [a.shape[rank - 2], b.shape[rank - 2], a.shape[rank - 1]];
        let op = Op::MatMul { a: a.clone(), b: b.clone(), out: View::whole(a.buffer, &[]) };
        let heads = &a.shape[..rank - 2];
        let (columns, of_columns) = match self.packed(&op, b) {
            Some((at, _)) => (Columns::Packed(at.cast_const().cast()), vec![0; heads.len()]),
            None => {
                let (at, strides) = self.operand(b, free, calls)?;
                let (line, step) = (strides[rank - 2], strides[rank - 1]);
                if packed {
                    let lines = ((n, line), (k, step));
                    let (at, of) = pack(Side::Columns, lines, heads, (at, &strides), free, calls);
                    (Columns::Packed(at), of)
                } else {
                    (Columns::Lines(Lines { at, line, step }), strides)
                }
            }
        };
        let mut apart = None;
        let (rows, of_rows) = match self.packed(&op, a) {
            Some((at, _)) => (at.cast_const().cast(), vec![0; heads.len()]),
            None => {
                let (at, strides) = self.operand(a, free, calls)?;
                let (line, step) = (strides[rank - 2], strides[rank - 1]);
                if step == 1 || k == 1 {
                    apart = Some(line);
                    (at, strides)
                } else {
                    pack(Side::Rows, ((m, line), (k, step)), heads, (at, &strides), free, calls)
                }
            }
        };
        let pairs = (0..heads.len()).map(|i| (heads[i], of_rows[i], of_columns[i])).collect();
        Ok(MatMul { rows, apart, columns, pairs, shape, bias: None, out, epilogue })
    }

    /// Address and strides of an operand, widened to 4 bytes if necessary.
    fn operand(
        &self,
        view: &View,
        free: &mut *mut f32,
        calls: &mut Vec<KernelCall>,
    ) -> Result<(*const f32, Vec<usize>)> {
        let (base, width) = self.locate(view)?;
        if width == Width::Word {
            return Ok((base.cast_const().cast(), forward(view)?));
        }
        let at = *free;
        *free = free.wrapping_add(view.elements());
        let kernel = Kernel::copy(self.source(view)?, view.elements(), at);
        calls.push(KernelCall::Group(Box::new(kernel)));
        Ok((at.cast_const(), plan::row_major(&view.shape)))
    }

    fn convolution(
        &self,
        conv: &plan::Conv,
        out: *mut f32,
        epilogue: Epilogue,
        calls: &mut Vec<KernelCall>,
    ) -> Result<()> {
        let plan::Conv { windows, x, weight, bias, .. } = conv;
        let strides = forward(x)?;
        let [rows, columns] = conv_shape::axes(conv, &strides);
        let at = self.f32(x)?.cast_const();
        let (images, channels) = ((x.shape[0], strides[0]), (x.shape[1], strides[1]));
        let bias =
            bias.as_ref().map(|bias| self.f32(bias).map(<*mut f32>::cast_const)).transpose()?;
        if conv_shape::is_depthwise(conv) {
            let weight = self.f32(weight)?.cast_const();
            let depthwise =
                Depthwise { x: at, images, channels, rows, columns, weight, bias, out, epilogue };
            calls.push(KernelCall::Depthwise(Box::new(depthwise)));
            return Ok(());
        }
        let groups = windows.groups;
        let inner = weight.shape[1];
        let op = Op::Conv(conv.clone());
        let packing = PackedOperand::of_convolution(conv);
        let packed = match self.packed(&op, weight) {
            Some((weights, PackedOperand { side: Side::Winograd, lines, .. })) => {
                calls.push(KernelCall::Winograd(Box::new(Winograd {
                    x: at,
                    images,
                    channels,
                    rows,
                    columns,
                    weights: weights.cast_const().cast(),
                    outputs: lines.0,
                    bias,
                    out,
                    epilogue,
                })));
                return Ok(());
            }
            Some((at, _)) => at.cast_const().cast(),
            None => {
                let from = self.f32(weight)?.cast_const();
                let to = self.memory.step_scratch().cast::<f32>();
                let axes = vec![packing.matrices];
                calls.push(KernelCall::Pack(Box::new(Pack { operand: packing, axes, from, to })));
                to.cast_const()
            }
        };
        // Windows of one element with stride 1 are the image's own lines.
        let image = Image { at, channel: channels.1, rows, columns };
        let points = [rows, columns].iter().all(|axis| {
            axis.size == 1 && axis.stride == 1 && axis.count == axis.extent && axis.before == 0
        });
        let dense = columns.step == 1 && (rows.extent == 1 || rows.step == columns.extent);
        let columns_of = if points && dense {
            Columns::Lines(Lines { at, line: 1, step: channels.1 })
        } else {
            Columns::Windows(image)
        };
        calls.push(KernelCall::MatMul(Box::new(MatMul {
            rows: packed,
            apart: None,
            columns: columns_of,
            pairs: vec![(images.0, 0, images.1), (groups, packing.matrix(), inner * channels.1)],
            shape: [packing.lines.0, rows.count * columns.count, packing.steps.0],
            bias: bias.map(|bias| (bias, groups)),
            out,
            epilogue,
        })));
        Ok(())
    }
}

/// Packs an operand into free step scratch. Returns its address, and the distance between matrices along each axis.
fn pack(
    side: Side,
    (lines, steps): ((usize, usize), (usize, usize)),
    heads: &[usize],
    (from, strides): (*const f32, &[usize]),
    free: &mut *mut f32,
    calls: &mut Vec<KernelCall>,
) -> (*const f32, Vec<usize>) {
    let packing = PackedOperand { side, matrices: (1, 0), lines, steps };
    let (mut axes, mut of, mut each) = (Vec::new(), vec![0; heads.len()], packing.matrix());
    // An axis with stride 0 is packed once.
    for axis in (0..heads.len()).rev().filter(|axis| strides[*axis] != 0) {
        of[axis] = each;
        each *= heads[axis];
        axes.insert(0, (heads[axis], strides[axis]));
    }
    let to = *free;
    *free = to.wrapping_add(each);
    calls.push(KernelCall::Pack(Box::new(Pack { operand: packing, axes, from, to })));
    (to.cast_const(), of)
}
