//! Launches of tensor operations: fused groups of [`plan::schedule`], matmul, gather and scatter.
//!
//! A group becomes a list of instructions for the kernel `tensor`, or a generated kernel. Values
//! that only the group reads stay in registers. A group that exceeds the kernel's limits is split.

use std::collections::HashMap;

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{
    Grid, rows_grid, tensor_elements_grid, tensor_grid, tensor_matmul_grid,
};
use orind_kernels::generated::{Generated, GroupVariant};
use orind_kernels::jit;
use orind_kernels::params::{
    Action, Reduction, TENSOR_AXES, TENSOR_INDICES, TENSOR_OPERANDS, TENSOR_REGISTERS,
    TensorMatmulParams, TensorParams, TensorRowsParams, TensorSource, TensorTopKParams, Width,
    step,
};

use super::{Lowering, count};
use crate::Result;
use crate::axes::merged;
use crate::gpu::groups;
use crate::gpu::launch::{Params, Region};
use crate::gpu::storage::unsupported;
use plan::{
    Binary, Buffer, BufferId, Class, DType, Gather, Group, Op, Plan, Reduce, Scalar, Step, Unary,
    View,
};

/// Most elements of a launch, as indices have 32 bits.
const MOST_ELEMENTS: usize = 1 << 31;

/// A value of a group, before register allocation.
type Value = usize;

/// An instruction before register allocation.
struct Instruction {
    action: Action,
    /// `None` for stores.
    out: Option<Value>,
    reads: Vec<Value>,
    /// Immediate operands: index of a source; index and width of a store.
    operands: [u8; 2],
}

/// Compiles a group to instructions.
struct Compiler<'a, 'b> {
    lowering: &'a Lowering<'b>,
    params: TensorParams,
    sources: usize,
    stores: usize,
    /// Constants with their values.
    constants: Vec<(u32, Value)>,
    values: usize,
    /// Value that each written buffer has.
    places: HashMap<BufferId, Value>,
    loaded: Vec<(&'a View, Value)>,
    reads: Vec<Region>,
    writes: Vec<Region>,
}

/// Reason why a group cannot be launched.
enum Refusal {
    /// The group exceeds the limits of one launch.
    TooLarge,
    Error(crate::Error),
}

impl From<crate::Error> for Refusal {
    fn from(error: crate::Error) -> Self {
        Self::Error(error)
    }
}

type Compiled<T> = std::result::Result<T, Refusal>;

impl Lowering<'_> {
    /// Launches a group.
    pub(super) fn group(&mut self, group: &Group) -> Result<()> {
        let steps = &self.plan.steps[group.steps.clone()];
        self.at = group.steps.end - 1;
        // Some single operations have their own kernels.
        if let [only] = steps
            && matches!(self.elementwise(&only.label, &only.op), Ok(true))
        {
            return Ok(());
        }
        let label = &steps[steps.len() - 1].label;
        match Compiler::new(self).launch(group) {
            Ok((params, reads, writes)) => {
                let (kernel, grid) = self.group_kernel(&params);
                self.launch(label, kernel, grid, Params::Tensor(params), reads, writes);
                Ok(())
            }
            Err(Refusal::TooLarge) if steps.len() > 1 => {
                for part in halves(self.plan, group) {
                    self.group(&part)?;
                }
                Ok(())
            }
            Err(Refusal::TooLarge) => Err(unsupported(format!(
                "{} with this number of operands ({label})",
                steps[0].op.name()
            ))),
            Err(Refusal::Error(error)) => Err(error),
        }
    }

    /// Generated kernel if it can be compiled, else the interpreter; with its grid.
    fn group_kernel(&self, params: &TensorParams) -> (Kernel, Grid) {
        let tuning = self.addresses.tuning;
        let listed = (Kernel::Tensor, tensor_grid(params));
        if !tuning.compiles {
            return listed;
        }
        let made = |variant| {
            let group = Generated::of(params, variant);
            let code = jit::code(Kernel::Generated(group), tuning.target, &|| true);
            code.is_ok().then(|| (Kernel::Generated(group), group.grid(params)))
        };
        // Without NVRTC the interpreter computes the same result more slowly.
        let heuristic = GroupVariant::of(params);
        let chosen = groups::variant(tuning.choices, params);
        made(chosen).or_else(|| (chosen != heuristic).then(|| made(heuristic))?).unwrap_or(listed)
    }

