//! Executable operations, with all modifiers resolved.

use crate::isa::{Modify, PT, Part, SpecialRegister};

/// Origin of a 32-bit source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Register(u8),
    Uniform(u8),
    Constant { bank: u8, offset: u32 },
    Immediate(u32),
}

/// A 32-bit source: `((part(value) & keep) ^ flip) + plus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) origin: Origin,
    pub(crate) part: Part,
    pub(crate) keep: u32,
    pub(crate) flip: u32,
    pub(crate) plus: u32,
}

impl Source {
    /// An unmodified source.
    pub(crate) const fn plain(origin: Origin) -> Self {
        Self { origin, part: Part::Whole, keep: !0, flip: 0, plus: 0 }
    }

    pub(crate) const fn zero() -> Self {
        Self::plain(Origin::Immediate(0))
    }

    /// Returns whether the source is unmodified.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.part, Part::Whole) && self.keep == !0 && self.flip == 0 && self.plus == 0
    }

    /// Applies the modifications to a raw value.
    #[inline(always)]
    pub(crate) fn modify(&self, value: u32) -> u32 {
        ((self.part(value) & self.keep) ^ self.flip).wrapping_add(self.plus)
    }

    #[inline(always)]
    fn part(&self, value: u32) -> u32 {
        match self.part {
            Part::Whole | Part::Float | Part::LowNegatedHigh | Part::Half(0) | Part::Sign => value,
            Part::LowHalf => (value & 0xffff) * 0x1_0001,
            Part::HighHalf => (value >> 16) * 0x1_0001,
            Part::Half(_) => value >> 16,
            Part::Byte(byte) => value >> (u32::from(byte & 3) * 8),
        }
    }

    /// Returns the undefined bits after the modifications.
    pub(crate) fn unset(&self, unset: u32) -> u32 {
        let unset = self.part(unset) & self.keep;
        if self.plus == 0 { unset } else { carried(unset) }
    }
}

/// Bits of a sum that undefined bits can affect.
pub(crate) const fn carried(unset: u32) -> u32 {
    unset | unset.wrapping_neg()
}

/// A predicate source, which may be uniform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) index: u8,
    pub(crate) not: bool,
    pub(crate) uniform: bool,
}

/// The condition that is always true.
pub(crate) const ALWAYS: Condition = Condition { index: PT, not: false, uniform: false };

/// Combination of two predicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// A relation: the set of outcomes (less, equal, greater, unordered) for which it is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relation {
    pub(crate) less: bool,
    pub(crate) equal: bool,
    pub(crate) greater: bool,
    pub(crate) unordered: bool,
}

/// IEEE rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Nearest,
    Down,
    Up,
    Zero,
}

/// Modifiers of a single-precision operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Float {
    pub(crate) round: Round,
    /// Denormal sources and results are flushed to zero.
    pub(crate) flush: bool,
    /// Zero times anything is zero.
    pub(crate) zero_wins: bool,
    /// Results are clamped to 0..1; NaN becomes 0.
    pub(crate) saturate: bool,
}

/// Modifiers of an operation on packed halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// The pairs are bfloat16.
    pub(crate) brain: bool,
    pub(crate) flush: bool,
    pub(crate) saturate: bool,
    /// Negative results become zero.
    pub(crate) relu: bool,
}

/// Width and sign of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer {
    pub(crate) bits: u8,
    pub(crate) signed: bool,
}

/// A floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Half,
    Brain,
    Single,
    Double,
}

/// A shift of two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shift {
    pub(crate) left: bool,
    /// The amount wraps; otherwise it is clamped to the width.
    pub(crate) wrap: bool,
    pub(crate) signed: bool,
    /// Amounts range to 63 instead of 31.
    pub(crate) wide: bool,
    /// The upper word is the result.
    pub(crate) high: bool,
}

/// A special function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Cos,
    Sin,
    Exp2,
    Log2,
    Reciprocal,
    ReciprocalRoot,
    ReciprocalHigh,
    ReciprocalRootHigh,
    Root,
    Tanh,
}

/// Operation on at most three words and a predicate. `Select` is the first word if the predicate is
/// true, else the second. `PermuteBy` permutes by one of four selectors. `FloatScaled` is a product
/// times a power of two, rounded once. `PackedAddWide` adds the low halves in single precision.
/// `PackIntegers` saturates two integers, or rounded numbers, and places them above the low bits of
/// a third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Move,
    Select,
    Add3,
    MultiplyAdd,
    Minimum { signed: bool },
    Absolute,
    ShiftAdd { shift: u8 },
    ShiftAddHigh { shift: u8, signed: bool, carry: bool },
    Logic { table: u8 },
    Shift(Shift),
    Extend { signed: bool, wrap: bool },
    Mask { wrap: bool },
    Permute,
    PermuteBy([u16; 4]),
    CountOnes,
    LeadingOne { signed: bool, distance: bool },
    Reverse,
    Dot4 { a: bool, b: bool },
    Dot2 { a: bool, b: bool, high: bool },
    AbsoluteDifference { signed: bool },
    AbsoluteDifference4 { signed: bool, sum: bool },
    Saturate(Integer),
    PackIntegers { to: Integer, rounded: Option<Round> },
    FloatAdd(Float),
    FloatMultiply(Float),
    FloatFused(Float),
    FloatScaled { mode: Float, exponent: i8 },
    FloatCompare { relation: Relation, flush: bool, combine: Combine },
    FloatMinimum { flush: bool, nan: bool, sign: bool },
    Function(Function),
    HalfFunction(Function),
    PackedAdd(Packed),
    PackedMultiply(Packed),
    PackedFused(Packed),
    PackedMinimum { packed: Packed, nan: bool, sign: bool },
    PackedAddWide { saturate: bool },
    PackedCompare { relation: Relation, brain: bool, flush: bool, combine: Combine, float: bool },
    Pack { brain: bool, relu: bool, round: Round },
    ToInteger { from: Format, to: Integer, round: Round, flush: bool },
    FromInteger { from: Integer, to: Format, round: Round },
    RoundToInteger { format: Format, round: Round, flush: bool },
}

