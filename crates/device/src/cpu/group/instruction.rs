//! Instruction set of fused groups: the instructions, and the kernels that consist of them.

use super::source::Source;
use plan::{Binary, Group, Plan, Reduce, Step, Unary};
use simd::tensor::{Conversion, First, Narrow, Second};

/// Values of a virtual register.
pub(in crate::cpu) const BLOCK: usize = 256;

/// Place of a block's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Location {
    Register(usize),
    /// In memory: address of the first element of the index space.
    At(*mut f32),
}

/// Operation of an instruction, with up to three operands.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Unary(Unary),
    Binary(Binary),
    Ints(Binary),
    /// Two operations; the second one reads the first one's result.
    Two(First, Second),
    Select,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// Clamped from below (`true`) or above (`false`).
    Bounded(bool, f32),
    Convert(Conversion),
    Move,
    /// Index of each element.
    Iota,
    Load(Source),
    /// Concatenation along an axis; parts that are already in place are skipped.
    Concat(Vec<Source>),
    /// Stored with fewer bytes.
    Narrow(*mut u8, Narrow),
}

#[derive(Clone, Debug)]
pub(super) struct Instruction {
    pub(super) action: Action,
    pub(super) reads: Vec<Location>,
    pub(super) out: Location,
}

/// A compiled group. Registers of constants are filled before the first block.
#[derive(Clone, Debug)]
pub(in crate::cpu) struct Kernel {
    pub(super) elements: usize,
    pub(super) constants: Vec<(usize, u32)>,
    pub(super) body: Vec<Instruction>,
    pub(super) reduction: Option<Reduction>,
    pub(super) tail: Vec<Instruction>,
    pub(super) registers: usize,
}

/// Reduction of `x [outer, length, inner]` to `[outer, inner]`.
#[derive(Clone, Debug)]
pub(super) struct Reduction {
    pub(super) op: Reduce,
    pub(super) of_ints: bool,
    pub(super) outer: usize,
    pub(super) length: usize,
    pub(super) inner: usize,
    pub(super) x: Location,
    pub(super) out: Location,
}

/// Upper bound of a group's registers.
pub(in crate::cpu) fn registers(plan: &Plan, group: &Group) -> usize {
    // Two registers contain the `f64` sums of a reduction.
    let of = |step: &Step| step.op.reads().len() + step.op.writes().len();
    plan.steps[group.steps.clone()].iter().map(of).sum::<usize>() + 2
}