    /// Launches a matmul of tensors that are not weights.
    pub(super) fn matmul_of_tensors(
        &mut self,
        label: &str,
        [a, b]: [&View; 2],
        out: &View,
    ) -> Result<()> {
        let axes = out.shape.len();
        if !(2..=TENSOR_AXES).contains(&axes) || b.shape.len() != axes || a.shape.len() != axes {
            return Err(unsupported(format!("a matmul of {} axes ({label})", a.shape.len())));
        }
        let [(a_at, a_width), (b_at, b_width)] = [self.operand(a)?, self.operand(b)?];
        let [rows, columns] = [out.shape[axes - 2], out.shape[axes - 1]];
        let mut params = TensorMatmulParams {
            a: a_at.address,
            b: b_at.address,
            out: self.f32(out)?.address,
            axes: count(axes)?,
            batches: count(out.shape[..axes - 2].iter().product())?,
            m: count(rows)?,
            n: count(columns)?,
            k: count(a.shape[axes - 1])?,
            a_width: a_width as u32,
            b_width: b_width as u32,
            ..TensorMatmulParams::default()
        };
        for (axis, &extent) in out.shape[..axes - 2].iter().enumerate() {
            params.shape[axis] = count(extent)?;
        }
        for axis in 0..axes {
            params.a_strides[axis] = distance(a.strides[axis])?;
            params.b_strides[axis] = distance(b.strides[axis])?;
        }
        let grid = tensor_matmul_grid(&params);
        if grid[1] > 0xffff || grid[2] > 0xffff {
            return Err(unsupported(format!("a matmul of {:?} ({label})", out.shape)));
        }
        let (reads, writes) = (vec![self.buffer_of(a)?, self.buffer_of(b)?], vec![self.f32(out)?]);
        self.launch(label, Kernel::TensorMatmul, grid, Params::TensorMatmul(params), reads, writes);
        Ok(())
    }

    /// Launches a gather with any number of indices and any layout.
    pub(super) fn gather_of_tensors(&mut self, label: &str, gather: &Gather) -> Result<()> {
        let Gather { table, indices, out } = gather;
        let kernel = (Kernel::TensorGather, TensorRowsParams::default());
        self.rows_by(label, kernel, indices, [table, table, out])
    }

    /// Launches a scatter, or a scatter-add that starts from zero.
    pub(super) fn scatter(
        &mut self,
        label: &str,
        indices: &[View],
        [values, table]: [&View; 2],
        adds: bool,
    ) -> Result<()> {
        let params = TensorRowsParams { adds: u32::from(adds), ..TensorRowsParams::default() };
        self.rows_by(label, (Kernel::TensorScatter, params), indices, [table, values, table])
    }

    /// Gather or scatter: one of source and destination is the table.
    fn rows_by(
        &mut self,
        label: &str,
        (kernel, rest): (Kernel, TensorRowsParams),
        indices: &[View],
        [table, source, out]: [&View; 3],
    ) -> Result<()> {
        let [leading, axes] = [indices.len(), table.shape.len()];
        if leading > TENSOR_INDICES || axes > TENSOR_AXES {
            return Err(unsupported(format!("{leading} indices of {axes} axes ({label})")));
        }
        let ((written, width), whole) = (self.operand(out)?, self.buffer_of(out)?);
        if !out.is_contiguous() {
            return Err(unsupported(format!("rows with strides as a result ({label})")));
        }
        let mut params = TensorRowsParams {
            source: self.source(source, &source.shape, &source.strides)?,
            out: written.address,
            out_width: width as u32,
            leading: count(leading)?,
            count: count(indices.first().map_or(0, View::elements))?,
            width: elements(table.shape[leading..].iter().product::<usize>().max(1))?,
            elements: elements(out.elements())?,
            ..rest
        };
        let mut reads = vec![self.buffer_of(source)?];
        for (i, index) in indices.iter().enumerate() {
            let &[apart] = &index.strides[..] else {
                return Err(unsupported(format!("indices {:?} ({label})", index.shape)));
            };
            params.indices[i] = self.operand(index)?.0.address;
            params.extents[i] = count(table.shape[i])?;
            params.apart[i] = distance(apart)?;
            reads.push(self.buffer_of(index)?);
        }
        let (grid, params) = (tensor_elements_grid(params.elements), Params::TensorRows(params));
        self.launch(label, kernel, grid, params, reads, vec![whole]);
        Ok(())
    }

