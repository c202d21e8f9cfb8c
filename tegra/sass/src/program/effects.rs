//! Registers and predicates that an operation reads and writes, for the checks.

use std::ops::Range;

use super::Step;
use super::op::{
    AtomicOp, Carry, Comparison, Condition, Element, Format, Lane, LogicTest, Op, Origin, Pointer,
    ShiftAddCarry, Size, Source, Space, Upper, Wide, WideOp,
};
use crate::isa::{PT, RZ};

/// Registers, predicates and constants of an operation. Uniform registers are numbered from 256.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Registers that the result depends on.
    pub(crate) reads: Vec<u16>,
    /// Registers used as an address, in a branch or in a store: they must be defined.
    pub(crate) needs: Vec<u16>,
    /// Register that is only stored, and the bits of it that are.
    pub(crate) stored: Option<(u16, u32)>,
    /// Registers written.
    pub(crate) writes: Vec<u16>,
    /// Mask of predicates that the result depends on.
    pub(crate) predicate_reads: u8,
    /// Mask of predicates that decide control flow or a store: they must be defined.
    pub(crate) predicate_needs: u8,
    /// Mask of predicates written.
    pub(crate) predicate_writes: u8,
    /// Ranges of constant banks that are read; the whole bank if a register indexes it.
    pub(crate) constants: Vec<(u8, Range<u32>)>,
}

/// Number of the first uniform register.
pub(crate) const UNIFORM: u16 = 256;

impl Effects {
    /// Number of registers used: the highest plus one.
    pub(crate) fn registers(&self) -> u32 {
        let all = self.reads.iter().chain(&self.needs).chain(&self.writes);
        all.filter(|&&register| register < UNIFORM).map(|&r| u32::from(r) + 1).max().unwrap_or(0)
    }

    pub(crate) fn of(step: &Step) -> Self {
        let mut effects = Self::default();
        effects.operation(&step.op);
        let way = matches!(
            step.op,
            Op::Branch { .. }
                | Op::BranchTogether { .. }
                | Op::BranchIf { .. }
                | Op::BranchIndirect { .. }
                | Op::Exit { .. }
                | Op::Store { .. }
                | Op::Atomic(_)
                | Op::CopyAsync { .. }
        );
        if way {
            effects.decides(step.guard);
        } else {
            effects.reads(step.guard);
        }
        effects
    }

    fn reads(&mut self, condition: Condition) {
        if !condition.uniform && condition.index != PT {
            self.predicate_reads |= 1 << condition.index;
        }
    }

    fn decides(&mut self, condition: Condition) {
        if !condition.uniform && condition.index != PT {
            self.predicate_needs |= 1 << condition.index;
        }
    }

    fn sets(&mut self, predicate: u8, uniform: bool) {
        if !uniform && predicate != PT {
            self.predicate_writes |= 1 << predicate;
        }
    }

    fn source(&mut self, source: &Source) {
        self.reads.extend(register(source));
        self.constant(source);
    }