/// Operation on 64-bit numbers. `MultiplyAdd` is a 64-bit product of 32-bit numbers plus a 64-bit
/// addend, which may be negated, with carries; the result is all of it, its upper word or, if
/// narrow, its lower word. `Convert` converts between floating-point formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wide {
    MultiplyAdd { signed: bool, high: bool, narrow: bool, negate: bool },
    DoubleAdd(Round),
    DoubleMultiply(Round),
    DoubleFused(Round),
    Convert { from: Format, to: Format, round: Round, flush: bool },
    ToInteger { from: Format, to: Integer, round: Round, flush: bool },
    FromInteger { from: Integer, to: Format, round: Round },
    RoundToInteger { round: Round },
}

/// Operands of a comparison. `UpperIntegers` uses the outcome for the lower words as the extra
/// condition. `DoubleExtreme` selects the minimum or maximum. `Division` tests whether a division
/// needs the slow path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    Integers { signed: bool },
    UpperIntegers { signed: bool },
    Floats { flush: bool },
    Doubles,
    DoubleExtreme { maximum: bool },
    Halves { flush: bool, both: bool },
    Division,
}

/// Size of a memory access, and sign extension of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) bytes: u8,
    pub(crate) signed: bool,
}

/// Memory space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
    Generic,
}

/// An address: `register * scale + uniform + offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) space: Space,
    pub(crate) register: u8,
    /// The register is a pair.
    pub(crate) wide: bool,
    pub(crate) scale: u8,
    /// A uniform register that is added; a pair when `wide` is.
    pub(crate) uniform: Option<u8>,
    pub(crate) offset: i32,
}

/// Atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    /// Adds one for each lane, regardless of the operand.
    AddOne,
    Minimum,
    Maximum,
    Increment,
    Decrement,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    /// Like `CompareExchange`, but the result is 1 if it was stored, else 0.
    CompareStore,
}

/// Type of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicType {
    U32,
    S32,
    U64,
    S64,
    F32,
    F64,
    F16x2,
}

/// Exchange between lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Index,
    Up,
    Down,
    Butterfly,
}

/// A reduction over lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    And,
    Or,
    Xor,
    Sum,
    Minimum,
    Maximum,
}

/// A vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Equal,
}

/// Element type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Half,
    Brain,
    Tensor,
}

/// An integer matrix product whose left matrix has eight or sixteen rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MatrixInteger {
    pub(crate) d: u8,
    pub(crate) a: u8,
    pub(crate) b: u8,
    pub(crate) c: u8,
    pub(crate) rows: u8,
    pub(crate) depth: u16,
    pub(crate) kinds: [Integer; 2],
    pub(crate) saturate: bool,
    /// Elements are compared instead of multiplied: 1 where they differ.
    pub(crate) differ: bool,
}

impl MatrixInteger {
    /// Number of registers of the left fragment, the right fragment and the sum.
    pub(crate) fn words(&self) -> [u8; 3] {
        let column = (self.depth * u16::from(self.kinds[0].bits) / 128) as u8;
        [column * self.rows / 8, column, self.rows / 4]
    }
}

/// Kind of arrival at a block barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    Wait,
    Arrive,
    Count,
    All,
    Any,
}

/// A sum with carries; `extra` is added for negated sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Carry {
    pub(crate) d: u8,
    pub(crate) a: Source,
    pub(crate) b: Source,
    pub(crate) c: Source,
    pub(crate) extra: u8,
    pub(crate) out: [u8; 2],
    pub(crate) carry: Option<[Condition; 2]>,
    pub(crate) uniform: bool,
}

/// Upper word of a shift: none (the result is the lower word), a word, or the sign (the result is
/// the upper word).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upper {
    None,
    Word(Source),
    Sign,
}

/// Shift and add, with carries in and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShiftAddCarry {
    pub(crate) d: u8,
    pub(crate) a: Source,
    pub(crate) b: Source,
    pub(crate) upper: Upper,
    pub(crate) shift: u8,
    pub(crate) extra: u8,
    pub(crate) carry: Option<Condition>,
    pub(crate) out: u8,
    pub(crate) uniform: bool,
}

