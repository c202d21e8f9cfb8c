//! Operands of an instruction as sources, conditions and sizes of operations.

use super::op::{
    Combine, Condition, Float, Format, Integer, Origin, Packed, Pointer, Relation, Round, Size,
    Source, Space,
};
use crate::isa::{Immediate, Instruction, Modifier, Modify, Operand, Part, RZ, URZ, Width};

/// Interpretation of negation and absolute value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    Integer,
    Float,
    Halves,
}

/// An instruction that is being lowered. `None` means that the combination is unknown.
pub(super) struct View<'a>(pub(super) &'a Instruction, pub(super) usize);

impl View<'_> {
    /// Returns the offset of the next instruction.
    pub(super) fn next(&self) -> i64 {
        self.1 as i64 + 16
    }

    pub(super) fn has(&self, modifier: Modifier) -> bool {
        self.0.has(modifier)
    }

    /// Returns the value of the first of these modifiers that the instruction has.
    pub(super) fn one_of<T: Copy>(&self, choices: &[(Modifier, T)]) -> Option<T> {
        choices.iter().find(|(modifier, _)| self.has(*modifier)).map(|(_, value)| *value)
    }

    pub(super) fn operand(&self, position: usize) -> Option<&Operand> {
        self.0.operands.get(position)
    }

    /// The register that an operand is, of the lane's or the warp's; `RZ` for the latter's zero.
    pub(super) fn register(&self, position: usize) -> Option<u8> {
        match *self.operand(position)? {
            Operand::Register { index, .. } | Operand::Matrix(index, _) => Some(index),
            Operand::Uniform { index, .. } => Some(index),
            _ => None,
        }
    }

    /// The predicate that an operand is, as a destination.
    pub(super) fn predicate(&self, position: usize) -> Option<u8> {
        match *self.operand(position)? {
            Operand::Predicate { index, .. } | Operand::UniformPredicate { index, .. } => {
                Some(index)
            }
            _ => None,
        }
    }

    pub(super) fn condition(&self, position: usize) -> Option<Condition> {
        match *self.operand(position)? {
            Operand::Predicate { index, not } => Some(Condition { index, not, uniform: false }),
            Operand::UniformPredicate { index, not } => {
                Some(Condition { index, not, uniform: true })
            }
            _ => None,
        }
    }

    /// A number that is no source of data.
    pub(super) fn number(&self, position: usize) -> Option<u32> {
        match *self.operand(position)? {
            Operand::Immediate(Immediate::Bits(bits)) => Some(bits),
            _ => None,
        }
    }

    pub(super) fn barrier(&self, position: usize) -> Option<u8> {
        match *self.operand(position)? {
            Operand::Barrier(index) => Some(index),
            _ => None,
        }
    }

    pub(super) fn target(&self, position: usize) -> Option<i64> {
        match *self.operand(position)? {
            Operand::Target(value) | Operand::Offset(value) => Some(value),
            _ => None,
        }
    }

    /// A 32-bit source.
    pub(super) fn source(&self, position: usize, number: Number) -> Option<Source> {
        self.word(position, number, 0)
    }

    /// The lower and upper words of a 64-bit source; modifications are the upper word's.
    pub(super) fn pair(&self, position: usize) -> Option<[Source; 2]> {
        if let Operand::Immediate(value) = self.operand(position)? {
            let (low, high) = match *value {
                Immediate::Double(high) => (0, high),
                Immediate::Signed(value) if self.has(Modifier::U32) => (value as u32, 0),
                Immediate::Signed(value) => (value as u32, (value >> 32) as u32),
                // The bits are the upper word of a double.
                Immediate::Bits(high) => (0, high),
                _ => return None,
            };
            let plain = |bits| Source::plain(Origin::Immediate(bits));
            return Some([plain(low), plain(high)]);
        }
        let mut low = self.word(position, Number::Float, 0)?;
        (low.keep, low.flip) = (!0, 0);
        Some([low, self.word(position, Number::Float, 1)?])
    }

    /// The words of a 64-bit integer, inverted if the source is; and whether it is negated.
    pub(super) fn integer_pair(&self, position: usize) -> Option<([Source; 2], bool)> {
        let mut pair = self.pair(position)?;
        let modify = self.modify(position);
        for word in &mut pair {
            word.keep = !0;
            word.flip = if modify.invert { !0 } else { 0 };
        }
        Some((pair, modify.negate))
    }

    /// Returns whether the first or second integer type of the instruction is signed.
    pub(super) fn type_signed(&self, which: usize) -> Option<bool> {
        self.0
            .modifiers
            .iter()
            .filter_map(|modifier| match modifier {
                Modifier::S8 | Modifier::S16 => Some(true),
                Modifier::U8 | Modifier::U16 => Some(false),
                _ => None,
            })
            .nth(which)
    }

    pub(super) fn modify(&self, position: usize) -> Modify {
        match self.operand(position) {
            Some(
                Operand::Register { modify, .. }
                | Operand::Uniform { modify, .. }
                | Operand::Constant { modify, .. },
            ) => *modify,
            _ => Modify::default(),
        }
    }

    fn word(&self, position: usize, number: Number, word: u8) -> Option<Source> {
        let origin = match *self.operand(position)? {
            Operand::Register { index: RZ, .. }
            | Operand::Matrix(RZ, _)
            | Operand::Uniform { index: URZ, .. } => Origin::Immediate(0),
            Operand::Matrix(index, _) => Origin::Register(index),
            Operand::Register { index, .. } => Origin::Register(index.checked_add(word)?),
            Operand::Uniform { index, .. } => Origin::Uniform(index.checked_add(word)?),
            Operand::Constant { bank, offset, register: RZ, .. } => {
                Origin::Constant { bank, offset: offset as u32 + 4 * u32::from(word) }
            }
            Operand::Immediate(value) => Origin::Immediate(match value {
                Immediate::Bits(bits)
                | Immediate::Float(bits)
                | Immediate::Double(bits)
                | Immediate::Half(bits)
                | Immediate::Halves(bits)
                | Immediate::Bfloats(bits) => bits,
                Immediate::Signed(value) => value as u32,
            }),
            _ => return None,
        };
        let modify = self.modify(position);
        if matches!(modify.part, Part::Float | Part::LowNegatedHigh) {
            return None;
        }
        let sign = match number {
            Number::Integer => 0,
            Number::Float => 0x8000_0000,
            Number::Halves => 0x8000_8000,
        };
        let mut source = Source { part: modify.part, ..Source::plain(origin) };
        if modify.absolute {
            source.keep = !sign;
        }
        if modify.invert {
            source.flip = !0;
        }
        if modify.negate {
            match number {
                Number::Integer => (source.flip, source.plus) = (!0, 1),
                Number::Float | Number::Halves => source.flip = sign,
            }
        }
        Some(source)
    }

    /// Replaces negated integers by their complement; returns how many there were, for the caller
    /// to add.
    pub(super) fn take_ones(sources: &mut [Source]) -> u8 {
        let mut ones = 0;
        for source in sources {
            ones += source.plus as u8;
            source.plus = 0;
        }
        ones
    }

    pub(super) fn round(&self) -> Round {
        self.one_of(&[
            (Modifier::Rm, Round::Down),
            (Modifier::Rp, Round::Up),
            (Modifier::Rz, Round::Zero),
            (Modifier::Floor, Round::Down),
            (Modifier::Ceil, Round::Up),
            (Modifier::Trunc, Round::Zero),
        ])
        .unwrap_or(Round::Nearest)
    }

    pub(super) fn float(&self) -> Float {
        Float {
            round: self.round(),
            flush: self.has(Modifier::Ftz) || self.has(Modifier::Fmz),
            zero_wins: self.has(Modifier::Fmz),
            saturate: self.has(Modifier::Sat),
        }
    }

    /// The format of a packed operation; one with single-precision results is not known.
    pub(super) fn packed(&self) -> Option<Packed> {
        if self.has(Modifier::F32) || self.has(Modifier::Fmz) {
            return None;
        }
        Some(Packed {
            brain: self.has(Modifier::Bf16V2),
            flush: self.has(Modifier::Ftz),
            saturate: self.has(Modifier::Sat),
            relu: self.has(Modifier::Relu),
        })
    }

    pub(super) fn combine(&self) -> Combine {
        // The comparison's modifiers precede the combination, so search from the end.
        match self
            .0
            .modifiers
            .iter()
            .rev()
            .find(|modifier| matches!(modifier, Modifier::And | Modifier::Or | Modifier::Xor))
        {
            Some(Modifier::Or) => Combine::Or,
            Some(Modifier::Xor) => Combine::Xor,
            _ => Combine::And,
        }
    }

    pub(super) fn relation(&self) -> Option<Relation> {
        let relation =
            |less, equal, greater, unordered| Relation { less, equal, greater, unordered };
        self.one_of(&[
            (Modifier::F, relation(false, false, false, false)),
            (Modifier::Lt, relation(true, false, false, false)),
            (Modifier::Eq, relation(false, true, false, false)),
            (Modifier::Le, relation(true, true, false, false)),
            (Modifier::Gt, relation(false, false, true, false)),
            (Modifier::Ne, relation(true, false, true, false)),
            (Modifier::Ge, relation(false, true, true, false)),
            (Modifier::Num, relation(true, true, true, false)),
            (Modifier::Nan, relation(false, false, false, true)),
            (Modifier::Ltu, relation(true, false, false, true)),
            (Modifier::Equ, relation(false, true, false, true)),
            (Modifier::Leu, relation(true, true, false, true)),
            (Modifier::Gtu, relation(false, false, true, true)),
            (Modifier::Neu, relation(true, false, true, true)),
            (Modifier::Geu, relation(false, true, true, true)),
            (Modifier::T, relation(true, true, true, true)),
        ])
    }

    /// The integer that a conversion names; without a word, a signed 32-bit one.
    pub(super) fn integer(&self) -> Integer {
        let integer = |bits, signed| Integer { bits, signed };
        self.one_of(&[
            (Modifier::U8, integer(8, false)),
            (Modifier::S8, integer(8, true)),
            (Modifier::U16, integer(16, false)),
            (Modifier::S16, integer(16, true)),
            (Modifier::U32, integer(32, false)),
            (Modifier::U64, integer(64, false)),
            (Modifier::S64, integer(64, true)),
        ])
        .unwrap_or(integer(32, true))
    }

    /// The integer that two are packed as.
    pub(super) fn packed_integer(&self) -> Option<Integer> {
        self.one_of(&[
            (Modifier::U16, Integer { bits: 16, signed: false }),
            (Modifier::S16, Integer { bits: 16, signed: true }),
            (Modifier::U8, Integer { bits: 8, signed: false }),
            (Modifier::S8, Integer { bits: 8, signed: true }),
            (Modifier::U4, Integer { bits: 4, signed: false }),
            (Modifier::S4, Integer { bits: 4, signed: true }),
            (Modifier::U2, Integer { bits: 2, signed: false }),
            (Modifier::S2, Integer { bits: 2, signed: true }),
        ])
    }

    /// The floating-point format that a conversion names; without a word, single precision.
    pub(super) fn format(&self) -> Format {
        self.one_of(&[(Modifier::F16, Format::Half), (Modifier::F64, Format::Double)])
            .unwrap_or(Format::Single)
    }

    /// The size of a memory access; without a word, 32 bits.
    pub(super) fn size(&self) -> Size {
        let size = |bytes, signed| Size { bytes, signed };
        self.one_of(&[
            (Modifier::U8, size(1, false)),
            (Modifier::S8, size(1, true)),
            (Modifier::U16, size(2, false)),
            (Modifier::S16, size(2, true)),
            (Modifier::B64, size(8, false)),
            (Modifier::B128, size(16, false)),
        ])
        .unwrap_or(size(4, false))
    }

    pub(super) fn pointer(&self, position: usize, space: Space) -> Option<Pointer> {
        let Operand::Address(address) = *self.operand(position)? else { return None };
        // Addresses without a descriptor are pairs as well.
        let wide = match address.width {
            Width::Pair => true,
            Width::Low => false,
            Width::Plain => matches!(space, Space::Global | Space::Generic),
        };
        Some(Pointer {
            space,
            register: address.register,
            wide,
            scale: address.scale,
            uniform: address.uniform.filter(|&uniform| uniform != URZ),
            offset: address.offset,
        })
    }
}
