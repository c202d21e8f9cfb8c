//! Operations as they are executed: every choice made, operands at hand.

use crate::isa::{Modify, PT, Part, SpecialRegister};

/// Where a 32-bit source comes from.
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
    /// A source taken as it is.
    pub(crate) const fn plain(origin: Origin) -> Self {
        Self { origin, part: Part::Whole, keep: !0, flip: 0, plus: 0 }
    }

    pub(crate) const fn zero() -> Self {
        Self::plain(Origin::Immediate(0))
    }

    /// Whether nothing is done to the value.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.part, Part::Whole) && self.keep == !0 && self.flip == 0 && self.plus == 0
    }

    /// The value, of a lane's raw one.
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

    /// The bits of the value that are nothing, of those of a lane's raw one.
    pub(crate) fn unset(&self, unset: u32) -> u32 {
        let unset = self.part(unset) & self.keep;
        if self.plus == 0 { unset } else { carried(unset) }
    }
}

/// The bits of a sum that bits without a value reach.
pub(crate) const fn carried(unset: u32) -> u32 {
    unset | unset.wrapping_neg()
}

/// A predicate source; of the warp's predicates when uniform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) index: u8,
    pub(crate) not: bool,
    pub(crate) uniform: bool,
}

/// What always holds.
pub(crate) const ALWAYS: Condition = Condition { index: PT, not: false, uniform: false };

/// How two truths are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// A comparison: which of less, equal, greater and unordered hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relation {
    pub(crate) less: bool,
    pub(crate) equal: bool,
    pub(crate) greater: bool,
    pub(crate) unordered: bool,
}

/// IEEE rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    Nearest,
    Down,
    Up,
    Zero,
}

/// Number formats of a single-precision operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Float {
    pub(crate) round: Round,
    /// Denormal sources and results are zero.
    pub(crate) flush: bool,
    /// Zero times anything is zero.
    pub(crate) zero_wins: bool,
    /// Results are clamped to 0..1, and not-a-number is 0.
    pub(crate) saturate: bool,
}

/// An operation on pairs of halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    /// The pairs are bfloat16.
    pub(crate) brain: bool,
    pub(crate) flush: bool,
    pub(crate) saturate: bool,
    /// Negative results are zero.
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
    /// The amount wraps; otherwise it stops at the width.
    pub(crate) wrap: bool,
    pub(crate) signed: bool,
    /// Amounts go to 63 in place of 31.
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

/// What a lane computes from at most three words and a truth. `Select` is the first word where the truth
/// holds, else the second; `PermuteBy` a permutation by one of four selectors; `FloatScaled` a product
/// times a power of two, rounded once; `PackedAddWide` the sum of the low halves in single precision;
/// `PackIntegers` two integers, or numbers if they are to be rounded, saturated above the low bits of a
/// third.
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

/// What a lane computes with 64-bit numbers. `MultiplyAdd` is a 64-bit product of 32-bit numbers and a
/// 64-bit number, which may be negated, with carries; the whole, its upper word or, when narrow, its
/// lower one. `Convert` goes between floating-point formats.
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

/// What is compared. Of `UpperIntegers` the lower words' outcome is the extra condition; `DoubleExtreme`
/// is whether the first is the minimum or maximum, `Division` whether a division needs care.
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

/// The size of a memory access, and what a load does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) bytes: u8,
    pub(crate) signed: bool,
}

/// Which memory.
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

/// What an atomic operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Atomic {
    Add,
    /// One more for each lane, whatever the operand.
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
    /// As above; the result is 1 if it was stored, else 0.
    CompareStore,
}

/// What an atomic operation works on.
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

/// The numbers a matrix is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Half,
    Brain,
    Tensor,
}

/// A product of integer matrices, of which the left one has eight or sixteen rows.
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
    /// Elements are compared and not multiplied: 1 where they differ.
    pub(crate) differ: bool,
}

impl MatrixInteger {
    /// Registers of the left fragment, the right one, and the sum.
    pub(crate) fn words(&self) -> [u8; 3] {
        let column = (self.depth * u16::from(self.kinds[0].bits) / 128) as u8;
        [column * self.rows / 8, column, self.rows / 4]
    }
}

/// A reduction of a block barrier.
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

/// What is shifted besides the word itself: nothing, so that the lower word counts, or an upper word or
/// the word's sign, so that the upper one counts.
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

/// Logic with a truth about the result.
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

/// A comparison, combined with a truth.
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

/// An atomic operation on memory. `out` is whether it was done: floating-point ones are not on shared or
/// local memory.
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

/// A pre-decoded operation. `BranchTogether` is taken when all lanes would take it, else by none
/// (inferred: the compiler jumps so over a region with a convergence barrier, in front of it);
/// `BranchIndirect` goes to the register pair's value and an offset; `Illegal` is not understood.
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
