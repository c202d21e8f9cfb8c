//! Instructions that a group of tensor operations is compiled to, and the kernel that holds them.

use super::source::Source;
use plan::{Binary, Group, Plan, Reduce, Step, Unary};
use simd::tensor::{Conversion, First, Narrow, Second};

/// Values of a register.
pub(in crate::cpu) const BLOCK: usize = 256;

/// Where the values of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Register(usize),
    /// In memory, the first element of the space there.
    At(*mut f32),
}

/// What an instruction does with up to three operands.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Unary(Unary),
    Binary(Binary),
    Ints(Binary),
    /// Two operations, the second with what the first gives.
    Two(First, Second),
    Select,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// No less than a number, or no more.
    Bounded(bool, f32),
    Convert(Conversion),
    Move,
    /// The number of each element.
    Iota,
    Load(Source),
    /// What lies side by side along an axis, plus 0; nothing is done where a part is in its place.
    Join(Vec<Source>),
    /// Stored in fewer bytes.
    Narrow(*mut u8, Narrow),
}

#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) action: Action,
    pub(super) reads: Vec<Place>,
    pub(super) out: Place,
}

/// A group with its addresses. A constant's register is filled before the first block.
#[derive(Clone, Debug)]
pub(in crate::cpu) struct Kernel {
    pub(super) elements: usize,
    pub(super) constants: Vec<(usize, u32)>,
    pub(super) chain: Vec<Instruction>,
    pub(super) reduction: Option<Reduction>,
    pub(super) tail: Vec<Instruction>,
    pub(super) registers: usize,
}

/// `x [outer, length, inner]` to `[outer, inner]`.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub(super) op: Reduce,
    pub(super) of_ints: bool,
    pub(super) outer: usize,
    pub(super) length: usize,
    pub(super) inner: usize,
    pub(super) x: Place,
    pub(super) out: Place,
}

/// Registers that a group takes at most.
pub(in crate::cpu) fn registers(plan: &Plan, group: &Group) -> usize {
    // Two hold the sums of a reduction, in `f64`.
    let of = |step: &Step| step.op.reads().len() + step.op.writes().len();
    plan.steps[group.steps.clone()].iter().map(of).sum::<usize>() + 2
}