    fn sources<'a>(&mut self, sources: impl IntoIterator<Item = &'a Source>) {
        sources.into_iter().for_each(|source| self.source(source));
    }

    fn constant(&mut self, source: &Source) {
        if let Origin::Constant { bank, offset } = source.origin {
            self.constants.push((bank, offset..offset.saturating_add(4)));
        }
    }

    fn constant_at(&mut self, bank: u8, offset: i32, size: Size, indexed: bool) {
        let first = offset.max(0) as u32;
        let bytes = if indexed { 0..u32::MAX } else { first..first + u32::from(size.bytes) };
        self.constants.push((bank, bytes));
    }

    fn registers_of(first: u8, count: u8) -> impl Iterator<Item = u16> {
        (0..u16::from(count))
            .map(move |step| u16::from(first) + step)
            .filter(move |&register| first != RZ && register < u16::from(RZ))
    }

    fn read(&mut self, first: u8, count: u8) {
        self.reads.extend(Self::registers_of(first, count));
    }

    fn need(&mut self, first: u8, count: u8) {
        self.needs.extend(Self::registers_of(first, count));
    }

    fn write(&mut self, first: u8, count: u8) {
        self.writes.extend(Self::registers_of(first, count));
    }

    fn write_uniform(&mut self, first: u8, count: u8) {
        self.writes.extend((0..count).map(|step| UNIFORM + u16::from(first + step)));
    }

    fn destination(&mut self, first: u8, count: u8, uniform: bool) {
        if uniform { self.write_uniform(first, count) } else { self.write(first, count) }
    }

    fn pointer(&mut self, pointer: &Pointer) {
        self.need(pointer.register, if pointer.wide { 2 } else { 1 });
        if let Some(uniform) = pointer.uniform {
            self.needs.push(UNIFORM + u16::from(uniform));
        }
    }

    fn operation(&mut self, op: &Op) {
        match op {
            Op::Alu { lane, d, a, b, c, p } => {
                self.lane(lane, [a, b, c]);
                self.reads(*p);
                self.write(*d, 1);
            }
            Op::UniformAlu { lane, d, a, b, c, p } => {
                self.lane(lane, [a, b, c]);
                self.reads(*p);
                self.write_uniform(*d, 1);
            }
            Op::Carry(Carry { d, a, b, c, out, carry, uniform, .. }) => {
                self.sources([a, b, c]);
                for condition in carry.iter().flatten() {
                    self.reads(*condition);
                }
                self.destination(*d, 1, *uniform);
                out.iter().for_each(|&predicate| self.sets(predicate, *uniform));
            }
            Op::ShiftAddCarry(ShiftAddCarry { d, a, b, upper, carry, out, uniform, .. }) => {
                self.sources([a, b]);
                if let Upper::Word(upper) = upper {
                    self.source(upper);
                }
                if let Some(carry) = carry {
                    self.reads(*carry);
                }
                self.destination(*d, 1, *uniform);
                self.sets(*out, *uniform);
            }
            Op::LogicTest(LogicTest { table, d, a, b, c, out, p, uniform, .. }) => {
                self.lane(&Lane::Logic { table: *table }, [a, b, c]);
                self.reads(*p);
                self.destination(*d, 1, *uniform);
                self.sets(*out, *uniform);
            }
            Op::Wide(WideOp { wide, d, a, b, c, out, carry, uniform }) => {
                self.sources(a.iter().chain(b).chain(c));
                if let Some(carry) = carry {
                    self.reads(*carry);
                }
                self.destination(*d, wide.words(), *uniform);
                self.sets(*out, *uniform);
            }
            Op::Compare(Comparison { out, a, b, p, extra, uniform, .. }) => {
                self.sources(a.iter().chain(b));
                self.reads(*p);
                self.reads(*extra);
                out.iter().for_each(|&predicate| self.sets(predicate, *uniform));
            }
            Op::Predicates { out, sources, uniform, .. } => {
                sources.iter().for_each(|&condition| self.reads(condition));
                out.iter().for_each(|&predicate| self.sets(predicate, *uniform));
            }
            Op::FromPredicates { d, base, mask, .. } => {
                self.sources([base, mask]);
                self.predicate_reads |= chosen(mask);
                self.write(*d, 1);
            }
            Op::ToPredicates { source, mask } => {
                self.sources([source, mask]);
                self.predicate_writes |= chosen(mask);
            }
            Op::LeadingTest { d, a, out, .. } => {
                self.source(a);
                self.write(*d, 1);
                self.sets(*out, false);
            }
            _ => self.exchange(op),
        }
    }

    fn exchange(&mut self, op: &Op) {
        match op {
            Op::Shuffle { out, d, a, lane, limit, .. } => {
                self.sources([a, lane, limit]);
                self.write(*d, 1);
                self.sets(*out, false);
            }
            Op::Match { wide, out, d, a, .. } => {
                self.read(*a, if *wide { 2 } else { 1 });
                self.write(*d, 1);
                self.sets(*out, false);
            }
            Op::Reduce { d, a, .. } => {
                self.source(a);
                self.write_uniform(*d, 1);
            }
            Op::ToUniform { d, out, a } => {
                self.source(a);
                self.write_uniform(*d, 1);
                self.sets(*out, false);
            }
            Op::Signs { out, sources, .. } => {
                self.sources(sources);
                out.iter().for_each(|&predicate| self.sets(predicate, false));
            }
            Op::Transpose { d, a } => {
                self.source(a);
                self.write(*d, 1);
            }
            Op::Vote { d, out, p, uniform, .. } => {
                self.reads(*p);
                self.destination(*d, 1, *uniform);
                self.sets(*out, *uniform);
            }
            Op::ReadSpecial { d, wide, .. } => self.write(*d, if *wide { 2 } else { 1 }),
            Op::ReadSpecialUniform { d, .. } => self.write_uniform(*d, 1),
            Op::MatrixFloat { d, a, b, c, depth, element, half } => {
                let words = depth * if *element == Element::Tensor { 2 } else { 1 } / 4;
                self.read(*a, words);
                self.read(*b, words / 2);
                self.read(*c, if *half { 2 } else { 4 });
                self.write(*d, if *half { 2 } else { 4 });
            }
            Op::MatrixInteger(product) => {
                let [left, right, sum] = product.words();
                self.read(product.a, left);
                self.read(product.b, right);
                self.read(product.c, sum);
                self.write(product.d, sum);
            }
            Op::MatrixDouble { d, sources: [a, b, c], .. } => {
                self.read(*a, 2);
                self.read(*b, 2);
                self.read(*c, 4);
                self.write(*d, 4);
            }
            _ => self.memory(op),
        }
    }

    fn memory(&mut self, op: &Op) {
        match op {
            Op::LoadConstant { d, bank, register, offset, size } => {
                self.constant_at(*bank, *offset, *size, *register != RZ);
                self.need(*register, 1);
                self.write(*d, words(*size));
            }
            Op::LoadUniform { d, bank, index, offset, size } => {
                self.constant_at(*bank, *offset, *size, index.is_some());
                self.needs.extend(index.map(|index| UNIFORM + u16::from(index)));
                self.write_uniform(*d, words(*size));
            }
            Op::Load { d, pointer, size } => {
                self.pointer(pointer);
                self.write(*d, words(*size));
            }
            Op::Store { pointer, source, size } => {
                self.pointer(pointer);
                // Functions save possibly undefined registers on the stack, where the state of each
                // word is tracked.
                if pointer.space != Space::Local {
                    self.need(*source, words(*size));
                    self.stored(pointer, *source, *size);
                }
            }
            Op::Atomic(AtomicOp { kind, out, d, pointer, source, source2, .. }) => {
                self.sets(*out, false);
                self.pointer(pointer);
                self.need(*source, kind.words());
                self.need(*source2, kind.words());
                if let Some(d) = d {
                    self.write(*d, kind.words());
                }
            }
            Op::CopyAsync { to, from, p, .. } => {
                self.pointer(to);
                self.pointer(from);
                self.decides(*p);
            }
            Op::CacheLine { pointer } => self.pointer(pointer),
            Op::LoadMatrix { d, pointer, count, .. } => {
                self.pointer(pointer);
                self.write(*d, *count);
            }
            Op::SpaceTest { out, register, .. } => {
                self.read(*register, 2);
                self.sets(*out, false);
            }
            Op::Branch { p, .. }
            | Op::BranchTogether { p, .. }
            | Op::Exit { p }
            | Op::Join { p, .. }
            | Op::Synchronise { p, .. }
            | Op::Leave { p, .. } => self.decides(*p),
            Op::BranchIndirect { p, register, .. } => {
                self.decides(*p);
                self.need(*register, 2);
            }
            Op::BranchIf { p, mask, .. } | Op::WarpSync { p, mask } => {
                self.decides(*p);
                self.needed(mask);
            }
            Op::SaveBarrier { d, .. } => self.write(*d, 1),
            Op::RestoreBarrier { source, .. } => self.needed(source),
            Op::Barrier { id, threads, p, .. } => {
                self.needed(id);
                self.needed(threads);
                self.reads(*p);
            }
            Op::BarrierResult { d, out } => {
                self.write(*d, 1);
                self.sets(*out, false);
            }
            _ => {}
        }
    }

    /// Records the bits that a narrow store writes, unless the register is also part of the
    /// address.
    fn stored(&mut self, pointer: &Pointer, source: u8, size: Size) {
        let (first, last) = (pointer.register, pointer.register.saturating_add(1));
        if size.bytes < 4 && source != first && !(pointer.wide && source == last) {
            self.stored = Some((u16::from(source), (1 << (8 * size.bytes)) - 1));
        }
    }

    fn needed(&mut self, source: &Source) {
        self.needs.extend(register(source));
        self.constant(source);
    }

    /// Adds the sources of an operation, except those that cannot affect the result.
    fn lane(&mut self, lane: &Lane, sources: [&Source; 3]) {
        if let Lane::Logic { table } = lane {
            let differs = |shift: u8, mask: u8| table >> shift & mask != table & mask;
            let matters = [differs(4, 0x0f), differs(2, 0x33), differs(1, 0x55)];
            for (source, matters) in sources.into_iter().zip(matters) {
                if matters {
                    self.source(source);
                }
            }
            return;
        }
        if let (Lane::Permute, Origin::Immediate(select)) = (lane, sources[1].origin) {
            for byte in 0..4 {
                self.source(if select >> (4 * byte) & 4 == 0 { sources[0] } else { sources[2] });
            }
            return;
        }
        self.sources(sources);
    }
}