    /// Launches the top-k of each row of `x [M, E]`.
    pub(super) fn top_k(&mut self, label: &str, x: &View, out: &View) -> Result<()> {
        let (&[rows, n], &[row_stride, column_stride]) = (&x.shape[..], &x.strides[..]) else {
            return Err(unsupported(format!("top-k of {:?} ({label})", x.shape)));
        };
        let [read, written] = [self.buffer_of(x)?, self.i32(out)?];
        let params = TensorTopKParams {
            x: self.operand(x)?.0.address,
            out: written.address,
            n: count(n)?,
            count: count(out.elements() / rows.max(1))?,
            row_stride: distance(row_stride)?,
            column_stride: distance(column_stride)?,
        };
        let (grid, params) = (rows_grid(count(rows)?), Params::TensorTopK(params));
        self.launch(label, Kernel::TensorTopK, grid, params, vec![read], vec![written]);
        Ok(())
    }

    /// A view as a source, in the order of a shape.
    fn source(&self, view: &View, shape: &[usize], strides: &[isize]) -> Result<TensorSource> {
        if shape.len() > TENSOR_AXES {
            return Err(unsupported(format!("a view of {} axes", shape.len())));
        }
        let (base, width) = match self.buffer(view).class {
            Class::Constant(value) => (u64::from(bits_of(value, self.buffer(view))), Width::Fixed),
            _ => self.operand(view).map(|(region, width)| (region.address, width))?,
        };
        let mut source = TensorSource {
            base,
            axes: count(shape.len())?,
            width: width as u32,
            padded: u32::MAX,
            ..TensorSource::default()
        };
        for (axis, (&extent, &stride)) in shape.iter().zip(strides).enumerate() {
            (source.shape[axis], source.strides[axis]) = (count(extent)?, distance(stride)?);
        }
        Ok(source)
    }

    /// Address of a view with any strides, and its storage type.
    fn operand(&self, view: &View) -> Result<(Region, Width)> {
        let buffer = self.buffer(view);
        let dtype = Self::dtype(buffer);
        let width = match dtype {
            DType::F32 | DType::I32 => Width::Word,
            DType::F16 => Width::Half,
            DType::BF16 => Width::Bf16,
            DType::I8 => Width::Signed,
            DType::U8 | DType::BOOL => Width::Unsigned,
            other => {
                return Err(unsupported(format!(
                    "`{}` of {other} as an operand here",
                    buffer.name
                )));
            }
        };
        let offset = (dtype.block_bytes() * view.offset) as u64;
        let base = self.buffer_of(view)?;
        Ok((Region::new(base.address + offset, base.bytes), width))
    }

    /// The whole buffer of a view.
    fn buffer_of(&self, view: &View) -> Result<Region> {
        let whole = View::whole(view.buffer, &self.buffer(view).shape);
        Ok(Region::new(self.address(&whole)?, Self::bytes(self.buffer(view))))
    }
}

/// Splits a group in two.
fn halves(plan: &Plan, group: &Group) -> [Group; 2] {
    let middle = group.steps.start + group.steps.len() / 2;
    [group.steps.start..middle, middle..group.steps.end].map(|steps| {
        let reads = |step: &Step, buffer: BufferId| {
            step.op.reads().iter().any(|view| view.buffer == buffer)
        };
        let own = |buffer: &&BufferId| {
            group.steps.clone().all(|at| steps.contains(&at) || !reads(&plan.steps[at], **buffer))
        };
        let reduce = group.reduce.filter(|at| steps.contains(at));
        let inner = group.inner.iter().filter(own).copied().collect();
        Group { steps, reduce, inner }
    })
}

impl<'a, 'b> Compiler<'a, 'b> {
    fn new(lowering: &'a Lowering<'b>) -> Self {
        Self {
            lowering,
            params: TensorParams::default(),
            sources: 0,
            stores: 0,
            constants: Vec::new(),
            values: 0,
            places: HashMap::new(),
            loaded: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
        }
    }