/// Bitwise logic, with a predicate that tests the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogicTest {
    pub(crate) table: u8,
    pub(crate) d: u8,
    pub(crate) a: Source,
    pub(crate) b: Source,
    pub(crate) c: Source,
    pub(crate) out: u8,
    pub(crate) p: Condition,
    pub(crate) and: bool,
    pub(crate) uniform: bool,
}

/// An operation on 64-bit numbers, with a carry in and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WideOp {
    pub(crate) wide: Wide,
    pub(crate) d: u8,
    pub(crate) a: [Source; 2],
    pub(crate) b: [Source; 2],
    pub(crate) c: [Source; 2],
    pub(crate) out: u8,
    pub(crate) carry: Option<Condition>,
    pub(crate) uniform: bool,
}

/// A comparison, combined with a predicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) compared: Compared,
    pub(crate) relation: Relation,
    pub(crate) combine: Combine,
    pub(crate) out: [u8; 2],
    pub(crate) a: [Source; 2],
    pub(crate) b: [Source; 2],
    pub(crate) p: Condition,
    pub(crate) extra: Condition,
    pub(crate) uniform: bool,
}

/// An atomic operation on memory. `out` reports success, which floating-point atomics on shared or
/// local memory lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicOp {
    pub(crate) operation: Atomic,
    pub(crate) kind: AtomicType,
    pub(crate) out: u8,
    pub(crate) d: Option<u8>,
    pub(crate) pointer: Pointer,
    pub(crate) source: u8,
    pub(crate) source2: u8,
}

/// A pre-decoded operation. `BranchTogether` is taken only if all lanes would take it (inferred:
/// compilers use it to skip a region with a convergence barrier). `BranchIndirect` jumps to a
/// register pair plus an offset. `Illegal` is not supported.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    Illegal,
    Nothing,
    Alu { lane: Lane, d: u8, a: Source, b: Source, c: Source, p: Condition },
    UniformAlu { lane: Lane, d: u8, a: Source, b: Source, c: Source, p: Condition },
    Carry(Carry),
    ShiftAddCarry(ShiftAddCarry),
    LogicTest(LogicTest),
    Wide(WideOp),
    Compare(Comparison),
    Predicates { tables: [u8; 2], out: [u8; 2], sources: [Condition; 3], uniform: bool },
    Signs { tables: [u8; 2], out: [u8; 2], sources: [Source; 3] },
    FromPredicates { d: u8, byte: u8, base: Source, mask: Source },
    ToPredicates { source: Source, mask: Source },
    LeadingTest { d: u8, a: Source, signed: bool, distance: bool, out: u8 },
    LoadConstant { d: u8, bank: u8, register: u8, offset: i32, size: Size },
    LoadUniform { d: u8, bank: u8, index: Option<u8>, offset: i32, size: Size },
    Load { d: u8, pointer: Pointer, size: Size },
    Store { pointer: Pointer, source: u8, size: Size },
    Atomic(AtomicOp),
    CacheLine { pointer: Pointer },
    CopyAsync { to: Pointer, from: Pointer, bytes: u8, p: Condition },
    CommitCopies,
    WaitCopies { left: u8 },
    LoadMatrix { d: u8, pointer: Pointer, count: u8, transpose: bool },
    MatrixFloat { d: u8, a: u8, b: u8, c: u8, depth: u8, element: Element, half: bool },
    MatrixInteger(MatrixInteger),
    MatrixDouble { d: u8, sources: [u8; 3], modify: [Modify; 3], round: Round },
    Transpose { d: u8, a: Source },
    SpaceTest { out: u8, space: Space, register: u8, offset: i32 },
    Shuffle { mode: Shuffle, out: u8, d: u8, a: Source, lane: Source, limit: Source },
    Match { all: bool, wide: bool, out: u8, d: u8, a: u8 },
    Reduce { reduction: Reduction, signed: bool, d: u8, a: Source },
    Vote { vote: Vote, d: u8, out: u8, p: Condition, uniform: bool },
    ReadSpecial { d: u8, special: SpecialRegister, wide: bool },
    ReadSpecialUniform { d: u8, special: SpecialRegister },
    ToUniform { d: u8, out: u8, a: Source },
    Branch { p: Condition, target: u32 },
    BranchTogether { p: Condition, target: u32 },
    BranchIndirect { p: Condition, register: u8, offset: i64 },
    BranchIf { p: Condition, mask: Source, converged: bool, target: u32 },
    Exit { p: Condition },
    Join { p: Condition, barrier: u8 },
    Synchronise { p: Condition, barrier: u8 },
    Leave { p: Condition, barrier: u8 },
    SaveBarrier { d: u8, barrier: u8, clear: bool },
    CopyBarrier { d: u8, barrier: u8, clear: bool },
    RestoreBarrier { barrier: u8, source: Source },
    WarpSync { p: Condition, mask: Source },
    Yield,
    Barrier { id: Source, threads: Source, arrival: Arrival, p: Condition },
    BarrierResult { d: u8, out: u8 },
    Trap,
}