/// Returns the register of a source.
fn register(source: &Source) -> Option<u16> {
    match source.origin {
        Origin::Register(index) => Some(u16::from(index)),
        Origin::Uniform(index) => Some(UNIFORM + u16::from(index)),
        Origin::Constant { .. } | Origin::Immediate(_) => None,
    }
}

/// Returns the predicates that a mask selects; all if it is not an immediate.
fn chosen(mask: &Source) -> u8 {
    match mask.origin {
        Origin::Immediate(bits) => mask.modify(bits) as u8 & 0x7f,
        _ => 0x7f,
    }
}

/// Number of registers of an access.
fn words(size: Size) -> u8 {
    size.bytes.div_ceil(4)
}

impl Wide {
    /// Number of result registers.
    pub(crate) fn words(self) -> u8 {
        match self {
            Self::MultiplyAdd { high, narrow, .. } => 2 - u8::from(high || narrow),
            Self::Convert { to, .. } | Self::FromInteger { to, .. } => {
                1 + u8::from(to == Format::Double)
            }
            Self::ToInteger { to, .. } => to.bits.div_ceil(32),
            Self::DoubleAdd(_)
            | Self::DoubleMultiply(_)
            | Self::DoubleFused(_)
            | Self::RoundToInteger { .. } => 2,
        }
    }
}

impl super::op::AtomicType {
    /// Number of registers of an operand.
    pub(crate) fn words(self) -> u8 {
        match self {
            Self::U64 | Self::S64 | Self::F64 => 2,
            Self::U32 | Self::S32 | Self::F32 | Self::F16x2 => 1,
        }
    }
}