    fn launch(mut self, group: &Group) -> Compiled<(TensorParams, Vec<Region>, Vec<Region>)> {
        let plan = self.lowering.plan;
        let [before, after] = group.chains(plan);
        let (mut chain, mut tail) = (Vec::new(), Vec::new());
        for step in before {
            self.step(group, &step.op, &mut chain)?;
        }
        let mut ends = [None, None];
        let reduction = group.reduce.map(|at| &plan.steps[at].op);
        if let Some(Op::Reduce { op, axis, x, out }) = reduction {
            let ints = self.is_of_ints(out);
            self.params.reduce = match (op, ints) {
                (Reduce::Sum, false) => Reduction::Sum,
                (Reduce::Max, false) => Reduction::Largest,
                (Reduce::Sum, true) => Reduction::IntSum,
                (Reduce::Max, true) => Reduction::IntLargest,
            } as u32;
            let space = |axes: &[usize]| elements(axes.iter().product());
            self.params.outer = space(&x.shape[..*axis])?;
            self.params.length = space(&x.shape[*axis..=*axis])?;
            self.params.inner = space(&x.shape[axis + 1..])?;
            elements(x.elements())?;
            let from = self.read(x, ints, &mut chain)?;
            self.loaded.clear();
            let into = self.value();
            ends = [Some(from), Some(into)];
            self.store(group, out, into, &mut tail)?;
            for step in after {
                self.step(group, &step.op, &mut tail)?;
            }
        } else {
            let space = before.last().map_or(0, |step| step.op.writes()[0].elements());
            self.params.elements = elements(space)?;
        }
        self.encode(&[chain, tail], ends)?;
        Ok((self.params, self.reads, self.writes))
    }

    /// Allocates registers and encodes the instructions.
    fn encode(&mut self, parts: &[Vec<Instruction>; 2], ends: [Option<Value>; 2]) -> Compiled<()> {
        let fixed = self.constants.iter().map(|(_, value)| *value);
        let mut registers: HashMap<Value, u8> = fixed.zip(0..).collect();
        for (constant, (bits, _)) in self.params.constants.iter_mut().zip(&self.constants) {
            *constant = *bits;
        }
        let [first, last] = [TENSOR_OPERANDS, TENSOR_REGISTERS].map(|n| {
            u8::try_from(n).unwrap_or_else(|_| unreachable!("a step has a byte for a register"))
        });
        let mut at = 0;
        for (number, (part, end)) in parts.iter().zip(ends).enumerate() {
            let mut free: Vec<u8> = (first..last).rev().collect();
            // The reduction's result is defined at the start of the second part; its input is alive
            // at the end of the first.
            if let (1, Some(into)) = (number, end) {
                registers.insert(into, free.pop().ok_or(Refusal::TooLarge)?);
            }
            let pinned = |value: Value| {
                (number == 0 && end == Some(value))
                    || self.constants.iter().any(|(_, constant)| *constant == value)
            };
            for (i, instruction) in part.iter().enumerate() {
                let mut operands = [instruction.operands[0], instruction.operands[1], 0];
                for (operand, value) in operands.iter_mut().zip(&instruction.reads) {
                    *operand = registers[value];
                }
                let mut done: Vec<Value> = instruction.reads.clone();
                done.dedup();
                for value in done {
                    let later = part[i + 1..].iter().any(|next| next.reads.contains(&value));
                    if !later && !pinned(value) && !free.contains(&registers[&value]) {
                        free.push(registers[&value]);
                    }
                }
                let out = match instruction.out {
                    Some(value) => {
                        let register = free.pop().ok_or(Refusal::TooLarge)?;
                        registers.insert(value, register);
                        // An unread value needs a register for this instruction only.
                        let read = part[i + 1..].iter().any(|next| next.reads.contains(&value));
                        if !read && !pinned(value) {
                            free.push(register);
                        }
                        register
                    }
                    // Index of the store.
                    None => instruction.operands[0],
                };
                if instruction.action == Action::Store {
                    operands[1] = instruction.operands[1];
                }
                let place = self.params.steps.as_flattened_mut().get_mut(at);
                *place.ok_or(Refusal::TooLarge)? = step(instruction.action, out, operands);
                at += 1;
            }
            if number == 0 {
                self.params.body = count(at)?;
            }
        }
        self.params.tail = count(at)?;
        let [from, into] = ends.map(|end| end.map_or(0, |value| u32::from(registers[&value])));
        (self.params.from, self.params.into) = (from, into);
        Ok(())
    }

    fn step(&mut self, group: &Group, op: &'a Op, to: &mut Vec<Instruction>) -> Compiled<()> {
        let Some(out) = plan::elementwise(op) else { unreachable!("the schedule has seen to it") };
        if let Op::Pad { axis, before, x, .. } = op {
            let value = self.load(x, &out.shape, Some((*axis, *before)), to)?;
            return self.store(group, out, value, to);
        }
        let action = self.action(op);
        let ints = action.is_some_and(|action| {
            (Action::IntAdd as u8..Action::Select as u8).contains(&(action as u8))
        });
        let mut reads = Vec::new();
        for view in op.reads() {
            reads.push(self.read(view, ints, to)?);
        }
        let value = match action {
            None => reads[0],
            Some(action) => {
                let value = self.value();
                to.push(Instruction { action, out: Some(value), reads, operands: [0; 2] });
                value
            }
        };
        self.store(group, out, value, to)
    }

    /// `None` if the value is unchanged.
    fn action(&self, op: &Op) -> Option<Action> {
        Some(match op {
            Op::Unary { op, .. } => match op {
                Unary::Neg => Action::Neg,
                Unary::Exp => Action::Exp,
                Unary::Ln => Action::Ln,
                Unary::Sqrt => Action::Sqrt,
                Unary::Recip => Action::Recip,
                Unary::Sin => Action::Sin,
                Unary::Cos => Action::Cos,
                Unary::Floor => Action::Floor,
                Unary::Round => Action::Round,
                Unary::Tanh => Action::Tanh,
            },
            Op::Binary { op, a, .. } => match (op, self.is_of_ints(a)) {
                (Binary::Add, false) => Action::Add,
                (Binary::Sub, false) => Action::Sub,
                (Binary::Mul, false) => Action::Mul,
                (Binary::Div, false) => Action::Div,
                (Binary::Max, false) => Action::Max,
                (Binary::LessEqual, false) => Action::LessEqual,
                (Binary::Less, false) => Action::Less,
                (Binary::Equal, false) => Action::Equal,
                (Binary::Rem, false) => Action::Rem,
                (Binary::Add, true) => Action::IntAdd,
                (Binary::Sub, true) => Action::IntSub,
                (Binary::Mul, true) => Action::IntMul,
                (Binary::Div, true) => Action::IntDiv,
                (Binary::Max, true) => Action::IntMax,
                (Binary::LessEqual, true) => Action::IntLessEqual,
                (Binary::Less, true) => Action::IntLess,
                (Binary::Equal, true) => Action::IntEqual,
                (Binary::Rem, true) => Action::IntRem,
                (Binary::And, _) => Action::And,
                (Binary::Or, _) => Action::Or,
                (Binary::Xor, _) => Action::Xor,
                (Binary::ShiftLeft, _) => Action::ShiftLeft,
                (Binary::ShiftRight, _) => Action::ShiftRight,
            },
            Op::Where { .. } => Action::Select,
            Op::Cast { x, out } => match (self.is_of_ints(x), self.lowering.buffer(out).dtype) {
                (true, DType::F32) => Action::ToFloat,
                (false, DType::I32) => Action::ToInt,
                (_, DType::F16) => Action::ToHalf,
                (_, DType::BF16) => Action::ToBf16,
                (_, DType::I8) => Action::ToSigned,
                (_, DType::U8) => Action::ToUnsigned,
                (_, DType::BOOL) => Action::ToTruth,
                _ => return None,
            },
            Op::Iota { .. } => Action::Iota,
            _ => return None,
        })
    }

    fn is_of_ints(&self, view: &View) -> bool {
        self.lowering.buffer(view).dtype.is_integer()
    }

    fn value(&mut self) -> Value {
        self.values += 1;
        self.values - 1
    }

    /// Value of a view; constants are truncated for integer operations.
    fn read(&mut self, view: &'a View, ints: bool, to: &mut Vec<Instruction>) -> Compiled<Value> {
        if let Some(value) = self.places.get(&view.buffer) {
            return Ok(*value);
        }
        let buffer = self.lowering.buffer(view);
        if let Class::Constant(value) = buffer.class {
            let bits = if ints { whole(value) } else { bits_of(value, buffer) };
            if let Some((_, value)) = self.constants.iter().find(|(known, _)| *known == bits) {
                return Ok(*value);
            }
            if self.constants.len() == TENSOR_OPERANDS {
                return Err(Refusal::TooLarge);
            }
            let value = self.value();
            self.constants.push((bits, value));
            return Ok(value);
        }
        if let Some((_, value)) = self.loaded.iter().find(|(known, _)| *known == view) {
            return Ok(*value);
        }
        let value = self.load(view, &view.shape, None, to)?;
        self.loaded.push((view, value));
        Ok(value)
    }

    /// Loads an element of a view, with zero padding on one axis.
    fn load(
        &mut self,
        view: &View,
        shape: &[usize],
        padded: Option<(usize, usize)>,
        to: &mut Vec<Instruction>,
    ) -> Compiled<Value> {
        let number = u8::try_from(self.sources).map_err(|_| Refusal::TooLarge)?;
        let place = self.params.sources.get_mut(self.sources).ok_or(Refusal::TooLarge)?;
        let (shape, strides) = match padded {
            Some(_) => (shape.to_vec(), view.strides.clone()),
            None => merged(shape, &view.strides),
        };
        let mut source = self.lowering.source(view, &shape, &strides)?;
        if let Some((axis, before)) = padded {
            (source.padded, source.before) = (count(axis)?, count(before)?);
            source.inside = count(view.shape[axis])?;
        }
        *place = source;
        self.sources += 1;
        if source.width != Width::Fixed as u32 {
            self.reads.push(self.lowering.buffer_of(view)?);
        }
        let value = self.value();
        let operands = [number, 0];
        let action = Action::Load;
        to.push(Instruction { action, out: Some(value), reads: Vec::new(), operands });
        Ok(value)
    }

    /// Records a result, and stores it if later steps read it.
    fn store(
        &mut self,
        group: &Group,
        out: &View,
        value: Value,
        to: &mut Vec<Instruction>,
    ) -> Compiled<()> {
        self.places.insert(out.buffer, value);
        if group.inner.contains(&out.buffer) {
            return Ok(());
        }
        if !out.is_contiguous() {
            let name = &self.lowering.buffer(out).name;
            return Err(unsupported(format!("`{name}` with strides as a result here")).into());
        }
        let number = u8::try_from(self.stores).map_err(|_| Refusal::TooLarge)?;
        let place = self.params.stores.get_mut(self.stores).ok_or(Refusal::TooLarge)?;
        let (at, width) = self.lowering.operand(out)?;
        *place = at.address;
        self.stores += 1;
        self.writes.push(self.lowering.buffer_of(out)?);
        let (reads, operands) = (vec![value], [number, width as u8]);
        to.push(Instruction { action: Action::Store, out: None, reads, operands });
        Ok(())
    }
}

/// Bits of a constant in the element type of its tensor.
fn bits_of(value: Scalar, buffer: &Buffer) -> u32 {
    if buffer.dtype == DType::I32 { whole(value) } else { value.get().to_bits() }
}

#[expect(clippy::cast_possible_truncation, reason = "the whole part is meant")]
fn whole(value: Scalar) -> u32 {
    (value.get() as i32).cast_unsigned()
}

/// A stride; negative ones in two's complement, as the kernels use 32-bit offsets.
fn distance(stride: isize) -> Result<u32> {
    let stride = i32::try_from(stride).map(i32::cast_unsigned);
    stride.map_err(|_| unsupported("a tensor with strides beyond 32 bits".into()))
}

/// An element count, limited to 32-bit indices.
fn elements(n: usize) -> Result<u32> {
    if n < MOST_ELEMENTS { count(n) } else { Err(unsupported(format!("a tensor of {n} elements"))) }
}
